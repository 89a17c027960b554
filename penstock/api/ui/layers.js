'use strict';
// Where the ops of a graph stand in its picture.

const SWEEPS = 6;             // after which crossings hardly become fewer

/** The layer of each op, and its position in it (0: the middle), with few crossings of edges. */
function layers(graph) {
  const index = new Map(graph.ops.map((op, i) => [op.name, i]));
  const inputs = graph.ops.map((op) => op.inputs.map((name) => index.get(name)).filter((i) => i !== undefined));
  const outputs = graph.ops.map(() => []);
  inputs.forEach((from, i) => from.forEach((each) => outputs[each].push(i)));

  const depth = [];
  const deep = (i) => {  // ops stand in an order in which inputs come first
    depth[i] = Math.max(0, ...inputs[i].map((each) => (depth[each] ?? deep(each)) + 1));
    return depth[i];
  };
  graph.ops.forEach((_, i) => deep(i));
  const rows = [];
  depth.forEach((at, i) => { (rows[at] ||= []).push(i); });

  const place = [];
  const number = (row) => row.forEach((i, at) => { place[i] = at - (row.length - 1) / 2; });
  rows.forEach(number);
  const mean = (of, i) => (of[i].length ? of[i].reduce((sum, each) => sum + place[each], 0) / of[i].length : place[i]);
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const of = sweep % 2 ? outputs : inputs;
    for (const row of sweep % 2 ? [...rows].reverse() : rows) {
      const wish = new Map(row.map((i) => [i, mean(of, i)]));
      row.sort((a, b) => wish.get(a) - wish.get(b) || a - b);
      number(row);
    }
  }
  return { rows, inputs, outputs, depth, place };
}
