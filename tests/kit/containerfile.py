"""Reads a Containerfile: its stages, and what each of their instructions says.

Strict: an instruction, a flag or a variable that the files here do not use is an error.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_KNOWN = {"COPY", "RUN", "ENV", "WORKDIR", "USER", "EXPOSE", "ENTRYPOINT", "CMD"}
_FLAGS = {"COPY": {"from", "chmod"}}
_VARIABLE = re.compile(r"\$(\w+|\{\w+\})")


@dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        line: that of its begin.
        name: in capitals.
        flags: by name, without dashes.
        text: what is behind name and flags.
        words: the words of a list (exec form), else None.
    """

    line: int
    name: str
    flags: Mapping[str, str]
    text: str
    words: list[str] | None


@dataclass
class Stage:
    """A stage: its base, its name ("" without one), and its instructions."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def only(self, name: str) -> Instruction:
        """The one instruction of a name."""
        (found,) = (each for each in self.instructions if each.name == name)
        return found


def read(text: str) -> list[Stage]:
    """The stages of a Containerfile.

    Raises:
        ValueError: a line is not understood.
    """
    stages: list[Stage] = []
    for number, line in _lines(text):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            words = rest.split()
            if len(words) != 1 and (len(words) != 3 or words[1] != "AS"):
                raise ValueError(f"line {number}: {line}")
            stages.append(Stage(words[0], words[2] if len(words) == 3 else ""))
            continue
        if name not in _KNOWN or not stages:
            raise ValueError(f"line {number}: {line}")
        flags, rest = {}, rest.strip()
        while rest.startswith("--"):
            flag, _, rest = rest.partition(" ")
            key, _, value = flag[2:].partition("=")
            if key not in _FLAGS.get(name, ()):
                raise ValueError(f"line {number}: {flag}")
            flags[key] = value
        words = json.loads(rest) if rest.startswith("[") else None
        stages[-1].instructions.append(Instruction(number, name, flags, rest, words))
    if not stages:
        raise ValueError("no FROM")
    return stages


def environment(text: str, known: Mapping[str, str]) -> dict[str, str]:
    """What an ENV sets, with variables of the environment before it replaced.

    Raises:
        KeyError: a variable is unknown.
    """

    def value(found: re.Match[str]) -> str:
        return known[found[1].strip("{}")]

    pairs = (word.partition("=") for word in shlex.split(text))
    return {name: _VARIABLE.sub(value, each) for name, _, each in pairs}


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Instructions with their lines' numbers; comments inside of an instruction are left out."""
    begun, first = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#") or not line.strip():
            continue
        first = first if begun else number
        begun += line.strip()
        if begun.endswith("\\"):
            begun = begun[:-1]
            continue
        yield first, begun
        begun = ""
    if begun:
        raise ValueError(f"line {first} goes on after the end")
