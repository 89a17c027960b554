'use strict';
// The service as a whole: its health, and four tiles with figures.

const TITLES = { rate: 'Requests', latency: 'Median time', inside: 'In flight', failed: 'Failed or refused' };

const tiles = {};
for (const [name, title] of Object.entries(TITLES)) {
  const value = make('dd', {}, '–');
  const more = make('dd', { class: 'more' });
  const spark = draw('polyline', { class: 'spark' });
  byId('tiles').append(make('div', { class: 'tile' }, make('dt', {}, title), value,
    draw('svg', { viewBox: '0 0 120 32', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, spark), more));
  tiles[name] = { value, more, spark };
}

function tile(name, text, unit, more, values) {
  const at = tiles[name];
  if (at.value.dataset.shown !== text + unit) {
    at.value.replaceChildren(text, ' ', make('small', {}, unit));
    at.value.dataset.shown = text + unit;
  }
  say(at.more, more);
  set(at.spark, 'points', line(values, 120, 32));
}

function health(text, kind) {
  const at = byId('health');
  if (at.textContent === text) return;
  at.textContent = text;
  at.className = kind;
  byId('spoken').textContent = text.replace(/^\S /, '');
}

function showWhole() {
  const { now, from, seconds } = interval();
  const at = now.status;
  const { requests } = at;
  const per = (read) => (seconds > 0 ? Math.max(0, read(at) - read(from.status)) / seconds : 0);
  tile('rate', rate(per(answered)), 'per second', `${count(requests.answered)} answered since the start`,
    series((each) => answered(each.status)));

  const [half, unit] = time(newest(stored?.service, 'p50')).split(' ');
  const most = newest(stored?.service, 'p99');
  tile('latency', half, unit || '', most === null ? '' : `99 % within ${time(most)}`,
    (stored?.service.p50 ?? []).map((each) => each ?? 0));

  tile('inside', count(requests.inside), requests.inside === 1 ? 'request' : 'requests',
    `${count(requests.waiting)} of them wait for admission`, past.map((each) => each.status.requests.inside));

  const why = Object.entries({ ...at.answers, ...at.refusals }).filter(([code, times]) => code !== 'ok' && times)
    .sort((a, b) => b[1] - a[1]).slice(0, 2).map(([code, times]) => `${code} ${count(times)}`).join(', ');
  tile('failed', rate(per(failures)), 'per second', why || 'none since the start', series((each) => failures(each.status)));

  const of = at.engines > 1 ? `, ${at.engines} engines` : '';
  if (at.ready) health(`● ready${of}`, 'good');
  else health(`▲ not ready: ${at.why}${of}`, 'warn');
}
