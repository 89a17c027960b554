"""``ArgsParser``: the command line of services that are started from YAML."""

import argparse
from collections.abc import Sequence
from typing import Any

from ruamel.yaml import YAML

__all__ = ["ArgsParser"]


class ArgsParser(argparse.ArgumentParser):
    """Reads ``-c FILE`` and ``-o key.inner=value ...``.

    The result also has an attribute ``conf_dict``: the file's contents with the values of ``-o``,
    for ``prepare_pipeline_config(yml_dict=...)``.
    """

    def __init__(self) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument("-c", "--config", required=True, help="The configuration file.")
        self.add_argument("-o", "--opt", nargs="+", default=[], help="key=value, key.inner=value")

    def parse_args(self, argv: Sequence[str] | None = None) -> argparse.Namespace:  # type: ignore[override]
        """Parse the arguments, by default those of the program."""
        args = super().parse_args(argv)
        with open(args.config, encoding="utf-8") as file:
            conf: dict[str, Any] = YAML(typ="safe", pure=True).load(file) or {}
        for option in args.opt:
            path, equals, text = option.partition("=")
            if not equals:
                self.error(f"-o {option}: write key=value")
            *outer, last = path.strip().split(".")
            section = conf
            for key in outer:
                section = section.setdefault(key, {})
            section[last] = _value(text.strip())
        args.conf_dict = conf
        return args


def _value(text: str) -> Any:
    """Convert text to an integer or a bool, if it has the form of one."""
    if text.isascii() and text.isdigit():
        return int(text)
    return {"True": True, "False": False}.get(text, text)
