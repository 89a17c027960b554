"""What a program writes before it serves. ``tests.service.test_code_reload`` has templates that
serve.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from penstock.supervisor.template import last_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ""),
        ("loading\nValueError: no\n\n", "loading\nValueError: no"),
        (json.dumps({"level": "ERROR", "message": "a.py\nNo: no\n"}) + "\n", "a.py\nNo: no"),
        ('{"a": 1}\n{no JSON\n', '{"a": 1}\n{no JSON'),
        ("x" * 5000 + "\nthe end", "x" * 892 + "\nthe end"),
    ],
)
def test_the_last_words_are_the_end_of_standard_error_with_messages_of_our_log_as_text(
    text: str, words: str
) -> None:
    assert last_words(text) == words


UNREAD = """
import os, select
from penstock.supervisor.template import Template

def main(control, errors):
    os.write(2, b"x" * 300_000 + b"\\nthe reason")
    return 0

reader, writer = os.pipe()
os.dup2(writer, 2)
made = Template(main, lambda: None)
while made.errors is not None:
    select.select([made.errors], [], [])
    made.pass_on()
made.reap()
print(made.last_words[-12:], len(os.read(reader, 1 << 20)) > 10_000)
"""


def test_what_a_full_standard_error_does_not_accept_does_not_block_the_supervisor() -> None:
    done = subprocess.run(
        [sys.executable, "-c", UNREAD], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (0, "x\nthe reason True\n")


CROSSED = """
import select, socket
from penstock.supervisor.code import Start
from penstock.supervisor.engine_id import EngineId
from penstock.supervisor.messages import Refused, receive, send
from penstock.supervisor.template import Template

def main(control, errors):
    orders = [receive(control).message for _ in range(2)]
    for each in reversed(orders):
        send(control, Refused(each.number, str(each.start["engine_id"]["index"])))
    return 0

made = Template(main, lambda: None)
line = socket.socketpair()
for index in range(2):
    made.fork(Start(EngineId(index=index, engines=2)), [line[0].fileno()])
for _ in range(2):
    select.select([made.control], [], [])
    child, reason = made.answered(made.receive())
    print(child.name, reason)
    child.reap()
print(made.ordered, made.due)
made.reap()
"""


def test_an_answer_belongs_to_the_order_with_its_number() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CROSSED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "engine 1 1\nengine 0 0\n[] inf\n"
