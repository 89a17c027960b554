'use strict';
// One request in the panel: its facts, its time by part, and its path through the graph.

const PARTS = ['entry', 'queue', 'transfer in', 'preprocess', 'process', 'postprocess', 'transfer out', 'run', 'unfinished'];
const MEANING = {
  entry: 'entry: it waited until the graph had room',
  run: 'run: how long its parts took is not known',
  unfinished: 'unfinished: the request ended first',
};
const MATES = 12;             // requests of a batch, or beside it, that are named

const kindOf = (part) => part.replace(' ', '-');

/** Show a request of the service, by one of its ids. */
async function openRequest(id) {
  nameInAddress('request', id);
  const { hash } = location;
  const answer = await ask(`ui/requests/${encodeURIComponent(id)}`).catch(() => null);
  const request = answer?.ok ? await answer.json() : null;
  const missing = request ? '' : answer ? await messageOf(answer) : 'The service does not answer.';
  if (location.hash !== hash) return;  // something else was opened meanwhile
  if (request) showTimeline(request);
  else showRequest(`Request ${id}`, make('p', { class: 'note' }, missing));
}

/** Show a request of a list; a refused one has no data id, and no more than the list has of it. */
function openListed(request) {
  if (request.id !== null) return openRequest(request.id);
  if (request.traceparent) nameInAddress('request', request.traceparent.split('-')[1]);
  else nameInAddress('');
  return showTimeline(request);
}

function showRequest(title, ...shown) {
  opened = null;
  say(byId('panel-title'), title);
  byId('panel-body').replaceChildren(...shown);
  openPanel();
}

function showTimeline(request) {
  const shown = [requestFacts(request)];
  if (request.text) shown.push(make('p', { class: 'note' }, request.text));
  if (request.exception) shown.push(raised(request.exception));
  if (request.steps) shown.push(sums(request), gantt(request), stepTable(request.steps));
  showRequest(request.id === null ? 'A refused request' : `Request ${request.id}`, ...shown);
}

/** The error of a request in words; `kind` is of the element with the exception's type. */
function faultOf({ error, error_type: type }, kind = null) {
  return [`✕\u00a0${error}`, type ? make('span', { class: kind }, ` (${type})`) : null];
}

function routeOf(request) {
  return [request.method, request.route, request.graph && `(${request.graph})`].filter(Boolean).join(' ');
}

/** The pieces of an answer in words: how many, when the first one was there, how fast the others, and the end. */
function piecesOf({ stream: { pieces, first, rate }, error }) {
  const more = pieces > 1 && rate !== null ? `, then ${digits(rate, 1)} a second` : '';
  return `${pieces}, the first after ${time(first)}${more}; ${error ? `ended by ${error}` : 'complete'}`;
}

function requestFacts(request) {
  const good = `✓ ${request.status ? `status ${request.status}` : 'ok'}`;
  return make('dl', { class: 'facts' },
    fact('Time', time(request.ms)),
    fact('Outcome', request.error ? make('span', { class: 'bad' }, ...faultOf(request)) : good),
    fact('Route', routeOf(request) || '–'),
    request.stream ? fact('Pieces', piecesOf(request)) : null,
    request.caller ? fact('Caller', request.caller) : null,
    fact('Log id', request.log_id),
    fact('Engine', String(request.engine)),
    fact('Ended', ago(request.ago)),
    request.traceparent
      ? make('div', { class: 'wide' }, make('dt', {}, 'traceparent'), make('dd', {}, make('code', {}, request.traceparent)))
      : null);
}

/** The exception behind a request's error. */
function raised({ type, op, traceback }) {
  return make('section', {}, make('h3', {}, `${type} in ${op || 'the service'}`),
    traceback ? make('pre', { class: 'traceback', tabindex: '0', 'aria-label': 'Traceback' }, traceback)
      : make('p', { class: 'soft' }, 'Its traceback is not known.'));
}

/** The times of the request's parts, which add up to its time. */
function sums(request) {
  const whole = request.ms;
  const outer = [
    ['unpack: decode the request', request.unpack], ['entry: wait until the graph has room', request.entry],
    ['in ops', request.ops], ['between ops', request.between], ['pack: encode and send the answer', request.pack],
  ];
  return tableSection('Time by part', 'Parts of the request, which add up to its time', [
    ...outer.map(([title, ms]) => tableRow(title, numberCell(time(ms), { 'data-ms': ms }), numberCell(share(ms, whole)))),
    tableRow('from the first byte to the last', numberCell(time(whole), { 'data-whole': whole }), numberCell('100 %')),
  ], { id: 'sums' });
}

