'use strict';
// The ops, as a picture or as a table, and the controls for it.

let shownAs = 'picture';

function showOps() {
  const { graphs } = past[past.length - 1].status;
  const ops = graphs.flatMap((graph) => graph.ops);
  const found = ops.filter((op) => matches(op.name)).length;
  say(byId('graphs-title'), graphs.length === 1 ? 'Graph' : `${graphs.length} graphs`);
  say(byId('matches'), filter ? `${found} of ${several(ops.length, 'op')}` : several(ops.length, 'op'));
  const table = shownAs === 'table';
  byId('picture').hidden = table;
  byId('zoom').hidden = table;
  byId('table').hidden = !table;
  if (table) showTable(); else showPicture();
}

for (const kind of ['picture', 'table']) {
  byId(`as-${kind}`).addEventListener('click', () => {
    shownAs = kind;
    press([byId('as-picture'), byId('as-table')], byId(`as-${kind}`));
    if (past.length) showOps();
  });
}
byId('filter').addEventListener('input', () => {
  filter = byId('filter').value.trim().toLowerCase();
  if (past.length) showOps();
});
addEventListener('resize', () => { if (drawn && past.length && shownAs === 'picture') { showPicture(); scale(); } });
