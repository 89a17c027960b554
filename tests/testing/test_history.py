"""The checker of histories: a correct history passes; each injected fault is found and named."""

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import HookFailed, ServiceBusy
from penstock.request import Batch, CloseReason, Sample
from penstock.testing.history import (
    Admitted,
    Asked,
    Cancelled,
    ClientEvent,
    ClientHistory,
    Dispatched,
    Failed,
    Info,
    Invoke,
    Joined,
    Late,
    Left,
    Limits,
    NotAdmitted,
    Ok,
    Piece,
    Recorder,
    Refused,
    Released,
    Replied,
    Returned,
    SeatEvent,
    SeatHistory,
    ServerEvent,
    Stepped,
    TakenBack,
    WorkerEnded,
    check,
)

FOREVER = 1e9
LIMITS = Limits(workers={"op": 2}, dispatches={"op": 2}, grace=0.1, failures=1)

CLIENTS: list[ClientEvent] = [
    Invoke(1, "a", 0.0, 5.0),
    Invoke(2, "b", 0.1),
    Ok(2, "b", 1.0),
    Ok(1, "a", 1.1),
    Invoke(3, "c", 2.0),
    Invoke(4, "d", 2.0),
    Invoke(5, "e", 2.0),
    Refused(4, "busy", 2.1),
    Failed(3, "hook_failed", 2.5),
    Info(5, "left", 3.0),
]
SERVER: list[ServerEvent] = [
    Admitted(10, 1, 0.05),
    Admitted(11, 2, 0.15),
    Dispatched("op", 0, (10,), 1, 5.0, 0.2),
    Dispatched("op", 1, (11,), 1, FOREVER, 0.3),
    Replied(11, None, 0.9),
    Returned("op", 1, 0, 0.9),
    Replied(10, None, 1.0),
    Returned("op", 0, 0, 1.0),
    Admitted(12, 3, 2.0),
    NotAdmitted("busy", 2.05),
    Admitted(13, 5, 2.1),
    Dispatched("op", 2, (12, 13), 1, FOREVER, 2.2),
    Cancelled(13, 2.3),
    Replied(12, "hook_failed", 2.4),
    Returned("op", 2, 1, 2.4),
]


def test_a_correct_history_has_no_violations() -> None:
    assert check(CLIENTS, SERVER, LIMITS) == []
    assert check(CLIENTS) == []
    assert check([], [], LIMITS) == []


def without(events: list[Any], *removed: Any) -> list[Any]:
    assert all(event in events for event in removed)
    return [event for event in events if event not in removed]


def replaced(events: list[Any], old: Any, *new: Any) -> list[Any]:
    place = events.index(old)
    return [*events[:place], *new, *events[place + 1 :]]


@pytest.mark.parametrize(
    ("events", "violation"),
    [
        (without(CLIENTS, Ok(2, "b", 1.0)), "request 2, sent at 0.100000, never ended"),
        ([*CLIENTS, Ok(2, "b", 1.5)], "request 2 ended with ok after it ended with ok"),
        ([*CLIENTS, Ok(5, "e", 3.5)], "request 5 ended with ok after it ended with info"),
        (
            [*CLIENTS, Ok(4, "d", 3.5)],
            "request 4 ended with ok after it ended with refused",
        ),
        ([*CLIENTS, Ok(9, "z", 3.5)], "request 9 ended with ok but was never sent"),
        ([*CLIENTS, Invoke(2, "b", 4.0), Info(2, "", 4.1)], "request 2 was sent twice"),
        (
            replaced(CLIENTS, Ok(1, "a", 1.1), Ok(1, "b", 1.1)),
            "request 1 sent 'a' and got 'b' back",
        ),
        (
            replaced(CLIENTS, Ok(1, "a", 1.1), Ok(1, "a", 5.2)),
            "request 1 ended with ok 0.200 s past its deadline",
        ),
        (
            replaced(CLIENTS, Ok(2, "b", 1.0), Failed(2, "x", 1.0)),
            "2 requests failed where 1 may",
        ),
    ],
)
def test_a_violation_in_the_clients_events_is_found(
    events: list[ClientEvent], violation: str
) -> None:
    assert check(events, None, LIMITS) == [violation]


