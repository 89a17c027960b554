'use strict';
// Numbers as texts.

function digits(value, places) {
  return value.toLocaleString('en', { minimumFractionDigits: places, maximumFractionDigits: places });
}

function count(value) {
  if (value >= 1e6) return `${digits(value / 1e6, 1)}M`;
  return value >= 1e4 ? `${digits(value / 1e3, value >= 1e5 ? 0 : 1)}k` : digits(value, 0);
}

function rate(value) {
  if (value >= 1e4) return count(value);
  return digits(value, value > 0 && value < 10 ? 1 : 0);
}

/** Milliseconds with a unit; null and NaN are not known. */
function time(ms) {
  if (ms === null || Number.isNaN(ms)) return '–';
  if (ms === 0) return '0 ms';
  if (ms >= 10000) return `${digits(ms / 1000, 1)} s`;
  if (ms >= 1000) return `${digits(ms / 1000, 2)} s`;
  return `${digits(ms, ms >= 100 ? 0 : ms >= 10 ? 1 : ms >= 0.1 ? 2 : 3)} ms`;
}

function ago(seconds) {
  if (seconds < 1) return 'now';
  if (seconds < 90) return `${Math.round(seconds)} s ago`;
  return `${Math.round(seconds / 60)} min ago`;
}

/** A duration of seconds or longer. */
function lasting(seconds) {
  for (const [unit, name] of [[86400, 'd'], [3600, 'h'], [60, 'min']]) {
    if (seconds >= 2 * unit) return `${digits(seconds / unit, 0)} ${name}`;
  }
  return `${digits(seconds, 0)} s`;
}

function bytes(value) {
  if (value >= 1 << 30) return `${digits(value / (1 << 30), 2)} GiB`;
  return value >= 1 << 20 ? `${digits(value / (1 << 20), 0)} MiB` : `${digits(value / 1024, 0)} KiB`;
}

function several(number, word) { return `${count(number)} ${word}${number === 1 ? '' : 's'}`; }
function percent(part) { return `${digits(100 * part, part > 0 && part < 0.1 ? 1 : 0)} %`; }
function share(part, whole) { return whole > 0 ? `${digits(100 * part / whole, 0)} %` : '–'; }
