"""The supervisor: starts the engines and their workers, and replaces engines that die or hang.

The supervisor is the process that has run the user's script. It has one thread, no loop and no
model, so it can fork at any time, and children need not import anything again.

Guarantees: no child outlives the supervisor; no worker outlives its engine; a child that ends is
reaped at once, and its engine notified; children hold no descriptors of their siblings, so that
every end of file is seen. Only own children are reaped.

The first engine starts alone, so that a common failure is reported once; then the others start
together. When all are ready, the ports are opened, and from then on an engine that dies, or whose
loop does not respond, is replaced; before that, its end is the service's. SIGHUP reloads the
program (see ``reload.py``): new engines of it serve before the old ones are sent ``Leave``. If it
cannot be run again, SIGHUP replaces the engines one after the other, with the same code. A reload
also replaces a template that dies.

    start ──> starting ──Ready──> ready ──> serving ──Leave──> leaving ──> end
                 │                             │
                 └────────── death ────────────┴──> start, with back-off

A replacement starts while the old process serves; both have the same sockets, so connections are
not interrupted.

The versions of a name are changed by all engines or by none (see ``version_table.py``). Workers are
forked for the version that they are to open.
"""

from __future__ import annotations

import logging
import math
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from penstock.errors import StartupError
from penstock.executors.processes.spawner import Exited
from penstock.repository.served import Served
from penstock.supervisor.child_processes import (
    Child,
    Reaper,
    adopt_orphans,
    as_shell,
    end_all,
    spared_pages,
    status_text,
)
from penstock.supervisor.code import Code, Main, OwnCode, Start
from penstock.supervisor.engine_id import EngineId
from penstock.supervisor.engine_process import EngineProcess
from penstock.supervisor.engine_slot import EngineSlot
from penstock.supervisor.messages import (
    Answer,
    Answers,
    Ask,
    Asked,
    AskPast,
    Change,
    Committed,
    Failed,
    Forked,
    Held,
    Keep,
    Leaving,
    Loaded,
    Message,
    Prepared,
    Ready,
    Refused,
    Reloaded,
    Restored,
    Retired,
    Spawn,
    Switched,
)
from penstock.supervisor.messages import Reload as ReloadRequest
from penstock.supervisor.queries import Queries
from penstock.supervisor.reload import Record, Reload, Reloading, Switch
from penstock.supervisor.signals import (
    StopSignals,
    leave_hangup_to_supervisor,
    on_hangup,
    signals_wake_waits,
)
from penstock.supervisor.template import Template, TemplateCode
from penstock.supervisor.version_table import Sends, VersionTable

_log = logging.getLogger(__name__)


_GIVEN_UP: Final = 1
_LONGEST_WAIT: Final = 3600.0  # the system limits timeouts
_SUSPENDED: Final = 1.0  # seconds by which a wait is late after a suspension only
_NO_RELOAD: Final = Reloading(
    lambda *_: 1, lambda *_: OwnCode(lambda *_: 1), problem="nothing is known of its program"
)
_STOPS: Final = "the service stops"
_RERUN_INTERVAL: Final = 30.0  # seconds between two attempts to replace a template; a guess
_LONGEST_SWITCH: Final = 5.0  # seconds for engines to accept connections, or no more; a guess
_LAST_WAIT: Final = 5.0  # seconds for killed children, whose end a driver may delay


@dataclass(frozen=True, slots=True)
class _Worker:
    """A worker process.

    Attributes:
        engine: the engine that it works for.
        number: of the engine's request.
        channel: the engine's end of the socket pair, until the engine has it.
    """

    engine: EngineProcess
    number: int
    channel: socket.socket


