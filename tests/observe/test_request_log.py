"""The log line of a request: without a LogRecord for Penstock's handler, with one for others."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from io import StringIO

import pytest

from penstock.observe.logs import AdditionalHandler, BackgroundHandler, JsonLines, TextLines
from penstock.observe.request_log import facts_of, log_request, members_of, text_of
from penstock.observe.timeline import BatchTimes, Step, Timeline
from tests.observe.test_logs import bare

NAME = "penstock.observe.request_log"
BATCH = BatchTimes("echo", 1, 0, "idle slot", 2, [7, 8], 1.0, 1.01, 0.001, 0.002, 0.004, 1.1)
STEPS = [Step("echo", 0.96, 1, BATCH), Step("wait", 1.15, 2, None)]
TIMELINE = Timeline(
    0, "g", "/g/{method}", 7, 3, "", 0.9, 0.95, 1.2, 1.3, 504, "timeout", "POST", "", STEPS
)
FORGED = Timeline(0, "", "GET /a\x85\nINFO b", -1, 0, "", 1, 1, 1, 1.5, 404, None, "GET", "", [])


class Own(logging.Handler):
    """A script's handler, which keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


def test_the_line_has_the_outcome_and_the_time_of_each_phase() -> None:
    assert text_of(TIMELINE) == (
        "/g/{method} 504 400.000 ms g timeout (data_id=7 log_id=3) unpack 50.000"
        " | echo batch 2: queue 40.000, transfer_in 10.000, preprocess 1.000, process 2.000,"
        " postprocess 1.000, transfer_out 86.000 | wait batch 0: unfinished 50.000 | pack 100.000"
    )
    facts = facts_of(TIMELINE)
    assert facts["ms"] == 400.0
    assert facts["ops"][0]["transfer_out_ms"] == 86.0
    assert facts["ops"][1] == {"op": "wait", "attempt": 2, "batch": 0, "unfinished_ms": 50.0}


def test_the_line_names_the_caller() -> None:
    timeline = replace(TIMELINE, caller="ann\nINFO b")
    assert facts_of(timeline)["caller"] == "ann\nINFO b"
    assert text_of(timeline).startswith(
        "/g/{method} 504 400.000 ms caller='ann\\nINFO b' g timeout"
    )


def test_the_ids_of_a_request_are_members_of_its_event() -> None:
    traced = replace(TIMELINE, trace=f"00-{'4b' * 16}-{'0a' * 8}-01")
    ids = {"data_id": 7, "log_id": 3}
    assert members_of(TIMELINE) == {**ids, "request": facts_of(TIMELINE)}
    assert members_of(traced) == {**ids, "trace": "4b" * 16, "request": facts_of(traced)}
    assert members_of(replace(TIMELINE, caller="ann"))["caller"] == "ann"
    assert [*members_of(FORGED)] == ["request"]


@pytest.mark.parametrize("timeline", [TIMELINE, FORGED])
@pytest.mark.parametrize("form", [TextLines(), TextLines("engine 1"), JsonLines("engine 1")])
def test_the_line_without_a_record_is_the_same_as_with_one(
    form: TextLines | JsonLines, timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_795_644_000.0625)
    text, members = text_of(timeline), members_of(timeline)
    record = logging.LogRecord(NAME, logging.INFO, "file", 1, "%s", (text,), None)
    record.created = time.time()  # Python 3.13 reads another clock
    vars(record).update(members)
    line = form.info(NAME, text, lambda: members)
    assert line == form.format(record)
    assert len(line.splitlines()) == 1


def test_penstocks_handler_writes_the_line_without_a_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def made(*_: object) -> None:
        raise AssertionError("a record was made")

    stream = StringIO()
    handler = BackgroundHandler(stream)
    handler.setFormatter(JsonLines())
    monkeypatch.setattr(logging.Logger, "makeRecord", made)
    with bare() as root:
        root.handlers[:] = [handler]
        root.setLevel(logging.WARNING)
        log_request(TIMELINE)
        root.setLevel(logging.INFO)
        log_request(TIMELINE)
        handler.close()
    event = json.loads(stream.getvalue())
    assert (event["logger"], event["level"], event["message"]) == (NAME, "INFO", text_of(TIMELINE))
    assert event["request"] == facts_of(TIMELINE)


def add_handler(root: logging.Logger, own: Own) -> None:
    root.addHandler(own)


def add_log_files(root: logging.Logger, own: Own) -> None:
    files = AdditionalHandler()
    files.emit = own.emit  # type: ignore[method-assign]
    root.addHandler(files)


def add_handler_to_logger(root: logging.Logger, own: Own) -> None:
    logging.getLogger(NAME).addHandler(own)


def replace_handler(root: logging.Logger, own: Own) -> None:
    root.handlers[:] = [own]


def add_filter_to_handler(root: logging.Logger, own: Own) -> None:
    root.handlers[0].addFilter(lambda record: own.emit(record) is None)


def add_filter_to_logger(root: logging.Logger, own: Own) -> None:
    logging.getLogger(NAME).addFilter(lambda record: own.emit(record) is None)


def set_formatter(root: logging.Logger, own: Own) -> None:
    class Format(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            own.emit(record)
            return ""

    root.handlers[0].setFormatter(Format())


def set_record_factory(root: logging.Logger, own: Own) -> None:
    class Record(logging.LogRecord):
        def getMessage(self) -> str:
            own.records[:] = [self]
            return super().getMessage()

    logging.setLogRecordFactory(Record)


@pytest.mark.parametrize(
    "configure",
    [
        add_handler, add_log_files, add_handler_to_logger, replace_handler, add_filter_to_handler,
        add_filter_to_logger, set_formatter, set_record_factory,
    ],
)  # fmt: skip
def test_handlers_filters_and_formatters_of_a_script_get_a_record(
    configure: Callable[[logging.Logger, Own], None],
) -> None:
    own, handler, logger = Own(), BackgroundHandler(StringIO()), logging.getLogger(NAME)
    handler.setFormatter(TextLines())
    with bare() as root:
        root.handlers[:] = [handler]
        root.setLevel(logging.INFO)
        try:
            configure(root, own)
            log_request(TIMELINE)
        finally:
            logger.handlers.clear()
            logger.filters.clear()
            logging.setLogRecordFactory(logging.LogRecord)
            handler.close()
    (record,) = own.records
    assert record.getMessage() == text_of(TIMELINE)
    assert record.request == facts_of(TIMELINE)  # type: ignore[attr-defined]
    assert record.filename == "request_log.py"
