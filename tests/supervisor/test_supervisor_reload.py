"""Supervisors after a reload, whose processes are forks of a template.

``tests.service.test_code_reload`` reloads whole services.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.service.scripts import until
from tests.supervisor.supervised import Supervised, has_ended
from tests.supervisor.test_supervisor_engines import all_serve

PROLOGUE = """
import logging
import penstock.supervisor.template as template
from penstock.supervisor.messages import Loaded
from penstock.supervisor.reload import Reloading
from penstock.supervisor.template import TemplateCode, become_template

logging.basicConfig(level="INFO", format="%(message)s")
engines = 2
loaded = Loaded({}, [], None, None, None, True)

def program(control, errors):
    say("template", os.getpid())
    become_template(control, loaded, errors, lambda start, line, *_: main(start, line))

def code(made, loaded):
    return TemplateCode(made, [{}] * engines, lambda: [])

options = {"reloading": Reloading(program, code)}

async def serve(zygote):
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, zygote.leaving)
    work = lambda: tasks.append(asyncio.ensure_future(use_worker(zygote)))
    loop.add_signal_handler(signal.SIGUSR1, work)
    zygote.ready()
    while True:
        order = await orders.get()
        say(type(order).__name__, here.index, os.getpid())
        if type(order).__name__ != "Serve":
            return 0
        zygote.switched()

tasks = []

async def use_worker(zygote):
    try:
        worker = await zygote.spawn(an_op, 0)
    except Exception as error:
        say("refused", error)
        return
    say("spawned", worker.pid)
    say("exited", (await zygote.exited(worker.pid)).status)
    let_go(worker)
"""


def reloaded(folder: Path, script: str = "") -> Supervised:
    """A service whose engines are sent SIGHUP when they serve."""
    service = Supervised(folder, PROLOGUE + script)
    all_serve(service, 2)
    service.signal(signal.SIGHUP)
    return service


def await_end_of_reload(service: Supervised) -> None:
    """Before that the supervisor may not know yet what its template has forked."""
    until(lambda: "the changed program serves" in service.errors.read_text(), "the reload is over")


def test_what_else_happens_is_handled_while_the_template_does_not_answer(tmp_path: Path) -> None:
    with reloaded(tmp_path, "template.LONGEST_ANSWER = 3600.0") as service:
        made = service.pid("template")
        engines = all_serve(service, 2)
        os.kill(engines[0], signal.SIGUSR1)
        worker = service.pid("spawned")
        await_end_of_reload(service)
        os.kill(made, signal.SIGSTOP)
        os.kill(engines[1], signal.SIGKILL)  # its successor has to wait
        until(lambda: "died: killed by SIGKILL" in service.errors.read_text(), "it is seen")
        ended = service.watch(worker)
        os.kill(worker, signal.SIGKILL)
        assert service.expect("exited") == [str(int(signal.SIGKILL))]
        assert has_ended(ended, 0)
        os.kill(made, signal.SIGCONT)
        assert service.expect("Serve")[0] == "1"
        service.signal(signal.SIGTERM)
        assert service.status() == 0


def test_a_stop_ends_a_process_whose_start_is_reported_later(tmp_path: Path) -> None:
    with reloaded(tmp_path, "template.LONGEST_ANSWER = 3600.0") as service:
        made = service.pid("template")
        engines = all_serve(service, 2)
        await_end_of_reload(service)
        os.kill(made, signal.SIGSTOP)
        os.kill(engines[1], signal.SIGKILL)
        until(lambda: "died: killed by SIGKILL" in service.errors.read_text(), "it is seen")
        service.signal(signal.SIGTERM)
        assert service.expect("Stop")[0] == "0"
        os.kill(made, signal.SIGCONT)
        assert service.status() == 0


SILENT = """
def worker_main(engine_id, op, index, channel):
    while True:
        signal.pause()

def silent(control, order, *more, plain=template._forked):
    answer = plain(control, order, *more)
    if order.start["source"] is not None:
        say("late", answer.pid)
        signal.raise_signal(signal.SIGSTOP)
    return answer

def impatient(made, start, *more, plain=template.Template.fork):
    template.LONGEST_ANSWER = 0.5 if start.source is not None else 3600.0
    return plain(made, start, *more)

template._forked, template.Template.fork = silent, impatient
"""


def test_a_template_that_does_not_answer_is_killed_with_what_it_has_not_reported(
    tmp_path: Path,
) -> None:
    with reloaded(tmp_path, SILENT) as service:
        service.pid("template")
        engines = all_serve(service, 2)
        os.kill(engines[0], signal.SIGUSR1)
        late = service.watch(service.pid("late"))
        why = " ".join(service.expect("refused"))
        assert why == "op|0 cannot be started: the template has died"
        assert has_ended(late, 20)
        assert "does not answer, and is killed" in service.errors.read_text()
        service.signal(signal.SIGTERM)
        assert service.status() == 0


# A template that dies


BROKEN = """
import pathlib
broken = pathlib.Path({broken!r})

def program(control, errors, plain=program):
    if broken.exists():
        say("broken")
        return 3
    return plain(control, errors)

