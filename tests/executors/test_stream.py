"""The pieces of one answer between a worker and the loop."""

import asyncio
import threading

import numpy as np

from penstock.executors.stream import MOST_BYTES, MOST_PIECES, Stream, size_of


def make_stream() -> tuple[Stream, list[Stream]]:
    """A stream, and where its notifications are collected."""
    notified: list[Stream] = []
    stream = Stream(lambda: None)
    stream.notify = notified.append
    return stream, notified


def piece(number: int) -> dict[str, object]:
    return {"n": number}


def test_pieces_are_taken_in_order_and_one_notification_stands_for_several() -> None:
    stream, notified = make_stream()
    assert stream.add(piece(0))
    assert stream.add(piece(1))
    assert notified == [stream]
    stream.arrive()
    assert stream.take() == [piece(0), piece(1)]
    stream.add(piece(2))
    assert notified == [stream, stream]


def test_a_stream_is_full_until_its_pieces_are_credited() -> None:
    stream, _ = make_stream()
    for number in range(MOST_PIECES):
        assert not stream.is_full
        stream.add(piece(number))
    assert stream.is_full
    stream.take()
    assert stream.is_full, "taken is not credited"
    stream.credit()
    assert not stream.is_full


def test_bytes_fill_a_stream_as_pieces_do() -> None:
    stream, _ = make_stream()
    stream.add({"body": b"x" * (MOST_BYTES - 1)})
    assert not stream.is_full
    stream.add({"body": b"x"})
    assert stream.is_full


def test_the_size_of_a_piece_is_that_of_its_texts_bytes_and_arrays() -> None:
    assert size_of({"a": "abc", "b": b"de", "c": np.zeros(4, np.float32), "d": 7}) == 3 + 2 + 16
    nested = {"a": [{"b": "x" * 1000}, ["y" * 1000]]}
    assert 2000 <= size_of(nested) < 2500


def blocked(stream: Stream) -> tuple[threading.Thread, list[bool]]:
    """A thread that puts one piece more than there is room for."""
    wanted: list[bool] = []
    waits = threading.Event()

    def work() -> None:
        for number in range(MOST_PIECES - 1):
            stream.put(piece(number))
        waits.set()
        wanted.append(stream.put(piece(MOST_PIECES)))

    thread = threading.Thread(target=work)
    thread.start()
    assert waits.wait(10)
    return thread, wanted


def test_a_thread_without_credit_waits_for_it() -> None:
    stream, _ = make_stream()
    thread, wanted = blocked(stream)
    taken = 0
    while taken < MOST_PIECES:
        taken += len(stream.take())
    assert thread.is_alive()
    assert not wanted
    stream.credit()
    thread.join(10)
    assert wanted == [True]


def test_a_cancelled_stream_lets_its_thread_go_and_takes_nothing_more() -> None:
    stream, _ = make_stream()
    thread, wanted = blocked(stream)
    stream.cancel()
    thread.join(10)
    assert wanted == [False]
    assert not stream.put(piece(0))


def test_a_coroutine_without_credit_waits_for_it_and_for_nothing_after_the_end() -> None:
    async def run() -> list[bool]:
        stream, _ = make_stream()
        for number in range(MOST_PIECES):
            stream.add(piece(number))
        waiting = asyncio.ensure_future(stream.wait())
        await asyncio.sleep(0)
        assert not waiting.done()
        stream.take()
        stream.credit()
        wanted = [await waiting]
        stream.cancel()
        return [*wanted, await stream.wait()]

    assert asyncio.run(run()) == [True, False]
