"""The monitor: when it updates a server's folder, from where, and what a failure leaves."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from paddle_serving_server import monitor as command
from paddle_serving_server.model_sources import Failed, Stored
from paddle_serving_server.monitor import Folder, FolderMonitor
from penstock.repository.manifest import MANIFEST, Entry, Manifest, format_manifest
from penstock.store.cache import digest_of_file
from tests.service.scripts import until

MOST = 1 << 20
FLAGS = ["--remote_donefile_name", "donefile", "--local_model_name", "uci"]


def write(folder: Path, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def read(folder: Path) -> dict[str, str]:
    files = (each for each in folder.rglob("*") if each.is_file())
    return {str(each.relative_to(folder)): each.read_text() for each in files}


class Remote:
    """A source that a test changes."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.time: str | None = "1"
        self.during: str | None = None
        self.fails = ""
        self.fetches = 0

    def stamp(self, done_file: str) -> str | None:
        assert done_file == "donefile"
        if self.fails:
            raise Failed(self.fails)
        return self.time

    @contextmanager
    def fetched(self, model: str, work: Path, most_bytes: int) -> Iterator[Path]:
        self.fetches += 1
        if self.during is not None:
            self.time, self.during = self.during, None
        yield self.model


class Local:
    """A folder that a monitor updates from a ``Remote``."""

    def __init__(self, folder: Path, unpacked: str | None = None, **files: str) -> None:
        self.remote = Remote(write(folder / "remote", **files))
        self.path = folder / "uci"
        self.work = write(folder / "tmp")
        made = Folder(self.path, self.work, "fluid_time_file")
        self.monitor = FolderMonitor(
            self.remote, made, self.work, "uci", "donefile", unpacked, MOST
        )

    def look(self) -> None:
        self.monitor.look()

    @property
    def touched(self) -> int:
        return (self.path / "fluid_time_file").stat().st_mtime_ns


def test_the_first_look_updates_and_later_ones_if_the_done_file_has_changed(
    tmp_path: Path,
) -> None:
    local = Local(tmp_path, model="1")
    local.look()
    assert read(local.path) == {"model": "1", "fluid_time_file": ""}
    before = local.touched
    write(local.remote.model, model="2")
    local.look()
    assert (read(local.path)["model"], local.touched) == ("1", before)
    local.remote.time = "0"  # another time, also an earlier one
    local.look()
    assert read(local.path)["model"] == "2"
    assert local.touched > before


def test_without_a_done_file_nothing_happens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "paddle_serving_server.monitor")
    local = Local(tmp_path, model="1")
    local.remote.time = None
    local.look()
    local.look()
    assert not local.path.exists()
    assert caplog.text.count("has no donefile") == 1


def test_files_of_others_stay_and_those_of_the_model_before_go(tmp_path: Path) -> None:
    local = Local(tmp_path, model="1", params="1")
    write(local.path, conf="mine", params="old")
    write(local.path / "more", notes="mine")
    local.look()
    assert read(local.path) == {
        "model": "1", "params": "1", "conf": "mine", "more/notes": "mine", "fluid_time_file": "",
    }  # fmt: skip
    (local.remote.model / "params").unlink()
    write(local.remote.model / "parts", w="2")
    local.remote.time = "2"
    local.look()
    assert {*read(local.path)} == {"model", "parts/w", "conf", "more/notes", "fluid_time_file"}


def test_equal_files_are_left_alone_and_others_replaced_not_written_to(tmp_path: Path) -> None:
    """A reader that has opened a file reads on in that."""
    local = Local(tmp_path, equal="1", changed="1")
    local.look()
    inodes = {name: (local.path / name).stat().st_ino for name in ("equal", "changed")}
    with (local.path / "changed").open() as opened:
        write(local.remote.model, changed="2")
        local.remote.time = "2"
        local.look()
        assert opened.read() == "1"
    assert (local.path / "equal").stat().st_ino == inodes["equal"]
    assert (local.path / "changed").stat().st_ino != inodes["changed"]


