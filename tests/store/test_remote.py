"""Stores that fsspec reads: an S3 server with outages, an HTTP server, missing packages."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import (
    ContentRefused,
    EmptyListing,
    StoreError,
    StoreUnavailable,
    VersionUnfinished,
)
from penstock.repository.manifest import DONE, MANIFEST
from penstock.store.cache import Cache
from penstock.store.remote import server_of_s3, shown
from penstock.store.source import Source
from tests.kit.s3 import S3, Answer, Environ, Start, empty_list, failing, is_listing
from tests.store.conftest import Web
from tests.store.test_source import FILES, fetch, files_of, manifest_of, write


def put(s3: S3, bucket: str, files: dict[str, bytes], folder: str = "models/m/1") -> None:
    for path, data in files.items():
        s3.put(f"{bucket}/{folder}/{path}", data)


def paths(source: Source) -> list[str]:
    return [each.path for each in source.listing().files]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@pytest.fixture
def source(s3: S3, bucket: str) -> Source:
    put(s3, bucket, FILES)
    return Source(f"s3://{bucket}/models", settle=0)


# S3


def test_a_version_is_fetched_from_s3(source: Source, cache: Cache) -> None:
    fetched = fetch(source, cache)
    assert files_of(fetched) == FILES
    assert fetched.transferred == 12


def test_a_listing_is_of_now(source: Source, s3: S3, bucket: str) -> None:
    """s3fs caches listings, and found new objects never."""
    assert paths(source) == ["m/1/data/w.bin", "m/1/model.onnx"]
    put(s3, bucket, {"model.onnx": b"2"}, "models/m/2")
    assert "m/2/model.onnx" in paths(source)
    s3.delete(f"{bucket}/models/m/2/model.onnx")
    assert "m/2/model.onnx" not in paths(source)


def test_an_object_of_the_same_content_that_is_uploaded_again_is_unchanged(
    source: Source, s3: S3, bucket: str
) -> None:
    """Triton's polls of S3 saw changes where there were none, and reloaded models."""
    before = source.listing().files
    put(s3, bucket, FILES)
    assert source.listing().files == before
    put(s3, bucket, {"model.onnx": b"modem"})
    assert source.listing().files != before


def test_objects_that_stand_for_folders_are_no_files(source: Source, s3: S3, bucket: str) -> None:
    for marker in ("", "m/", "m/1/", "m/1/data_$folder$", "m/1/data"):
        s3.put(f"{bucket}/models/{marker}", b"")
    assert paths(source) == ["m/1/data/w.bin", "m/1/model.onnx"]


def test_a_folder_is_no_prefix(source: Source, s3: S3, bucket: str) -> None:
    put(s3, bucket, FILES, "models-old/m/1")
    put(s3, bucket, {"model.onnx": b"10"}, "models/m/10")
    assert "m/10/model.onnx" in paths(source)
    assert all(not each.startswith("-old") for each in paths(source))
    (found,) = {each.path for each in source.listing().files if each.path.startswith("m/10/")}
    assert found == "m/10/model.onnx"


@pytest.mark.parametrize("key", ["m/1/../../secret", "m//1/model.onnx", "m/1/a\tb"])
def test_a_key_that_could_leave_the_repository_is_refused(
    source: Source, s3: S3, bucket: str, key: str
) -> None:
    s3.put(f"{bucket}/models/{key}", b"1")
    listing = source.listing()
    assert [each.path for each in listing.files] == ["m/1/data/w.bin", "m/1/model.onnx"]
    assert len(listing.refused) == 1


def test_only_what_changed_is_transferred(
    source: Source, s3: S3, bucket: str, cache: Cache
) -> None:
    second = {**FILES, "model.onnx": b"new model"}
    put(s3, bucket, {MANIFEST: manifest_of(FILES)})
    put(s3, bucket, {**second, MANIFEST: manifest_of(second, version="2")}, "models/m/2")
    fetch(source, cache)
    s3.requests.clear()
    assert fetch(source, cache, "m/2").transferred == 9
    assert not [each for each in s3.requests if "w.bin?" in each]