/** A lane for each step, over the time of the request. */
function gantt(request) {
  const { steps, ms: whole, unpack, entry, pack } = request;
  const percent = (ms) => `${whole > 0 ? 100 * ms / whole : 0}%`;
  const lane = (name, segments) => {
    const rail = make('span', { class: 'rail' });
    for (const [part, begin, end] of segments) {
      const made = make('span', { class: `seg p-${kindOf(part)}`, title: `${part}: ${time(end - begin)}` });
      made.style.left = percent(begin);
      made.style.width = percent(end - begin);
      rail.append(made);
    }
    return make('div', { class: 'lane' }, make('span', { title: name }, name), rail);
  };
  const used = PARTS.filter((part) => (part === 'entry' && entry > 0.01 * whole) || hasPart(steps, part));
  return make('section', {}, make('h3', {}, 'Path through the graph'),
    make('div', { class: 'gantt', role: 'img', 'aria-label': 'Picture of the times; the table below has them as numbers' },
      axis(whole),
      lane('unpack', [['unpack', 0, unpack], ['entry', unpack, unpack + entry]]),
      ...steps.map((step) => lane(step.attempt > 1 ? `${step.op} (attempt ${step.attempt})` : step.op,
        step.parts.map((each) => [each.name, each.begin, each.end]))),
      lane('pack', [['pack', whole - pack, whole]])),
    make('ul', { class: 'legend' }, ...used.map((part) => make('li', {}, swatch(kindOf(part)), MEANING[part] || part))));
}

function axis(whole) {
  const ticks = make('span', { class: 'rail' });
  for (const part of [0, 0.25, 0.5, 0.75]) {
    const tick = make('span', { class: part ? 'narrow-off' : '' }, time(part * whole));
    tick.style.left = `${100 * part}%`;
    ticks.append(tick);
  }
  const last = make('span', {}, time(whole));
  last.style.right = '0';
  ticks.append(last);
  return make('div', { class: 'lane axis' }, make('span'), ticks);
}

function hasPart(steps, part) { return steps.some((step) => step.parts.some((each) => each.name === part)); }

function stepTable(steps) {
  const parts = PARTS.filter((part) => hasPart(steps, part));
  const head = (title, kind) => make('th', { scope: 'col', class: kind }, title);
  const heads = [head('Op', ''), ...parts.map((part) => head(part, 'num')), head('Batch', '')];
  const cell = (step, part) => {
    const found = step.parts.filter((each) => each.name === part);
    return numberCell(found.length ? time(found.reduce((sum, each) => sum + each.end - each.begin, 0)) : '–');
  };
  const rows = steps.map((step) => tableRow(
    [step.op, step.attempt > 1 ? make('span', { class: 'warn' }, ` attempt ${step.attempt}`) : null],
    ...parts.map((part) => cell(step, part)), make('td', { class: 'batch' }, ...batchOf(step.batch))));
  return make('section', {}, make('h3', { id: 'steps-title' }, 'Steps as a table'),
    make('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-labelledby': 'steps-title' },
      make('table', {}, make('caption', { class: 'quiet' }, 'Times and batches of its steps'),
        make('thead', {}, make('tr', {}, ...heads)), make('tbody', {}, ...rows))));
}

/** The batch of a step in words, with links to the other requests in it. */
function batchOf(batch) {
  if (!batch) return ['–'];
  const mates = batch.requests.length;
  const rows = batch.rows === mates ? '' : `, ${several(batch.rows, 'row')}`;
  const beside = batch.beside ?? [];
  const words = [`No. ${batch.number}, worker ${batch.worker}, closed by ${batch.closed}, ${several(mates, 'request')}${rows}`];
  if (batch.elements) words.push(`, padding ${share(batch.filled_in, batch.elements)}`);
  if (batch.timed_out) words.push(make('span', { class: 'bad' }, ', timed out'));
  else if (batch.errors) words.push(make('span', { class: 'bad' }, `, ${batch.errors} of ${mates} failed`));
  if (mates > 1) words.push(make('br'), 'requests ', ...named(batch.requests));
  if (beside.length) words.push(make('br'), 'at the same time in this worker: ', ...named(beside));
  return words;
}

/** Requests as links; the first of many. */
function named(ids) {
  const links = ids.slice(0, MATES).flatMap((id, i) => [i ? ' ' : '', link(id, () => openRequest(id))]);
  return ids.length > MATES ? [...links, ` and ${ids.length - MATES} more`] : links;
}