def test_a_time_file_of_the_remote_model_is_not_copied(tmp_path: Path) -> None:
    """It would say that all is there before it is."""
    local = Local(tmp_path, model="1", fluid_time_file="theirs", fluid_time_stamp="theirs")
    local.look()
    assert read(local.path) == {"model": "1", "fluid_time_file": ""}


def test_a_failure_changes_nothing_is_told_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    local = Local(tmp_path, model="1")
    local.look()
    before = local.touched
    write(local.remote.model, model="2")
    local.remote.time, local.remote.fails = "2", "the network is down"
    local.look()
    local.look()
    assert (read(local.path)["model"], local.touched) == ("1", before)
    assert caplog.text.count("tried again: the network is down") == 1
    local.remote.fails = ""
    local.look()
    assert read(local.path)["model"] == "2"


def test_a_model_that_changes_while_it_is_fetched_is_fetched_again(tmp_path: Path) -> None:
    local = Local(tmp_path, model="1")
    local.remote.during = "2"
    local.look()
    assert not local.path.exists()
    local.look()
    assert (local.remote.fetches, read(local.path)["model"]) == (2, "1")


@pytest.mark.parametrize("kind", ["link", "pipe", "large", "nothing"])
def test_a_model_that_is_refused_changes_nothing(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    local = Local(tmp_path, **({} if kind == "nothing" else {"model": "2"}))
    write(local.path, model="1")
    if kind == "link":
        (local.remote.model / "passwd").symlink_to("/etc/passwd")
    elif kind == "pipe":
        os.mkfifo(local.remote.model / "pipe")
    elif kind == "large":
        (local.remote.model / "large").write_bytes(bytes(MOST))
    local.look()
    assert read(local.path) == {"model": "1"}
    assert "update failed" in caplog.text


def test_an_update_that_was_killed_is_completed_by_the_next(tmp_path: Path) -> None:
    local = Local(tmp_path, model="1", old="1")
    local.look()
    (local.remote.model / "old").unlink()
    write(local.remote.model, new="2")
    # As if the process had ended after it had put ``new`` there.
    (local.work / "placed.json").write_text('["model", "old", "new"]')
    write(local.path, new="2")
    again = Local(tmp_path)
    again.look()
    assert {*read(local.path)} == {"model", "new", "fluid_time_file"}


def packed(archive: Path, **files: str) -> Path:
    with tarfile.open(archive, "w:gz") as made:
        made.add(write(archive.parent / "packed", **files), "uci_housing_model")
    return archive


def test_an_archive_is_unpacked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    local = Local(tmp_path, "uci_housing_model")
    local.remote.model = packed(tmp_path / "uci_housing.tar.gz", model="1")
    local.look()
    assert read(local.path) == {"model": "1", "fluid_time_file": ""}
    assert [each.name for each in local.work.iterdir()] == ["placed.json"]
    whole = local.remote.model.read_bytes()
    for index, (data, text) in enumerate(
        [
            (whole[: len(whole) // 2], "cannot be unpacked"),
            (b"no archive", "is no archive of tar or zip"),
            (packed(tmp_path / "b.tar.gz", model="2").read_bytes(), ""),
        ]
    ):
        local.remote.model.write_bytes(data)
        local.remote.time = f"{index} again"
        local.look()
        assert text in caplog.text
    assert read(local.path)["model"] == "2"


@pytest.mark.parametrize(
    ("unpacked", "text"),
    [
        (None, "is an archive: give --unpacked_filename"),
        ("other", "has no 'other', but uci_housing_model"),
        ("../remote", "leads out of its folder"),
    ],
)
def test_a_wrong_folder_of_an_archive_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, unpacked: str | None, text: str
) -> None:
    local = Local(tmp_path, unpacked)
    local.remote.model = packed(tmp_path / "uci_housing.tar.gz", model="1")
    local.look()
    assert text in caplog.text
    assert not local.path.exists()


# The command line


class Running:
    """The command as a process, from a folder of its own."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.log = folder / "log"
        with self.log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "paddle_serving_server.monitor", *FLAGS, *flags],
                cwd=folder, stdout=log, stderr=log, env=os.environ | {"no_proxy": "*"},
            )  # fmt: skip

    def end(self) -> int:
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(20)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def monitor(folder: Path, *flags: str) -> Iterator[Running]:
    """It looks every second; ``uci`` below ``folder/local`` is the server's folder."""
    local = write(folder / "local")
    started = Running(local, "--local_path", ".", "--interval", "1", "--debug", *flags)
    try:
        yield started
        assert started.end() == 0
        assert "Traceback" not in started.log.read_text()
    finally:
        started.kill()


def has(folder: Path, **files: str) -> None:
    def found() -> bool:
        try:
            there = read(folder / "local/uci")
        except FileNotFoundError:  # it is being replaced
            return False
        return all(there.get(name) == text for name, text in files.items())

    until(found, f"a model of {files}")


def done(folder: Path) -> None:
    """Change the done file, whose time some servers tell in minutes."""
    file = folder / "donefile"
    if file.exists():
        os.utime(file, (1, file.stat().st_mtime + 60))
    else:
        file.touch()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def http(tmp_path: Path) -> Iterator[str]:
    """An HTTP server of ``remote``."""
    handler = partial(_Quiet, directory=str(write(tmp_path / "remote")))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.real
def test_general_fetches_archives_and_folders_by_wget(tmp_path: Path, http: str) -> None:
    remote = write(tmp_path / "remote/models")
    packed(remote / "uci_housing.tar.gz", model="1")
    general = ("--type", "general", "--general_host", http, "--remote_path", "models")
    archive = ("--remote_model_name", "uci_housing.tar.gz", "--unpacked_filename")
    with monitor(tmp_path, *general, *archive, "uci_housing_model") as started:
        until(lambda: "has no donefile" in started.log.read_text(), "the first look")
        done(remote)
        has(tmp_path, model="1")
        packed(remote / "uci_housing.tar.gz", model="2")
        done(remote)
        has(tmp_path, model="2")
    write(remote / "folder", model="3")
    write(remote / "folder/parts", w="3")
    write(remote / "other", no="this is not a part of the model")
    with monitor(tmp_path, *general, "--remote_model_name", "folder"):
        has(tmp_path, model="3", **{"parts/w": "3"})
        assert {*read(tmp_path / "local/uci")} == {"model", "parts/w", "fluid_time_file"}


@pytest.mark.real
def test_a_host_that_cannot_be_reached_is_told_and_tried_again(tmp_path: Path) -> None:
    flags = ("--general_host", "127.0.0.1:1", "--remote_path", "", "--remote_model_name", "uci")
    with monitor(tmp_path, *flags) as started:
        until(lambda: started.log.read_text().count("tried again") > 1, "a second look")
        assert "Connection refused" in started.log.read_text()


HADOOP = f"""#!{sys.executable}
import os, shutil, sys
assert sys.argv[1] == "fs", sys.argv
options = sys.argv[2:]
while options[0] == "-D":
    with open("options", "a") as file:
        print(options[1], file=file)
    options = options[2:]
root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "remote")
command, remote = options[0], root + options[-1 if options[0] != "-get" else 1]
if not os.path.exists(remote):
    sys.exit(f"{{command[1:]}}: `{{remote}}': No such file or directory")
if command == "-ls":
    print("Found 1 items")
    print("-rw-r--r--   1 root supergroup 0 2020-04-02", int(os.stat(remote).st_mtime), remote)
elif command == "-stat":
    assert options[1] == "%Y"
    print(int(os.stat(remote).st_mtime * 1000))
elif command == "-get":
    copy = shutil.copytree if os.path.isdir(remote) else shutil.copyfile
    copy(remote, options[2])
"""
"""A Hadoop client of one folder."""


@pytest.mark.real
@pytest.mark.parametrize("kind", ["hdfs", "afs"])
def test_hadoop_s_command_line_is_that_of_the_original(tmp_path: Path, kind: str) -> None:
    """Its document's, with a client of this machine."""
    remote, client = write(tmp_path / "remote"), tmp_path / "hadoop"
    client.write_text(HADOOP)
    client.chmod(0o755)
    packed(remote / "uci_housing.tar.gz", model="1")
    flags = [
        f"--type={kind}", f"--hadoop_bin={client}", "--remote_path=/",
        "--remote_model_name=uci_housing.tar.gz", "--local_timestamp_file=fluid_time_file",
        "--local_tmp_path=_tmp", "--unpacked_filename=uci_housing_model",
        "--fs_name=afs://host:9000", "--fs_ugi=user,password",
    ]  # fmt: skip
    with monitor(tmp_path, *flags) as started:
        until(lambda: "has no donefile" in started.log.read_text(), "the first look")
        done(remote)
        has(tmp_path, model="1", fluid_time_file="")
        packed(remote / "uci_housing.tar.gz", model="2")
        done(remote)
        has(tmp_path, model="2")
    options = {*(tmp_path / "local/options").read_text().split()}
    assert options == {"fs.default.name=afs://host:9000", "hadoop.job.ugi=user,password"}


FTP = """
import sys
from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler
from pyftpdlib.servers import FTPServer
users = DummyAuthorizer()
users.add_user("reader", "secret", sys.argv[1])
FTPHandler.authorizer = users
FTPHandler.timeout = 0.5
server = FTPServer(("127.0.0.1", 0), FTPHandler)
print(server.address[1], flush=True)
server.serve_forever()
"""
"""An FTP server for one user, which ends connections that are idle between two looks."""


@pytest.fixture
def ftp(tmp_path: Path) -> Iterator[str]:
    """The port of an FTP server of ``remote``."""
    folder = write(tmp_path / "remote")
    started = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", FTP, str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    with started:
        assert started.stdout is not None
        yield started.stdout.readline().strip()
        started.kill()


@pytest.mark.real
def test_ftp_fetches_folders_and_archives(tmp_path: Path, ftp: str) -> None:
    remote = write(tmp_path / "remote/models")
    write(remote / "uci", model="1")
    write(remote / "uci/parts", w="1")
    login = ("--ftp_username", "reader", "--ftp_password", "secret")
    server = ("--type", "ftp", "--ftp_host", "127.0.0.1", "--ftp_port", ftp, *login)
    flags = (*server, "--remote_path", "/models", "--remote_model_name")
    with monitor(tmp_path, *flags, "uci") as started:
        until(lambda: "has no donefile" in started.log.read_text(), "the first look")
        done(remote)
        has(tmp_path, model="1", **{"parts/w": "1"})
        write(remote / "uci", model="2")
        done(remote)
        has(tmp_path, model="2", **{"parts/w": "1"})
        assert "tried again" not in started.log.read_text()
    packed(remote / "uci.tar.gz", model="3")
    with monitor(tmp_path, *flags, "uci.tar.gz", "--unpacked_filename", "uci_housing_model"):
        has(tmp_path, model="3")


def manifest_of(folder: Path) -> None:
    files = [each for each in folder.rglob("*") if each.is_file() and each.name != MANIFEST]
    entries = [
        Entry(
            path=str(each.relative_to(folder)),
            size=each.stat().st_size,
            sha256=digest_of_file(each),
        )
        for each in files
    ]
    made = Manifest(model="uci", version="1", files=tuple(entries))
    (folder / MANIFEST).write_bytes(format_manifest(made))


@pytest.mark.real
@pytest.mark.parametrize("kind", ["local", "fsspec"])
def test_only_what_has_changed_is_transferred(tmp_path: Path, kind: str, http: str) -> None:
    """As a manifest tells; and what does not have its digest is not taken."""
    remote = write(tmp_path / "remote/models")
    model = write(remote / "uci", weights="w" * 5000, model="1")
    manifest_of(model)
    path = str(remote) if kind == "local" else f"http://{http}/models"
    flags = ("--type", kind, "--remote_path", path, "--remote_model_name", "uci")
    with monitor(tmp_path, *flags) as started:
        done(remote)
        has(tmp_path, model="1", weights="w" * 5000)
        write(model, model="2")
        manifest_of(model)
        done(remote)
        has(tmp_path, model="2", weights="w" * 5000)
        transferred = re.findall(r"transferred ([\d,]+) of", started.log.read_text())
        write(model, model="4")
        manifest_of(model)
        write(model, model="3")  # which is not the manifest's
        done(remote)
        until(lambda: "has the sha256" in started.log.read_text(), "a refusal")
        assert read(tmp_path / "local/uci")["model"] == "2"
    first, second = (int(each.replace(",", "")) for each in transferred)
    assert first > 5000 > 1000 > second


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--type", "general"], "--type general needs --general_host"),
        (["--type", "ftp"], "--type ftp needs --ftp_host"),
        (["--type", "afs"], "--type afs needs --hadoop_bin"),
    ],
)
def test_a_missing_flag_ends_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, flags: list[str], text: str
) -> None:
    local = ["--local_path", str(tmp_path), "--remote_path", "/", "--remote_model_name", "uci"]
    assert command.main([*FLAGS, *local, *flags]) == 1
    assert text in caplog.text


