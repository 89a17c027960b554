'use strict';
// The table of the ops: the same numbers as in the picture, and more.

const COLUMNS = [             // the title, the value to sort by, and the text
  ['Op', (at, name) => name, (at, name) => name],
  ['State', (at) => at.state, (at) => `${MARK[at.state]} ${at.state === 'queue' ? 'queue' : WORD[at.state]}`],
  ['Per second', (at) => at.rate, (at) => rate(at.rate)],
  ['Queue', (at) => at.op.waiting, (at) => count(at.op.waiting)],
  ['Wait', (at) => at.wait ?? -1, (at) => time(at.wait)],
  ['Batch', (at) => sizeOf(at) ?? -1, (at) => (sizeOf(at) === null ? '–' : at.op.steps ? `${digits(sizeOf(at), 1)} a step`
    : `${digits(at.size, 1)} of ${at.op.batching.batch_size}`)],
  ['Transfer', (at) => at.transfer ?? -1, (at) => time(at.transfer)],
  ['Preprocess', (at) => at.preprocess ?? -1, (at) => time(at.preprocess)],
  ['Process', (at) => at.process ?? -1, (at) => time(at.process)],
  ['Postprocess', (at) => at.postprocess ?? -1, (at) => time(at.postprocess)],
  ['Busy', (at) => at.busy, (at) => `${at.busy} of ${at.op.workers}`],
  ['Errors', (at) => at.op.errors || 0, (at) => count(at.op.errors || 0)],
];
const TONE = { none: 'bad', errors: 'bad', short: 'warn', queue: 'warn', works: 'good', idle: 'soft' };

/** Requests in a batch, or in a step of an op with seats: each of its requests is a batch of one. */
function sizeOf(at) { return at.op.steps ? (at.steps ? at.running / at.steps : null) : at.size; }

let sorted = { by: null, down: true };
let rows = null;              // the table: its heads, its body, and a row for each op's key

function showTable() {
  const span = interval();
  const { graphs } = span.now.status;
  const ops = graphs.flatMap((graph) => graph.ops.filter((op) => matches(op.name)).map((op) => {
    const key = keyOf(graph, op);
    return { key, name: shortName(graph, op), graph, at: figures(key, span) };
  }));
  if (sorted.by !== null) {
    const read = COLUMNS[sorted.by][1];
    const sign = sorted.down ? -1 : 1;
    ops.sort((a, b) => { const [p, q] = [read(a.at, a.name), read(b.at, b.name)]; return sign * (p < q ? -1 : p > q ? 1 : 0); });
  }
  if (!rows) drawTable();
  rows.heads.forEach((head, i) => set(head, 'aria-sort', sorted.by !== i ? 'none' : sorted.down ? 'descending' : 'ascending'));
  const order = ops.map((each) => {
    const row = rows.of.get(each.key) || drawRow(each.key);
    const name = graphs.length > 1 ? `${called(each.graph)} › ${each.name}` : each.name;
    COLUMNS.forEach(([, , text], i) => say(row.cells[i], text(each.at, name)));
    set(row.cells[1], 'class', TONE[each.at.state]);
    return row.element;
  });
  if (order.length !== rows.body.childElementCount || order.some((each, i) => rows.body.children[i] !== each)) {
    const focused = document.activeElement;
    rows.body.replaceChildren(...order);
    if (rows.body.contains(focused)) focused.focus({ preventScroll: true });
  }
}

function drawTable() {
  const sort = (by) => {
    sorted = { by, down: sorted.by === by ? !sorted.down : by > 1 };
    showTable();
  };
  const heads = COLUMNS.map(([title], i) => make('th', { scope: 'col', class: i > 1 ? 'num' : '' },
    make('button', { 'data-column': i, onclick: () => sort(i) }, title)));
  const body = make('tbody');
  const caption = `Times are means over the last ${WINDOW} seconds: the wait of a request, the others of a batch.`;
  rows = { heads, body, of: new Map() };
  byId('table').replaceChildren(make('table', {}, make('caption', {}, `${caption} Click a heading to sort.`),
    make('thead', {}, make('tr', {}, ...heads)), body));
}

function drawRow(key) {
  const name = link('', () => openOp(key));
  const cells = COLUMNS.slice(1).map((_, i) => make('td', { class: i ? 'num' : '' }));
  const row = { cells: [name, ...cells], element: tableRow(name, ...cells) };
  rows.of.set(key, row);
  return row;
}
