'use strict';
// Who calls, if the service admits callers by name.

const NAMED = new Map([['', 'without a name'], ['*', 'all others']]);

function showCallers() {
  const { now, from, seconds } = interval();
  const callers = now.status.callers || [];
  byId('calling').hidden = !callers.length;
  if (!callers.length) return;
  const before = new Map((from.status.callers || []).map((each) => [each.name, each.requests]));
  const heads = [['Caller'], ['Per second', true], ['Requests', true], ['Failed', true], ['Refused']];
  const rows = callers.map(({ name, requests, failed, refused }) => {
    const gained = seconds > 0 ? Math.max(0, requests - (before.get(name) ?? requests)) / seconds : 0;
    const why = Object.entries(refused).sort((a, b) => b[1] - a[1])
      .map(([code, times]) => `${code} ${count(times)}`).join(', ');
    return tableRow(NAMED.get(name) ?? name, numberCell(rate(gained)), numberCell(count(requests)),
      numberCell(count(failed)), make('td', { class: why ? 'bad' : '' }, why || '–'));
  });
  byId('callers').replaceChildren(headedTable('Since the start, those with the most requests first', heads, rows));
}
