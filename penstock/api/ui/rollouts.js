'use strict';
// Rollouts: the step of a new version, and what it and the stable one did in it, beside the limits.

function showRollouts(rollouts) {
  const places = byId('rollouts');
  const keys = rollouts.map((each) => `${each.name}\n${each.version}`);
  if (places.dataset.keys !== keys.join('\0')) {
    places.dataset.keys = keys.join('\0');
    places.replaceChildren(...rollouts.map(() => make('section', {}, make('div'), make('div'))));
  }
  rollouts.forEach((rollout, i) => {
    const [now, examples] = places.children[i].children;
    now.replaceChildren(...rolloutNow(rollout));
    const key = JSON.stringify(rollout.examples ?? []);
    if (examples.dataset.shown === key) return;  // so that what is open stays open
    examples.dataset.shown = key;
    examples.replaceChildren(...exampleList(rollout.examples ?? []));
  });
}

function rolloutNow(rollout) {
  const running = rollout.state === 'running';
  const title = `${called(rollout)}: version ${rollout.version} ${running ? 'beside' : 'in place of'} ${rollout.stable}`;
  const at = Number(rollout.step) - 1;
  const shares = [...rollout.shares.map((each) => `${each} %`), 'all'];
  const done = rollout.state === 'promoted' ? shares.length : at;
  const steps = shares.map((text, i) => {
    const here = running && i === at;
    const mark = i < done ? '✓ ' : here ? '● ' : '';
    return make('li', { class: here ? 'here' : i < done ? 'good' : 'soft', 'aria-current': here ? 'step' : null }, mark, text);
  });
  const ended = { promoted: ['✓ gets all requests', 'good'], 'taken back': ['✕ taken back', 'bad'] }[rollout.state];
  const why = ended ? [make('span', { class: ended[1] }, ended[0]), rollout.why && `: ${rollout.why}`] : [rollout.held < rollout.hold ? '' : rollout.why];  // the table has these seconds
  const found = [make('h3', {}, title), make('ol', { class: 'steps', 'aria-label': 'Steps' }, ...steps), make('p', {}, ...why)];
  return running && rollout.seen ? [...found, comparison(rollout)] : found;
}

/** Both versions in this step, and by how much the new one may be worse. */
function comparison({ version, stable, limits, seen, held, hold }) {
  const row = (title, read, limit) => tableRow(title, numberCell(read(seen.stable)), numberCell(read(seen.new)), numberCell(limit));
  const ms = (seconds) => time(seconds === null ? null : 1000 * seconds);
  const known = (limit, text) => (limit === null ? '–' : text(limit));
  const rows = [
    row('Answers', (each) => count(each.answers), `at least ${count(limits.samples)}`),
    row('Failed', (each) => (each.answers ? percent(each.failed / each.answers) : '–'),
      known(limits.error_rate, (limit) => `${percent(limit)} more`)),
    row('p99', (each) => ms(each.p99),
      known(limits.p99_ratio, (limit) => `${limit} times${seen.stable.p99 === null ? '' : `, ${ms(limit * seen.stable.p99)}`}`)),
    row('Differ', (each) => (each.compared ? percent(each.differed / each.compared) : '–'), known(limits.disagreement, percent)),
  ];
  const heads = [['In this step'], [`Version ${stable}`, true], [`Version ${version}`, true], ['Limit', true]];
  const caption = `The step has lasted ${digits(held, 0)} s, and lasts at least ${digits(hold, 0)} s`;
  return make('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption }, headedTable(caption, heads, rows));
}

function exampleList(examples) {
  if (!examples.length) return [];
  const shown = examples.map((each) => make('li', {}, `log id ${each.log_id}: ${each.difference}`,
    make('pre', {}, `${each.answer}\n${each.other}`)));
  return [make('details', {}, make('summary', {}, `${several(examples.length, 'answer')} that differ`), make('ul', {}, ...shown))];
}
