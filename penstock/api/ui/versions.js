'use strict';
// The versions of each graph, if any has another than its first.

const STATES = { aside: 'being prepared', serving: 'serving', draining: 'finishing its requests' };

function showVersions() {
  const { now, from, seconds } = interval();
  const { graphs } = now.status;
  const names = new Set(graphs.map(({ name }) => name));
  const several = graphs.some(({ version }) => version !== '1') || names.size < graphs.length;
  byId('versioned').hidden = !several;
  if (!several) return;
  const before = new Map(from.status.graphs.map((each) => [graphKey(each), total(each.requests.answers)]));
  const heads = [['Graph'], ['Version'], ['State'], ['Per second', true], ['In flight', true]];
  const rows = graphs.map((graph) => {
    const ended = total(graph.requests.answers);
    const gained = seconds > 0 ? Math.max(0, ended - (before.get(graphKey(graph)) ?? ended)) / seconds : 0;
    const state = `${STATES[graph.state] ?? graph.state}${graph.default ? ', default' : ''}`;
    return tableRow(called(graph), make('td', {}, graph.version),
      make('td', { class: graph.state === 'serving' ? 'good' : 'warn' }, state),
      numberCell(rate(gained)), numberCell(count(graph.inside)));
  });
  byId('versions').replaceChildren(headedTable('A request that names no version goes to the default one', heads, rows));
}
