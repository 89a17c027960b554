"""A folder as a store: which files it lists, and which names it refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.errors import ContentRefused, StoreUnavailable, VersionUnfinished
from penstock.store.local import LocalStore


def write(file: Path, data: bytes = b"data") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)
    return file


def paths(store: LocalStore, folder: str = "") -> list[str]:
    return [each.path for each in store.scan(folder).files]


def ignored(_transferred: int) -> None:
    pass


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    write(folder / "m/1/model.onnx")
    write(folder / "m/config.pbtxt")
    return folder


def test_all_files_are_listed_with_sizes(root: Path) -> None:
    found = LocalStore(root).scan()
    assert [(each.path, each.size) for each in found.files] == [
        ("m/1/model.onnx", 4),
        ("m/config.pbtxt", 4),
    ]
    assert (found.refused, found.unfinished) == ({}, ())


def test_one_folder_is_listed_with_paths_of_the_repository(root: Path) -> None:
    assert paths(LocalStore(root), "m/1") == ["m/1/model.onnx"]
    assert paths(LocalStore(root), "gone") == []


def test_a_replaced_file_has_another_revision_even_with_its_size_and_time(root: Path) -> None:
    store = LocalStore(root)
    before = store.scan("m/1").files
    other = write(root / "other", b"atad")
    kept = (root / "m/1/model.onnx").stat()
    os.utime(other, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    other.rename(root / "m/1/model.onnx")
    assert store.scan("m/1").files != before


def test_only_a_file_at_rest_has_a_revision_to_rely_on(root: Path) -> None:
    (fresh,) = LocalStore(root).scan("m/1").files
    assert not fresh.strong


def test_links_inside_the_repository_are_followed(root: Path) -> None:
    """As in a volume of Kubernetes, whose visible names are links to ..data/name."""
    write(root / "..2026_11_27/k/1/model.onnx")
    (root / "..data").symlink_to("..2026_11_27")
    (root / "k").symlink_to("..data/k")
    (root / "m/2").symlink_to("1")
    assert paths(LocalStore(root)) == [
        "k/1/model.onnx",
        "m/1/model.onnx",
        "m/2/model.onnx",
        "m/config.pbtxt",
    ]


def test_the_repository_itself_may_be_a_link_that_changes(root: Path, tmp_path: Path) -> None:
    current = tmp_path / "current"
    current.symlink_to(root)
    store = LocalStore(current)
    assert len(paths(store)) == 2
    write(tmp_path / "next/n/1/model.onnx")
    current.unlink()
    current.symlink_to(tmp_path / "next")
    assert paths(store) == ["n/1/model.onnx"]


@pytest.mark.parametrize(
    ("name", "target", "reason"),
    [
        ("out", "/etc", "is a link that leaves the repository"),
        ("out", "../../outside", "is a link that leaves the repository"),
        ("nothing", "missing", "is a link to nothing"),
        (
            "itself",
            "itself",
            "is a link that cannot be followed: Too many levels of symbolic links",
        ),
        ("above", "..", "is a link to a folder that contains it"),
    ],
)
def test_a_link_that_leads_elsewhere_is_refused_and_the_rest_listed(
    root: Path, tmp_path: Path, name: str, target: str, reason: str
) -> None:
    write(tmp_path / "outside/secret.onnx")
    (root / "m" / name).symlink_to(target)
    found = LocalStore(root).scan()
    assert [each.path for each in found.files] == ["m/1/model.onnx", "m/config.pbtxt"]
    assert found.refused == {f"m/{name}": reason}


def test_what_is_no_file_is_refused(root: Path) -> None:
    os.mkfifo(root / "m/1/pipe")
    os.mknod(root / "m/1/device", 0o600 | 0o020000, os.makedev(1, 3))
    found = LocalStore(root).scan()
    assert len(found.files) == 2
    assert found.refused == dict.fromkeys(
        ("m/1/device", "m/1/pipe"), "is neither a file nor a folder"
    )


def test_names_that_a_log_would_not_show_are_refused(root: Path) -> None:
    write(root / "m/1/a\nb")
    write(Path(os.fsdecode(os.fsencode(root) + b"/m/1/\xff")))
    assert LocalStore(root).scan().refused == {
        "m/1/a\\nb": "has a control character in its name",
        "m/1/\\udcff": "has a name that is no UTF-8",
    }


def test_hidden_files_are_left_out_but_those_of_a_running_copy_are_told(root: Path) -> None:
    write(root / ".git/config")
    write(root / "m/1/.model.onnx.Ab3dE9")
    write(root / "m/1/__pycache__/run.cpython-312.pyc")
    write(root / "m/1/weights.bin.part")
    found = LocalStore(root).scan()
    assert len(found.files) == 2
    assert found.unfinished == ("m/1/.model.onnx.Ab3dE9", "m/1/weights.bin.part")


def test_a_repository_that_is_not_there_is_an_outage(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="gone: no such folder"):
        LocalStore(tmp_path / "gone").scan()


def test_a_file_is_read_up_to_a_limit(root: Path) -> None:
    store = LocalStore(root)
    (file,) = store.scan("m/1").files
    assert store.read(file, 4) == b"data"
    with pytest.raises(ContentRefused, match="more than 3 bytes"):
        store.read(file, 3)


def test_a_link_that_was_put_in_a_files_place_after_the_scan_is_not_followed_out(
    root: Path, tmp_path: Path
) -> None:
    store = LocalStore(root)
    (file,) = store.scan("m/1").files
    secret = write(tmp_path / "secret", b"1234")
    (root / "m/1/model.onnx").unlink()
    (root / "m/1/model.onnx").symlink_to(secret)
    with pytest.raises(ContentRefused, match="leaves the repository"):
        store.copy(file, tmp_path / "copy", ignored)


def test_a_pipe_that_was_put_in_a_files_place_does_not_block(root: Path, tmp_path: Path) -> None:
    store = LocalStore(root)
    (file,) = store.scan("m/1").files
    (root / "m/1/model.onnx").unlink()
    os.mkfifo(root / "m/1/model.onnx")
    with pytest.raises(ContentRefused, match="neither a file nor a folder"):
        store.copy(file, tmp_path / "copy", ignored)


@pytest.mark.parametrize("now", [b"dat", b"datadata", None])
def test_a_file_that_changed_after_the_scan_is_unfinished(
    root: Path, tmp_path: Path, now: bytes | None
) -> None:
    store = LocalStore(root)
    (file,) = store.scan("m/1").files
    (root / "m/1/model.onnx").unlink()
    if now is not None:
        write(root / "m/1/model.onnx", now)
    with pytest.raises(VersionUnfinished):
        store.copy(file, tmp_path / "copy", ignored)
