from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.observe.logs import (
    JsonLines,
    LogOptions,
    TextLines,
    logging_of_imports,
    logging_to_stderr,
)


@contextmanager
def bare() -> Iterator[logging.Logger]:
    """The root logger as in a new program; restored afterwards."""
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
    return TextLines(writer).format(record)


def test_a_line_has_level_time_logger_and_message() -> None:
    assert line("a %s", "b").startswith("INFO 2")
    assert line("a %s", "b").endswith("[some.logger] a b")


def test_a_line_names_its_process_if_there_are_several() -> None:
    assert line("a", writer="engine 2").endswith(" engine 2 [some.logger] a")


@given(st.text(), st.text())
def test_any_message_is_one_line_without_control_characters(first: str, second: str) -> None:
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


def failed(formatter: logging.Formatter) -> str:
    try:
        raise ValueError("first\nERROR forged")
    except ValueError:
        record = logging.LogRecord("x", logging.INFO, "file", 1, "it\nfailed", (), sys.exc_info())
    return formatter.format(record)


def test_the_lines_of_a_traceback_are_indented() -> None:
    first, *others = failed(TextLines()).splitlines()
    assert first.endswith(r"[x] it\nfailed")
    assert others[0] == "    Traceback (most recent call last):"
    assert others[-2:] == ["    ValueError: first", "    ERROR forged"]
    assert all(each.startswith("    ") for each in others)


def test_a_json_event_is_one_object_on_one_line() -> None:
    text = failed(JsonLines("engine 1"))
    assert len(text.splitlines()) == 1
    event = json.loads(text)
    assert event["time"].startswith("2")
    assert (event["level"], event["logger"], event["message"]) == ("INFO", "x", "it\nfailed")
    assert event["process"] == "engine 1"
    assert event["exception"].endswith("ValueError: first\nERROR forged")


def test_options_set_level_and_format(capsys: pytest.CaptureFixture[str]) -> None:
    with bare(), logging_to_stderr(LogOptions(level="debug", format="json")):
        logging.getLogger("penstock.some").debug("hello")
    assert json.loads(capsys.readouterr().err)["message"] == "hello"


IMPORTED = LogOptions(level="info")


def test_messages_during_a_scripts_import_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    with bare() as root:
        with logging_of_imports(IMPORTED):
            logging.getLogger("users").info("loading")
            logging.getLogger("users").debug("unseen")
            with logging_to_stderr(IMPORTED):
                logging.getLogger("users").info("serving")
            logging.getLogger("users").info("ended")
        assert (root.handlers, root.level) == ([], logging.WARNING)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("] ")[1] for line in lines] == ["loading", "serving", "ended"]


def test_logging_configured_during_a_scripts_import_is_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with bare() as root, logging_of_imports(IMPORTED):
        logging.basicConfig(format="own %(message)s")
        with logging_to_stderr(IMPORTED):
            logging.getLogger("users").warning("loud")
            logging.getLogger("users").info("unseen")
            assert root.level == logging.WARNING
    assert capsys.readouterr().err == "own loud\n"


def test_the_default_handler_of_logging_does_not_count_as_configured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with bare(), logging_of_imports(IMPORTED):
        logging.info("first")
        with logging_to_stderr(IMPORTED):
            logging.getLogger("penstock").info("served")
    first, second = capsys.readouterr().err.splitlines()
    assert first == "INFO:root:first"
    assert second.endswith("[penstock] served")


def test_a_program_without_logging_logs_to_stderr_during_the_block(
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
def test_a_programs_logging_configuration_is_kept(
    configured: str, capsys: pytest.CaptureFixture[str]
) -> None:
    messages: list[str] = []

    class Own(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

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
    assert messages == ["hello"]
    assert capsys.readouterr().err == ""


def test_a_nested_logging_to_stderr_has_no_effect() -> None:
    with bare() as root:
        with logging_to_stderr():
            (handler,) = root.handlers
            with logging_to_stderr():
                assert root.handlers == [handler]
            assert root.handlers == [handler]


def test_libraries_log_in_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    with bare(), logging_to_stderr():
        logging.getLogger("grpc._cython.cygrpc").error("a channel of the user's own broke")
        logging.getLogger("users.own").info("hello")
        logging.getLogger("users.own").debug("unseen")
    written = capsys.readouterr().err
    assert "broke" in written
    assert "hello" in written
    assert "unseen" not in written
