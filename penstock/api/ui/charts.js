'use strict';
// Small pictures of numbers.

/** The points of a line of values; the newest is at the right. */
function line(values, width, height, most = 60) {
  const top = Math.max(...values, 1e-9);
  const step = width / (most - 2);
  const points = values.slice(-(most - 1)).map((value, i, all) => [
    width - (all.length - 1 - i) * step, height - 1 - (height - 2) * value / top,
  ]);
  return points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(' ');
}

/** The least number of 1, 2 or 5 times a power of ten that is not below this one. */
function roundUp(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 5].find((each) => value <= each * power * (1 + 1e-9)) ?? 10);
}

/** The path of a line over `room` places, the newest value in the last; values that are not known leave a gap. */
function path(values, room, height, top) {
  let pen = 'M';
  return values.map((value, i) => {
    if (value === null) { pen = 'M'; return ''; }
    const at = `${room - values.length + i} ${(height * (1 - value / top)).toFixed(2)}`;
    const alone = pen === 'M' && (values[i + 1] ?? null) === null;  // would be invisible
    [pen, value] = ['L', pen];
    return `${value}${at}${alone ? 'h.01' : ''}`;
  }).join('');
}

/**
 * Charts of series over the same time, with one cursor.
 *
 * Each is described by its title, its lines (a member of the series, its name, its style), and a function
 * that makes texts of its values. `show` gives them the series, and how many seconds apart the values are.
 */
function charts(descriptions) {
  const made = descriptions.map(chart);
  let [series, every] = [null, 1];
  let at = null;              // how many places before the newest value the cursor is, or null
  const room = () => Math.round(SPAN / every);
  const read = () => {
    for (const each of made) each.read(series, at, room(), at ? ago(at * every) : 'now');
  };
  const show = (given, apart) => {
    [series, every] = [given, apart];
    for (const each of made) each.show(series, room());
    read();
  };
  const move = (event) => {
    const plot = event.target.closest?.('.plot');
    if (!series || !plot) return;
    const { right, width } = plot.getBoundingClientRect();
    at = Math.min(room() - 1, Math.max(0, Math.round((room() - 1) * (right - event.clientX) / width)));
    read();
  };
  const leave = () => {
    at = null;
    if (series) read();
  };
  const listeners = { onpointermove: move, onpointerdown: move, onpointerleave: leave };
  return { element: make('div', { class: 'charts', ...listeners }, ...made.map((each) => each.element)), show };
}

const HEIGHT = 100;           // of a chart, in units of its own

function chart({ title, lines, text }) {
  const drawing = lines.map(([, , kind]) => draw('path', { class: `line l-${kind}` }));
  const readings = lines.map(() => make('b', {}, '–'));
  const legend = lines.map(([, name, kind], i) => make('li', {},
    make('i', { class: `key l-${kind}`, 'aria-hidden': 'true' }), `${name} `, readings[i]));
  const [grid, cursor] = [draw('path', { class: 'grid' }), draw('path', { class: 'cursor' })];
  const svg = draw('svg', { preserveAspectRatio: 'none', role: 'img' }, grid, ...drawing, cursor);
  const [highest, then] = [make('span', { class: 'top' }), make('span', {}, 'now')];
  const element = make('figure', { class: 'chart' }, make('figcaption', {}, title),
    make('ul', { class: 'legend' }, ...legend), make('div', { class: 'plot' }, svg, highest),
    make('div', { class: 'times' }, make('span', {}, `${SPAN / 60} min ago`), then));

  const show = (series, room) => {
    const known = lines.flatMap(([member]) => series[member]).filter((value) => value !== null);
    const most = Math.max(0, ...known);
    const top = roundUp(most);
    set(svg, 'viewBox', `0 0 ${room - 1} ${HEIGHT}`);
    set(svg, 'aria-label', `${title}, last ${SPAN / 60} minutes: ${known.length ? `at most ${text(most)}` : 'not known'}`);
    set(grid, 'd', [0, 0.5, 1].map((part) => `M0 ${part * HEIGHT}h${room - 1}`).join(''));
    say(highest, text(top));
    lines.forEach(([member], i) => set(drawing[i], 'd', path(series[member], room, HEIGHT, top)));
  };
  const read = (series, at, room, when) => {
    lines.forEach(([member], i) => {
      const value = series[member].at(-1 - (at ?? 0)) ?? null;
      say(readings[i], value === null ? '–' : text(value));
    });
    say(then, when);
    set(cursor, 'd', at === null ? '' : `M${room - 1 - at} 0V${HEIGHT}`);
  };
  return { element, show, read };
}

/** The colour of a part of a request's time, for a legend. */
function swatch(kind) {
  return make('i', { class: `p-${kind} swatch`, 'aria-hidden': 'true' });
}

/** A bar of the parts of a time. */
function stack(parts) {
  const whole = parts.reduce((sum, [, ms]) => sum + (ms || 0), 0);
  return make('div', { class: 'stack', 'aria-hidden': 'true' }, ...parts.filter(([, ms]) => ms).map(([kind, ms]) => {
    const made = make('span', { class: `p-${kind}` });
    made.style.flexGrow = ms / whole;
    return made;
  }));
}

/** Columns of a histogram, which are readable as a list. */
function columns(classes) {
  const most = Math.max(...Object.values(classes), 1);
  return make('div', { class: 'columns', role: 'list' }, ...Object.entries(classes).map(([name, height]) => {
    const bar = make('i');
    bar.style.height = `${2.2 * height / most}rem`;
    return make('div', { role: 'listitem' }, make('span', {}, count(height)), bar, make('span', {}, name.replace('<=', '≤')));
  }));
}
