'use strict';
// The versions of each graph side by side, if any has another than its first, or versions come and go.

const STATES = { aside: 'being prepared', serving: 'serving', draining: 'finishing its requests' };

function showVersions() {
  const { now, from, seconds } = interval();
  const { graphs, rollouts = [], swaps = [], models = [] } = now.status;
  const names = new Set(graphs.map(({ name }) => name));
  const living = rollouts.length || swaps.length || models.length;
  const shown = living || graphs.some(({ version }) => version !== '1') || names.size < graphs.length;
  byId('versioned').hidden = !shown;
  if (!shown) return;
  const before = new Map(from.status.graphs.map((each) => [graphKey(each), each]));
  const heads = [['Graph'], ['Version'], ['State'], ['Share', true], ['Per second', true], ['Failed', true], ['p99', true],
    ['Differ', true], ['In flight', true]];
  const order = (graph) => graphs.findIndex(({ name }) => name === graph.name);
  const rows = graphs.toSorted((a, b) => order(a) - order(b)).map((graph) => {
    const then = before.get(graphKey(graph)) ?? graph;
    const gained = (read) => Math.max(0, read(graph) - read(then));
    const ended = gained(({ requests }) => total(requests.answers));
    const failed = gained(({ requests }) => total(requests.answers) - (requests.answers.ok ?? 0));
    const { same = 0, differed = 0 } = graph.copies ?? {};
    const state = [STATES[graph.state] ?? graph.state, graph.default && 'default', ...graph.labels ?? []].filter(Boolean);
    return tableRow(called(graph), make('td', {}, graph.version),
      make('td', { class: graph.state === 'serving' ? 'good' : 'warn' }, state.join(', ')),
      numberCell(graph.share === undefined ? '–' : percent(graph.share)),
      numberCell(rate(seconds > 0 ? ended / seconds : 0)),
      numberCell(ended ? percent(failed / ended) : '–', { class: failed ? 'num bad' : 'num' }),
      numberCell(time(newest(stored?.graphs.get(graphKey(graph)), 'p99'))),
      numberCell(same + differed ? percent(differed / (same + differed)) : '–'), numberCell(count(graph.inside)));
  });
  const caption = 'Rates and failures of the last seconds; a request that names no version goes to one by its share, or to the default one';
  byId('versions').replaceChildren(headedTable(caption, heads, rows));
  showUnserved(models, swaps);
  showRollouts(rollouts);
  showSwaps(swaps, now.at);
}

/** What is not served, and why: versions in a repository, and others that were to be swapped in. */
function showUnserved(models, swaps) {
  const listed = new Set(models.map(({ name }) => name));
  const latest = new Map();  // by model, of those that are over
  for (const each of swaps) {
    if (each.state !== 'running' && (each.versions.length || each.state === 'failed')) latest.set(each.model, each);
  }
  const texts = [
    ...models.filter(({ state, reason }) => state === 'UNAVAILABLE' && !['unloaded', 'not loaded'].includes(reason))
      .map(({ name, version, reason }) => `${name}${version ? ` version ${version}` : ''} is not served: ${reason}`),
    ...[...latest.values()].filter(({ state, model }) => state === 'failed' && !listed.has(model))
      .map((swap) => `${titleOf(swap)} is not served: ${reasonOf(swap)}`),
  ];
  const at = byId('unserved');
  const key = texts.join('\n');
  if (at.dataset.shown === key) return;
  at.dataset.shown = key;
  at.replaceChildren(...texts.map((text) => make('p', { class: 'note' }, text)));
}
