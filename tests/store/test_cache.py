"""The cache of models' files: shared contents, limit, use, damage, several processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest

from penstock.errors import CacheFull, StoreError
from penstock.repository.manifest import content_digest
from penstock.store.cache import Cache, Fetched


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def made(cache: Cache, model: str, version: str, files: dict[str, bytes]) -> Fetched:
    """A version whose contents are transferred unless the cache has them."""
    with cache.staging(model, version) as staging:
        missing = {
            path: data
            for path, data in files.items()
            if not staging.take(path, digest(data), len(data))
        }
        staging.reserve(sum(map(len, missing.values())))
        for path, data in missing.items():
            staging.place(path).write_bytes(data)
            assert staging.keep(path) == digest(data)
        return staging.commit(content_digest((path, digest(data)) for path, data in files.items()))


def files_of(fetched: Fetched) -> dict[str, bytes]:
    return {
        each.relative_to(fetched.path).as_posix(): each.read_bytes()
        for each in fetched.path.rglob("*")
        if each.is_file()
    }


def versions(cache: Cache) -> list[str]:
    return sorted(
        f"{each.parent.name}/{each.name.partition('-')[0]}"
        for each in (cache.folder / "versions").glob("*/*")
    )


def leftovers(cache: Cache) -> list[Path]:
    return [*(cache.folder / "tmp").iterdir()]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache", limit=100)


def test_a_version_is_a_folder_of_its_own_with_the_files(cache: Cache) -> None:
    files = {"model.onnx": b"model", "data/w.bin": b"weights"}
    fetched = made(cache, "m", "1", files)
    assert files_of(fetched) == files
    assert fetched.transferred == 12
    assert leftovers(cache) == []


def test_versions_share_equal_contents(cache: Cache) -> None:
    one = made(cache, "m", "1", {"model.onnx": b"model 1", "w.bin": b"w" * 50})
    two = made(cache, "m", "2", {"model.onnx": b"model 2", "w.bin": b"w" * 50})
    assert two.transferred == 7
    assert os.path.samefile(one.path / "w.bin", two.path / "w.bin")
    assert cache.used() == 64


def test_equal_versions_are_one_folder(cache: Cache) -> None:
    one = made(cache, "m", "1", {"model.onnx": b"model"})
    again = made(cache, "m", "1", {"model.onnx": b"model"})
    assert (again.path, again.digest, again.transferred) == (one.path, one.digest, 0)
    assert leftovers(cache) == []


def test_another_content_of_a_version_is_another_folder(cache: Cache) -> None:
    one = made(cache, "m", "1", {"model.onnx": b"model"})
    other = made(cache, "m", "1", {"model.onnx": b"ledom"})
    assert one.path != other.path
    assert files_of(one) == {"model.onnx": b"model"}


def test_what_was_used_least_recently_goes_first(cache: Cache) -> None:
    for version in ("1", "2", "3"):
        made(cache, "m", version, {"model.onnx": version.encode() * 30}).release()
    made(cache, "m", "1", {"model.onnx": b"1" * 30}).release()
    made(cache, "m", "4", {"model.onnx": b"4" * 30}).release()
    assert versions(cache) == ["m/1", "m/3", "m/4"]
    assert cache.used() == 90


def test_contents_of_no_version_go_before_versions(cache: Cache) -> None:
    made(cache, "m", "1", {"model.onnx": b"1" * 30}).release()
    with cache.staging("m", "2") as staging:  # which is not completed: its file is kept
        staging.reserve(60)
        staging.place("w.bin").write_bytes(b"2" * 60)
        staging.keep("w.bin")
    assert cache.used() == 90
    made(cache, "m", "3", {"model.onnx": b"3" * 60}).release()
    assert versions(cache) == ["m/1", "m/3"]


def test_what_an_attempt_had_transferred_is_not_transferred_again(cache: Cache) -> None:
    with suppress(ZeroDivisionError), cache.staging("m", "1") as staging:
        staging.place("w.bin").write_bytes(b"weights")
        staging.keep("w.bin")
        staging.place("model.onnx").write_bytes(b"mod")
        raise ZeroDivisionError
    assert leftovers(cache) == []
    assert made(cache, "m", "1", {"model.onnx": b"model", "w.bin": b"weights"}).transferred == 5


def test_a_version_in_use_never_goes(cache: Cache) -> None:
    used = made(cache, "m", "1", {"model.onnx": b"1" * 60})
    with pytest.raises(CacheFull, match="60 bytes more do not fit: what is in use takes 60 of 100"):
        made(cache, "m", "2", {"model.onnx": b"2" * 60})
    assert files_of(used) == {"model.onnx": b"1" * 60}
    assert leftovers(cache) == []
    used.release()
    used.release()
    made(cache, "m", "2", {"model.onnx": b"2" * 60})
    assert versions(cache) == ["m/2"]


def test_a_version_in_use_stays_however_long_ago_it_was_fetched(cache: Cache) -> None:
    used = made(cache, "m", "1", {"model.onnx": b"1" * 30})
    for version in ("2", "3", "4"):
        made(cache, "m", version, {"model.onnx": version.encode() * 30}).release()
    assert versions(cache) == ["m/1", "m/3", "m/4"]
    used.release()


def test_each_use_of_a_version_counts(cache: Cache) -> None:
    one = made(cache, "m", "1", {"model.onnx": b"1" * 60})
    two = made(cache, "m", "1", {"model.onnx": b"1" * 60})
    one.release()
    with pytest.raises(CacheFull):
        made(cache, "m", "2", {"model.onnx": b"2" * 60})
    two.release()


def test_a_version_larger_than_the_limit_removes_nothing_in_vain(cache: Cache) -> None:
    made(cache, "m", "1", {"model.onnx": b"1" * 30}).release()
    used = made(cache, "m", "2", {"model.onnx": b"2" * 30})
    for size in (80, 200):
        with pytest.raises(CacheFull, match=f"{size} bytes more do not fit: .* takes 30 of 100"):
            made(cache, "m", "3", {"model.onnx": b"3" * size})
    assert versions(cache) == ["m/1", "m/2"]
    used.release()


def test_room_that_one_attempt_has_is_not_given_to_another(cache: Cache) -> None:
    with cache.staging("m", "1") as staging:
        staging.reserve(60)
        with pytest.raises(CacheFull):
            made(cache, "m", "2", {"model.onnx": b"2" * 60})
        staging.place("a").write_bytes(b"1" * 60)
        staging.keep("a")
        assert cache.used() == 60
        made(cache, "m", "2", {"model.onnx": b"2" * 40})


def test_a_disk_without_room_is_told_before_the_transfer(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    with pytest.raises(CacheFull, match="the disk has"), cache.staging("m", "1") as staging:
        staging.reserve(2**60)
    assert leftovers(cache) == []


def test_a_disk_that_becomes_full_is_told_as_such(cache: Cache) -> None:
    with pytest.raises(CacheFull, match="No space left on device"), cache.staging("m", "1"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_damaged_content_is_transferred_again(tmp_path: Path) -> None:
    files = {"model.onnx": b"model"}
    damaged = made(Cache(tmp_path), "m", "1", files).path / "model.onnx"
    damaged.chmod(0o644)
    damaged.write_bytes(b"modem")
    again = made(Cache(tmp_path), "m", "1", files)  # as another process
    assert (again.transferred, files_of(again)) == (5, files)


def test_a_version_that_lacks_a_file_is_made_again(tmp_path: Path) -> None:
    files = {"model.onnx": b"model", "w.bin": b"weights"}
    one = made(Cache(tmp_path), "m", "1", files)
    (one.path / "w.bin").unlink()
    again = made(Cache(tmp_path), "m", "1", files)
    assert (again.transferred, files_of(again)) == (0, files)


def test_the_content_of_a_revision_is_remembered_as_long_as_it_is_there(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    made(cache, "m", "1", {"a": b"model"}).release()
    assert cache.digest_of("s3://b", "m/1/a", "r1") is None
    cache.remember("s3://b", "m/1/a", "r1", digest(b"model"))
    cache.remember("s3://b", "m/1/b", "r1", digest(b"gone"))
    (tmp_path / "known" / "other").write_text("of another release")
    again = Cache(tmp_path)
    assert len(os.listdir(tmp_path / "known")) == 1
    assert again.digest_of("s3://b", "m/1/a", "r1") == digest(b"model")
    assert again.digest_of("s3://b", "m/1/a", "r2") is None
    assert again.digest_of("s3://c", "m/1/a", "r1") is None


@pytest.mark.parametrize("name", ["..", "a/b", "", "a\nb", "."])
def test_a_name_that_leaves_the_cache_is_refused(cache: Cache, name: str) -> None:
    with pytest.raises(StoreError, match="cannot be that of a folder"):
        made(cache, name, "1", {"a": b"1"})
    with pytest.raises(StoreError, match="cannot be that of a folder"):
        made(cache, "m", name, {"a": b"1"})


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cache .*file/cache: .*Not a directory"):
        Cache(tmp_path / "file" / "cache")


PROGRAM = """
import sys
from pathlib import Path
from tests.store.test_cache import made
from penstock.store.cache import Cache
cache = Cache(Path(sys.argv[1]), limit=100)
"""


def process(folder: Path, program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + program, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def line_of(running: subprocess.Popen[str]) -> str:
    assert running.stdout is not None
    return running.stdout.readline().strip()


def test_a_process_that_is_killed_leaves_nothing_in_use_and_nothing_behind(
    tmp_path: Path,
) -> None:
    other = process(
        tmp_path,
        """
