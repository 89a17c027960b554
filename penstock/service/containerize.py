"""Writes a Containerfile for a project: a program, and the locked packages that it needs.

The project's ``requirements.txt`` alone decides what is built: each of its packages has one version
there. Where packages come from is set where the image is built, and is not in the files, because an
address of an index may have a password.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from penstock.errors import ConfigError, StartupError
from penstock.version import VERSION

LOCK: Final = "requirements.txt"
"""The name of the file with the packages of a project."""

_OURS: Final = "penstock-serving"
_WHEELS: Final = "penstock_serving-*.whl"
_OLDEST: Final = 11  # of Python 3, as in pyproject.toml
_PROGRAMS: Final = (".py", ".yml", ".yaml")

_PINNED: Final = re.compile(
    r"(?P<name>[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(?:\[[\w\s,.-]*\])?\s*"
    r"===?\s*(?P<version>[\w.!+-]+)\s*(?:;.*)?",
    re.ASCII,
)
_NAME: Final = re.compile(r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?", re.ASCII)
_HASH: Final = re.compile(r"\s--hash[=\s]\s*sha(?:256|384|512):[0-9a-fA-F]+(?=\s|$)")
_COMMENT: Final = re.compile(r"(?:^|\s)#.*$")
_PYTHON: Final = re.compile(r"3\.(\d{1,3})(?:\.\d{1,3})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class Lock:
    """What a file of locked requirements has.

    Attributes:
        names: the packages, in the form in which names are compared.
        hashed: whether each has hashes of its files.
    """

    names: frozenset[str]
    hashed: bool


def read_lock(text: str, name: str = LOCK) -> Lock:
    """Read a file of requirements in which each package has one version.

    Args:
        text: of the file.
        name: of the file, for messages.

    Raises:
        ConfigError: each line that does not name a package and its one version; or only some have
            hashes. Addresses are not repeated in it, because they may have passwords.
    """
    problems: list[str] = []
    names: set[str] = set()
    with_hashes: list[int] = []
    without: list[int] = []
    for number, line in _lines(text):
        where = f"{name}, line {number}"
        requirement = _HASH.sub("", line).strip()
        found = _PINNED.fullmatch(requirement)
        if found is None:
            problems.append(f"{where}: {_problem(requirement)}")
            continue
        names.add(_normal(found["name"]))
        (with_hashes if _HASH.search(line) else without).append(number)
    if with_hashes and without:
        problems.append(
            f"{name}, line {without[0]}: this package has no --hash, and others have: pip demands"
            " all or none"
        )
    if problems:
        raise ConfigError(problems)
    return Lock(frozenset(names), hashed=bool(with_hashes))


def containerize(
    program: Path, folder: Path, python: str, *, replaces: bool = False
) -> dict[str, str]:
    """Write a Containerfile and its ignore file for a program, into the folder of its project.

    Args:
        program: the argument of ``penstock run``.
        folder: of the project: its files are copied into the image, and it is the working directory
            there.
        python: the version of Python, such as 3.11 or 3.11.9.
        replaces: whether files of these names are replaced.

    Returns:
        The texts of the files by their names.

    Raises:
        ConfigError: what must be changed first. Nothing is written then.
        StartupError: a file cannot be written.
    """
    problems: list[str] = []
    started = _started(program, folder, problems)
    known = _PYTHON.fullmatch(python)
    if known is None or int(known[1]) < _OLDEST:
        problems.append(f"--python {python}: write a version from 3.{_OLDEST} on, such as 3.12")
    lock = _lock_of(folder, problems)
    wheel = None if lock is None or _OURS in lock.names else _wheel_in(folder, problems)
    files = {}
    if lock is not None and not problems:
        files["Containerfile"] = _containerfile(started, python, lock, wheel)
        files[".dockerignore"] = _ignored(folder)
    present = [each for each in files if (folder / each).exists() and not replaces]
    problems += [f"{each} is there already: --force replaces it" for each in present]
    if problems:
        raise ConfigError(problems)
    for name, text in files.items():
        try:
            (folder / name).write_text(text)
        except OSError as error:
            raise StartupError(f"{name} cannot be written: {error.strerror}") from error
    return files


def _started(program: Path, folder: Path, problems: list[str]) -> str:
    """The program's path in the image, below the working directory."""
    if not program.is_file() or program.suffix not in _PROGRAMS:
        problems.append(f"{program}: give a Python script (.py) or a configuration (.yml)")
    elif not program.resolve().is_relative_to(folder.resolve()):
        problems.append(
            f"{program} is outside of {folder.resolve()}, the folder that is copied into the image:"
            " run the command in the folder of the project"
        )
    else:
        return program.resolve().relative_to(folder.resolve()).as_posix()
    return ""


def _lock_of(folder: Path, problems: list[str]) -> Lock | None:
    try:
        return read_lock((folder / LOCK).read_text())
    except FileNotFoundError:
        problems.append(
            f"there is no {LOCK} in {folder.resolve()}: write the packages of the project with one"
            f" version each, as `uv pip compile --generate-hashes` does from a list of names"
        )
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{LOCK} cannot be read: {error}")
    except ConfigError as error:
        problems += error.problems
    return None