def test_a_version_that_was_fetched_before_is_not_transferred_again(
    source: Source, s3: S3, bucket: str, cache: Cache, tmp_path: Path
) -> None:
    fetch(source, cache).release()
    again = Source(f"s3://{bucket}/models", settle=0)  # as after a restart
    assert fetch(again, Cache(tmp_path / "cache")).transferred == 0
    put(s3, bucket, {"model.onnx": b"modem"})
    assert fetch(again, Cache(tmp_path / "cache")).transferred == 5


def test_a_done_object_saves_the_wait(s3: S3, bucket: str, cache: Cache) -> None:
    put(s3, bucket, {**FILES, DONE: b""})
    slow = Source(f"s3://{bucket}/models", settle=10**6)
    assert files_of(fetch(slow, cache)) == FILES


def test_an_outage_is_an_error_in_a_moment_and_ends_with_the_outage(
    source: Source, s3: S3, cache: Cache
) -> None:
    files = source.listing().files
    s3.stop()
    with pytest.raises(StoreUnavailable, match="Could not connect"):
        source.listing()
    with pytest.raises(StoreUnavailable, match="Could not connect"):
        source.fetch("m", "1", files, cache, folder="m/1")
    s3.start()
    assert files_of(fetch(source, cache)) == FILES


def test_an_outage_in_the_middle_of_a_fetch_leaves_nothing_half(
    source: Source, s3: S3, bucket: str, cache: Cache
) -> None:
    put(s3, bucket, {MANIFEST: manifest_of(FILES)})

    def away(done: int, total: int) -> None:
        s3.fault = failing

    with pytest.raises(StoreUnavailable, match=r"m/1/model\.onnx"):
        fetch(source, cache, progress=away)
    assert [*(cache.folder / "tmp").iterdir()] == []
    assert [*(cache.folder / "versions").iterdir()] == []
    s3.fault = None
    assert fetch(source, cache).transferred == 5  # the first file had come


def test_an_empty_list_of_a_store_that_had_models_is_suspicious(source: Source, s3: S3) -> None:
    """Else an answer like this unloads all models."""
    assert source.listing().files
    s3.fault = empty_list
    with pytest.raises(EmptyListing):
        source.listing()
    s3.fault = None
    assert source.listing().files


def test_refused_credentials_are_told_with_the_stores_words(source: Source, s3: S3) -> None:
    s3.fault = failing
    with pytest.raises(StoreUnavailable, match=r"s3://.*: (Access Denied|no|Forbidden)"):
        source.listing()


def test_a_bucket_that_does_not_exist_is_an_outage(s3: S3) -> None:
    with pytest.raises(StoreUnavailable, match=r"s3://nowhere/models: .*bucket does not exist"):
        Source("s3://nowhere/models").listing()


def truncating(length: int) -> Any:
    """A fault: objects are cut off after some bytes, however often they are read."""

    def fault(environ: Environ, start: Start) -> Answer | None:
        if is_listing(environ) or environ["REQUEST_METHOD"] != "GET":
            return None
        start("200 OK", [("Content-Length", "5"), ("ETag", '"1"')])
        return [b"model"[:length]]

    return fault


def test_an_object_that_is_cut_off_is_an_error(source: Source, s3: S3, cache: Cache) -> None:
    s3.fault = truncating(3)
    with pytest.raises((StoreUnavailable, VersionUnfinished)):
        fetch(source, cache)
    assert [*(cache.folder / "versions").iterdir()] == []


def test_an_object_that_is_shorter_than_listed_is_an_error(
    source: Source, s3: S3, cache: Cache
) -> None:
    def fault(environ: Environ, start: Start) -> Answer | None:
        if is_listing(environ):
            return None
        start("200 OK", [("Content-Length", "3"), ("ETag", '"1"')])
        return [b"mod"]

    s3.fault = fault
    with pytest.raises(VersionUnfinished, match="got 3 bytes of 7"):
        fetch(source, cache)