used = made(cache, "m", "1", {"model.onnx": b"1" * 60})
with cache.staging("m", "2") as staging:
    staging.reserve(40)
    staging.place("w.bin").write_bytes(b"2" * 10)
    print("half", flush=True)
    sys.stdin.read()
""",
    )
    try:
        assert line_of(other) == "half"
        cache = Cache(tmp_path, limit=100)  # while the other one lives, all of it stays
        assert len(leftovers(cache)) == 2
        with pytest.raises(CacheFull):
            made(cache, "m", "3", {"model.onnx": b"3" * 60})
    finally:
        other.kill()
        other.communicate()
    cache = Cache(tmp_path, limit=100)
    assert leftovers(cache) == []
    made(cache, "m", "3", {"model.onnx": b"3" * 60})
    assert versions(cache) == ["m/3"]


def test_two_processes_that_make_the_same_versions_do_not_disturb_each_other(
    tmp_path: Path,
) -> None:
    program = """
for turn in range(40):
    version = str(turn % 5)
    files = {"model.onnx": version.encode() * 20, "w.bin": b"w" * 20}
    made_one = made(cache, "m", version, files)
    for path, data in files.items():
        assert (made_one.path / path).read_bytes() == data
    made_one.release()
print("good", flush=True)
"""
    both = [process(tmp_path, program) for _ in range(2)]
    assert [line_of(each) for each in both] == ["good", "good"]
    for each in both:
        each.communicate()
    assert Cache(tmp_path, limit=100).used() <= 100
