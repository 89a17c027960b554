'use strict';
// The lists of requests, and the search for one.

const FEW = 10;               // requests that are shown at first
const EMPTY = { slowest: 'No request in the last minutes.', failed: 'No request has failed.', latest: 'No request yet.' };
const CAPTION = {
  slowest: 'The slowest requests of the last two to four minutes',
  failed: 'The latest of each kind of error',
  latest: 'The requests that ended last',
};
const HEADS = [               // the title, and the class of the column
  ['Request', ''], ['Time', 'num'], ['', 'narrow-off'], ['Outcome', ''], ['Longest part', 'narrow-off'],
  ['Route', 'narrow-off'], ['Ended', 'num'],
];

let lists = null;             // the last answer: a list by its name
let listed = 'slowest';
let allListed = false;

async function refreshLists() {
  try {
    const answer = await ask('ui/requests');
    if (answer.ok) {
      lists = await answer.json();
      if (!isRead()) showRequests();
      else say(byId('requests').querySelector('caption'), `${CAPTION[listed]}; held while you are at one of them`);
    }
  } catch {
    return;  // the next look at the state says it
  }
}

/** Whether a row is pointed at or has the focus: it must not move before it is opened. */
function isRead() {
  const rows = byId('requests').querySelector('tbody');
  if (rows === null) return false;
  return rows.querySelector(':focus-visible') !== null || (matchMedia('(hover: hover)').matches && rows.matches(':hover'));
}

function showRequests() {
  if (!lists) return;
  const all = lists[listed];
  const found = allListed ? all : all.slice(0, FEW);
  const most = Math.max(...found.map((each) => each.ms), 1e-9);
  const focused = document.activeElement?.dataset?.request;
  const heads = HEADS.map(([title, kind]) => make(title ? 'th' : 'td', { scope: title ? 'col' : null, class: kind }, title));
  byId('requests').replaceChildren(found.length
    ? make('table', {}, make('caption', {}, CAPTION[listed]), make('thead', {}, make('tr', {}, ...heads)),
      make('tbody', {}, ...found.map((each) => rowOf(each, most))))
    : make('p', { class: 'soft' }, EMPTY[listed]),
  all.length > FEW ? make('p', { class: 'after' }, moreButton(all.length)) : '');
  if (focused !== undefined) {
    const at = [...byId('requests').querySelectorAll('[data-request]')].find((each) => each.dataset.request === focused);
    at?.focus({ preventScroll: true });
  }
}

function rowOf(request, most) {
  const { id, error, longest } = request;
  const bar = make('span');
  bar.style.width = `${100 * request.ms / most}%`;
  const name = id === null ? 'refused' : id;
  const row = tableRow(link(name, () => openListed(request), { 'data-request': name }),
    numberCell(time(request.ms)),
    make('td', { class: 'share narrow-off', 'aria-hidden': 'true' }, bar),
    make('td', { class: error ? 'outcome bad' : 'outcome' },
      error ? faultOf(request, 'narrow-off') : `✓\u00a0${request.status || 'ok'}`),
    make('td', { class: 'narrow-off' }, longest ? longestPart(longest) : '–'),
    make('td', { class: 'narrow-off' }, routeOf(request)),
    numberCell(ago(request.ago)));
  row.className = error ? 'bad-row' : '';
  return row;
}

function longestPart({ op, part, ms }) { return `${[op, part].filter(Boolean).join(': ')}, ${time(ms)}`; }

function moreButton(number) {
  const toggle = () => {
    allListed = !allListed;
    showRequests();
  };
  return make('button', { 'data-request': 'all', 'aria-expanded': String(allListed), onclick: toggle },
    allListed ? 'Show fewer' : `Show all ${number}`);
}

for (const each of document.querySelectorAll('[data-list]')) {
  each.addEventListener('click', () => {
    listed = each.dataset.list;
    press(document.querySelectorAll('[data-list]'), each);
    showRequests();
  });
}
byId('find').addEventListener('submit', (event) => {
  event.preventDefault();
  openRequest(byId('wanted').value.trim());
});
