'use strict';
// The last swaps: how versions came and went, each as a line of its steps.

const SWAP_STEPS = {
  fetched: 'transfer-in', verified: 'unpack', opened: 'process', probed: 'postprocess', started: 'preprocess', 'warmed up': 'queue',
  swapped: 'transfer-out', drained: 'entry', ended: 'pack', failed: 'unfinished',
};
const FIRST_SWAPS = 6;        // swaps that are shown before somebody asks for more

let allSwaps = false;
let swapsShown = null;        // the data of the lines on the page

function titleOf({ model, versions, ends }) {
  const name = model ?? 'any name';
  if (!versions.length) return ends.length ? `${name}: version ${ends.join(', ')} ends` : name;
  const others = ends.filter((each) => !versions.includes(each));
  return `${name} version ${versions.join(', ')}${others.length ? ` in place of ${others.join(', ')}` : ''}`;
}

function reasonOf({ why, tries }) {
  return `${why || 'an engine could not make it ready'}${tries > 1 ? ` (tried ${count(tries)} times)` : ''}`;
}

/** The steps that are over, in the order of their ends, with their milliseconds. */
function stepsOf({ began, steps }) {
  let last = began;
  return Object.entries(steps).sort((a, b) => a[1] - b[1]).map(([name, at]) => {
    const from = last;
    last = Math.max(last, at);
    return { name, from: 1000 * (from - began), ms: 1000 * (last - from) };
  });
}

function showSwaps(swaps, now) {
  const newestFirst = swaps.toReversed();
  const shown = allSwaps ? newestFirst : newestFirst.slice(0, FIRST_SWAPS);
  const key = JSON.stringify([shown, swaps.length]);
  const places = byId('swaps');
  if (swapsShown !== key) {
    swapsShown = key;
    const more = swaps.length > FIRST_SWAPS
      && link(allSwaps ? 'Fewer' : `All ${swaps.length}`, () => { allSwaps = !allSwaps; showSwaps(swaps, now); });
    places.replaceChildren(...swaps.length ? [make('h3', {}, 'Changes'), make('ul', { class: 'swaps' }, ...shown.map(swapLine)), more || ''] : []);
  }
  const whens = places.querySelectorAll('.when');
  shown.forEach(({ began }, i) => say(whens[i], ago(now - began)));
}

function swapLine(swap) {
  const steps = stepsOf(swap);
  const whole = steps.reduce((sum, { ms }) => sum + ms, 0);
  const [mark, kind] = { running: ['● under way', 'warn'], done: ['✓ done', 'good'], failed: ['✕ failed', 'bad'] }[swap.state];
  const bars = steps.filter(({ ms }) => ms).map(({ name, from, ms }) => {
    const made = make('span', { class: `seg p-${SWAP_STEPS[name] ?? 'run'}`, title: name });
    made.style.left = `${100 * from / whole}%`;
    made.style.width = `${100 * ms / whole}%`;
    return made;
  });
  const legend = steps.map(({ name, ms }) => make('li', {}, swatch(SWAP_STEPS[name] ?? 'run'), `${name} ${time(ms)}`));
  return make('li', {},
    make('p', { class: 'bar' }, make('b', {}, titleOf(swap)), make('span', { class: kind }, mark),
      whole > 0 && make('span', { class: 'soft' }, time(whole)), make('span', { class: 'soft when' })),
    swap.state === 'failed' && make('p', { class: 'note' }, reasonOf(swap)),
    bars.length > 1 && make('div', { class: 'rail', 'aria-hidden': 'true' }, ...bars),
    legend.length > 0 && make('ol', { class: 'legend', 'aria-label': 'Steps, each with its time' }, ...legend),
    swap.serves && make('p', { class: 'soft' }, `Since then: ${swap.serves}`));
}