STREAM: list[ClientEvent] = [
    Invoke(1, "a", 0.0, pieces=3),
    Piece(1, 0, "a", 0.1),
    Invoke(2, "b", 0.2, pieces=1),
    Piece(1, 1, "a", 0.3),
    Piece(2, 0, "b", 0.3),
    Piece(1, 2, "a", 0.4),
    Ok(1, "a", 0.5),
    Failed(2, "hook_failed", 0.5),
]


def test_pieces_in_order_and_one_end_are_a_correct_history() -> None:
    assert check(STREAM) == []
    cut = without(STREAM, Piece(1, 2, "a", 0.4))
    for end in (Failed(1, "hook_failed", 0.5), Info(1, "left", 0.5)):
        assert check(replaced(cut, Ok(1, "a", 0.5), end)) == []


@pytest.mark.parametrize(
    ("events", "violation"),
    [
        (without(STREAM, Piece(1, 2, "a", 0.4)), "request 1 ended well after 2 of 3 pieces"),
        (
            replaced(STREAM, Piece(1, 1, "a", 0.3), Piece(1, 2, "a", 0.3)),
            "request 1 got piece 2 where 1 was next",
        ),
        (
            replaced(STREAM, Piece(2, 0, "b", 0.3), Piece(2, 0, "b", 0.3), Piece(2, 0, "b", 0.3)),
            "request 2 got piece 0 where 1 was next",
        ),
        (
            replaced(STREAM, Piece(2, 0, "b", 0.3), Piece(2, 0, "b", 0.3), Piece(2, 1, "b", 0.3)),
            "request 2 got piece 1 of 1",
        ),
        (
            replaced(STREAM, Piece(1, 1, "a", 0.3), Piece(1, 1, "b", 0.3)),
            "request 1 got piece 1 of 'b', not 'a'",
        ),
        (
            [*STREAM, Piece(1, 3, "a", 0.6)],
            "request 1 got piece 3 after it ended with ok",
        ),
        ([*STREAM, Piece(9, 0, "a", 0.6)], "request 9 got piece 0 but was never sent"),
        (
            [Invoke(1, "a", 0.0), Piece(1, 0, "a", 0.1), Ok(1, "a", 0.2)],
            "request 1 got piece 0 of 0",
        ),
        (
            replaced(STREAM, Failed(2, "hook_failed", 0.5), Refused(2, "busy", 0.5)),
            "request 2 was refused after 1 pieces",
        ),
        ([*STREAM, Info(1, "left", 0.6)], "request 1 ended with info after it ended with ok"),
    ],
)
def test_a_violation_in_the_pieces_of_an_answer_is_found(
    events: list[ClientEvent], violation: str
) -> None:
    assert violation in check(events)


SEATS = Limits(seats={"op": 2})
SEATED: list[SeatEvent] = [
    Asked("op", 0, "a", 0.0),
    Asked("op", 0, "b", 0.0),
    Asked("op", 0, "c", 0.0),
    Joined("op", 0, "a", 0.1),
    Joined("op", 0, "b", 0.1),
    Stepped("op", 0, ("a", "b"), 0.2),
    Stepped("op", 0, ("b",), 0.3),  # the reader of a is slow
    Left("op", 0, "b", 0.3),
    Released("op", 0, "b", 0.35),
    Joined("op", 0, "c", 0.4),
    Stepped("op", 0, ("a", "c"), 0.4),
    Left("op", 0, "a", 0.5),
    Released("op", 0, "a", 0.55),
    Left("op", 0, "c", 0.5),
    Released("op", 0, "c", 0.55),
]


