from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.observe.logs import OneLine, logging_to_stderr


@contextmanager
def bare() -> Iterator[logging.Logger]:
    """The root logger as a fresh program has it, and restored afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:], root.level = [], logging.WARNING
    try:
        yield root
    finally:
        root.handlers[:], root.level = handlers, level


def line(message: str, *args: object, writer: str | None = None, **more: object) -> str:
    record = logging.LogRecord("some.logger", logging.INFO, "file", 1, message, args, None)
    vars(record).update(more)
    return OneLine(writer).format(record)


def test_a_line_has_level_time_logger_and_message() -> None:
    assert line("a %s", "b").startswith("INFO 2")
    assert line("a %s", "b").endswith("[some.logger] a b")


def test_a_line_names_its_writer_where_there_are_several() -> None:
    assert line("a", writer="engine 2").endswith(" engine 2 [some.logger] a")


@given(st.text(), st.text())
def test_whatever_is_logged_is_one_line_without_control_characters(first: str, second: str) -> None:
    text = line("%s and %s", first, second)
    assert len(text.splitlines()) == 1
    assert all(character >= " " and not "\x7f" <= character <= "\x9f" for character in text)


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ("a\nERROR forged", r"a\nERROR forged"),
        ("a\r\x1b[31m", r"a\r\x1b[31m"),
        ("a\u2028b\x85c", r"a\u2028b\x85c"),
        ("a\u202eb", r"a\u202eb"),
        ("é 字 plain", "é 字 plain"),
    ],
)
def test_control_characters_are_escaped_and_other_letters_are_not(sent: str, shown: str) -> None:
    assert line("%s", sent).endswith(f"] {shown}")


def test_a_traceback_stays_on_the_line_of_its_event() -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        text = line("failed", exc_info=sys.exc_info())
    assert len(text.splitlines()) == 1
    assert r"Traceback (most recent call last):\n" in text
    assert text.endswith(r"ValueError: first\nsecond")


def test_a_program_without_logging_gets_lines_on_stderr_for_a_while(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with bare() as root:
        with logging_to_stderr():
            logging.getLogger("penstock.some").info("hello")
            logging.getLogger("penstock.some").debug("unseen")
        assert (root.handlers, root.level) == ([], logging.WARNING)
        logging.getLogger("penstock.some").info("later")
    captured = capsys.readouterr()
    assert captured.out == ""
    (text,) = captured.err.splitlines()
    assert text.endswith("[penstock.some] hello")


@pytest.mark.parametrize("configured", ["", "penstock"])
def test_a_program_that_configured_logging_keeps_its_own(
    configured: str, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[str] = []

    class Own(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    logger, own = logging.getLogger(configured or None), Own()
    with bare() as root:
        logger.addHandler(own)
        try:
            with logging_to_stderr():
                assert root.handlers == ([] if configured else [own])
                assert root.level == logging.WARNING
                logging.getLogger("penstock.some").warning("hello")
        finally:
            logger.removeHandler(own)
    assert heard == ["hello"]
    assert capsys.readouterr().err == ""


def test_the_outermost_of_two_wins() -> None:
    with bare() as root:
        with logging_to_stderr():
            (handler,) = root.handlers
            with logging_to_stderr():
                assert root.handlers == [handler]
            assert root.handlers == [handler]


def test_libraries_are_heard_as_the_service_is(capsys: pytest.CaptureFixture[str]) -> None:
    with bare(), logging_to_stderr():
        logging.getLogger("grpc._cython.cygrpc").error("a channel of the user's own broke")
        logging.getLogger("users.own").info("hello")
        logging.getLogger("users.own").debug("unseen")
    written = capsys.readouterr().err
    assert "broke" in written
    assert "hello" in written
    assert "unseen" not in written
