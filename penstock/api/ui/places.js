'use strict';
// Where the workers of ops are, which do not run and why, and which were lost.

const AWAY = { waiting: 'not started', failed: 'failed' };

let placesShown = null;       // what the card shows, as text

const engines = () => past[past.length - 1].status.engines;
const workerName = ({ engine, worker }) => (engines() > 1 ? `${engine}/${worker}` : `${worker}`);
const nodeName = ({ host, address }) => (host && host !== address ? `${host} (${address})` : address);

function machineOf({ node, where }) {
  if (node) return nodeName(node);
  return /^pid \d+$/.test(where) ? 'this machine' : where || '–';
}

/** The workers of ops that run or start, as rows: their machine, their op and number, and how long. */
function placeRows(ops) {
  const rows = ops.flatMap(([name, op]) => (op.places ?? []).filter(({ state }) => !AWAY[state]).map((each) => {
    const what = each.state === 'running' ? (each.pid === null ? '' : `, pid ${each.pid}`) : `, ${each.state}`;
    return [machineOf(each), `${name} ${workerName(each)}${what}`, lasting(each.seconds)];
  }));
  return rows.sort((a, b) => a[0].localeCompare(b[0]));
}

/** Sentences about the workers that do not run: a mark, the op and the workers, and why. */
function awayLines(ops) {
  const found = new Map();
  for (const [name, op] of ops) {
    for (const each of (op.places ?? []).filter(({ state }) => AWAY[state])) {
      const key = JSON.stringify([name, each.state, each.why]);
      found.set(key, [...found.get(key) ?? [], { ...each, name }]);
    }
  }
  return [...found.values()].map((all) => {
    const [{ name, state, why, possible }] = all;
    const workers = `worker${all.length > 1 ? 's' : ''} ${all.map(workerName).join(', ')}`;
    const mark = state === 'failed' || possible === false ? '✕' : '▽';
    return `${mark} ${name}: ${workers} ${AWAY[state]} for ${lasting(Math.max(...all.map((each) => each.seconds)))}: ${why}`;
  });
}

/** Sentences about the latest workers that were lost, the last one first. */
function lostLines(ops) {
  return ops.flatMap(([name, op]) => (op.lost ?? []).map((each) => ({ ...each, name }))).sort((a, b) => a.ago - b.ago)
    .map((each) => `${lasting(each.ago)} ago: ${each.name}: worker ${workerName(each)}${each.where ? ` (${each.where})` : ''}: `
      + `${each.how}, ${each.back === null ? 'not back' : `back after ${lasting(each.back)}`}`);
}

/** The workers of ops as elements: a table, notes about those that do not run, and a list of lost ones. */
function placeElements(ops) {
  const rows = placeRows(ops);
  const heads = [['Machine'], ['Worker'], ['For', true]];
  const lost = lostLines(ops);
  return [
    ...awayLines(ops).map((text) => make('p', { class: text.startsWith('✕') ? 'note' : 'note later' }, text)),
    rows.length ? headedTable('Workers that run or start', heads,
      rows.map(([machine, worker, seconds]) => tableRow(machine, make('td', {}, worker), numberCell(seconds)))) : null,
    lost.length ? make('div', {}, make('h3', {}, 'Lost'), make('ul', { class: 'lost' }, ...lost.map((text) => make('li', {}, text)))) : null,
  ].filter(Boolean);
}

/** The card: there once a worker is on another machine, or missing; it stays, so that the page does not jump. */
function showPlaces() {
  const { graphs } = past[past.length - 1].status;
  const ops = graphs.flatMap((graph) => graph.ops.map((op) => [graphs.length > 1 ? op.name : shortName(graph, op), op]))
    .filter(([, op]) => op.places?.some(({ node, state }) => node || AWAY[state]));
  const at = byId('placed');
  if (ops.length) at.hidden = false;
  if (at.hidden) return;
  const key = JSON.stringify([placeRows(ops), awayLines(ops), lostLines(ops)]);
  if (key === placesShown) return;
  placesShown = key;
  const found = placeElements(ops);
  byId('places').replaceChildren(...found.length ? found : [make('p', { class: 'soft' }, 'All workers are on this machine.')]);
}
