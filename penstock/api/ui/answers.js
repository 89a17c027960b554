'use strict';
// The latest answers of the service, and what they say about an interval. Rates and means are
// differences between two answers, because the service only has counters.

const WINDOW = 5;             // seconds over which rates and means are taken
const KEPT = 90;              // stored answers: a minute and a half, or three of a large graph

const past = [];              // the oldest first: at, sends, status, ops by key

function remember(answer) {
  const ops = new Map();
  for (const graph of answer.status.graphs) for (const op of graph.ops) ops.set(keyOf(graph, op), op);
  const now = { at: answer.at, sends: answer.sends, status: answer.status, ops };
  const last = past[past.length - 1];
  // The counters of a restarted service begin at 0.
  if (last && (now.at < last.at || now.status.requests.admitted < last.status.requests.admitted)) past.length = 0;
  past.push(now);
  if (past.length > KEPT) past.shift();
}

/** The latest answer, the answer at the start of the window, and the seconds between them. */
function interval() {
  const now = past[past.length - 1];
  let from = past[0];
  for (const each of past) if (now.at - each.at >= WINDOW) from = each;
  return { now, from, seconds: now.at - from.at };
}

function total(counts) { return Object.values(counts || {}).reduce((sum, each) => sum + each, 0); }

/** The figures of an op in the interval. */
function figures(key, { now, from, seconds }) {
  const op = now.ops.get(key);
  const before = from.ops.get(key);
  const gained = (read) => (before ? Math.max(0, read(op) - read(before)) : 0);
  const batches = gained((each) => each.batches);
  const waits = gained((each) => total(each.queue.classes));
  const faults = gained((each) => (each.errors || 0) + each.timeouts + each.deaths);
  const per = (sum, number) => (number ? 1000 * sum / number : null);
  const found = {
    op, batches, faults,
    rate: seconds > 0 ? gained((each) => each.samples) / seconds : 0,
    batchRate: seconds > 0 ? batches / seconds : 0,
    busy: Math.max(0, op.workers - op.idle),
    size: batches ? gained((each) => each.samples) / batches : null,
    wait: per(gained((each) => each.queue.sum), waits),
    transfer: per(gained((each) => each.transfer), batches),
    preprocess: per(gained((each) => each.seconds.preprocess), batches),
    process: per(gained((each) => each.seconds.process), batches),
    postprocess: per(gained((each) => each.seconds.postprocess), batches),
    steps: gained((each) => each.steps?.count ?? 0),
    running: gained((each) => each.steps?.running.sum ?? 0),
    stepping: gained((each) => each.steps?.seconds.sum ?? 0),
  };
  const places = op.places ?? [];
  found.missing = places.filter(({ state }) => state === 'waiting' || state === 'failed').length;
  if (op.workers === 0 || (found.missing && !places.some(({ state }) => state === 'running'))) found.state = 'none';
  else if (faults) found.state = 'errors';
  else if (found.missing) found.state = 'short';
  else if (op.waiting > 0 && op.idle === 0) found.state = 'queue';
  else found.state = found.rate > 0 || found.busy > 0 ? 'works' : 'idle';
  return found;
}

/** How much a counter grew each second, in each interval between two answers. */
function series(read) {
  return past.slice(1).map((now, i) => {
    const seconds = now.at - past[i].at;
    return seconds > 0 ? Math.max(0, (read(now) - read(past[i])) / seconds) : 0;
  });
}

const answered = (status) => status.requests.answered;
const failures = (status) => total(status.answers) - (status.answers.ok || 0) + total(status.refusals);