class Supervisor:
    """The parent of one service's processes.

    Args:
        main: runs an engine, with its end of the control socket (see ``supervisor/messages.py``),
            or a worker, with its end of the socket pair to its engine; returns its exit status. A
            worker must end when that socket is closed.
        listeners: the sockets of each engine. Workers close them, and so does the supervisor when
            it stops; until then, connections wait for the engine's next process.
        open_ports: called once, when all engines are ready, with the lines that the last one
            reports: makes the sockets listen.
        stop_timeout: seconds for an engine to end before it is killed.
        answer_timeout: seconds for a ready engine to answer a ping before it is killed and
            replaced.
        versions: the table of versions; None: there are none at the start.
        spawns: ``main`` calls exec; only then may there be other threads.
        reloading: how the program is run again.

    Threads: the main thread only.
    """

    def __init__(
        self,
        main: Main,
        listeners: Sequence[Sequence[socket.socket]] = ((),),
        open_ports: Callable[[Sequence[str]], None] = lambda lines: None,
        stop_timeout: float = math.inf,
        answer_timeout: float = math.inf,
        versions: VersionTable | None = None,
        *,
        spawns: bool = False,
        reloading: Reloading = _NO_RELOAD,
    ) -> None:
        self._answer_timeout = answer_timeout
        self._spawns = spawns
        self._code: Code = OwnCode(main, spawns=spawns)
        self._reloading = reloading
        self._reload: Reload | None = None
        self._switch: Switch | None = None
        self._reload_askers: list[tuple[EngineProcess, int]] = []  # of the next reload
        self._templates: list[Template] = []  # running ones
        self._lacks_template = False  # so the program is to be run again
        self._ran_again = -math.inf  # when it was run the last time
        self._record: Record | None = None
        self._held: list[tuple[EngineProcess, Change]] = []  # until the reload is over
        self._slots = [
            EngineSlot(EngineId(index=index, engines=len(listeners)), own)
            for index, own in enumerate(listeners)
        ]
        self._open_ports = open_ports
        self._stop_timeout = stop_timeout
        self._is_open = False
        self._stops = 0
        self._forwarded = 0
        self._hung_up = False
        self._to_replace: deque[EngineSlot] = deque()  # slots whose processes are to be replaced
        self._workers: dict[Child, _Worker] = {}
        self._result = 0
        self._queries = Queries()
        self._versions = versions or VersionTable()
        self._status: int | None = None
        self._reaper = Reaper(adopts=os.getpid() == 1)
        # Signals write here, to wake waits.
        self._woken: socket.socket
        self._waker: socket.socket

    @property
    def changed(self) -> list[Served]:
        """The states that an engine which starts now is to serve, besides those of the start."""
        return self._versions.changed

    def run(self, signals: StopSignals) -> int:
        """Run until the engines have ended; returns their exit status, 128 plus the number for a
        signal.

        SIGTERM and SIGINT stop all engines, a second signal at once.

        Raises:
            StartupError: an engine cannot start, with its reason.
            Stopped: a signal came before this.
        """
        signals.forward_to(self._count_signal)
        try:
            with ExitStack() as stack:
                stack.enter_context(spared_pages())
                self._woken, self._waker = socket.socketpair()
                for each in (self._woken, self._waker):
                    stack.enter_context(each)
                    each.setblocking(False)
                stack.enter_context(signals_wake_waits(self._waker))
                if stack.enter_context(on_hangup(self._hang_up)):
                    self._record = Record()
                    stack.callback(self._record.close)
                stack.callback(self._end_children)
                self._forward_signals()  # signals from before they could wake a wait
                if self._status is None:
                    self._start(self._slots[0])
                while self._status is None:
                    self._step()
        finally:
            signals.pause()
        if self._status == 0:
            signals.end()
            if self._stops and not self._is_open:
                _log.info("stopped before the start was over")
        return self._status

    def _count_signal(self) -> None:
        self._stops += 1

    def _hang_up(self) -> None:
        self._hung_up = True

    @property
    def _sockets(self) -> list[socket.socket]:
        """The listening sockets of all engines."""
        return [each for every in self._slots for each in every.listeners]

    def _processes(self) -> list[EngineProcess]:
        return [engine for slot in self._slots for engine in slot.processes]

    def _step(self) -> None:
        """Wait for the next event, and handle all pending ones."""
        handlers = self._handlers()
        poll = select.poll()
        for fd in handlers:
            poll.register(fd, select.POLLIN)
        left = self._time_left()
        began = time.monotonic()
        for fd, _ in poll.poll(left):
            handlers[fd]()
        self._forward_signals()
        if time.monotonic() > began + left / 1000 + _SUSPENDED:
            for engine in self._processes():
                if engine.is_ready:  # it may have been suspended, too
                    engine.postpone_check()
            for template in self._templates:
                template.postpone()
        self._kill_late()
        for slot in self._slots:
            if slot.start_at is not None and time.monotonic() >= slot.start_at:
                self._restart(slot)
        self._give_answers()
        self._reload_next()
        self._replace_next()
        if not any(each.ordered for each in self._templates):  # or they could be unknown children
            self._reaper.reap(self._known())

    def _known(self) -> set[int]:
        """The ids of the children."""
        return {each.pid for each in self._children()}

    def _children(self) -> list[Child]:
        engines = [each.child for each in self._processes()]
        return [*self._workers, *engines, *(each.child for each in self._templates)]

    def _handlers(self) -> dict[int, Callable[[], object]]:
        """The descriptors that become readable with an event, and what handles it."""
        handlers: dict[int, Callable[[], object]] = {
            self._woken.fileno(): partial(self._woken.recv, 4096)
        }
        for slot in self._slots:
            for engine in slot.processes:
                if engine.is_connected:
                    handlers[engine.control.fileno()] = partial(self._receive, slot, engine)
                if engine.child.pid:
                    handlers[engine.child.pidfd] = partial(self._engine_died, slot, engine)
        for worker in self._workers:
            if worker.pid:
                handlers[worker.pidfd] = partial(self._worker_died, worker)
        for template in self._templates:
            handlers[template.child.pidfd] = partial(self._template_died, template)
            if template.errors is not None:
                handlers[template.errors] = template.pass_on
            if template.is_connected:
                handlers[template.control.fileno()] = partial(self._receive_of, template)
        return handlers

    def _kill_late(self) -> None:
        """Kill engines and templates that do not answer, or do not end, in time; end a reload that
        takes too long.
        """
        now = time.monotonic()
        reload = self._reload
        if reload is not None and now >= reload.due:
            loading = reload.code is None
            what = "the program has not reached its service" if loading else "no engine is ready"
            self._end_reload(f"{what} within the limits of start_timeout")
        for template in self._templates:
            if now >= template.due:
                pid = template.child.pid
                _log.error("the template (pid %d) does not answer, and is killed", pid)
                template.kill()
        if self._switch is not None and now >= self._switch.due:
            self._end_switch()
        for engine in self._processes():
            name, pid = engine.child.name, engine.child.pid
            if not engine.check(now):
                engine.failure = f"its loop has not answered for {self._answer_timeout:g} s"
                _log.error("%s (pid %d) is killed: %s", name, pid, engine.failure)
                engine.kill()
            if engine.kill_at is not None and now >= engine.kill_at:
                _log.error("%s does not end, and is killed", name)
                engine.kill()

    def _time_left(self) -> float:
        """Milliseconds until the next timer."""
        times = [slot.start_at for slot in self._slots]
        times += [self._queries.due, None if self._reload is None else self._reload.due]
        times += [None if self._switch is None else self._switch.due]
        times += [at for each in self._processes() for at in (each.kill_at, each.check_at)]
        times += [each.due for each in self._templates]
        first = min((each for each in times if each is not None), default=math.inf)
        first = min(max(0.0, first - time.monotonic()), self._reaper.poll_interval, _LONGEST_WAIT)
        return first * 1000 + 1

    def _forward_signals(self) -> None:
        if self._stops and not self._forwarded:
            for slot in self._slots:  # already dead ones did not end because of the stop
                for engine in [each for each in slot.processes if each.child.has_ended()]:
                    self._engine_died(slot, engine)
        while self._forwarded < self._stops:
            self._forwarded += 1
            self._to_replace.clear()
            self._end_switch()
            self._end_reload(_STOPS)
            for asker, number in self._reload_askers:
                asker.send(Reloaded(number, _STOPS))
            self._reload_askers.clear()
            for slot in self._slots:
                slot.start_at = None
                for each in slot.listeners:  # or the ports would stay open after the engines' end
                    each.close()
            for engine in self._processes():
                engine.stop(hurry=self._forwarded > 1)
        if self._stops and self._status is None and not self._processes():
            self._status = self._result

    def _start(self, slot: EngineSlot, reload: Reload | None = None) -> None:
        """Start a process of an engine; with ``reload`` one that waits for it."""
        code = self._code if reload is None or reload.code is None else reload.code
        limits = self._stop_timeout, self._answer_timeout
        engine_id = slot.next_id(renews=reload is not None)
        others = [s for other in self._slots for s in other.listeners if s not in slot.listeners]
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs, ExitStack() as undo:
                undo.callback(ours.close)
                ours.setblocking(False)
                leave = partial(self._close_siblings, ours, *others)
                child = code.start(Start(engine_id), theirs, leave)
                undo.pop_all()
        except OSError as error:
            raise StartupError(f"{slot.name} cannot be started: {error}") from error
        if reload is not None:
            limits = reload.limits
        engine = EngineProcess(engine_id, child, ours, code, self._versions.epoch, *limits)
        slot.processes.append(engine)
        if reload is not None:
            engine.waits = True
            reload.engines[slot] = engine

    def _restart(self, slot: EngineSlot) -> None:
        slot.start_at = None
        if self._code.is_lost:  # the reload starts it, or plans this again
            self._lacks_template = self._reload is None
            return
        try:
            self._start(slot)
        except StartupError as error:
            _log.error("%s", error)
            self._plan_restart(slot, None)

    def _plan_restart(self, slot: EngineSlot, died: EngineProcess | None) -> None:
        if slot.plan_restart(died):
            return
        _log.critical("%s has died too often, and is not restarted", slot.name)
        slot.give_up([each for each in self._slots if not each.given_up and each is not slot])
        if all(each.given_up for each in self._slots):
            self._status = _GIVEN_UP

    def _reload_next(self) -> None:
        """Begin the next reload, if one is wanted and nothing else changes the engines."""
        if self._stops or not (self._hung_up or self._reload_askers or self._lacks_template):
            return
        if self._reload is not None and not self._reload.again:
            self._reload.again = True
            _log.info("reload: the program is run again when this reload is over")
        if self._reload is not None or not self._is_open or self._versions.is_changing:
            return
        if self._switch is not None:
            return
        askers, self._reload_askers = self._reload_askers, []
        self._lacks_template = False
        if self._record is not None:
            self._record.begin()
        now = self._ran_again = time.monotonic()
        if (why := self._reloading.problem) is not None:
            text = f"the program cannot be run again, because {why}"
            if self._hung_up:
                _log.info("SIGHUP: %s; every engine process is replaced, with the same code", text)
                self._to_replace = deque(each for each in self._slots if not each.given_up)
            self._hung_up = False
            self._report(askers, now, text)
            return
        self._hung_up = False
        try:
            adopt_orphans()
            self._reaper.adopt(self._known())
            template = Template(self._reloading.main, partial(self._close_siblings, *self._sockets))
        except OSError as error:
            self._report(askers, now, f"the program cannot be run again: {error}")
            return
        _log.info("reload: the program is run again (pid %d)", template.child.pid)
        self._templates.append(template)
        self._reload = Reload(
            template=template, askers=askers, began=now, due=now + self._reloading.limit
        )

    def _receive_of(self, template: Template) -> None:
        """Handle the next message of a template."""
        if template not in self._templates or not template.is_connected:
            return
        match template.receive():
            case Loaded() as loaded:
                if self._reload is not None and self._reload.template is template:
                    self._template_loaded(self._reload, loaded)
            case Forked() | Refused() as answer:
                self._process_started(*template.answered(answer))
            case None:  # it has ended, which its pidfd shows
                template.kill()

    def _template_loaded(self, reload: Reload, loaded: Loaded) -> None:
        """The program has reached its service: start its first engine."""
        try:
            reload.code = self._reloading.code(reload.template, loaded)
            reload.limits = loaded.stop_limit or math.inf, loaded.answer_limit or math.inf
            reload.step_limit = loaded.start_limit or math.inf
            reload.load_limit = loaded.load_limit or math.inf
            reload.states = [*map(Served.of_plain, loaded.states)]
            reload.due = time.monotonic() + reload.step_limit
            first = next(each for each in self._slots if not each.given_up)
            self._start(first, reload)
        except StartupError as error:
            self._end_reload(str(error))
        else:
            self._end_unused_templates()

    def _process_started(self, child: Child, problem: str | None) -> None:
        """A template has started a process, or cannot because of a problem."""
        if child in self._workers:
            self._worker_started(child, problem)
        elif problem is not None:
            for slot in self._slots:
                for engine in [each for each in slot.processes if each.child is child]:
                    engine.failure = problem
                    self._engine_died(slot, engine)

    def _candidate_ready(self) -> None:
        """A process of the reload is ready: start the others, or let all of them serve."""
        reload = self._reload
        assert reload is not None
        if not all(each.is_ready for each in reload.engines.values()):
            return
        missing = [x for x in self._slots if not x.given_up and x not in reload.engines]
        if not missing:
            self._swap(reload)
            return
        reload.due = time.monotonic() + reload.step_limit
        try:
            for slot in missing:
                self._start(slot, reload)
        except StartupError as error:
            self._end_reload(str(error))

    def _swap(self, reload: Reload) -> None:
        """Let the processes of the reload serve in place of the others."""
        assert reload.code is not None
        self._reload = None
        self._code = reload.code
        self._stop_timeout, self._answer_timeout = reload.limits
        self._reloading = replace(self._reloading, limit=reload.load_limit)
        self._to_replace.clear()
        self._versions.start_again(reload.states)
        before = [old for slot, new in reload.engines.items() for old in slot.take_over(new)]
        due = time.monotonic() + _LONGEST_SWITCH
        self._switch = Switch(reload, {*reload.engines.values()}, due)
        for engine in reload.engines.values():
            engine.serve()
        for engine in before:
            if not engine.is_ready:
                engine.discard()
            elif not engine.is_leaving:
                engine.leave()
                self._switch.awaited.add(engine)
            self._tell(self._versions.forget(engine))
        self._handle_held()

    def _has_switched(self, engine: EngineProcess) -> None:
        """An engine has reported it, or has ended."""
        if self._switch is not None:
            self._switch.awaited.discard(engine)
            if not self._switch.awaited:
                self._end_switch()

    def _end_switch(self) -> None:
        """Report the reload whose engines have switched, if there is one."""
        switch, self._switch = self._switch, None
        if switch is not None:
            self._report(switch.reload.askers, switch.reload.began, None)

    def _handle_held(self) -> None:
        """Begin the changes of versions that have waited for the end of a reload."""
        held, self._held = self._held, []
        for engine, change in held:
            if engine.is_connected:
                self._want(engine, change)

    def _want(self, engine: EngineProcess, change: Change) -> None:
        serving = [x for x in self._processes() if x.serves and not x.is_leaving]
        self._tell(self._versions.want(engine, change, serving))

    def _end_reload(self, problem: str, words: str = "") -> None:
        """End the processes of the reload under way, if any, because of a problem.

        Args:
            problem: what went wrong.
            words: what the program has written about it, which is in the log already.
        """
        reload, self._reload = self._reload, None
        if reload is None:
            return
        for engine in reload.engines.values():
            if not engine.is_discarded:
                engine.discard()
        self._report(reload.askers, reload.began, problem, words)
        self._end_unused_templates()
        self._handle_held()

    def _report(
        self,
        askers: list[tuple[EngineProcess, int]],
        began: float,
        problem: str | None,
        words: str = "",
    ) -> None:
        """Report the result of a reload."""
        seconds = time.monotonic() - began
        if problem is None:
            _log.info("reload: the changed program serves, after %.1f s", seconds)
        else:
            above = "; its messages are above" if words else ""
            _log.error("reload: nothing has changed: %s%s", problem, above)
            problem += f": {words}" * bool(words)
            self._plan_lost()
        if self._record is not None:
            self._record.end(seconds, problem)
        for engine, number in askers:
            engine.send(Reloaded(number, problem))

    def _plan_lost(self) -> None:
        """After a reload that failed: if the template is lost, plan another one for the engines
        that have no process.
        """
        if self._stops or not self._code.is_lost:
            return
        _log.error("no engine or worker that ends is replaced until the program can be run again,"
                   " which is tried when one ends")  # fmt: skip
        for slot in self._slots:
            idle = slot.serving is None and slot.starting is None and slot.start_at is None
            if idle and not slot.given_up:
                self._plan_restart(slot, None)

    def _miss_template(self) -> None:
        """If the template is lost: run the program again, at intervals."""
        due = time.monotonic() >= self._ran_again + _RERUN_INTERVAL
        if self._code.is_lost and self._reload is None and due:
            self._lacks_template = True

    def _end_unused_templates(self) -> None:
        """End the templates of which no engine runs or will be started."""
        reload = self._reload
        codes = [self._code, *(each.code for each in self._processes())]
        codes += [] if reload is None or reload.code is None else [reload.code]
        used = [each.template for each in codes if isinstance(each, TemplateCode)]
        if reload is not None and reload.code is None:
            used.append(reload.template)
        for template in self._templates:
            if template not in used:
                template.kill()

    def _template_died(self, template: Template) -> None:
        status = status_text(os.waitstatus_to_exitcode(template.reap()))
        self._templates.remove(template)
        reload, code = self._reload, self._code
        if reload is not None and reload.template is template:
            if reload.code is None:
                text = f"the program ended before it served, with {status}"
                self._end_reload(text, template.last_words)
            elif isinstance(reload.code, TemplateCode):
                self._end_reload(f"the template died: {status}")
        elif isinstance(code, TemplateCode) and code.template is template and not self._stops:
            text = "the program is run again, because no process that ends could be replaced"
            _log.error("the template (pid %d) died: %s; %s", template.child.pid, status, text)
            self._lacks_template = reload is None
        for child in template.ordered:
            self._process_started(child, f"{child.name} cannot be started: the template has died")

    def _replace_next(self) -> None:
        """Replace the next engine, with at most one extra process."""
        while (
            self._is_open
            and self._to_replace
            and all(len(slot.processes) < 2 and slot.starting is None for slot in self._slots)
        ):
            slot = self._to_replace.popleft()
            if slot.serving is None:
                continue  # its next process will be new anyway
            try:
                self._start(slot)
            except StartupError as error:
                _log.error("%s is not replaced, and continues: %s", slot.name, error)
                self._to_replace.clear()

    def _receive(self, slot: EngineSlot, engine: EngineProcess) -> None:
        for message in engine.messages():
            self._handle(slot, engine, message)

    def _handle(self, slot: EngineSlot, engine: EngineProcess, message: Message) -> None:
        if engine.is_ready:
            engine.postpone_check()
        match message:
            case Ready(lines):
                engine.lines = lines
                if self._is_open and not self._stops:
                    self._tell(self._versions.join(engine, engine.epoch))
                self._let_serve(slot, engine)
            case Failed(reason):
                engine.failure = reason
            case Leaving():
                if self._stops:
                    engine.stop(hurry=self._stops > 1)
                elif engine.waits:
                    self._end_reload(f"{slot.name} got a signal to stop before it served")
                elif not engine.is_leaving and slot not in self._to_replace:
                    self._to_replace.appendleft(slot)
                    self._miss_template()
            case Spawn():
                self._spawn(engine, message)
            case Ask():
                others = [each for each in self._processes() if each.serves and each is not engine]
                number = self._queries.ask(engine, message, others, time.monotonic())
                for each in others:
                    each.send(Asked(number, message.query))
                self._give_answers()
            case Answer():
                self._queries.take(engine, message)
                self._give_answers()
            case ReloadRequest(number):
                self._reload_askers.append((engine, number))
            case Keep(number, point):
                self._queries.keep(engine, number, point)
            case AskPast(number, after):
                engine.send(Answers(number, self._queries.past(after)))
            case Switched():
                self._has_switched(engine)
            case Change() if self._reload is not None:
                self._held.append((engine, message))
            case Change():
                self._want(engine, message)
            case Held(change):
                self._tell(self._versions.held(engine, change))
            case Restored(change, problem):
                self._tell(self._versions.restored(engine, change, problem))
            case Prepared(change, problem):
                self._tell(self._versions.prepared(engine, change, problem))
                if (why := self._versions.unfit.pop(engine, None)) is not None:
                    engine.failure = why
                    engine.kill()
            case Committed(change):
                self._tell(self._versions.committed(engine, change))
                self._let_serve(slot, engine)
            case Retired(change):
                self._tell(self._versions.retired(engine, change))

    @staticmethod
    def _tell(sends: Sends) -> None:
        for engine, message in sends:
            engine.send(message)

    def _give_answers(self) -> None:
        for engine, answers in self._queries.ready(time.monotonic()):
            engine.send(answers)

    def _let_serve(self, slot: EngineSlot, engine: EngineProcess) -> None:
        """Let an engine serve that has become ready, as soon as it has all versions."""
        lines = engine.lines
        if lines is not None and not engine.is_ready and self._versions.is_current(engine):
            self._engine_ready(slot, engine, lines)

    def _engine_ready(self, slot: EngineSlot, engine: EngineProcess, lines: Sequence[str]) -> None:
        predecessor = slot.serving
        engine.is_ready = True
        engine.postpone_check()
        if self._stops:
            engine.stop(hurry=self._stops > 1)
        elif engine.waits:
            self._candidate_ready()
        elif engine.is_discarded:
            return
        elif self._is_open:
            engine.serve()
            if predecessor is not None:
                predecessor.leave()
                self._tell(self._versions.forget(predecessor))
        elif all(each.serving is not None for each in self._slots):
            self._open_ports(lines)
            self._is_open = True
            for each in self._processes():
                each.serve()
        elif slot is self._slots[0]:
            for other in self._slots[1:]:
                self._start(other)

    def _engine_died(self, slot: EngineSlot, engine: EngineProcess) -> None:
        for message in engine.messages():
            if isinstance(message, Ready | Failed | Answer | Keep):
                self._handle(slot, engine, message)
        status = os.waitstatus_to_exitcode(engine.child.reap())
        engine.close()
        slot.processes.remove(engine)
        self._has_switched(engine)
        self._queries.forget(engine)
        self._tell(self._versions.forget(engine))
        self._give_answers()
        for child, worker in self._workers.items():
            if worker.engine is engine:
                child.kill()  # reaped when it has ended, which a driver may delay
        self._end_unused_templates()
        if engine.waits:
            engine.waits = False
            engine.is_discarded = True
            why = engine.failure or f"{slot.name} ended before it was ready: {status_text(status)}"
            self._end_reload(why)
        if engine.is_discarded:
            return
        # By SIGTERM maybe before it could handle signals.
        if self._stops and status in (0, -signal.SIGTERM):
            return
        if self._forwarded:
            why = engine.failure or status_text(status)
            _log.error("%s (pid %d) ended with an error: %s", slot.name, engine.child.pid, why)
            self._result = self._result or as_shell(status)
        elif not self._is_open:
            if engine.failure is not None:
                raise StartupError(engine.failure)
            _log.error("%s ended before it was ready: %s", slot.name, status_text(status))
            if self._spawns and status == 0:
                _log.error("its script was run again, and did not reach this service")
            self._status = as_shell(status) or _GIVEN_UP  # it ended unasked
        else:
            self._handle_death(slot, engine, status)

    def _handle_death(self, slot: EngineSlot, engine: EngineProcess, status: int) -> None:
        """Handle the end of a process; the service continues."""
        name, pid = slot.name, engine.child.pid
        why = engine.failure or status_text(status)
        if engine.is_leaving and status == 0:
            _log.info("%s: its old process (pid %d) has ended: %s", name, pid, why)
        elif slot.serving is not None and not engine.is_ready:
            _log.error("%s: its new process (pid %d) did not start, and the old one continues: %s",
                       name, pid, why)  # fmt: skip
            self._to_replace.clear()
        else:
            if pid:
                _log.error("%s (pid %d) died: %s", name, pid, why)
            else:
                _log.error("%s", why)
            if slot.serving is None and slot.starting is None and not self._stops:
                self._plan_restart(slot, engine)

    def _worker_died(self, child: Child) -> None:
        status = child.reap()
        worker = self._workers.pop(child)
        worker.engine.send(Exited(child.pid, status, child.peak))

    def _spawn(self, engine: EngineProcess, wanted: Spawn) -> None:
        """Start a worker for an engine."""
        try:
            ours, theirs = socket.socketpair()
            with theirs, ExitStack() as undo:
                undo.callback(ours.close)
                start = Start(engine.engine_id, wanted.source, wanted.index)
                leave = partial(self._close_siblings, ours, *self._sockets)
                child = engine.code.start(start, theirs, leave)
                undo.pop_all()
        except (OSError, StartupError) as error:
            engine.send(Refused(wanted.number, str(error)))
            self._miss_template()
            return
        self._workers[child] = _Worker(engine, wanted.number, ours)
        if child.pid:
            self._worker_started(child, None)

    def _worker_started(self, child: Child, problem: str | None) -> None:
        """Tell its engine that a worker runs, or cannot because of a problem."""
        worker = self._workers[child]
        with worker.channel as channel:
            if problem is None:
                forked = Forked(worker.number, child.pid)
                worker.engine.send(forked, channel.fileno(), child.pidfd)
                return
        child.reap()
        del self._workers[child]
        worker.engine.send(Refused(worker.number, problem))

    def _close_siblings(self, *others: socket.socket) -> None:
        """For a child: close the descriptors of the supervisor and the siblings."""
        leave_hangup_to_supervisor()
        for each in (self._woken, self._waker, *others):
            each.close()
        for engine in self._processes():
            engine.child.close()
            engine.close()
        for child, worker in self._workers.items():
            child.close()
            worker.channel.close()
        for template in self._templates:
            template.close()
        if self._record is not None:
            self._record.close()

    def _end_children(self) -> None:
        """Kill and reap all remaining children."""
        left = self._children()
        for engine in self._processes():
            engine.close()
        for worker in self._workers.values():
            worker.channel.close()
        for template in self._templates:
            template.close_files()
        end_all(left, _LAST_WAIT)