def test_an_object_without_an_end_is_not_written_to_its_end(
    source: Source, s3: S3, cache: Cache
) -> None:
    def endless() -> Answer:
        while True:
            yield b"0" * 2**20

    def fault(environ: Environ, start: Start) -> Answer | None:
        if is_listing(environ):
            return None
        start("200 OK", [("Content-Length", str(2**40)), ("ETag", '"1"')])
        return endless()

    s3.fault = fault
    with pytest.raises(VersionUnfinished, match="more than 7 bytes"):
        fetch(source, cache)


def test_a_wrong_content_is_refused(source: Source, s3: S3, bucket: str, cache: Cache) -> None:
    put(s3, bucket, {MANIFEST: manifest_of(FILES), "model.onnx": b"modem"})
    with pytest.raises(ContentRefused, match=r"model\.onnx has the sha256"):
        fetch(source, cache)


def test_a_slow_store_is_waited_for_and_delays_no_other(
    source: Source, s3: S3, cache: Cache, tmp_path: Path
) -> None:
    go_on, asked = threading.Event(), threading.Event()

    def fault(environ: Environ, start: Start) -> Answer | None:
        asked.set()
        go_on.wait(30)
        return None

    s3.fault = fault
    found: list[list[str]] = []
    slow = threading.Thread(target=lambda: found.append(paths(source)))
    slow.start()
    assert asked.wait(10)
    write(tmp_path / "local", {"m/1/model.onnx": b"model"})
    assert len(files_of(fetch(Source(tmp_path / "local", settle=0), cache))) == 1
    go_on.set()
    slow.join(10)
    assert found == [["m/1/data/w.bin", "m/1/model.onnx"]]


def test_a_store_that_never_answers_is_an_outage(s3: S3, bucket: str) -> None:
    released = threading.Event()

    def fault(environ: Environ, start: Start) -> Answer | None:
        released.wait(30)
        return None

    s3.fault = fault
    quick = {"config_kwargs": {"read_timeout": 0.1, "retries": {"total_max_attempts": 1}}}
    try:
        with pytest.raises(StoreUnavailable, match=f"s3://{bucket}: "):
            Source(f"s3://{bucket}", options=quick).listing()
    finally:
        released.set()


