"""Hot loading: when a folder is taken, what is copied, and which copies are left."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.service.hot_loading import (
    Changes,
    copies_of,
    copy_files,
    listing_of,
    remove_abandoned,
    stamp_of,
)


@pytest.fixture(autouse=True)
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where copies are made."""
    made = tmp_path / "copies"
    made.mkdir()
    monkeypatch.setenv("TMPDIR", str(made))
    return made


@pytest.mark.parametrize("name", ["fluid_time_file", "fluid_time_stamp"])
def test_a_folder_is_due_when_a_time_file_is_new_or_touched(tmp_path: Path, name: str) -> None:
    changes = Changes(stamp_of(tmp_path))
    assert not changes.are_due(stamp_of(tmp_path))
    (tmp_path / name).touch()
    assert changes.are_due(stamp_of(tmp_path))
    changes.taken(stamp_of(tmp_path))
    assert not changes.are_due(stamp_of(tmp_path))
    os.utime(tmp_path / name, ns=(1, 1))  # also if the time is an earlier one
    assert changes.are_due(stamp_of(tmp_path))


def test_a_time_file_that_goes_and_comes_back_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "fluid_time_file"
    file.touch()
    os.utime(file, ns=(1, 1))
    changes = Changes(stamp_of(tmp_path))
    file.unlink()
    assert not changes.are_due(stamp_of(tmp_path))
    file.touch()
    os.utime(file, ns=(1, 1))
    assert not changes.are_due(stamp_of(tmp_path))
    assert not changes.are_due(stamp_of(tmp_path / "gone"))


@pytest.mark.parametrize(
    ("listings", "complete"),
    [
        ([{"a": (1, 1, 1)}], [False]),
        ([{"a": (1, 1, 1)}] * 3, [False, True, True]),
        ([{"a": (1, 1, 1)}, {"a": (2, 1, 1)}, {"a": (2, 1, 1)}], [False, False, True]),
        ([{"a": (1, 1, 1)}, {"a": (1, 1, 1), "b": (0, 1, 1)}], [False, False]),
    ],
)
def test_a_folder_is_complete_once_two_looks_are_equal(
    listings: Sequence[dict[str, tuple[int, int, int]]], complete: list[bool]
) -> None:
    changes = Changes({})
    assert [changes.are_complete(each) for each in listings] == complete


def test_a_copy_has_all_files_but_the_time_files(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "model", tmp_path / "elsewhere"
    (folder / "parts").mkdir(parents=True)
    elsewhere.write_text("linked")
    (folder / "link").symlink_to(elsewhere)
    (folder / "parts/0").write_text("part")
    (folder / "fluid_time_file").touch()
    copy_files(folder, listing_of(folder), tmp_path / "copy")
    found = {str(x.relative_to(tmp_path / "copy")): x for x in (tmp_path / "copy").rglob("*")}
    assert {*found} == {"link", "parts", "parts/0"}
    assert found["link"].read_text() == "linked"
    assert not found["link"].is_symlink()


def test_a_pipe_in_a_folder_is_refused_and_blocks_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe is no file"):
        listing_of(tmp_path)


def test_a_copy_for_which_there_is_no_room_is_refused_before_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="set TMPDIR to another folder"):
        copy_files(tmp_path, {"large": (2**62, 0, 0)}, tmp_path / "room/2/0/model")


def test_the_end_of_a_service_ends_a_copy(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/file").write_text("x")
    stop = threading.Event()
    stop.set()
    with pytest.raises(OSError, match="the service ends"):
        copy_files(tmp_path / "model", listing_of(tmp_path / "model"), tmp_path / "copy", stop)


def test_copies_are_there_for_the_time_of_a_service(tmp_path: Path, room: Path) -> None:
    (tmp_path / "uci").mkdir()
    (tmp_path / "uci/model.onnx").write_text("x")
    (tmp_path / "file.onnx").touch()
    models = [str(tmp_path / each) for each in ("uci", "file.onnx", "uci")]
    with copies_of(models) as copies:
        assert [*copies.paths] == models[:1]  # a file has no time file
        assert (Path(copies.paths[models[0]]) / "model.onnx").read_text() == "x"
        assert copies.in_own_words(f"no {copies.paths[models[0]]}/a") == f"no {models[0]}/a"
        (made,) = room.iterdir()
        os.utime(made, (1, 1))
        remove_abandoned(room)  # as another service does at its start
        assert made.exists()
    assert [*room.iterdir()] == []


def test_copies_of_services_that_were_killed_are_removed(room: Path) -> None:
    old, young, own = (room / f"penstock-models-{each}" for each in ("old", "young", "own"))
    for each in (old, young, own):
        (each / "1").mkdir(parents=True)
    for each in (old, own):
        os.utime(each, (1, 1))
    held = os.open(own, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        remove_abandoned(room)
    finally:
        os.close(held)
    assert {*room.iterdir()} == {young, own}


def test_a_model_that_cannot_be_copied_is_served_from_its_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "uci").mkdir()
    os.mkfifo(tmp_path / "uci/pipe")
    with copies_of([str(tmp_path / "uci")]) as copies:
        assert copies.paths == {}
    assert "uci is not loaded anew while it is served" in caplog.text