def test_seats_that_are_taken_and_given_back_are_a_correct_history() -> None:
    assert check([], None, SEATS, SEATED) == []
    known = [each for each in SEATED if not isinstance(each, Asked | Released)]
    assert check([], None, SEATS, known) == [], "as the op itself records it"


def test_one_that_does_not_fit_yet_holds_up_others_beside_free_seats() -> None:
    events: list[SeatEvent] = [
        *(Asked("op", 0, each, 0.0) for each in "abc"),
        *(Joined("op", 0, "a", 0.1), Joined("op", 0, "b", 0.1)),
        *(Stepped("op", 0, ("a",), 0.2), Left("op", 0, "a", 0.2)),
    ]
    end: list[SeatEvent] = [Left("op", 0, "b", 0.3), Released("op", 0, "c", 0.3)]
    assert check([], None, SEATS, [*events, Stepped("op", 0, (), 0.2), *end]) == []
    found = check([], None, SEATS, [*events, Stepped("op", 0, ("b",), 0.2), *end])
    assert found == ["op 'op', worker 0: 1 of 2 seats are taken, and ['c'] wait"]


def test_a_worker_that_has_died_has_given_back_its_seats() -> None:
    cut = SEATED[:6]
    assert len(check([], None, SEATS, cut)) == 2
    again = [WorkerEnded("op", 0, 0.6), *SEATED]
    assert check([], None, SEATS, [*cut, *again]) == []


@pytest.mark.parametrize(
    ("events", "violation"),
    [
        (without(SEATED, Left("op", 0, "c", 0.5)), "request c never left"),
        (
            without(SEATED, Left("op", 0, "b", 0.3)),
            "request b has ended and still has its seat",
        ),
        (without(SEATED, Left("op", 0, "b", 0.3)), "3 requests have joined where 2 seats are"),
        ([*SEATED, Left("op", 0, "a", 0.6)], "request a left, but has not joined, or has left"),
        ([*SEATED, Stepped("op", 0, ("a",), 0.6)], "request a ran in a step, but has not joined"),
        (
            [Stepped("op", 1, ("a",), 0.0), *SEATED],
            "worker 1: request a ran in a step, but has not",
        ),
        (
            replaced(SEATED, Stepped("op", 0, ("b",), 0.3), Stepped("op", 0, ("b", "b"), 0.3)),
            "a step ran ('b', 'b'), one of them twice",
        ),
        (
            replaced(SEATED, Joined("op", 0, "b", 0.1), *[Joined("op", 0, "a", 0.1)]),
            "request a joined twice",
        ),
        (
            without(SEATED, Joined("op", 0, "c", 0.4)),
            "1 of 2 seats are taken, and ['c'] wait",
        ),
        (
            replaced(SEATED, Joined("op", 0, "b", 0.1), Joined("op", 0, "c", 0.1)),
            "request c joined before b, which had asked before it",
        ),
    ],
)
def test_a_violation_in_the_events_of_seats_is_found(
    events: list[SeatEvent], violation: str
) -> None:
    assert any(violation in line for line in check([], None, SEATS, events))


def test_the_history_of_seats_records_every_event() -> None:
    history = SeatHistory()
    history.asked("op", 0, 1, 0.0)
    history.joined("op", 0, 1, 0.1)
    history.stepped("op", 0, [1], 0.2)
    history.left("op", 0, 1, 0.3)
    history.released("op", 0, 1, 0.4)
    history.worker_ended("op", 0, 0.5)
    assert history.events == [
        Asked("op", 0, 1, 0.0),
        Joined("op", 0, 1, 0.1),
        Stepped("op", 0, (1,), 0.2),
        Left("op", 0, 1, 0.3),
        Released("op", 0, 1, 0.4),
        WorkerEnded("op", 0, 0.5),
    ]