options = {{"reloading": Reloading(program, code)}}
"""


def lost(service: Supervised, broken: Path | None = None) -> dict[int, int]:
    """Kills its template, after breaking its program; returns its engines."""
    made = service.pid("template")
    engines = all_serve(service, 2)
    await_end_of_reload(service)
    if broken is not None:
        broken.touch()
    os.kill(made, signal.SIGKILL)
    return engines


@pytest.mark.parametrize("dead_engines", [0, 1, 2])
def test_a_reload_replaces_a_template_that_dies_and_engines_that_die_meanwhile(
    tmp_path: Path, dead_engines: int
) -> None:
    with reloaded(tmp_path) as service:
        for pid in [*lost(service).values()][:dead_engines]:
            os.kill(pid, signal.SIGKILL)
        service.pid("template")
        engines = all_serve(service, 2)
        os.kill(engines[1], signal.SIGKILL)
        assert service.expect("Serve")[0] == "1"
        over = "the changed program serves"
        until(lambda: service.errors.read_text().count(over) == 2, "both reloads are over")
        service.signal(signal.SIGTERM)
        assert service.status() == 0


@pytest.mark.parametrize("needed", ["an engine", "a worker", "a successor"])
def test_if_the_program_cannot_be_run_again_the_next_process_that_ends_runs_it(
    tmp_path: Path, needed: str
) -> None:
    broken = tmp_path / "broken"
    script = f"""
{BROKEN.format(broken=str(broken))}
import penstock.supervisor.supervisor as supervisor
supervisor._RERUN_INTERVAL = 0.0
"""
    with reloaded(tmp_path, script) as service:
        engines = lost(service, broken)
        service.expect("broken")
        until(lambda: "no engine or worker that ends is rep" in service.errors.read_text(), "told")
        broken.unlink()
        number = {"an engine": signal.SIGKILL, "a worker": signal.SIGUSR1}.get(needed)
        os.kill(engines[1], number or signal.SIGTERM)
        service.pid("template")
        now = all_serve(service, 2)
        os.kill(now[1], signal.SIGUSR1)
        service.pid("spawned")
        service.signal(signal.SIGTERM)
        assert service.status() == 0


def test_an_engine_that_dies_while_the_program_cannot_be_run_again_is_given_up_as_any_other(
    tmp_path: Path,
) -> None:
    broken = tmp_path / "broken"
    with reloaded(tmp_path, BROKEN.format(broken=str(broken))) as service:
        engines = lost(service, broken)
        service.expect("broken")
        os.kill(engines[1], signal.SIGKILL)
        until(lambda: "engine 1 has died too often" in service.errors.read_text(), "given up")
        assert not has_ended(service.watch(engines[0]), 0)
        os.kill(engines[0], signal.SIGKILL)
        assert service.status() == 1
        assert "engine 0 has died too often" in service.errors.read_text()


SLOW = """
import penstock.supervisor.supervisor as supervisor
supervisor._LONGEST_SWITCH = 3600.0

async def serve(zygote):
    loop = asyncio.get_running_loop()
    work = lambda: tasks.append(asyncio.ensure_future(use_worker(zygote)))
    loop.add_signal_handler(signal.SIGUSR1, work)
    loop.add_signal_handler(signal.SIGUSR2, zygote.switched)
    zygote.ready()
    while True:
        order = await orders.get()
        say(type(order).__name__, here.index, os.getpid())
        if type(order).__name__ == "Serve":
            zygote.switched()
        elif type(order).__name__ != "Leave":
            return 0
"""


def test_a_reload_is_over_when_the_new_engines_accept_and_the_old_ones_do_not(
    tmp_path: Path,
) -> None:
    with reloaded(tmp_path, SLOW) as service:
        old = [int(service.expect("Leave")[1]) for _ in range(2)]
        os.kill(old[0], signal.SIGUSR2)
        os.kill(old[0], signal.SIGUSR1)
        service.expect("spawned")  # so what was sent before has been handled
        assert "the changed program serves" not in service.errors.read_text()
        os.kill(old[1], signal.SIGKILL)
        until(lambda: "the changed program serves" in service.errors.read_text(), "the result")
        service.signal(signal.SIGTERM)
        assert service.status() == 0


HANGS = """
import pathlib
hangs = pathlib.Path({hangs!r})
loaded = Loaded({{}}, [], None, None, None, True, 0.5)

def program(control, errors, plain=program):
    if hangs.exists():
        say("hangs")
        signal.pause()
    return plain(control, errors)

options = {{"reloading": Reloading(program, code, 3600.0)}}
"""


def test_the_time_of_a_program_to_be_loaded_is_that_of_the_last_one(tmp_path: Path) -> None:
    hangs = tmp_path / "hangs"
    with reloaded(tmp_path, HANGS.format(hangs=str(hangs))) as service:
        service.pid("template")
        all_serve(service, 2)
        hangs.touch()
        service.signal(signal.SIGHUP)
        service.expect("hangs")
        until(lambda: "has not reached its service" in service.errors.read_text(), "the end")
        service.signal(signal.SIGTERM)
        assert service.status() == 0
