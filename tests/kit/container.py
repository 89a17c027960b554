"""Builds and runs a Containerfile without a container engine: in namespaces of Linux, as root.

The base image is this machine's `/usr` and `/etc`, with the Python of the tests in `/usr/local`,
and none of its other files. RUN runs there, and changes a layer in memory. What is run has
processes, mounts and IPC of its own, a file system that is read-only but for the folders that the
caller names, the user of the image, and no capabilities. This must itself run in a mount namespace:
`run_inside(file, mounts=True)`.

It is no container engine: layers, digests, seccomp and the images of a registry are not tried.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import psutil

from tests.kit.containerfile import Instruction, Stage, environment, read

_KEPT = {"bin", "sbin", "lib", "lib64", "lib32", "libx32", "usr", "etc"}
_BASE = {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"}
_RUN = (
    'mount -t proc proc "$0/proc" && mount -o remount,bind,ro "$0" && user=$1 folder=$2 && shift 2'
    ' && exec chroot "$0" setpriv --reuid "${user%:*}" --regid "${user#*:}" --clear-groups'
    " --no-new-privs --bounding-set=-all --inh-caps=-all"
    ' sh -c \'cd "$0" && exec "$@"\' "$folder" "$@"'
)


def unavailable() -> str:
    """Why nothing can be run here; empty if it can."""
    if os.geteuid() != 0:
        return "needs root, for namespaces and mounts"
    if Path(sys.base_prefix) == Path("/usr"):
        return "needs a Python that is not that of the system"
    for each in ("unshare", "setpriv", "chroot"):
        if shutil.which(each) is None:
            return f"{each} is not installed"
    tried = subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--ipc", "--fork", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"namespaces are not permitted: {tried.stderr.strip()}" if tried.returncode else ""


@dataclass
class Image:
    """A built image.

    Attributes:
        root: its file system.
        environment: of its programs.
        user: as uid:gid.
        folder: the working directory.
        entrypoint: the program.
        command: the program's arguments, if no others are given.
        ports: those that it says it listens on.
    """

    root: Path
    environment: dict[str, str] = field(default_factory=lambda: {**_BASE})
    user: str = "0:0"
    folder: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)

    @contextmanager
    def running(
        self,
        log: Path,
        arguments: Sequence[str] | None = None,
        *,
        variables: Mapping[str, str] | None = None,
        volumes: Mapping[str, Path] | None = None,
        writable: Sequence[str] = ("/tmp", "/cache"),
    ) -> Iterator[Running]:
        """Run the image until the block ends.

        Args:
            log: the file to which its output goes.
            arguments: in place of ``command``.
            variables: more of its environment.
            volumes: folders of this machine, which are read-only there, by their paths in it.
            writable: its folders that are empty and can be written.
        """
        for path, source in (volumes or {}).items():
            (self.root / path[1:]).mkdir(exist_ok=True)
            _mount("--bind", source, self.root / path[1:])
            _mount("-o", "remount,bind,ro", self.root / path[1:])
        for path in writable:
            _mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", self.root / path[1:])
        program = [*self.entrypoint, *(self.command if arguments is None else arguments)]
        command = ["unshare", "--pid", "--ipc", "--mount", "--fork", "sh", "-c"]
        with log.open("wb") as out:
            process = subprocess.Popen(
                [*command, _RUN, str(self.root), self.user, self.folder, *program],
                env=self.environment | dict(variables or {}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        try:
            yield Running(process, log)
        finally:
            # With process 1 all others end. Another user's does not end with its parent.
            if process.poll() is None:
                for each in psutil.Process(process.pid).children():
                    each.kill()
            process.wait()
            for path in (*(volumes or {}), *writable):
                subprocess.run(["umount", str(self.root / path[1:])], check=True)


@dataclass(frozen=True)
class Running:
    """What runs in a container.

    Attributes:
        outer: the process that has started it, outside, and ends with its exit status.
        output: the file with its output.
    """

    outer: subprocess.Popen[bytes]
    output: Path

    def first(self) -> psutil.Process:
        """Process 1, once it runs the program of the image."""
        own = {"unshare", "sh", "mount", "chroot", "setpriv"}
        while self.outer.poll() is None:
            children = psutil.Process(self.outer.pid).children()
            if children and children[0].name() not in own:
                return children[0]
        raise AssertionError(self.output.read_text())

    def stop(self, timeout: float = 30.0) -> int:
        """Send SIGTERM to process 1, and return its exit status."""
        self.first().terminate()
        return self.outer.wait(timeout)


@dataclass
class Builder:
    """Builds stages.

    Attributes:
        context: the folder whose files COPY copies.
        room: a new folder for file systems, which are in memory.
        variables: what each RUN has in its environment beside that of the image.
        volumes: folders of this machine that each RUN sees, by their paths in it.
    """

    context: Path
    room: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    volumes: Mapping[str, Path] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.room.mkdir()
        _mount("-t", "tmpfs", "tmpfs", self.room)
        self._stages: dict[str, Image] = {}

    def build(self, text: str) -> Image:
        """The image of a Containerfile's last stage."""
        for stage in read(text):
            image = self.stage(stage)
        return image

    def stage(self, stage: Stage) -> Image:
        """The image of a stage, from which later ones can copy."""
        image = self._stages[stage.name] = Image(self._base())
        for each in stage.instructions:
            self._follow(image, each)
        return image

    def _base(self) -> Path:
        """A new file system like that of the base image."""
        number = len(self._stages)
        folders = [self.room / f"{each}-{number}" for each in ("root", "layer", "work")]
        for each in folders:
            each.mkdir()
        root, layer, work = folders
        options = f"lowerdir=/,upperdir={layer},workdir={work}"
        _mount("-t", "overlay", "overlay", "-o", options, root)
        for each in root.iterdir():
            if each.name not in _KEPT and each.is_dir() and not each.is_symlink():
                _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", each)
        for each in (root / "usr/local", root / sys.base_prefix[1:]):
            each.mkdir(parents=True, exist_ok=True)
            _mount("--bind", sys.base_prefix, each)
            _mount("-o", "remount,bind,ro", each)
        _mount("--rbind", "/dev", root / "dev")
        _mount("--rbind", "/sys", root / "sys")
        _mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", root / "tmp")
        return root

    def _follow(self, image: Image, each: Instruction) -> None:
        match each.name:
            case "ENV":
                image.environment |= environment(each.text, image.environment)
            case "RUN":
                assert each.words is None
                self.run(image, each.text)
            case "COPY":
                self._copy(image, each)
            case "WORKDIR":
                image.folder = each.text
                (image.root / each.text[1:]).mkdir(parents=True, exist_ok=True)
            case "USER":
                image.user = each.text
            case "EXPOSE":
                image.ports.append(int(each.text))
            case "ENTRYPOINT":
                assert each.words is not None, "a shell would be process 1"
                image.entrypoint = each.words
            case "CMD":
                assert each.words is not None, "a shell would be process 1"
                image.command = each.words

    def run(self, image: Image, command: str) -> None:
        """Run a command of a shell, as RUN does.

        Raises:
            AssertionError: it failed, with its output.
        """
        for path, source in self.volumes.items():
            (image.root / path[1:]).mkdir(exist_ok=True)
            _mount("--bind", source, image.root / path[1:])
        _mount("--bind", "/proc", image.root / "proc")
        done = subprocess.run(
            ["chroot", str(image.root), "/bin/sh", "-c", f'cd "{image.folder}" && {command}'],
            env=image.environment | dict(self.variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        for path in ("/proc", *self.volumes):
            subprocess.run(["umount", str(image.root / path[1:])], check=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"

    def _copy(self, image: Image, each: Instruction) -> None:
        *sources, target = each.text.split()
        stage = each.flags.get("from")
        root = self.context if stage is None else self._stages[stage].root
        to = Path(image.folder, target)
        for source in sources:
            found = [root] if source == "." else sorted(root.glob(source.removeprefix("/")))
            found = [path for path in found if stage or not self._ignored(path)]
            assert found, f"COPY {source}: there is no such file"
            for path in found:
                place = image.root / str(to)[1:]
                if path.is_dir():
                    leave_out = self._leave_out if stage is None else None
                    shutil.copytree(path, place, True, leave_out, dirs_exist_ok=True)
                else:
                    place = place / path.name if target.endswith("/") else place
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy2(path, place)
                if "chmod" in each.flags:
                    for copied in (place, *place.rglob("*")):
                        copied.chmod(int(each.flags["chmod"], 8))

    def _leave_out(self, folder: str, names: list[str]) -> set[str]:
        return {name for name in names if self._ignored(Path(folder, name))}

    def _ignored(self, path: Path) -> bool:
        """Whether `.dockerignore` leaves a file or folder out; a later line decides."""
        file = self.context / ".dockerignore"
        lines = file.read_text().splitlines() if file.exists() else []
        name = path.relative_to(self.context).as_posix()
        left_out = False
        for line in lines:
            pattern = line.removeprefix("!")
            names = (pattern, pattern.removeprefix("**/"), f"*/{pattern.removeprefix('**/')}")
            if pattern and any(fnmatch(name, p) for p in names[: 3 if "**/" in pattern else 1]):
                left_out = not line.startswith("!")
        return left_out


def _mount(*arguments: str | Path) -> None:
    subprocess.run(["mount", *map(str, arguments)], check=True)