def test_two_swapped_answers_are_two_violations() -> None:
    events = replaced(CLIENTS, Ok(2, "b", 1.0), Ok(2, "a", 1.0))
    events = replaced(events, Ok(1, "a", 1.1), Ok(1, "b", 1.1))
    assert len(check(events)) == 2


@pytest.mark.parametrize(
    ("events", "violation"),
    [
        (without(SERVER, Cancelled(13, 2.3)), "data id 13 was admitted but neither replied to"),
        ([*SERVER, Replied(13, None, 2.5)], "data id 13 was replied to after it was cancelled"),
        ([*SERVER, Replied(12, None, 2.5)], "data id 12 was replied to after it was replied to"),
        ([*SERVER, Cancelled(12, 2.5)], "data id 12 was cancelled after it was replied to"),
        ([*SERVER, Replied(99, None, 2.5)], "data id 99 was replied to but was never admitted"),
        ([*SERVER, Admitted(12, 3, 9.0), Cancelled(12, 9.1)], "data id 12 was given twice"),
        (
            replaced(
                SERVER,
                Dispatched("op", 0, (10,), 1, 5.0, 0.2),
                Dispatched("op", 0, (10,), 1, 0.1, 0.2),
            ),
            "op 'op' got data ids [10] 0.100 s past a deadline",
        ),
        (
            [*SERVER, Dispatched("op", 3, (13,), 1, FOREVER, 2.5)],
            "op 'op' got data id 13, which was cancelled",
        ),
        (
            [*SERVER, Dispatched("op", 3, (77,), 1, FOREVER, 2.5)],
            "op 'op' got data id 77, which was never admitted",
        ),
        (
            without(SERVER, Returned("op", 0, 0, 1.0), Returned("op", 1, 0, 0.9)),
            "op 'op' ran 3 Works at 2.200000 where it has 2 workers",
        ),
        (
            [*SERVER, Returned("op", 2, 0, 2.6)],
            "op 'op' returned batch 2, which was not out",
        ),
        (
            replaced(
                SERVER,
                Replied(11, None, 0.9),
                Returned("op", 0, 0, 0.8),
                Dispatched("op", 0, (10,), 1, 5.0, 0.8),
                Replied(11, None, 0.9),
            ),
            "op 'op' got batch 0 after it had returned",
        ),
    ],
)
def test_a_violation_in_the_servers_events_is_found(
    events: list[ServerEvent], violation: str
) -> None:
    assert any(line.startswith(violation) for line in check(CLIENTS, events, LIMITS))


def test_more_good_answers_at_the_clients_than_at_the_server_are_a_violation() -> None:
    events = replaced(SERVER, Replied(10, None, 1.0), Replied(10, "hook_failed", 1.0))
    assert check(CLIENTS, events) == ["clients saw 2 good answers, the server gave 1"]


def two_graphs() -> tuple[list[ClientEvent], list[ServerEvent]]:
    """Events of two graphs: a good answer of each, and a failed request of the left one."""
    clients: list[ClientEvent] = [
        *(Invoke(1, "a", 0.0, None, "left"), Invoke(2, "b", 0.0, None, "right")),
        *(Invoke(3, "c", 0.0, None, "left"), Ok(1, "a", 1.0), Ok(2, "b", 1.0), Failed(3, "", 1.0)),
    ]
    server: list[ServerEvent] = [
        *(Admitted(1, 0, 0.0, "left"), Admitted(2, 0, 0.0, "right"), Admitted(3, 0, 0.0, "left")),
        *(Dispatched("left/op", 0, (1,), 1, FOREVER, 0.1), Returned("left/op", 0, 0, 0.2)),
        *(Dispatched("right/op", 1, (2,), 1, FOREVER, 0.1), Returned("right/op", 1, 0, 0.2)),
        *(Replied(1, None, 0.5), Replied(2, None, 0.5), Replied(3, "hook_failed", 0.5)),
    ]
    return clients, server


