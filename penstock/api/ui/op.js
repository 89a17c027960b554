'use strict';
// One op in the panel.

const OF_OP = [
  {
    title: 'Requests per second', text: rate,
    lines: [['rate', 'ended', 'main'], ['errors', 'errors', 'bad'], ['timeouts', 'timeouts', 'warn']],
  },
  { title: 'Time of a batch', text: time, lines: [['p50', 'p50', 'main'], ['p99', 'p99', 'more']] },
  { title: 'Wait in the queue', text: time, lines: [['wait_p50', 'p50', 'main'], ['wait_p99', 'p99', 'more']] },
  { title: 'Requests in the queue', text: count, lines: [['waiting', 'waiting', 'main']] },
  { title: 'Workers’ time in batches', text: (part) => share(part, 1), lines: [['busy', 'busy', 'main']] },
  { title: 'Requests in a batch', text: (size) => digits(size, 1), lines: [['batch', 'mean', 'main']] },
];

// Each request at a seat is a batch of one, and the workers of the op are its seats.
const OF_SEATS = OF_OP.slice(0, -1).map((each) => ({
  ...each,
  title: { 'Time of a batch': 'Time at a seat', 'Workers’ time in batches': 'Seats taken' }[each.title] ?? each.title,
}));

let ofOp = null;              // the charts of the op in the panel

function openOp(key) {
  const [graph, version, name] = key.split('\n');
  nameInAddress('op', graph, version, name);
  opened = key;
  ofOp = charts(past.at(-1)?.ops.get(key)?.steps ? OF_SEATS : OF_OP);
  say(byId('panel-title'), `Op ${name}`);
  const missing = `There is no op ${name} in version ${version} of ${called({ name: graph })}.`;
  byId('panel-body').replaceChildren(make('p', { class: 'note' }, missing));
  showOp();
  openPanel();
  refreshHistory(name, true).then(() => { if (opened === key) showOp(); });
}

/** Show the op in the panel again; its last figures stay after the end of its version. */
function showOp() {
  const span = interval();
  if (!span.now.ops.has(opened)) return;
  const at = figures(opened, span);
  const { op } = at;
  const graph = span.now.status.graphs.find((each) => each.ops.some((one) => keyOf(each, one) === opened));
  const parts = [
    ['queue', 'queue', at.wait], ['transfer-in', 'transfer', at.transfer], ['preprocess', 'preprocess', at.preprocess],
    ['process', 'process', at.process], ['postprocess', 'postprocess', at.postprocess],
  ];
  const whole = parts.reduce((sum, [, , ms]) => sum + (ms || 0), 0);
  const times = tableSection(`Means of the last ${WINDOW} seconds`, 'Mean time of each part',
    parts.map(([kind, title, ms]) => tableRow([swatch(kind), title], numberCell(time(ms)), numberCell(share(ms || 0, whole)))));
  times.querySelector('table').before(stack(parts.map(([kind, , ms]) => [kind, ms])));
  const points = stored?.ops.get(op.name);
  if (points) ofOp.show(points, stored.every);
  const placed = placeElements([[shortName(graph, op), op]]);
  const closed = Object.entries(op.reasons).sort((a, b) => b[1] - a[1]);

  byId('panel-body').replaceChildren(
    factsOf(graph, at),
    make('section', { hidden: points ? null : '' }, make('h3', {}, `Last ${SPAN / 60} minutes`), ofOp.element),
    placed.length ? make('section', { class: 'places' }, make('h3', {}, 'Workers'), ...placed) : '',
    times,
    ...op.steps ? [] : [make('section', {}, make('h3', {}, 'Rows in a batch, since the start'), columns(op.rows.classes)),
    tableSection('Close reasons of batches, since the start', 'Close reasons of batches',
      closed.map(([why, batches]) => tableRow(why, numberCell(count(batches)), numberCell(share(batches, op.batches)))))]);
}

function factsOf(graph, at) {
  const { op } = at;
  const changes = Object.entries(op.worker_changes).map(([what, number]) => `${what} ${number}`).join(', ');
  const batchedBy = op.batching.by ?? 'nothing: one request at a time';
  const window = op.batching.window ? ` within ${time(1000 * op.batching.window)}` : '';
  return make('dl', { class: 'facts' },
    fact('State', `${MARK[at.state]} ${WORD[at.state]}`),
    fact('Graph', called(graph)),
    fact('After', op.inputs.length ? op.inputs.join(', ') : 'the request'),
    fact('Requests', `${rate(at.rate)} per second, ${count(op.samples)} in all`),
    op.steps ? null : fact('Batches', `${rate(at.batchRate)} per second, ${count(op.batches)} in all`),
    op.steps ? null : fact('Requests in a batch', at.size === null ? '–' : digits(at.size, 1)),
    op.steps ? null : fact('Largest batch', `${op.batching.batch_size}${window}`),
    op.batching.why && !op.steps ? fact('Batched by', `${batchedBy}, since ${op.batching.why}`) : null,
    fact('In its queue', count(op.waiting)),
    op.seats ? null : fact('Workers', `${at.busy} of ${op.workers} busy${at.missing ? `, ${at.missing} missing` : ''}`),
    op.seats ? fact('Seats', `${op.seats.taken} of ${op.seats.all} taken`) : null,
    op.steps ? fact('Requests in a step', at.steps ? digits(at.running / at.steps, 1) : '–') : null,
    op.steps ? fact('Time of a step', at.steps ? time(1000 * at.stepping / at.steps) : '–') : null,
    fact('Worker changes', changes || '–'),
    fact('Errors', count(op.errors || 0)),
    fact('Timeouts', count(op.timeouts)),
    fact('Deaths of workers', count(op.deaths)),
    op.costs && !op.steps ? fact('Cost of a batch', op.costs.words) : null,
    op.elements ? fact('Padding', `${share(op.filled_in, op.elements)} of the elements`) : null,
    op.process?.memory ? fact('Memory of its workers', bytes(op.process.memory)) : null,
    op.model ? fact('Model', op.model) : null);
}
