"""The command line: ``penstock run|check|client|version``."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from penstock.client.calls import ask_grpc, ask_http, feed_of
from penstock.config.overrides import parse_override
from penstock.errors import ConfigError, PenstockError, StartupError
from penstock.service import flags
from penstock.service.script import run_file

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Serve graphs of machine-learning models over gRPC and HTTP.",
)

File = Annotated[Path, typer.Argument(help="A Python script or a configuration file.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", "-o", metavar="KEY=VALUE", help="Override a configuration key."),
]
Lenient = Annotated[bool, typer.Option(help="Unknown configuration keys are warnings.")]


@app.command()
def run(
    file: File,
    http_port: Annotated[int | None, typer.Option(help="The HTTP port.")] = None,
    rpc_port: Annotated[int | None, typer.Option(help="The gRPC port.")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    overrides: Set = None,
    lenient: Lenient = False,
) -> None:
    """Run a service until SIGTERM or Ctrl-C."""
    given = {"http_port": http_port, "rpc_port": rpc_port, "host": host}
    with _errors_end_the_command(), flags.using(_flags(given, overrides, lenient)):
        run_file(file)


@app.command()
def check(file: File, overrides: Set = None, lenient: Lenient = False) -> None:
    """Check configuration, graph and hooks, without opening a model or a port."""
    now = _flags({}, overrides, lenient)
    now.check_only = True
    with _errors_end_the_command(), flags.using(now):
        run_file(file)
        for report in now.reports:
            typer.echo(report)


@app.command()
def client(
    target: Annotated[str, typer.Argument(help="host:port")],
    pairs: Annotated[
        list[str], typer.Argument(help="key=value pairs; key=@file sends a file as base64.")
    ],
    name: Annotated[str, typer.Option(help="The service's name (first part of the URL).")] = "",
    method: Annotated[str, typer.Option(help="The second part of the URL.")] = "prediction",
    grpc: Annotated[bool, typer.Option("--grpc/--http", help="Which protocol to speak.")] = False,
    log_id: Annotated[int, typer.Option(help="Trace id.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds.")] = 60.0,
) -> None:
    """Send one request and print the reply as JSON. Exits with 1 when it carries an error."""
    with _errors_end_the_command():
        feed = feed_of(pairs)
        ask = ask_grpc if grpc else ask_http
        reply = ask(target, feed, name=name, method=method, log_id=log_id, timeout=timeout)
        typer.echo(json.dumps(reply, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))
        raise typer.Exit(1 if reply.get("err_no") else 0)


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    typer.echo(f"penstock {installed('penstock')}")


def _flags(given: dict[str, Any], overrides: list[str] | None, lenient: bool) -> flags.Flags:
    with _errors_end_the_command():
        values = dict(parse_override(text) for text in overrides or ())
    values.update({key: value for key, value in given.items() if value is not None})
    return flags.Flags(overrides=values, lenient=lenient)


class _errors_end_the_command:
    """Our own errors become one clear message and exit status 1; others keep their traceback."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, PenstockError):
            return
        problems = error.problems if isinstance(error, ConfigError) else [str(error)]
        for problem in problems:
            typer.echo(f"error: {problem}", err=True)
        cause = error.__cause__ if isinstance(error, StartupError) else None
        if cause is not None and not isinstance(cause, PenstockError):
            logging.getLogger("penstock").error("the cause", exc_info=cause)
        raise typer.Exit(1) from error


def main() -> None:
    """The entry point of the ``penstock`` command."""
    app()
