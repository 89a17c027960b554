'use strict';
// The last minutes of the service, or of one of its graphs.

const AGAIN = 2;              // the latest points, to which a late engine may add, are requested again
const TRENDS = [
  {
    title: 'Requests per second', text: rate,
    lines: [['rate', 'answered', 'main'], ['failed', 'failed', 'bad'], ['refused', 'refused', 'warn']],
  },
  { title: 'Time from admission to answer', text: time, lines: [['p50', 'p50', 'main'], ['p99', 'p99', 'more']] },
  { title: 'Requests in flight', text: count, lines: [['inside', 'in flight', 'main']] },
];

/** Ask for the points that are new, or for the whole history: also if there is none of this op yet. */
async function refreshHistory(op = null, whole = false) {
  const query = new URLSearchParams(op === null ? [] : [['op', op]]);
  if (!whole && stored && (op === null || stored.ops.has(op))) query.set('after', Math.max(-1, stored.end - 1 - AGAIN));
  try {
    const answer = await ask(`ui/history?${query}`);
    if (answer.ok) stored = joined(stored, await answer.json());
  } catch {
    return;  // the next look at the state says it
  }
}

const trends = charts(TRENDS);
byId('trends').append(trends.element);

function showTrends() {
  if (!stored) return;
  const { graphs } = past[past.length - 1].status;
  const keys = graphs.map(graphKey);
  const choice = byId('of');
  if (choice.dataset.keys !== keys.join('\0')) {
    const chosen = choice.value;
    choice.replaceChildren(make('option', { value: '' }, 'All graphs'), ...graphs.map((graph, i) => make('option',
      { value: keys[i] }, `${called(graph)}${graph.version === '1' ? '' : ` version ${graph.version}`}`)));
    choice.dataset.keys = keys.join('\0');
    choice.value = keys.includes(chosen) ? chosen : '';
  }
  choice.hidden = graphs.length < 2;
  trends.show(stored.graphs.get(choice.value) || stored.service, stored.every);
}

byId('of').addEventListener('change', showTrends);
