'use strict';
// The frame of a script of checks: each prints one line, {"check": name, "wrong": text or ""}.

const assert = require('node:assert/strict');

const site = JSON.parse(process.argv[2]);
const all = [];

function check(name, run) {
  all.push([name, run]);
}

async function runAll(seconds = 15) {
  for (const [name, run] of all) {
    let wrong = '';
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`no end within ${seconds} s`)), seconds * 1000);
    });
    try {
      await Promise.race([run(), late]);
    } catch (error) {
      wrong = error.stack || String(error);
    }
    clearTimeout(timer);
    process.stdout.write(JSON.stringify({check: name, wrong}) + '\n');
  }
}

module.exports = {assert, check, runAll, site};