def test_failures_are_limited_per_graph() -> None:
    clients, server = two_graphs()
    assert check(clients, server, Limits(failures={"left": 1, "right": 0})) == []
    assert check(clients, server, Limits(failures={"left": 0})) == [
        "1 requests of left failed where 0 may"
    ]
    assert check(clients, server, Limits(failures=0)) == ["1 requests failed where 0 may"]


def test_a_request_dispatched_to_another_graphs_op_is_a_violation() -> None:
    clients, server = two_graphs()
    server = replaced(
        server,
        Dispatched("right/op", 1, (2,), 1, FOREVER, 0.1),
        Dispatched("right/op", 1, (1,), 1, FOREVER, 0.1),
    )
    assert check(clients, server) == ["op 'right/op' got data id 1, which asks left"]


def test_an_answer_from_another_graph_is_a_violation() -> None:
    clients, server = two_graphs()
    server = replaced(server, Admitted(2, 0, 0.0, "right"), Admitted(2, 0, 0.0, "left"))
    found = check(clients, without(server, Dispatched("right/op", 1, (2,), 1, FOREVER, 0.1)))
    assert "clients saw 1 good answers of right, the server gave 0" in found


def attempts(count: int) -> list[ServerEvent]:
    """A request that reaches the op in ``count`` batches, of which all but the last time out."""
    events: list[ServerEvent] = [Admitted(1, 0, 0.0)]
    for attempt in range(1, count + 1):
        t = float(attempt)
        events.append(Dispatched("op", attempt, (1,), attempt, FOREVER, t))
        if attempt < count:
            events.append(Late("op", (1,), t + 0.5))
    return [*events, Replied(1, None, 9.0), Returned("op", count, 0, 9.0)]


def test_only_one_attempt_more_than_allowed_is_a_violation() -> None:
    assert check([], attempts(2), LIMITS) == []
    assert check([], attempts(3), LIMITS) == [
        "op 'op' got data id 1 3 times where 2 are allowed",
    ]


def test_dispatching_the_same_batch_again_is_not_a_new_attempt() -> None:
    events = [
        Admitted(1, 0, 0.0),
        Admitted(2, 0, 0.0),
        Dispatched("op", 0, (1,), 1, FOREVER, 1.0),
        Dispatched("op", 1, (2,), 1, FOREVER, 1.0),  # the same Work
        Replied(1, "op_timeout", 2.0),  # timed out; the batch not yet begun is taken back
        Dispatched("op", 1, (2,), 1, FOREVER, 2.0),
        Replied(2, None, 3.0),
        Returned("op", 1, 0, 3.0),
        Late("op", (1,), 4.0),
    ]
    assert check([], events, Limits(workers={"op": 2}, dispatches={"op": 1})) == []
    assert check([], events, Limits(workers={"op": 1})) == [
        "op 'op' ran 2 Works at 2.000000 where it has 1 workers"
    ]


def test_a_work_of_several_batches_occupies_one_worker_until_it_ends() -> None:
    events: list[ServerEvent] = [Admitted(n, 0, 0.0) for n in range(4)]
    events += [Dispatched("op", n, (n,), 1, FOREVER, 1.0) for n in range(3)]
    events += [Replied(0, None, 2.0), Returned("op", 0, 0, 2.0)]
    # The worker died: its other two batches are taken back; the next Work has only one of them.
    events += [Dispatched("op", 1, (1,), 1, FOREVER, 2.0)]
    events += [Dispatched("op", 3, (3,), 1, FOREVER, 2.0)]
    events += [Replied(n, None, 3.0) for n in (1, 2, 3)]
    events += [Returned("op", 1, 0, 3.0), Returned("op", 3, 0, 3.0)]
    assert check([], events, Limits(workers={"op": 1})) == []


