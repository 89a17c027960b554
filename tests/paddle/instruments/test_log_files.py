"""The process that writes the log files: rotation, its end, and lost lines."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.errors import StartupError
from penstock_paddle.instruments import log_files
from penstock_paddle.instruments.log_files import ToFiles, logging_to_files
from penstock_paddle.instruments.log_writer import Writer


def test_log_files_are_rotated_at_their_size_limit(tmp_path: Path) -> None:
    writer = Writer(str(tmp_path), most=100)
    for number in range(30):
        writer.write(b"W%09d" % number)
    writer.write(b"Ttracer")
    writer.close()
    names = {each.name for each in tmp_path.iterdir()}
    assert names == {"pipeline.tracer", "pipeline.log", "pipeline.log.1", "pipeline.log.2",
                     "pipeline.log.3", "pipeline.log.wf", "pipeline.log.wf.1",
                     "pipeline.log.wf.2", "pipeline.log.wf.3"}  # fmt: skip
    assert all(each.stat().st_size <= 100 for each in tmp_path.iterdir())
    kept = "".join((tmp_path / f"pipeline.log{end}").read_text() for end in (".3", ".2", ".1", ""))
    assert kept.split() == [f"{number:09}" for number in range(30)]
    assert (tmp_path / "pipeline.tracer").read_text() == "tracer\n"


def test_a_full_disk_loses_lines_and_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pipeline.log").symlink_to("/dev/full")
    writer = Writer(str(tmp_path))
    for number in range(100):
        writer.write(b"W%d" % number)
    writer.close()
    (line,) = capsys.readouterr().err.splitlines()
    assert "pipeline.log cannot be written: [Errno 28] No space left on device" in line
    assert len((tmp_path / "pipeline.log.wf").read_text().splitlines()) == 100


def test_a_burst_of_lines_is_written_completely_before_the_writer_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The writer of a busy machine starts late; a line that waits for longer is lost, as documented.
    monkeypatch.setattr(ToFiles, "_waits_ms", 60_000)
    monkeypatch.setattr(log_files, "_LAST_LINES", 60.0)
    before = logging.getLogger().handlers[:]
    with logging_to_files(str(tmp_path)):
        for number in range(2000):
            logging.getLogger("mine").warning("line %s", number)
    assert logging.getLogger().handlers == before
    lines = (tmp_path / "PipelineServingLogs" / "pipeline.log.wf").read_text().splitlines()
    assert [line.rsplit(" ", 1)[1] for line in lines] == [str(n) for n in range(2000)]


def test_without_its_writer_log_lines_are_lost_without_an_error(tmp_path: Path) -> None:
    with logging_to_files(str(tmp_path)):
        (handler,) = (x for x in logging.getLogger().handlers if isinstance(x, ToFiles))
        handler.line.shutdown(2)
        logging.getLogger("mine").warning("lost")


def test_a_log_folder_that_cannot_be_created_is_a_startup_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match=r"log files cannot be written: .*; set log_dir"):
        with logging_to_files(str(tmp_path / "file")):
            pass
