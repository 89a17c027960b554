'use strict';
// The picture of the graphs: drawn once for a form of them, then only its texts and classes change.

const COMPACT = 40;           // ops from which on they are drawn small
const END = 26;               // width of the marks for the request and the answer

let drawn = null;             // what the picture shows: its form, and the nodes by key
let pointed = null;           // the key of the node at the pointer or with the focus, or null
let zoom = null;              // a scale, 'fit', or null: as it fits, but legible

function isNarrow() { return innerWidth <= 640; }

function formOf(status) {
  const graphs = status.graphs.map(({ name, version, ops }) => [name, version, ops.map((op) => [op.name, op.inputs, op.reads_request])]);
  return JSON.stringify([isNarrow(), graphs]);
}

// Drawing.

function drawPicture(status) {
  const focused = document.activeElement?.dataset?.key;
  const ops = status.graphs.reduce((sum, graph) => sum + graph.ops.length, 0);
  drawn = { form: formOf(status), nodes: new Map(), edges: [], graphs: [], compact: ops > COMPACT, natural: 0 };
  byId('picture').replaceChildren(...status.graphs.map((graph) => drawGraph(graph)));
  const first = drawn.nodes.values().next().value;
  const at = drawn.nodes.get(focused);
  if (at || first) (at || first).group.setAttribute('tabindex', '0');
  if (at) at.group.focus({ preventScroll: true });
  scale();
  toBegin();
}

function drawGraph(graph) {
  const down = isNarrow() && graph.ops.length > 1;
  const small = drawn.compact;
  const [w, h] = small ? [136, 42] : [184, 84];
  const [between, beside] = down ? [small ? 26 : 34, 10] : [small ? 34 : 52, small ? 9 : 16];
  const { nodes, ways, request, answer } = layers(graph);

  // Along the graph and across it; `xy` turns them to the direction in which it is drawn.
  const along = down ? h : w;
  const across = down ? w : h;
  const low = Math.min(...nodes.map((each) => each.place - each.size / 2));
  const high = Math.max(...nodes.map((each) => each.place + each.size / 2));
  const xy = ([a, b]) => (down ? [b, a] : [a, b]);
  const begins = ({ layer }) => (layer ? 2 + END + between + (layer - 1) * (along + between) : 2);
  const middle = ({ place }) => 4 - beside / 2 + (place - low) * (across + beside);
  const after = (node) => begins(node) + (node === nodes[request] || node === nodes[answer] ? END : along);
  const length = after(nodes[answer]) + 2;
  const [W, H] = xy([length, (high - low) * (across + beside) - beside + 8]);
  const svg = draw('svg', { width: W, height: H, viewBox: `0 0 ${W} ${H}`, role: 'presentation' });

  for (const way of ways) {
    const ends = [graph.ops[way[0]], graph.ops[way.at(-1)]].filter(Boolean);  // an op at least
    const passed = way.map((each) => nodes[each]);
    const pieces = passed.slice(1).map((node, i) => {
      const [a, b] = [[after(passed[i]), middle(passed[i])], [begins(node), middle(node)]];
      const half = (a[0] + b[0]) / 2;
      const [p, q, r, s] = [a, [half, a[1]], [half, b[1]], b].map(xy);
      return `${i ? 'L' : 'M'}${p} C${q} ${r} ${s}`;
    });
    const element = draw('path', { class: 'edge', d: pieces.join(' ') });
    drawn.edges.push({ element, keys: ends.map((op) => keyOf(graph, op)), names: ends.map((op) => op.name) });
    svg.append(element);
  }
  for (const [node, text, name] of [[nodes[request], 'in', 'request'], [nodes[answer], 'out', 'answer']]) {
    const [x, y] = xy([begins(node), middle(node) - END / 2]);
    svg.append(draw('rect', { class: 'end', x, y, width: END, height: END, rx: END / 2 }, draw('title', {}, name)),
      draw('text', { class: 'endtext', x: x + END / 2, y: y + 17, 'text-anchor': 'middle' }, text));
  }
  graph.ops.forEach((op, i) => svg.append(drawNode(graph, op, xy([begins(nodes[i]), middle(nodes[i]) - across / 2]), w, h, small)));

  drawn.natural = Math.max(drawn.natural, W);
  const facts = make('span', { class: 'soft' });
  const title = make('h3', {}, called(graph), graph.version && graph.version !== '1' ? ` version ${graph.version}` : '');
  const canvas = make('div', { class: 'canvas' }, svg);
  drawn.graphs.push({ svg, W, H, facts, canvas, down, entry: middle(nodes[request]) });
  return make('section', { class: 'graph' }, make('header', {}, title, facts), canvas);
}