@pytest.mark.real
def test_two_monitors_do_not_work_in_one_folder(tmp_path: Path) -> None:
    flags = ("--type", "local", "--remote_path", "no", "--remote_model_name", "uci")
    with monitor(tmp_path, *flags) as first:
        until(lambda: "tried again" in first.log.read_text(), "the first look")
        second = Running(write(tmp_path / "second"), "--local_path", "../local", *flags)
        assert second._process.wait(20) == 1
        assert "another monitor works in" in second.log.read_text()


@pytest.mark.real
def test_hdfs_without_a_client_says_what_it_needs(tmp_path: Path) -> None:
    flags = ("--type", "hdfs", "--remote_path", "/", "--remote_model_name", "uci")
    with monitor(tmp_path, *flags, "--fs_name", "hdfs://127.0.0.1:1") as started:
        until(lambda: "tried again" in started.log.read_text(), "the first look")
        log = started.log.read_text()
    assert "pip install pyarrow" in log
    assert "without --hadoop_bin HDFS is read by pyarrow, which needs Hadoop's libhdfs" in log


def test_a_signal_whose_exception_is_lost_ends_it_at_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
    looks = []

    class Connection:
        def __init__(self, action: Callable[[], Any]) -> None:
            self.action = action

        def __del__(self) -> None:
            self.action()

    def look(self: command.FolderMonitor) -> None:
        looks.append(self)
        assert len(looks) == 1
        Connection(lambda: signal.raise_signal(signal.SIGTERM))  # ends at once
        Connection(lambda: {}["missing"])

    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)  # which is restored
    monkeypatch.setattr(command.FolderMonitor, "look", look)
    remote = ("--type", "local", "--remote_path", str(tmp_path), "--remote_model_name", "uci")
    try:
        local = ("--local_path", str(tmp_path), "--interval", "1")
        assert command.main([*FLAGS, *remote, *local]) == 0
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    told = capsys.readouterr().err
    assert "SystemExit" not in told
    assert "KeyError" in told


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(Failed, match=r"pip install 'penstock-serving\[repository\]'"):
        Stored("s3://bucket/models").stamp("donefile")
    assert Stored(str(tmp_path)).stamp("donefile") is None  # needs none
