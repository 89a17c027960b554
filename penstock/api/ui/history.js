'use strict';
// The last minutes as the service has stored them: a point every few seconds, in series of equal length.

const SPAN = 900;             // seconds that are shown

let stored = null;            // the answers so far as one: see `joined`

const graphKey = ({ name, version }) => `${name ?? ''}\n${version}`;

/**
 * Earlier points and those of an answer: the numbers of the first point and of that after the last, and the
 * series of the service, of the graphs by key, and of the ops of the answer by name. Those of an op that it
 * does not have are dropped: they would have a gap when the op is asked for again.
 */
function joined(before, answer) {
  // Times go back if the machine has started again.
  const old = before && before.now <= answer.now && before.first < before.end ? before : null;
  const { every, first } = answer;
  const length = answer.service.rate.length;
  const end = length ? first + length : old?.end ?? first;
  const until = Math.max(end, old?.end ?? end);
  const from = Math.max(until - SPAN / every, Math.min(old?.first ?? first, first));
  const merge = (was, now) => Object.fromEntries(Object.entries({ ...was, ...now })
    .filter(([, values]) => Array.isArray(values))
    .map(([member]) => [member, Array.from({ length: until - from }, (_, i) => {
      const at = from + i;
      const isNew = now && at >= first && at < first + length;
      return (isNew ? now[member]?.[at - first] : was?.[member]?.[at - old.first]) ?? null;
    })]));
  const all = (was, now) => new Map([...new Set([...(was?.keys() ?? []), ...now.keys()])]
    .map((key) => [key, merge(was?.get(key), now.get(key))]));
  return {
    every, now: answer.now, first: from, end: until,
    service: merge(old?.service, answer.service),
    graphs: all(old?.graphs, new Map(answer.graphs.map((each) => [graphKey(each), each]))),
    ops: new Map(answer.ops.map((each) => [each.name, merge(old?.ops.get(each.name), each)])),
  };
}

/** The newest value of a series; null if there is none. */
function newest(series, member) { return series?.[member].at(-1) ?? null; }
