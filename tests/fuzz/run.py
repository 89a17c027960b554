"""Fuzz one target for a while.

    python -m tests.fuzz.run --target http2 --seconds 600

With the package atheris the search is guided by the code's branches; without it, by the target's
signatures. An input that causes a fault is saved and printed, and the status is not 0; run it again
with ``--input FILE``.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from pathlib import Path

from tests.fuzz.engine import LARGEST, explore
from tests.fuzz.targets import MODULES, load

MEMORY_MIB = 1024


def guided(name: str, seconds: int, seed: int, folder: Path) -> None:
    """Search with atheris; it ends the process itself."""
    import atheris

    with atheris.instrument_imports(include=["penstock", "hpack"]):
        target = load(name)
    corpus = folder / "corpus"
    corpus.mkdir(exist_ok=True)
    for index, data in enumerate(target.seeds):
        (corpus / f"seed-{index}").write_bytes(data)
    words = folder / "words"
    lines = [f'"{quoted(word)}"\n' for word in target.words if word]
    words.write_text("".join(lines) or "# none\n")  # an empty file is an error

    def run_input(data: bytes) -> None:
        target.run(data)

    atheris.Setup(
        [
            sys.argv[0],
            f"-max_total_time={seconds}",
            f"-seed={seed}",
            f"-max_len={LARGEST}",
            f"-rss_limit_mb={MEMORY_MIB}",
            "-timeout=10",
            f"-dict={words}",
            f"-artifact_prefix={folder}/",
            "-print_final_stats=1",
            str(corpus),
        ],
        run_input,
    )
    atheris.Fuzz()


def quoted(word: bytes) -> str:
    return "".join(f"\\x{octet:02x}" for octet in word)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--target", choices=sorted(MODULES), required=True)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where inputs are kept; a new one if left out")
    parser.add_argument(
        "--engine", choices=["atheris", "plain"], help="default: atheris if it is there"
    )
    parser.add_argument("--input", type=Path, help="run this one input instead")
    options = parser.parse_args()
    if options.input is not None:
        print(load(options.target).run(options.input.read_bytes()))
        return 0
    folder = options.folder or Path(tempfile.mkdtemp(prefix=f"fuzz-{options.target}-"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"inputs are kept in {folder}")
    has_atheris = importlib.util.find_spec("atheris") is not None
    if options.engine == "atheris" or (options.engine is None and has_atheris):
        guided(options.target, options.seconds, options.seed, folder)
    outcome = explore(load(options.target), options.seconds, options.seed)
    print(outcome)
    if outcome.fault is None:
        return 0
    (folder / "culprit").write_bytes(outcome.failing_input)
    raise outcome.fault


if __name__ == "__main__":
    sys.exit(main())
