from __future__ import annotations

import json
import logging
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.observe.logs import (
    JsonLines,
    LogOptions,
    TextLines,
    default_format,
    log_line,
    logging_of_imports,
    logging_to_stderr,
    type_name,
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


TEXT, JSON = LogOptions(format="text"), LogOptions(format="json")


def test_a_json_event_is_one_object_on_one_line() -> None:
    text = failed(JsonLines("engine 1"))
    assert len(text.splitlines()) == 1
    event = json.loads(text)
    assert event["time"].startswith("2")
    assert (event["level"], event["logger"], event["message"]) == ("INFO", "x", "it\nfailed")
    assert event["process"] == "engine 1"
    assert event["exception"].endswith("ValueError: first\nERROR forged")
    assert event["exception_type"] == "ValueError"


class Broken(Exception):
    """A user's exception."""


def event_of(text: str, *args: object, name: str = "penstock.ops", **more: object) -> Any:
    record = logging.LogRecord(name, logging.INFO, "file", 1, text, args, None)
    vars(record).update(more)
    return json.loads(JsonLines().format(record))


@pytest.mark.parametrize("form", [TextLines(), JsonLines()])
def test_times_are_utc_whatever_the_zone_of_the_machine(
    form: logging.Formatter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        record = logging.LogRecord("x", logging.INFO, "file", 1, "a", (), None)
        record.created = 1_795_644_000.0625
        assert "2026-11-25T22:00:00.062+00:00" in form.format(record)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_op_and_ids_of_our_messages_are_members_of_the_event() -> None:
    event = event_of("op %s: it %s for %.1f s (data_id=%s log_id=%s)", "det", "ran", 0.5, 7, 3)
    assert (event["op"], event["data_id"], event["log_id"]) == ("det", 7, 3)
    assert event["message"] == "op det: it ran for 0.5 s (data_id=7 log_id=3)"
    assert event_of("%d%% of op %s", 50, "det")["op"] == "det"
    assert "op" not in event_of("op %s", "det", name="users.own")
    assert "op" not in event_of("the op is gone")


def test_what_a_caller_passes_as_extra_is_in_the_event_but_cannot_replace_ours() -> None:
    event = event_of("a", tenant="x", level="forged", value=Path("p"), number=1 << 70)
    assert (event["tenant"], event["value"], event["number"]) == ("x", "p", 1 << 70)
    assert event["level"] == "INFO"
    assert "args" not in event
    assert "taskName" not in event


def test_an_exception_of_a_package_has_its_full_name() -> None:
    assert type_name(Broken) == f"{__name__}.Broken"
    assert type_name(KeyError) == "KeyError"


@pytest.mark.parametrize(
    ("terminal", "original", "format"),
    [(True, False, "text"), (False, False, "json"), (False, True, "text")],
)
def test_lines_are_json_by_default_unless_a_terminal_or_an_original_service_has_them(
    terminal: bool, original: bool, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.delitem(sys.modules, "paddle_serving_server", raising=False)
    if original:
        monkeypatch.setitem(sys.modules, "paddle_serving_server", sys)
    assert default_format() == format
    assert LogOptions().is_json == (format == "json")
    assert LogOptions(format="json").is_json


def test_warnings_and_the_ends_of_threads_are_json_lines_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails() -> None:
        raise Broken("it broke")

    with bare(), logging_to_stderr(JSON), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn_explicit("old", DeprecationWarning, "mine.py", 3)
        thread = threading.Thread(target=fails, name="of the script")
        thread.start()
        thread.join()
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert first["message"] == "mine.py:3: DeprecationWarning: old"
    assert second["message"] == "thread of the script ended"
    assert second["exception_type"] == f"{__name__}.Broken"


def test_a_line_of_the_command_is_text_as_it_is_or_an_event() -> None:
    assert log_line(TEXT, "error: no such file", level="error") == "error: no such file"
    event = json.loads(log_line(JSON, "error: x", level="error", error=Broken()))
    assert (event["level"], event["message"]) == ("ERROR", "error: x")
    assert event["exception_type"] == f"{__name__}.Broken"


def test_options_set_level_and_format(capsys: pytest.CaptureFixture[str]) -> None:
    with bare(), logging_to_stderr(LogOptions(level="debug", format="json")):
        logging.getLogger("penstock.some").debug("hello")
    assert json.loads(capsys.readouterr().err)["message"] == "hello"


def test_messages_during_a_scripts_import_are_logged(capsys: pytest.CaptureFixture[str]) -> None:
    with bare() as root:
        with logging_of_imports(TEXT):
            logging.getLogger("users").info("loading")
            logging.getLogger("users").debug("unseen")
            with logging_to_stderr(TEXT):
                logging.getLogger("users").info("serving")
            logging.getLogger("users").info("ended")
        assert (root.handlers, root.level) == ([], logging.WARNING)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("] ")[1] for line in lines] == ["loading", "serving", "ended"]


def test_logging_configured_during_a_scripts_import_is_kept(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with bare() as root, logging_of_imports(TEXT):
        logging.basicConfig(format="own %(message)s")
        with logging_to_stderr(TEXT):
            logging.getLogger("users").warning("loud")
            logging.getLogger("users").info("unseen")
            assert root.level == logging.WARNING
    assert capsys.readouterr().err == "own loud\n"


def test_the_default_handler_of_logging_does_not_count_as_configured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with bare(), logging_of_imports(TEXT):
        logging.info("first")
        with logging_to_stderr(TEXT):
            logging.getLogger("penstock").info("served")
    first, second = capsys.readouterr().err.splitlines()
    assert first == "INFO:root:first"
    assert second.endswith("[penstock] served")


def test_a_program_without_logging_logs_to_stderr_during_the_block(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with bare() as root:
        with logging_to_stderr(TEXT):
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
            with logging_to_stderr(TEXT):
                assert root.handlers == ([] if configured else [own])
                assert root.level == logging.WARNING
                logging.getLogger("penstock.some").warning("hello")
        finally:
            logger.removeHandler(own)
    assert messages == ["hello"]
    assert capsys.readouterr().err == ""


def test_a_nested_logging_to_stderr_has_no_effect() -> None:
    with bare() as root:
        with logging_to_stderr(TEXT):
            (handler,) = root.handlers
            with logging_to_stderr(TEXT):
                assert root.handlers == [handler]
            assert root.handlers == [handler]


def test_libraries_log_in_the_same_way(capsys: pytest.CaptureFixture[str]) -> None:
    with bare(), logging_to_stderr(TEXT):
        logging.getLogger("grpc._cython.cygrpc").error("a channel of the user's own broke")
        logging.getLogger("users.own").info("hello")
        logging.getLogger("users.own").debug("unseen")
    written = capsys.readouterr().err
    assert "broke" in written
    assert "hello" in written
    assert "unseen" not in written
