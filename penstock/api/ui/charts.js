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