function drawNode(graph, op, [x, y], w, h, small) {
  const key = keyOf(graph, op);
  const name = shortName(graph, op);
  const room = Math.floor((w - 30) / 6.9);  // characters that fit
  const text = (kind, tx, ty, end) => draw('text', { class: kind, x: tx, y: ty, 'text-anchor': end ? 'end' : 'start' });
  const node = {
    op: op.name, width: w,
    mark: text('state', 9, small ? 17 : 22), name: text('name', 24, small ? 17 : 22),
    rate: text('small', 9, small ? 33 : 42), right: text('small state', w - 9, small ? 33 : 42, true),
    spark: small ? null : draw('polyline', { class: 'spark' }), busy: small ? null : text('small', w - 9, 66, true),
    used: draw('rect', { class: 'used', x: 7, y: h - 6, width: 0, height: 2.5 }),
  };
  node.name.textContent = name.length > room ? `${name.slice(0, room - 1)}…` : name;
  node.group = draw('g', {
    class: 'node', role: 'button', tabindex: '-1', transform: `translate(${x} ${y})`, 'data-key': key,
    onclick: () => openOp(key),
  }, draw('title', {}, name), draw('rect', { class: 'box', width: w, height: h, rx: 7 }),
  draw('rect', { class: 'track', x: 7, y: h - 6, width: w - 14, height: 2.5 }), node.used,
  node.mark, node.name, node.rate, node.right, node.spark && draw('g', { transform: 'translate(9 50)' }, node.spark), node.busy);
  drawn.nodes.set(key, node);
  return node.group;
}

// Size.

/** Scroll to the entry of requests. */
function toBegin() {
  for (const { canvas, down, entry } of drawn.graphs) {
    if (down) canvas.scrollLeft = entry * drawn.scale - canvas.clientWidth / 2;
    else canvas.scrollTop = entry * drawn.scale - canvas.clientHeight / 2;
  }
}

function scale() {
  const room = byId('picture').clientWidth;
  const fits = Math.min(1, room / Math.max(1, drawn.natural));
  // A large graph is scrolled, because it would be illegible if it were scaled down.
  const used = zoom === null ? Math.max(fits, drawn.compact ? 0.8 : 0.72) : zoom === 'fit' ? fits : zoom;
  drawn.scale = used;
  for (const each of drawn.graphs) {
    set(each.svg, 'width', Math.round(each.W * used));
    set(each.svg, 'height', Math.round(each.H * used));
    const { canvas } = each;
    const scrolls = canvas.scrollWidth > canvas.clientWidth + 1 || canvas.scrollHeight > canvas.clientHeight + 1;
    canvas.toggleAttribute('data-scrolls', scrolls);
  }
}

for (const each of document.querySelectorAll('[data-zoom]')) {
  each.addEventListener('click', () => {
    if (!drawn) return;
    const by = { in: 1.25, out: 0.8 }[each.dataset.zoom];
    zoom = by ? Math.min(2.5, Math.max(0.1, drawn.scale * by)) : 'fit';
    scale();
  });
}

// Showing.

function showPicture() {
  const span = interval();
  const { status } = span.now;
  if (!drawn || drawn.form !== formOf(status)) drawPicture(status);
  for (const [key, node] of drawn.nodes) {
    const at = figures(key, span);
    node.flows = at.rate > 0;
    showNode(node, key, at);
  }
  showEdges();
  status.graphs.forEach((graph, i) => say(drawn.graphs[i].facts, graphFacts(graph, span)));
}

