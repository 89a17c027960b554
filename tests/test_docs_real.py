"""The examples of the README and the guide, run as a reader would: services, clients, output."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.documents import ROOT, RUNNABLE, Block, blocks_of, commands_of
from tests.services.process import free_port, running

pytestmark = pytest.mark.real

# In the documents even ports are HTTP, or every protocol, and odd ones gRPC.
_PORT = re.compile(r"(127\.0\.0\.1:|--port )(\d+)")
_GRPC_PORT = re.compile(r"127\.0\.0\.1:\d*[13579]\b")


def sections() -> list[tuple[Path, str]]:
    """The sections that have commands."""
    found = {
        (block.document, block.section): None
        for document in RUNNABLE
        for block in blocks_of(document)
        if block.language == "console"
    }
    return list(found)


@dataclass
class Reader:
    """A simulated reader, who copies a document's examples into a folder, section by section."""

    folder: Path
    http_port: int
    rpc_port: int
    files: dict[str, str] = field(default_factory=dict)
    programs: Path = Path(sys.executable).parent
    """The folder of the environment's ``python`` and ``penstock``."""

    def with_ports(self, text: str) -> str:
        """The text with the ports of this run."""

        def port(match: re.Match[str]) -> str:
            return f"{match[1]}{self.rpc_port if int(match[2]) % 2 else self.http_port}"

        return _PORT.sub(port, text)

    def save(self, block: Block) -> None:
        self.files[block.name] = block.text
        (self.folder / block.name).write_text(block.text)

    def type(self, line: str) -> str:
        """The output of a command, without the final newline."""
        self.write()
        done = subprocess.run(
            ["bash", "-c", self.with_ports(line)],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout.rstrip("\n")

    def write(self) -> None:
        """Write all files with the ports of this run."""
        for name, text in self.files.items():
            (self.folder / name).write_text(self.with_ports(text))

    def environment(self) -> dict[str, str]:
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("PENSTOCK_") and not name.lower().endswith("_proxy")
        }
        return inherited | {
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "PENSTOCK_HTTP_PORT": str(self.http_port),
        }

    @contextmanager
    def serving(self, command: str, *arguments: str, banner: str) -> Iterator[None]:
        """Run a service that prints the documented banner and exits with status 0."""
        script, *options = arguments
        self.http_port, self.rpc_port = free_port(), free_port()
        options = self.with_ports(" ".join(options)).split()
        self.write()
        rpc_port = str(self.rpc_port) if _GRPC_PORT.search(banner) else ""  # its own, or none
        with running(
            script if command == "serve" else self.folder / script,
            *options,
            command=(str(self.programs / "penstock"), command),
            cwd=self.folder,
            environment=self.environment() | {"PENSTOCK_RPC_PORT": rpc_port},
            ready=False,
        ) as server:
            server.http_port, server.rpc_port = self.http_port, self.rpc_port
            server.wait_ready(60)
            assert self.with_ports(banner) in server.log()
            yield
            assert server.stop(signal.SIGINT) == 0

    def follow(self, block: Block, stack: ExitStack) -> None:
        """Type the commands of a block, and compare what they print; the stack has the service."""
        for command in commands_of(block):
            if command.line.startswith(("penstock run ", "penstock serve ")):
                stack.close()  # a service already running has the same ports
                words = command.line.split()[1:]
                stack.enter_context(self.serving(*words, banner=command.output))
            else:
                expected = self.with_ports(command.output).rstrip("\n")
                assert self.type(command.line) == expected, f"{block}"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("document", "section"),
    [
        pytest.param(*each, marks=pytest.mark.alone if each[0].stem == "planning" else ())
        for each in sections()
    ],
    ids=lambda value: getattr(value, "stem", value),
)
def test_the_examples_print_the_documents_output(document: Path, section: str, tmp_path: Path):
    reader = Reader(tmp_path, free_port(), free_port())
    with ExitStack() as stack:
        for block in blocks_of(document):
            if block.name:
                # The files of earlier sections are in the reader's folder, too.
                reader.save(block)
            elif block.language == "console" and block.section == section:
                reader.follow(block, stack)
            elif block.section != section and block.language == "console":
                _make_files(reader, block)


_made: dict[tuple[Block, str], dict[str, bytes]] = {}
"""What each command of ``_make_files`` has made, once for all sections."""


def _make_files(reader: Reader, block: Block) -> None:
    """Run those commands of another section that create files: ``python make_….py``."""
    for command in commands_of(block):
        if not command.line.startswith("python make_"):
            continue
        made = _made.get((block, command.line))
        if made is None:
            before = _files_in(reader)
            reader.type(command.line)
            after = _files_in(reader)
            made = {name: text for name, text in after.items() if before.get(name) != text}
            _made[block, command.line] = made
        for name, text in made.items():
            (reader.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (reader.folder / name).write_bytes(text)


def _files_in(reader: Reader) -> dict[str, bytes]:
    """The files in its folder, without those that the document has."""
    found = [each for each in reader.folder.rglob("*") if each.is_file()]
    names = {str(each.relative_to(reader.folder)): each for each in found}
    return {
        name: each.read_bytes()
        for name, each in names.items()
        if name not in reader.files and "__pycache__" not in each.parts
    }


@pytest.mark.timeout(300)
def test_make_demo_prints_the_readmes_texts():
    (shown,) = [b for b in blocks_of(ROOT / "README.md") if b.language == "text"]
    done = subprocess.run(
        ["make", "demo"], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # The last digits of confidences and corners may differ between processors.
    texts = [line.partition("│")[0].strip() for line in shown.text.splitlines()]
    assert texts
    assert all(text in done.stdout for text in texts)
