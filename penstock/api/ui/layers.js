'use strict';
// Where the ops of a graph stand in its picture, and the way of each edge between them.
//
// An edge that leads over several layers gets a lane in each of them, beside the ops there, so that no
// op hides it. Edges share lanes: those from an op with several such edges, or else those to an op.
//
// Sources: Sugiyama, Tagawa, Toda, "Methods for Visual Understanding of Hierarchical System
// Structures", 1981; isotonic regression by pooling adjacent violators.

const SWEEPS = 6;             // after which crossings hardly become fewer
const LANE = 0.2;             // the width of a lane, in widths of an op
const LIGHT = 0.005;          // how much a lane counts where ops are placed; an op counts 1

/**
 * The layer of each op, its place in the layer, and the nodes that each edge passes.
 *
 * The nodes are the ops in their order, then the request, the answer, and the lanes. Layer 0 has the
 * request only, the last layer the answer only. Places are middles, in widths of an op.
 */
function layers(graph) {
  const { ops } = graph;
  const [request, answer] = [ops.length, ops.length + 1];
  const index = new Map(ops.map((op, i) => [op.name, i]));
  const sources = ops.map((op) => {
    const found = op.inputs.map((name) => index.get(name)).filter((i) => i !== undefined);
    return op.reads_request || !found.length ? [request, ...found] : found;
  });
  const read = new Set(sources.flat());
  const edges = sources.flatMap((from, to) => from.map((each) => [each, to]))
    .concat(ops.map((_, i) => [i, answer]).filter(([i]) => !read.has(i)));

  const nodes = [];
  const add = (layer, size, weight) => nodes.push({ layer, size, weight, place: 0, before: [], after: [] }) - 1;
  const depth = [];
  const deep = (i) => {  // ops stand in an order in which inputs come first
    depth[i] = 1 + Math.max(...sources[i].map((each) => (each === request ? 0 : depth[each] ?? deep(each))));
    return depth[i];
  };
  ops.forEach((_, i) => add(deep(i), 1, 1));
  add(0, 1, 1);
  add(Math.max(0, ...depth) + 1, 1, 1);

  const long = edges.filter(([from, to]) => nodes[to].layer - nodes[from].layer > 1);
  const lanes = new Map();    // by layer and the end that its edges share
  const lane = (layer, [from, to]) => {
    const several = long.filter((each) => each[0] === from).length > 1;
    const key = `${layer} ${several ? `from ${from}` : `to ${to}`}`;
    if (!lanes.has(key)) lanes.set(key, add(layer, LANE, LIGHT));
    return lanes.get(key);
  };
  const ways = edges.map(([from, to]) => {
    const between = [];
    for (let layer = nodes[from].layer + 1; layer < nodes[to].layer; layer++) between.push(lane(layer, [from, to]));
    return [from, ...between, to];
  });
  for (const way of ways) {
    way.slice(1).forEach((node, i) => {
      nodes[node].before.push(nodes[way[i]]);
      nodes[way[i]].after.push(nodes[node]);
    });
  }
  arrange(nodes);
  return { nodes, ways, request, answer };
}

/** Order the nodes of each layer so that few edges cross, and place them near to their neighbours. */
function arrange(nodes) {
  const rows = [];
  for (const node of nodes) (rows[node.layer] ||= []).push(node);
  for (const row of rows) settle(row, row.map(() => 0));
  const mean = (node, near) => {
    const weight = near.reduce((sum, each) => sum + each.weight, 0);
    return weight ? near.reduce((sum, each) => sum + each.weight * each.place, 0) / weight : node.place;
  };
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    for (const row of sweep % 2 ? [...rows].reverse() : rows) {
      const wish = new Map(row.map((node) => [node, mean(node, sweep % 2 ? node.after : node.before)]));
      row.sort((a, b) => wish.get(a) - wish.get(b));
      settle(row, row.map((node) => wish.get(node)));
    }
  }
  for (const row of [...rows, ...[...rows].reverse()]) {
    settle(row, row.map((node) => mean(node, [...node.before, ...node.after])));
  }
}

/** Place nodes as near to their wishes as their order and their sizes allow. */
function settle(row, wishes) {
  const blocks = [];          // nodes without a gap between them
  let offset = 0;
  row.forEach((node, i) => {
    if (i) offset += (row[i - 1].size + node.size) / 2;
    let block = { at: wishes[i] - offset, weight: node.weight, nodes: [[node, offset]] };
    while (blocks.length && blocks[blocks.length - 1].at > block.at) {
      const before = blocks.pop();
      const weight = before.weight + block.weight;
      const at = (before.at * before.weight + block.at * block.weight) / weight;
      block = { at, weight, nodes: [...before.nodes, ...block.nodes] };
    }
    blocks.push(block);
  });
  for (const block of blocks) for (const [node, from] of block.nodes) node.place = block.at + from;
}
