'use strict';
// Names of graphs and ops, words for an op's state, and the filter of ops.

const MARK = { none: '✕', errors: '■', short: '▽', queue: '▲', works: '●', idle: '○' };
const WORD = { none: 'no worker', errors: 'errors', short: 'workers missing', queue: 'queue grows or stands', works: 'working', idle: 'idle' };

let filter = '';              // a part of the names of the ops that are shown, in lower case

/** The key of an op in the page. */
function keyOf(graph, op) { return `${graph.name ?? ''}\n${graph.version}\n${op.name}`; }

function shortName(graph, op) {
  return graph.name && op.name.startsWith(`${graph.name}/`) ? op.name.slice(graph.name.length + 1) : op.name;
}

function called(graph) { return graph.name || 'any name'; }
function matches(name) { return !filter || name.toLowerCase().includes(filter); }