function showEdges() {
  for (const each of drawn.edges) {
    const flows = drawn.nodes.get(each.keys.at(-1)).flows ? ' flows' : '';
    const joins = each.keys.includes(pointed) ? ' joins' : '';
    set(each.element, 'class', `edge${flows}${joins}${each.names.some(matches) ? '' : ' dim'}`);
  }
}

/** Mark the edges of a node, because edges may share a lane. */
function point(event) {
  const key = event.target.closest?.('.node')?.dataset.key ?? null;
  pointed = event.type === 'pointerover' || event.type === 'focusin' ? key : null;
  if (drawn) showEdges();
}
for (const kind of ['pointerover', 'pointerout', 'focusin', 'focusout']) byId('picture').addEventListener(kind, point);

function showNode(node, key, at) {
  const queue = `queue ${count(at.op.waiting)}`;
  const faults = at.faults ? several(at.faults, 'error') : at.missing ? `${count(at.missing)} missing` : null;
  const busy = `${at.busy}/${at.op.workers}`;
  set(node.group, 'class', `node is-${at.state}${matches(node.op) ? '' : ' dim'}`);
  say(node.mark, MARK[at.state]);
  say(node.rate, `${rate(at.rate)}/s`);
  if (node.spark) {
    say(node.right, faults || queue);
    say(node.busy, `busy ${busy}`);
    set(node.spark, 'points', line(series((each) => each.ops.get(key)?.samples ?? 0), node.width - 84, 18, 45));
  } else {
    say(node.right, faults || `${queue} · ${busy}`);
  }
  set(node.used, 'width', ((node.width - 14) * (at.op.workers ? at.busy / at.op.workers : 0)).toFixed(1));
  set(node.group, 'aria-label', `${node.op}: ${WORD[at.state]}, ${rate(at.rate)} per second, `
    + `${several(at.op.waiting, 'request')} in its queue, ${at.busy} of ${at.op.workers} workers busy`
    + (at.missing ? `, ${count(at.missing)} missing` : ''));
}

function graphFacts(graph, span) {
  const from = span.from.status.graphs.find((each) => each.name === graph.name && each.version === graph.version);
  const ended = from ? Math.max(0, total(graph.requests.answers) - total(from.requests.answers)) : 0;
  const each = span.seconds > 0 ? `${rate(ended / span.seconds)} per second` : '';
  const of = stored?.graphs.get(graphKey(graph));
  const times = newest(of, 'p99') === null ? '' : `, p50 ${time(newest(of, 'p50'))}, p99 ${time(newest(of, 'p99'))}`;
  const state = graph.state === 'serving' ? '' : `${graph.state}, `;
  return `${state}${each}${times}, ${count(graph.inside)} inside`;
}

// Keys.

/** The nearest node in a direction, or null. */
function nearest(node, [right, below]) {
  const middle = ({ group }) => {
    const box = group.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  };
  const [x, y] = middle(node);
  let best = Infinity;
  let found = null;
  for (const each of drawn.nodes.values()) {
    const [a, b] = middle(each);
    const forward = (a - x) * right + (b - y) * below;
    const aside = Math.abs((a - x) * below) + Math.abs((b - y) * right);
    if (forward > 4 && forward + 2 * aside < best) { best = forward + 2 * aside; found = each; }
  }
  return found;
}

byId('picture').addEventListener('keydown', (event) => {
  const key = event.target.dataset?.key;
  if (key === undefined || !drawn) return;
  if (event.key === 'Enter' || event.key === ' ') {
    event.preventDefault();
    openOp(key);
    return;
  }
  const node = drawn.nodes.get(key);
  const all = [...drawn.nodes.values()];
  const to = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
  const next = to ? nearest(node, to) : { Home: all[0], End: all[all.length - 1] }[event.key];
  if (!next) return;
  event.preventDefault();
  node.group.setAttribute('tabindex', '-1');
  next.group.setAttribute('tabindex', '0');
  next.group.focus();
  next.group.scrollIntoView({ block: 'nearest', inline: 'nearest' });
});