def test_a_timed_out_work_occupies_its_worker_until_it_returns() -> None:
    events = [
        Admitted(1, 0, 0.0),
        Dispatched("op", 0, (1,), 1, FOREVER, 1.0),
        Replied(1, "op_timeout", 2.0),
        Admitted(2, 0, 2.0),
        Dispatched("op", 1, (2,), 1, FOREVER, 2.0),
        Replied(2, None, 3.0),
        Returned("op", 1, 0, 3.0),
    ]
    one = Limits(workers={"op": 1})
    assert len(check([], events, one)) == 1
    assert check([], [*events[:3], Late("op", (1,), 1.9), *events[3:]], one) == []


def test_a_second_late_report_of_a_batch_is_not_a_violation() -> None:
    assert check(CLIENTS, [*SERVER, Late("op", (12, 13), 9.0)], LIMITS) == []


def test_a_thousand_violations_of_a_rule_are_reported_as_ten_and_a_count() -> None:
    found = check([Invoke(n, n, 0.0) for n in range(1000)])
    assert len(found) == 11
    assert found[-1] == "... and 990 more like it: no completion"


def test_the_recorder_records_every_event_of_an_engine() -> None:
    recorder = Recorder()
    sample = Sample(5, {}, 9.0)
    batch = Batch([sample], CloseReason.FULL, 1.0)
    fake_request = SimpleNamespace(data_id=5, log_id=50, graph=SimpleNamespace(name="one"))
    recorder.admitted(fake_request, 1.0)  # type: ignore[arg-type]
    recorder.refused(fake_request, ServiceBusy("no"), 1.0)  # type: ignore[arg-type]
    recorder.dispatched("op", batch, 1.5)
    recorder.dispatched("op", batch, 1.6)
    recorder.returned("op", batch, 1, 2.0)
    recorder.dispatched("op", Batch([sample], CloseReason.FULL, 2.0), 2.1)
    recorder.late("op", batch, 2.2)
    recorder.replied(fake_request, HookFailed("oh"), 2.5)  # type: ignore[arg-type]
    fake_request.data_id = 6
    recorder.cancelled(fake_request, 3.0)  # type: ignore[arg-type]
    expected = [
        Admitted(5, 50, 1.0, "one"),
        NotAdmitted("busy", 1.0),
        Dispatched("op", 0, (5,), 1, 9.0, 1.5),
        Dispatched("op", 0, (5,), 1, 9.0, 1.6),
        Returned("op", 0, 1, 2.0),
        Dispatched("op", 1, (5,), 1, 9.0, 2.1),
        Late("op", (5,), 2.2),
        Replied(5, "hook_failed", 2.5),
        Cancelled(6, 3.0),
    ]
    assert [*map(repr, recorder.events)] == [*map(repr, expected)]


def test_a_client_history_is_written_from_concurrent_threads() -> None:
    history = ClientHistory()
    gate = threading.Barrier(8)

    def client(first: int) -> None:
        gate.wait()
        for number in range(first, first + 500):
            history.invoke(number, number, 0.0, 9.0)
            write = (history.ok, history.refused, history.failed, history.info)[number % 4]
            write(number, number, 1.0)  # type: ignore[operator]

    threads = [threading.Thread(target=client, args=(n * 500,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(history.events) == 8000
    assert check(history.events) == []


def test_a_taken_back_batch_is_not_an_attempt_even_when_it_is_split() -> None:
    limits = Limits(dispatches={"op": 1})
    split = [
        Admitted(1, 0, 0.0),
        Admitted(2, 0, 0.0),
        Dispatched("op", 0, (1, 2), 1, FOREVER, 0.1),
        TakenBack("op", 0, 0.2),
        Dispatched("op", 1, (1,), 1, FOREVER, 0.3),
        Returned("op", 1, 0, 0.4),
        Dispatched("op", 2, (2,), 1, FOREVER, 0.4),
        Returned("op", 2, 0, 0.5),
        Replied(1, None, 0.5),
        Replied(2, None, 0.5),
    ]
    assert check([], split, limits) == []
    assert check([], without(split, TakenBack("op", 0, 0.2)), limits)
