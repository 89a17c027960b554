"""Traces in Chromium: parsed there, and checked by the rules of its trace viewer."""

from __future__ import annotations

from pathlib import Path

from penstock import Analyst
from tests.paddle.instruments.test_profile import ORIGINAL
from tests.peers.browser import browsing

# The viewer's first rule: an end closes the latest begin of its thread, in order of time.
CHECK = """
(() => {
  const events = JSON.parse(document.querySelector("pre").textContent);
  const open = new Map();
  let closed = 0;
  for (const event of events.sort((a, b) => a.ts - b.ts || (a.ph < b.ph ? 1 : -1))) {
    if (!Number.isFinite(Number(event.ts)) || !["B", "E"].includes(event.ph)) return "bad event";
    const thread = event.pid + " " + event.tid;
    const stack = open.get(thread) ?? open.set(thread, []).get(thread);
    if (event.ph === "B") stack.push(event.name);
    else if (stack.pop() !== event.name) return "no begin of " + event.name;
    else closed += 1;
  }
  return closed;
})()
"""


def test_chromium_reads_a_trace_made_from_a_profile_of_paddle_serving(tmp_path: Path) -> None:
    whole = "".join(line for line in ORIGINAL.splitlines(True) if "prep#[bow|0]_1:\n" not in line)
    (tmp_path / "profile.txt").write_text(whole)
    path = tmp_path / "trace.json"
    Analyst(tmp_path / "profile.txt").save_trace(path)
    with browsing(tmp_path) as page:
        page.open(path.as_uri())
        page.until("document.querySelector('pre') !== null")
        assert page.evaluate(CHECK) == 12