def test_options_come_from_fsspecs_variables(
    s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(s3, bucket, FILES)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    program = "import sys; from penstock.store.source import Source\n"
    program += "print(len(Source(sys.argv[1]).listing().files))"
    done = subprocess.run(
        [sys.executable, "-c", program, f"s3://{bucket}/models"],
        env={**os.environ, "FSSPEC_S3_ENDPOINT_URL": s3.url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.returncode) == ("2\n", 0), done.stderr


@pytest.mark.parametrize("before", ["", "http://"])
def test_a_server_may_be_in_the_url_as_for_triton(
    s3: S3, bucket: str, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    put(s3, bucket, FILES)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    url = f"s3://{before}{s3.url.removeprefix('http://')}/{bucket}/models"
    program = "import sys; from penstock.store.source import Source\n"
    program += "source = Source(sys.argv[1]); print(len(source.listing().files), source.url)"
    done = subprocess.run(
        [sys.executable, "-c", program, url], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == (f"2 {url}\n", 0), done.stderr


@pytest.mark.parametrize(
    ("url", "left", "server"),
    [
        ("s3://host:9000/b/m", "s3://b/m", "http://host:9000"),
        ("s3://https://host:9000/b/m", "s3://b/m", "https://host:9000"),
        ("s3://https://s3.example.com/b", "s3://b", "https://s3.example.com"),
        ("s3://b/m/host:9000/1", "s3://b/m/host:9000/1", None),
        ("s3://b", "s3://b", None),
        ("https://host:9000/b/m", "https://host:9000/b/m", None),
    ],
)
def test_the_server_is_taken_out_of_the_url(url: str, left: str, server: str | None) -> None:
    assert server_of_s3(url) == (left, {} if server is None else {"endpoint_url": server})


def test_a_process_that_is_killed_while_it_fetches_leaves_nothing(
    source: Source, s3: S3, bucket: str, tmp_path: Path
) -> None:
    released = threading.Event()

    def fault(environ: Environ, start: Start) -> Answer | None:
        if environ["PATH_INFO"].endswith("model.onnx"):
            released.wait(30)
        return None

    s3.fault = fault
    program = """
import sys
from pathlib import Path
from penstock.store.cache import Cache
from penstock.store.source import Source
from tests.store.test_source import fetch
fetch(Source(sys.argv[1], settle=0), Cache(Path(sys.argv[2])),
      progress=lambda *_: print("one file", flush=True))
"""
    folder = tmp_path / "cache"
    other = subprocess.Popen(
        [sys.executable, "-c", program, f"s3://{bucket}/models", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "one file\n"
    finally:
        other.kill()
        other.communicate()
        released.set()
    s3.fault = None
    cache = Cache(folder)
    assert [*(folder / "tmp").iterdir()] == []
    fetched = fetch(source, cache)
    assert files_of(fetched) == FILES
    assert fetched.transferred <= 12


# HTTP


def test_a_version_is_fetched_from_the_pages_of_an_http_server(
    web: Web, cache: Cache, tmp_path: Path
) -> None:
    files = {**FILES, "ä 100%.bin": b"name", "a#b.bin": b"c"}
    write(tmp_path / "web/models/m/1", files)
    write(tmp_path / "web/other", {"x": b""})
    source = Source(f"{web.url}/models/", settle=0)
    assert files_of(fetch(source, cache)) == files


def test_links_elsewhere_are_not_followed(web: Web, tmp_path: Path) -> None:
    write(tmp_path / "web/secret", {"x": b"1"})
    page = "".join(
        f'<a href="{link}">x</a>'
        for link in (
            "../",
            "/secret/x",
            "http://127.0.0.1:1/x",
            "?C=M;O=A",
            "%2e%2e/secret/x",
            "..%2fsecret%2fx",
            "1/",
            "#top",
            "javascript:x",
        )
    )
    write(tmp_path / "web/models/m", {"index.html": page.encode(), "1/model.onnx": b"1"})
    listing = Source(f"{web.url}/models").listing()
    assert [each.path for each in listing.files] == ["m/1/model.onnx"]
    assert [*listing.refused] == ["m/../secret/x"]


def test_an_http_file_that_is_cut_off_is_an_error(web: Web, cache: Cache, tmp_path: Path) -> None:
    write(tmp_path / "web/m/1", FILES)
    source = Source(web.url, settle=0)
    web.faults["/m/1/model.onnx"] = ("cut", 3)
    with pytest.raises(StoreUnavailable, match=r"m/1/model\.onnx: .*payload"):
        fetch(source, cache)
    web.faults.clear()
    assert files_of(fetch(source, cache)) == FILES


def test_a_file_that_a_server_compresses_by_itself_is_whole(
    web: Web, cache: Cache, tmp_path: Path
) -> None:
    """Its listed size is that of the compressed bytes, or unknown: it cut files off elsewhere."""
    write(tmp_path / "web/m/1", {**FILES, "model.onnx": b"model" * 10_000})
    web.faults["/m/1/model.onnx"] = ("gzip", 0)
    fetched = fetch(Source(web.url, settle=0), cache)
    assert files_of(fetched)["model.onnx"] == b"model" * 10_000


@pytest.mark.parametrize("status", [500, 403, 404])
def test_a_page_that_fails_is_an_outage(web: Web, tmp_path: Path, status: int) -> None:
    write(tmp_path / "web/m/1", FILES)
    source = Source(web.url)
    assert source.listing().files
    for page in ("/", "/m/"):
        web.faults = {page: ("status", status)}
        with pytest.raises(StoreUnavailable, match=web.url):
            source.listing()


def test_a_server_that_is_away_is_an_outage(web: Web, tmp_path: Path) -> None:
    source = Source(web.url)
    web.stop()
    with pytest.raises(StoreUnavailable, match="Cannot connect"):
        source.listing()


# Schemes and packages


@pytest.mark.parametrize(
    ("url", "package"),
    [
        ("gs://bucket/models", "gcsfs"),
        ("hf://owner/models", "huggingface_hub"),
        ("az://c/m", "adlfs"),
    ],
)
def test_a_missing_package_is_named_with_the_command(url: str, package: str) -> None:
    with pytest.raises(StoreError, match=f"{url} needs another package: pip install {package}"):
        Source(url)


@pytest.mark.parametrize(
    ("scheme", "also"), [("s3", " s3fs"), ("hf", " huggingface_hub"), ("x", "")]
)
def test_without_fsspec_all_packages_are_named_at_once(
    monkeypatch: pytest.MonkeyPatch, scheme: str, also: str
) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    wanted = f"{scheme}://b needs other packages: pip install 'penstock-serving[repository]'{also}"
    with pytest.raises(StoreError) as caught:
        Source(f"{scheme}://b")
    assert str(caught.value) == wanted


@pytest.mark.parametrize("url", ["s3://bucket/models", "http://127.0.0.1:1/models"])
def test_a_store_that_is_not_asked_starts_no_thread(url: str) -> None:
    """A supervisor checks the repositories, and forks its processes afterwards."""
    program = (
        "import sys, threading; from penstock.store.source import Source; Source(sys.argv[1]);"
        "print(threading.active_count(), *__import__('os').listdir('/proc/self/task')[1:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, url], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1\n"


def test_the_package_of_a_store_is_imported_when_it_is_asked() -> None:
    """gcsfs starts threads when it is imported, and a process with threads cannot fork."""
    program = (
        "import sys; from penstock.store.source import Source; Source('s3://bucket/models');"
        "print('s3fs' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_an_unknown_scheme_is_an_error() -> None:
    with pytest.raises(StoreError, match="nope://x: Protocol not known"):
        Source("nope://x")


def test_nothing_is_imported_for_a_folder() -> None:
    program = (
        "import sys; from penstock.store.source import Source; Source('tests').listing();"
        "print({'fsspec', 's3fs', 'aiohttp', 'cryptography'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_a_password_in_a_url_is_not_shown() -> None:
    assert shown("https://user:secret@host/models/?token=x#y") == "https://host/models"


# One file


@pytest.fixture(params=["folder", "s3", "http"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A repository with a version in one file, beside others."""
    files = {"models/one.onnx": b"one", "models/m/1/model.onnx": b"other"}
    if request.param == "s3":
        s3, bucket = (request.getfixturevalue(name) for name in ("s3", "bucket"))
        for path, data in files.items():
            s3.put(f"{bucket}/{path}", data)
        return f"s3://{bucket}/models"
    url: str = request.getfixturevalue("web").url  # of this folder
    write(tmp_path / "web", files)
    return f"{url}/models" if request.param == "http" else str(tmp_path / "web/models")


def test_one_file_is_found_and_fetched_without_a_listing_of_all(place: str, cache: Cache) -> None:
    source = Source(place, settle=0)
    assert (source.file_at("none"), source.files_at("none")) == (None, ())
    assert source.file_at("m") is None  # a folder
    found = source.file_at("one.onnx")
    assert found is not None
    assert (found.path, found.size) == ("one.onnx", 3)
    assert found.revision
    assert source.files_at("one.onnx") == (found,)
    assert [each.path for each in source.files_at("m")] == ["m/1/model.onnx"]
    fetched = source.fetch("one", "1", [found], cache, folder="one.onnx")
    assert files_of(fetched) == {"one.onnx": b"one"}
