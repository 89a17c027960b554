'use strict';
// Requests the status of the service once a second, and shows it.

const EVERY = 1000;           // milliseconds between two queries
const LARGE = 100;            // ops from which on the interval is doubled
const LISTS_EVERY = 3000;
const HISTORY_EVERY = 5000;

let paused = false;
let running = false;
let ready = false;            // the first answer was shown
let listsAt = 0;
let historyAt = 0;

/** One query; returns whether to continue. */
async function look() {
  try {
    const answer = await ask('ui/state');
    if (answer.status === 401 || answer.status === 403) {
      await refuse(answer);
      return false;
    }
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    remember(await answer.json());
  } catch {
    document.body.classList.add('gone');
    health('✕ disconnected, retrying', 'bad');
    return true;
  }
  document.body.classList.remove('gone');
  admit();
  showWhole();
  showOps();
  showTrends();
  showPlaces();
  showCallers();
  showVersions();
  if (opened !== null) showOp();
  if (!ready) {
    ready = true;
    await findRoutes();
    refreshLists();
    if (location.hash) follow();
  }
  return true;
}

/** Show what the address names. */
function follow() {
  const [kind, ...parts] = namedByAddress();
  if (kind === 'op') openOp(parts.join('\n'));
  else if (kind === 'request') openRequest(parts[0]);
  else byId('panel').close();
}

async function tick() {
  if (running) return;
  running = true;
  let goOn = true;
  while (goOn && !paused && !document.hidden) {
    const begun = performance.now();
    try {
      goOn = await look();
    } catch (error) {  // a fault of this page: the next answer may be shown
      health(`✕ not shown: ${error.message}`, 'bad');
      reportError(error);
    }
    if (goOn && begun - listsAt >= LISTS_EVERY && !document.body.classList.contains('gone')) {
      listsAt = begun;
      await refreshLists();
    }
    if (goOn && begun - historyAt >= HISTORY_EVERY && !document.body.classList.contains('gone')) {
      historyAt = begun;
      await refreshHistory(opened === null ? null : opened.split('\n')[2]);
      showTrends();
    }
    const every = drawn?.nodes.size > LARGE ? 2 * EVERY : EVERY;
    const rest = every - (performance.now() - begun);
    if (goOn) await new Promise((done) => { setTimeout(done, Math.max(200, rest)); });
  }
  running = false;
}

byId('login').addEventListener('submit', (event) => {
  event.preventDefault();
  token = byId('token').value;
  byId('token').value = '';
  tick();
});
byId('pause').addEventListener('click', () => {
  paused = !paused;
  press([byId('pause')], paused ? byId('pause') : null);
  if (paused) health('‖ paused', 'soft');
  else tick();
});
addEventListener('popstate', () => { if (ready) follow(); });
document.addEventListener('visibilitychange', () => { if (!document.hidden) tick(); });
tick();