def _wheel_in(folder: Path, problems: list[str]) -> str | None:
    found = sorted(each.name for each in folder.glob(_WHEELS))
    if not found:
        problems.append(
            f"{LOCK} has no {_OURS}: add it, or put its wheel ({_WHEELS}) beside the file; the"
            " packages that it requires must be in the file"
        )
    elif len(found) > 1:
        problems.append(f"there are several wheels, leave one: {', '.join(found)}")
    return found[0] if found else None


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a file of requirements, without comments; those that a backslash continues are
    one. The number is that of the first.
    """
    begun: list[str] = []
    first = 0
    for number, line in enumerate(text.splitlines(), 1):
        kept = _COMMENT.sub("", line)
        first = first if begun else number
        begun.append(kept.removesuffix("\\") if kept.endswith("\\") else kept)
        if kept.endswith("\\"):
            continue
        joined = " ".join(begun).strip()
        begun = []
        if joined:
            yield first, joined
    if "".join(begun).strip():
        yield first, " ".join(begun).strip()


def _problem(requirement: str) -> str:
    """Why a line is no package with one version; without what may be secret."""
    word = re.split(r"[\s=]", requirement, maxsplit=1)[0]
    if word in ("-r", "--requirement", "-c", "--constraint"):
        return f"{word}: write the packages into this file"
    if word in ("-e", "--editable"):
        return f"{word}: a folder is no package with a version: its files are copied anyway"
    if word.startswith("-"):
        return (
            f"{word.partition('=')[0]}: leave the option out; which index has the packages is set"
            " where the image is built"
        )
    named = _NAME.match(requirement)
    name = "" if named is None else named[0]
    if _normal(name) == _OURS:
        return f"{name}: write {_OURS}=={VERSION}; or leave the line out, and put the wheel beside"
    if "@" in requirement or ":" in requirement.partition(";")[0] or "/" in requirement:
        return f"{name or 'this package'}: give a version (==), not an address or a path"
    return f"{requirement}: give one version: {name or 'NAME'}==VERSION"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _containerfile(program: str, python: str, lock: Lock, wheel: str | None) -> str:
    base = f"docker.io/library/python:{python}-slim"
    hashes = " --require-hashes" if lock.hashed else ""
    own = ""
    if wheel is not None:
        own = f"COPY {wheel} /build/\nRUN pip install --no-deps --no-index /build/{wheel}\n"
    return f"""\
# Written by `penstock containerize {program}`, Penstock {VERSION}; change it as you need.
FROM {base} AS build
# pip installs into the virtual environment, which has no pip of its own.
ENV PIP_PYTHON=/opt/venv/bin/python PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv --without-pip /opt/venv
COPY {LOCK} /build/
RUN pip install --no-deps{hashes} -r /build/{LOCK}
{own}# Fails if {LOCK} lacks a package that another one requires.
RUN pip check

FROM {base}
RUN groupadd --gid 10001 penstock \\
 && useradd --uid 10001 --gid 10001 --home-dir /tmp --no-create-home penstock \\
 && install -d -o 10001 -g 10001 /cache
COPY --from=build /opt/venv /opt/venv
# All but /tmp and /cache may be read-only. What PENSTOCK_... sets precedes the program's own keys.
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 HOME=/tmp TMPDIR=/tmp XDG_CACHE_HOME=/cache \\
    PENSTOCK_HOST=0.0.0.0 PENSTOCK_HTTP_PORT=8080 PENSTOCK_LOG_FORMAT=json PENSTOCK_SUPERVISED=true
WORKDIR /app
# Readable for the user below, whatever the files' modes are here; only root may write.
COPY --chmod=755 . .
USER 10001:10001
EXPOSE 8080
# A list, and no shell: the service is process 1, which gets the signals.
ENTRYPOINT ["penstock"]
CMD {json.dumps(["run", program])}
"""


_NEVER: Final = (
    "# Not copied into the image: what is not the program, and what must stay secret.",
    "**/.git",
    "**/__pycache__",
    "**/*.pyc",
    "**/.env",
    "**/.env.*",
    "**/*.key",
    "**/*.pem",
    "**/*.p12",
    "**/*.pfx",
    "**/id_rsa*",
    "**/id_ecdsa*",
    "**/id_ed25519*",
    "**/.netrc",
    "**/.pypirc",
    "**/pip.conf",
    "**/.aws",
    "**/.docker",
    "**/.kube",
    "**/.ssh",
    ".venv",
    "Containerfile",
    ".dockerignore",
)


def _ignored(folder: Path) -> str:
    """The text of the ignore file, with the virtual environments that are there."""
    found = (PurePosixPath(each.parent.name) for each in folder.glob("*/pyvenv.cfg"))
    environments = sorted(str(each) for each in found if str(each) not in _NEVER)
    return "\n".join((*_NEVER, *environments)) + "\n"
