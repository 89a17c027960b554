"""Archives of models: what is unpacked, and what is refused without a trace outside."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddle_serving_server.archives import BadArchive, is_archive, unpack

FILES = {"uci/__model__": b"model", "uci/parts/w": b"w" * 3000, "uci/empty": b""}
LIMIT = 1 << 20


def tar(file: Path, *members: tuple[tarfile.TarInfo, bytes], mode: Any = "w:gz") -> Path:
    with tarfile.open(file, mode) as made:
        for info, data in members:
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    return file


def zipped(file: Path, *members: tuple[zipfile.ZipInfo, bytes]) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        for info, data in members:
            made.writestr(info, data)
    return file


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info, b""


def contents(folder: Path) -> dict[str, bytes]:
    files = (each for each in folder.rglob("*") if each.is_file())
    return {str(each.relative_to(folder)): each.read_bytes() for each in files}


@pytest.mark.parametrize("mode", ["w:", "w:gz", "w:bz2", "w:xz"])
def test_archives_of_tar_are_unpacked(tmp_path: Path, mode: str) -> None:
    members = [(tarfile.TarInfo(name), data) for name, data in FILES.items()]
    archive = tar(tmp_path / "uci.tar.gz", *members, mode=mode)
    assert is_archive(archive)
    unpack(archive, tmp_path / "out", LIMIT)
    assert contents(tmp_path / "out") == FILES


def test_archives_of_zip_are_unpacked(tmp_path: Path) -> None:
    members = [(zipfile.ZipInfo(name), data) for name, data in FILES.items()]
    archive = zipped(tmp_path / "uci.zip", (zipfile.ZipInfo("uci/"), b""), *members)
    assert is_archive(archive)
    unpack(archive, tmp_path / "out", LIMIT)
    assert contents(tmp_path / "out") == FILES


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE])
def test_a_link_to_a_file_of_the_archive_becomes_a_copy(tmp_path: Path, kind: bytes) -> None:
    to = "w" if kind == tarfile.SYMTYPE else "uci/w"
    archive = tar(tmp_path / "a.tar", (tarfile.TarInfo("uci/w"), b"w"), link("uci/link", to, kind))
    unpack(archive, tmp_path / "out", LIMIT)
    assert contents(tmp_path / "out") == {"uci/w": b"w", "uci/link": b"w"}
    assert not (tmp_path / "out/uci/link").is_symlink()


def device() -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo("null")
    info.type, info.devmajor, info.devminor = tarfile.CHRTYPE, 1, 3
    return info, b""


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([(tarfile.TarInfo("../out of it"), b"x")], "leads out of its folder"),
        ([(tarfile.TarInfo("uci/../../x"), b"x")], "leads out of its folder"),
        ([(tarfile.TarInfo("/tmp/absolute"), b"x")], "leads out of its folder"),
        ([link("uci/passwd", "/etc/passwd")], "link out of the archive"),
        ([link("uci/passwd", "../../../etc/passwd")], "link out of the archive"),
        ([link("uci/hard", "/etc/passwd", tarfile.LNKTYPE)], "link out of the archive"),
        ([link("up", ".."), (tarfile.TarInfo("up/x"), b"x")], "link out of the archive"),
        ([link("a", "b"), link("b", "a")], "cannot be unpacked"),
        ([device()], "neither a file nor a folder"),
        ([(tarfile.TarInfo("large"), bytes(LIMIT + 1))], "more than 1,048,576 bytes"),
    ],
)
def test_what_a_tar_must_not_do_is_refused(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]], reason: str
) -> None:
    archive = tar(tmp_path / "bad.tar.gz", *members)
    with pytest.raises(BadArchive, match=reason):
        unpack(archive, tmp_path / "in/out", LIMIT) if (tmp_path / "in").mkdir() is None else None
    assert {*contents(tmp_path)} - {"bad.tar.gz"} <= {"in/out/large"}


def symbolic(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ([(zipfile.ZipInfo("../x"), b"x")], "leads out of its folder"),
        ([(zipfile.ZipInfo("/x"), b"x")], "leads out of its folder"),
        ([(symbolic("passwd"), b"/etc/passwd")], "neither a file nor a folder"),
        ([(zipfile.ZipInfo("a"), bytes(LIMIT)), (zipfile.ZipInfo("b"), b"b")], "more than"),
    ],
)
def test_what_a_zip_must_not_do_is_refused(
    tmp_path: Path, members: list[tuple[zipfile.ZipInfo, bytes]], reason: str
) -> None:
    archive = zipped(tmp_path / "bad.zip", *members)
    with pytest.raises(BadArchive, match=reason):
        unpack(archive, tmp_path / "out", LIMIT)
    assert {*contents(tmp_path)} - {"bad.zip"} <= {"out/a", "out/b"}


@pytest.mark.parametrize("make", [tar, zipped])
def test_a_damaged_archive_is_refused(tmp_path: Path, make: Callable[..., Path]) -> None:
    info = tarfile.TarInfo if make is tar else zipfile.ZipInfo
    whole = make(tmp_path / "whole", (info("a"), bytes(range(256)) * 400)).read_bytes()
    for name, data in {
        "short": whole[: len(whole) // 2],
        "wrong": whole[:60] + bytes(20) + whole[80:],
    }.items():
        (tmp_path / name).write_bytes(data)
        if not is_archive(tmp_path / name):
            continue
        with pytest.raises(BadArchive):
            unpack(tmp_path / name, tmp_path / f"{name} out", LIMIT)
