"""The command ``penstock``; each subcommand is a function.

Heavy imports stand inside the commands, so that ``--help``, ``version`` and typing errors answer at
once.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import typer

from penstock.errors import ConfigError, HookError, PenstockError, Undecodable
from penstock.observe.logs import (
    LogFormat,
    LogLevel,
    LogOptions,
    log_line,
    logging_of_imports,
    logging_to_stderr,
)
from penstock.runtimes.cpus import bound_native_pools
from penstock.service import flags
from penstock.version import VERSION

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Serve graphs of machine-learning models over gRPC and HTTP.",
)


def _examples(*lines: str) -> str:
    """The end of a help text: lines that are not wrapped."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


File = Annotated[
    Path, typer.Argument(metavar="FILE", help="A Python script, or a configuration file (.yml).")
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "-o",
        metavar="KEY=VALUE",
        help="Set a configuration key, such as op.uci.concurrency=4. May be repeated.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="A configuration file whose keys override those in code, and in the file that the"
        " script names.",
    ),
]
Lenient = Annotated[
    bool,
    typer.Option("--lenient", help="Warn about unknown configuration keys instead of failing."),
]


Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ARGUMENT", help="Arguments of the script (sys.argv[1:]); options after --."
    ),
]
Level = Annotated[
    LogLevel | None,
    typer.Option(
        "--log-level",
        help="Lowest level that is logged.",
    ),
]
Format = Annotated[
    LogFormat | None,
    typer.Option(
        "--log-format",
        help="Log text lines, or one JSON object for each event, the start lines included."
        "  [default: text on a terminal, else json]",
    ),
]


Pairs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ITEM",
        help="name=value or name:=JSON: a member of the JSON body; name=@FILE: a file as base64;"
        " name==value: a query parameter. Only name=value for a path /NAME/METHOD is a request of"
        " the pipeline protocol.",
    ),
]
Form = Annotated[
    list[str] | None,
    typer.Option(
        "--form",
        "-F",
        metavar="NAME=VALUE|NAME=@FILE",
        help="A field, or a file, of a multipart form. May be repeated.",
    ),
]
Method = Annotated[
    str | None,
    typer.Option(
        "--request",
        "-X",
        metavar="METHOD",
        help="The HTTP method.  [default: POST with a body, else GET]",
    ),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", "-j", help="name=value is a member of the JSON body for every path."),
]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        "-d",
        metavar="JSON|FILE",
        help="The request as JSON, or a JSON file; the elements of a list are sent in turn.",
    ),
]
Header = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        "-H",
        metavar="'NAME: VALUE'",
        help="A header of every request. May be repeated.",
    ),
]
CaFile = Annotated[Path | None, typer.Option(help="Certificates to trust, for https.")]


def _token(given: str | None) -> str | None:
    if given is not None:
        from penstock.client.token import bearer

        try:
            bearer(given)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    return given


Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        metavar="TOKEN",
        envvar="PENSTOCK_TOKEN",
        callback=_token,
        help="A key or token, sent as Authorization: Bearer. Prefer the variable: other users of"
        " this machine can see command lines.",
    ),
]
Shape = Annotated[
    list[str] | None,
    typer.Option(metavar="INPUT:1,3,...", help="Shape of a model's random input; repeatable."),
]
Binary = Annotated[
    bool, typer.Option("--binary", help="Send a model's inputs as raw bytes over HTTP.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Options before the command."""


@app.command(
    epilog=_examples(
        "penstock run service.py",
        "penstock run service.py --http-port 8080 -o op.det.concurrency=4",
        "penstock run app.py --config production.yml",
        "penstock run service.py -- --model weights.onnx  # the script's own",
    )
)
def run(
    file: File,
    arguments: Arguments = None,
    http_port: Annotated[int | None, typer.Option(help="The HTTP port.")] = None,
    rpc_port: Annotated[int | None, typer.Option(help="The gRPC port.")] = None,
    host: Annotated[str | None, typer.Option(help="The address to listen on.")] = None,
    overrides: Set = None,
    config: Config = None,
    lenient: Lenient = False,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict", help="Fail if strangers on other machines may call, instead of warning."
        ),
    ] = False,
    supervised: Annotated[
        bool,
        typer.Option(
            "--supervised",
            help="Run a service of one process below one that replaces it if it dies, and that"
            " penstock reload reaches.",
        ),
    ] = False,
    log_level: Level = None,
    log_format: Format = None,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Restart the service when a file in FILE's folder changes."),
    ] = False,
) -> None:
    """Run a service until SIGTERM or Ctrl-C.

    FILE is a script that defines or runs a service, or a configuration with the key
    "service: file.py:Class".
    """
    if reload:
        from penstock.service.reload import run_and_reload

        log = _log_options({"log_format": log_format})
        with _errors_end_the_command(log):
            before = sys.argv[1:]
            own = before[: before.index("--")] if "--" in before else before
            rest = before[len(own) :]
            run_and_reload(file, [*(each for each in own if each != "--reload"), *rest], log)
        return
    from penstock.service.script import run_file
    from penstock.supervisor.signals import Stopped, signals_stop_the_start

    bound_native_pools(os.environ)  # before the script imports them
    given = {"http_port": http_port, "rpc_port": rpc_port, "host": host}
    given |= {"log_level": log_level, "log_format": log_format, "strict": strict or None}
    given["supervised"] = supervised or None
    with _errors_end_the_command(_log_options(given)):
        now = _flags(given, overrides, config, lenient, arguments)
    with _errors_end_the_command(now):
        with flags.using(now), logging_of_imports(now.log), signals_stop_the_start() as signals:
            try:
                with _script_errors_without_our_frames(now):
                    run_file(file)
                signals.raise_if_stopped()
            except Stopped:
                signals.end()
                if not now.served:  # else the service has logged its end
                    _say(now.log, "stopped before the start was over")
            # Only the exit remains; a later signal would only change its status.
            signals.end()


@app.command(
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def serve(context: typer.Context) -> None:
    """Serve saved models; penstock serve --help lists the flags."""
    from penstock.service.serve_flags import parse
    from penstock.supervisor.signals import Stopped, signals_stop_the_start

    bound_native_pools(os.environ)
    now = flags.Flags(log=_log_options({}))
    with _errors_end_the_command(now), signals_stop_the_start() as signals:
        try:
            server, now.overrides = parse(context.args, defaults=context.obj)
            now.log = _log_options(now.overrides)
            with flags.using(now):
                server.run()
        except Stopped:
            signals.end()
            _say(now.log, "stopped before the start was over")
            return
        signals.end()


@app.command(epilog=_examples("penstock worker model:predict --socket /run/predict.sock"))
def worker(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="A typed function or class.")
    ],
    socket: Annotated[
        Path, typer.Option(help="The socket of the service, its key op.<name>.socket.")
    ],
    batched: Annotated[
        bool,
        typer.Option(
            "--batched", help="The function takes and returns lists, as for a route with batch=."
        ),
    ] = False,
    msgpack: Annotated[
        bool, typer.Option("--msgpack", help="Bodies are msgpack (socket_format), not JSON.")
    ] = False,
    log_level: Level = None,
    log_format: Format = None,
) -> None:
    """Run batches of a service whose op has executor: external.

    The service may start later, and may be restarted.
    """
    from penstock.protocols import media
    from penstock.service.external_worker import worker_program
    from penstock.supervisor.signals import Stopped, signals_stop_the_start

    bound_native_pools(os.environ)
    options = LogOptions(level=log_level or "info", format=log_format)
    kind = media.MSGPACK if msgpack else media.JSON
    with (
        _errors_end_the_command(options),
        logging_to_stderr(options, at_once=True),
        _script_errors_without_our_frames(options),
        signals_stop_the_start() as signals,
    ):
        try:
            program = worker_program(target, socket, kind, batched=batched)
            signals.forward_to(program.stop)
        except Stopped:
            signals.end()
            return
        program.run()
        signals.end()


@app.command(epilog=_examples("penstock check service.py", "penstock check --open service.py"))
def check(
    file: File,
    arguments: Arguments = None,
    overrides: Set = None,
    config: Config = None,
    lenient: Lenient = False,
    log_level: Level = None,
    log_format: Format = None,
    opens: Annotated[
        bool,
        typer.Option(
            "--open",
            help="Also open the models, keys and certificates, run __init__, load and init_op, and"
            " the examples.",
        ),
    ] = False,
) -> None:
    """Check configuration, graph and hooks; --open: models too."""
    from penstock.service.script import run_file

    with _errors_end_the_command():
        given = {"log_level": log_level, "log_format": log_format}
        now = _flags(given, overrides, config, lenient, arguments)
        now.check_only = True
        now.opens = opens
        with flags.using(now), logging_of_imports(now.log), _script_errors_without_our_frames():
            run_file(file)
        for report in now.reports:
            typer.echo(report)


@app.command(
    epilog=_examples(
        "penstock client 127.0.0.1:8080 x=1,2,3                   # a pipeline",
        "penstock client 127.0.0.1:8080/add a:=1 b:=2 unit=m      # JSON members",
        "penstock client 127.0.0.1:8080/classify -F image=@x.png  # a form",
        "penstock client 127.0.0.1:8080/items/3 all==true         # GET, a query",
        "penstock client 127.0.0.1:8080/draw x:=1 -o picture.png  # bytes",
        "penstock client 127.0.0.1:8080/spell word=ab --stream    # an answer in pieces",
    )
)
def client(
    target: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT[/PATH]",
            help="Address of the service, or of a route; https://HOST:PORT with TLS.",
        ),
    ],
    pairs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ITEM",
            help="KEY=VALUE, KEY=@FILE: the request of a pipeline, where a file is sent as base64."
            " With a PATH: name=value or name:=JSON, a member of the JSON body; name=@FILE, a file"
            " as base64; name==value, a query parameter.",
        ),
    ] = None,
    name: Annotated[
        str,
        typer.Option(
            help="The service's name, the first part of its URL; needed if there are several."
        ),
    ] = "",
    method: Annotated[str, typer.Option(help="The second part of the URL.")] = "prediction",
    grpc: Annotated[bool, typer.Option("--grpc/--http", help="The protocol of the call.")] = False,
    log_id: Annotated[int, typer.Option(help="A trace id, which appears in logs.")] = 0,
    timeout: Annotated[
        float,
        typer.Option(help="Seconds to wait for the reply; with --stream, for each piece."),
    ] = 60.0,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="Print each piece of a route's answer when it arrives, on its own line.",
        ),
    ] = False,
    form: Form = None,
    request: Method = None,
    header: Header = None,
    data: Annotated[
        str | None,
        typer.Option("--data", "-d", metavar="JSON|FILE", help="The body as JSON, or a file."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the answer's body to a file.")
    ] = None,
    ca_file: CaFile = None,
    token: Token = None,
) -> None:
    """Send one request and print the reply as JSON.

    The exit status is 1 if there is no reply, or an error reply; with --stream also if an error
    ends the answer, or it was cut off.
    """
    from penstock.client.calls import ask_grpc, ask_http, feed_of, lacks_name

    with _errors_end_the_command():
        if "/" in target.removeprefix("https://").removeprefix("http://"):
            given = _Route(pairs or [], form or [], data, request, header or [], output, token)
            call = _stream_route if stream else _call_route
            if not call(target, given, grpc=grpc, timeout=timeout, ca_file=ca_file):
                raise typer.Exit(1)
            return
        if form or request or header or data or output or stream or not pairs:
            text = "write HOST:PORT KEY=VALUE for a pipeline, or HOST:PORT/PATH for a route"
            raise Undecodable(text)
        ask = ask_grpc if grpc else ask_http
        reply = ask(
            target,
            feed_of(pairs),
            name=name,
            method=method,
            log_id=log_id,
            timeout=timeout,
            ca_file=_text(ca_file),
            token=token,
        )
    typer.echo(json.dumps(reply, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))
    if lacks_name(reply, name):
        typer.echo("error: give --name, the service's name", err=True)
    if reply.get("err_no"):
        raise typer.Exit(1)


class _Route(NamedTuple):
    """A request to a route, as given."""

    items: list[str]
    form: list[str]
    data: str | None
    method: str | None
    headers: list[str]
    output: Path | None
    token: str | None


def _request_to(
    target: str, given: _Route, *, grpc: bool, ca_file: Path | None
) -> tuple[str, dict[str, Any]]:
    """The URL of a request to a route, and the other arguments of a call."""
    from urllib.parse import urlencode

    from penstock.client import http_request

    if grpc or sum(map(bool, (given.form, given.data is not None))) > 1:
        raise Undecodable("a route is called over HTTP, with items, --data or a form")
    items = http_request.read_items(given.items)
    if items.members is not None and (given.form or given.data is not None):
        raise Undecodable("give either items, --data or a form")
    body = None
    if given.form:
        body = http_request.form(given.form)
    elif given.data is not None:
        body = http_request.json_text(given.data)
    elif items.members is not None:
        body = http_request.Encoded(json.dumps(items.members).encode(), "application/json")
    url = target if "://" in target else f"http://{target}"
    if items.query:
        url += f"{'&' if '?' in url else '?'}{urlencode(items.query)}"
    return url, {
        "body": body,
        "method": None if given.method is None else given.method.upper(),
        "headers": [http_request.header(text) for text in given.headers],
        "ca_file": _text(ca_file),
        "token": given.token,
    }


def _call_route(target: str, given: _Route, *, timeout: float, **options: Any) -> bool:
    """Call a route and print its answer; returns whether it is no error."""
    from penstock.client.calls import ask_route
    from penstock.client.token import hint

    url, arguments = _request_to(target, given, **options)
    answer = ask_route(url, **arguments, timeout=timeout)
    good = answer.status < 400
    if not good:
        typer.echo(f"error: HTTP {answer.status}{hint(answer.status, given.token)}", err=True)
    if given.output is not None and good:
        given.output.write_bytes(answer.body)
        typer.echo(f"{given.output}: {len(answer.body)} bytes of {answer.media}", err=True)
    elif answer.media == "application/json" and sys.stdout.isatty():
        typer.echo(json.dumps(json.loads(answer.body), ensure_ascii=False, indent=2))
    elif answer.media == "application/json" or answer.media.startswith("text/"):
        typer.echo(answer.body.decode(errors="replace"))
    elif sys.stdout.isatty():
        typer.echo(f"{len(answer.body)} bytes of {answer.media}: -o FILE writes them", err=True)
    else:
        typer.echo(answer.body, nl=False)
    return good


def _stream_route(target: str, given: _Route, *, timeout: float, **options: Any) -> bool:
    """Call a route and print the pieces of its answer as they arrive; returns true.

    Raises:
        PenstockError: the answer is an error, or not complete.
    """
    from penstock.client.http_stream import HttpPieces, request_of

    url, arguments = _request_to(target, given, **options)
    request = request_of(url, **arguments)
    with HttpPieces(request, timeout, lambda piece: piece) as pieces, ExitStack() as files:
        file = None if given.output is None else files.enter_context(given.output.open("wb"))
        for piece in pieces:
            if file is None:
                typer.echo(piece, nl=isinstance(piece, str))
            else:
                file.write(piece if isinstance(piece, bytes) else f"{piece}\n".encode())
    return True


@app.command(
    epilog=_examples(
        "penstock status 127.0.0.1:8080",
        "penstock status --watch --interval 5",
        "penstock status --json | jq .requests",
    )
)
def status(
    address: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT",
            help="The HTTP port of a service on this machine; https://HOST:PORT with TLS.",
        ),
    ] = "127.0.0.1:8080",
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the whole status as JSON, with --watch a line each."),
    ] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            "-w",
            help="Show what happens between two reports, with a line for each op and the"
            " bottleneck, until Ctrl-C.",
        ),
    ] = False,
    interval: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two reports, with --watch.")
    ] = 2.0,
    ca_file: CaFile = None,
    token: Token = None,
) -> None:
    """Print the status of a running service, of all its engines."""
    from penstock.observe.status import ask_status, shown

    ask = partial(ask_status, address, ca_file=_text(ca_file), token=token)
    with _errors_end_the_command():
        report = ask()
    if watch:
        with suppress(KeyboardInterrupt):
            _watch(ask, report, interval, as_json=as_json)
    else:
        typer.echo(json.dumps(report, indent=2) if as_json else shown(report))


@app.command(
    epilog=_examples("penstock reload 127.0.0.1:8080", "penstock reload --pid 4711"),
)
def reload(
    address: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT",
            help="The HTTP port of a service on this machine; https://HOST:PORT with TLS.",
        ),
    ] = "127.0.0.1:8080",
    pid: Annotated[
        int | None,
        typer.Option(help="The main process of the service, instead of its address: gets SIGHUP."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for the result.")
    ] = 3600.0,
    ca_file: CaFile = None,
    token: Token = None,
) -> None:
    """Run a service's changed program in place of the old one.

    The exit status is 1 if the changed program does not start: the service then serves on as it is.
    """
    from penstock.observe.status import ask_reload
    from penstock.supervisor.reload import reload_process

    with _errors_end_the_command():
        if pid is None:
            seconds = ask_reload(address, timeout, _text(ca_file), token)
        else:
            seconds = reload_process(pid, timeout)
    typer.echo(f"reloaded in {seconds:.1f} s")


def _watch(
    ask: Callable[[], dict[str, Any]], before: dict[str, Any], interval: float, *, as_json: bool
) -> None:
    """Print a table, or a report, at each interval. A service that is away may come back."""
    import time

    from penstock.observe.status import NoStatus
    from penstock.observe.watch import table

    at = time.monotonic()
    while True:
        time.sleep(interval)
        try:
            now = ask()
        except NoStatus as error:
            typer.echo(f"error: {error}", err=True)
            continue
        elapsed, at = time.monotonic() - at, time.monotonic()
        clear = "\x1b[H\x1b[J" if sys.stdout.isatty() else ""
        typer.echo(json.dumps(now) if as_json else f"{clear}{table(before, now, elapsed)}\n")
        before = now


@app.command(epilog=_examples("penstock trace 127.0.0.1:8080 --requests 50 -o trace.json"))
def trace(
    address: Annotated[
        str,
        typer.Argument(
            metavar="HOST:PORT",
            help="The HTTP port of a service on this machine; https://HOST:PORT with TLS.",
        ),
    ] = "127.0.0.1:8080",
    requests: Annotated[
        int, typer.Option(min=1, max=10_000, help="Number of requests to record.")
    ] = 100,
    seconds: Annotated[
        float, typer.Option(min=0.001, max=60.0, help="Most seconds to wait for them.")
    ] = 10.0,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")] = Path(
        "trace.json"
    ),
    ca_file: CaFile = None,
    token: Token = None,
) -> None:
    """Record timelines of the next requests of a running service.

    The file opens in ui.perfetto.dev and in chrome://tracing.
    """
    from penstock.plan.measure import watched, write_recording

    with _errors_end_the_command():
        found = watched(address, requests, seconds, _text(ca_file), token)
        write_recording(found, output)
    typer.echo(f"{output}: {found['otherData']['requests']} requests")


@app.command(
    epilog=_examples(
        "penstock bench http://127.0.0.1:8080/add a:=1 b:=2",
        "penstock bench http://127.0.0.1:8080/classify -F image=@x.png -c 1,8",
        "penstock bench http://127.0.0.1:8080/v2/models/resnet --rate 50,100",
        "penstock bench http://127.0.0.1:8080/spell word=ab --stream",
        "penstock bench grpc://127.0.0.1:9090/uci/prediction x=1,2 -o r.csv",
    )
)
def bench(
    target: Annotated[
        str, typer.Argument(metavar="URL", help="The target: http://HOST:PORT/PATH, or grpc://.")
    ],
    pairs: Pairs = None,
    data: Data = None,
    form: Form = None,
    as_json: AsJson = False,
    request: Method = None,
    concurrency: Annotated[
        str | None,
        typer.Option(
            "--concurrency",
            "-c",
            metavar="N,...",
            help="Closed loop: requests in flight of each step.  [default: 1,4,16,64]",
        ),
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(
            "--rate",
            "-r",
            metavar="N,...",
            help="Open loop: requests a second of each step; --concurrency limits those in flight.",
        ),
    ] = None,
    arrivals: Annotated[
        Literal["poisson", "constant"], typer.Option(help="Arrival times in an open loop.")
    ] = "poisson",
    duration: Annotated[str, typer.Option(help="Duration of each step: 10s, 500ms, 2m.")] = "10s",
    warm_up: Annotated[str, typer.Option(help="Load before each step, not measured.")] = "1s",
    timeout: Annotated[str, typer.Option(help="Timeout of one request, from its sending.")] = "30s",
    connections: Annotated[int, typer.Option(min=1, help="Connections that gRPC calls share.")] = 1,
    processes: Annotated[int, typer.Option(min=1, help="Client processes.")] = 1,
    stream: Annotated[
        bool,
        typer.Option(
            "--stream",
            help="The answers come in pieces: report the time to the first piece, the time between"
            " pieces, (last - first) / (pieces - 1), and pieces a second. A piece has content.",
        ),
    ] = False,
    header: Header = None,
    ca_file: CaFile = None,
    token: Token = None,
    shape: Shape = None,
    binary: Binary = False,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output", "-o", help="Write results to FILE.csv, .json or .svg; may be repeated."
        ),
    ] = None,
    max_p99: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Exit status 1 if the p99 of a step is larger."),
    ] = None,
    max_errors: Annotated[
        int | None, typer.Option(help="Exit status 1 if a step has more failed requests.")
    ] = None,
    min_rate: Annotated[
        float | None, typer.Option(help="Exit status 1 if a step has fewer good answers a second.")
    ] = None,
) -> None:
    """Load a service in steps; report throughput and latency.

    The exit status is 1 if a step violates a limit, or has no good answer.
    """
    from penstock.bench import command
    from penstock.bench.requests import target_of

    with _errors_end_the_command():
        requests = target_of(
            target,
            data=data,
            pairs=pairs or (),
            fields=form or (),
            as_json=as_json,
            method=request,
            shapes=shape or (),
            binary=binary,
            headers=header or (),
            ca_file=_text(ca_file),
            token=token,
            in_pieces=stream,
        )
        load = command.load_of(
            concurrency,
            rate,
            duration=duration,
            warm_up=warm_up,
            timeout=timeout,
            arrivals=arrivals,
            connections=connections,
            processes=processes,
        )
        limits = command.limits_of(max_p99=max_p99, max_errors=max_errors, min_rate=min_rate)
        kept = command.load_and_report(requests, load, limits, output or ())
    if not kept:
        raise typer.Exit(1)


@app.command(
    epilog=_examples(
        "penstock plan http://127.0.0.1:8080/add a:=1 --qps 200",
        "penstock plan 127.0.0.1:8080                      # under its own load",
        "penstock plan trace.json --set det.workers=3  # recorded costs",
    )
)
def plan(
    source: Annotated[
        str,
        typer.Argument(
            metavar="URL|HOST:PORT|FILE",
            help="A URL to measure, a service under load to observe (https://HOST:PORT with TLS),"
            " or a file of -o or penstock trace.",
        ),
    ],
    pairs: Pairs = None,
    data: Data = None,
    qps: Annotated[
        float | None, typer.Option(min=0.001, help="Requests a second to plan for.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="OP.KEY=VALUE",
            help="Predict with another setting: det.workers=3. May be repeated.",
        ),
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(help="A file of -o or penstock trace, instead of a measuring run."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Measure the prediction; exit status 1 if it is wrong.")
    ] = False,
    duration: Annotated[str, typer.Option(help="Duration of --verify.")] = "60s",
    measuring: Annotated[
        str, typer.Option(help="Duration of each step of the measuring run.")
    ] = "5s",
    concurrency: Annotated[
        str,
        typer.Option(
            "--concurrency",
            "-c",
            metavar="N,...",
            help="Requests in flight of the measuring run's steps.",
        ),
    ] = "",
    header: Header = None,
    ca_file: CaFile = None,
    token: Token = None,
    shape: Shape = None,
    binary: Binary = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Save the measured costs to a file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Predict throughput and latency, and recommend settings."""
    from penstock.bench.command import load_of
    from penstock.bench.requests import target_of
    from penstock.plan.command import Source, plan_and_report

    with _errors_end_the_command():
        target = None
        # A URL without a path and a request is a service, as HOST:PORT is.
        alone = re.fullmatch("https?://[^/?#]*", source) and data is None and not pairs
        if "://" in source and not alone:
            target = target_of(
                source,
                data=data,
                pairs=pairs or (),
                shapes=shape or (),
                binary=binary,
                headers=header or (),
                ca_file=_text(ca_file),
                token=token,
            )
        elif costs is None and Path(source).is_file():
            costs = Path(source)
        load = load_of(concurrency or "1", None, duration=measuring, warm_up="0", timeout="30s")
        verified = load_of("1", None, duration=duration, warm_up="0", timeout="30s").duration
        kept = plan_and_report(
            Source(
                name=source,
                target=target,
                file=costs,
                seconds=load.duration,
                levels=tuple(each.concurrency for each in load.steps) if concurrency else (),
                ca_file=_text(ca_file),
                token=token,
            ),
            rate=qps,
            settings=settings or (),
            output=output,
            verify=verified if verify else None,
            as_json=as_json,
        )
    if not kept:
        raise typer.Exit(1)


@app.command(
    epilog=_examples(
        "penstock convert resnet.onnx models               # models/resnet/1",
        "penstock convert out/best models --name resnet    # models/resnet/2",
        "penstock convert resnet.onnx models --examples cat.npz --key key.pem",
    )
)
def convert(
    source: Annotated[
        Path, typer.Argument(metavar="SRC", help="A model's file or folder, as of penstock serve.")
    ],
    repository: Annotated[
        Path, typer.Argument(metavar="DST", help="The folder of the repository.")
    ],
    name: Annotated[
        str | None, typer.Option(help="The model's name.  [default: that of the file or folder]")
    ] = None,
    to: Annotated[
        Literal["onnx", "openvino", "paddle", "torch"] | None,
        typer.Option(help="Convert to this form; OpenVINO converts models of ONNX and Paddle."),
    ] = None,
    examples: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE.npz", help="One request as arrays by name; the model must run on it."
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Sign the manifest with this ed25519 private key (PEM)."),
    ] = None,
) -> None:
    """Make the next version of a model in a repository.

    It has a manifest. The model is opened, and must run on the examples. A service that polls the
    repository sees all of the version, or nothing. Upload it with your store's own tool.
    """
    from penstock.runtimes.model_input import described_tensor
    from penstock.store.convert import convert as make

    bound_native_pools(os.environ)
    if "://" in str(source) or ":/" in str(repository):
        raise typer.BadParameter("SRC and DST are on this machine; upload with your store's tool")
    with _errors_end_the_command():
        made = make(source, repository, name=name, to=to, examples=examples or (), key=key)
    size = sum(each.size for each in made.manifest.files)
    signed = ", signed" if key else ""
    typer.echo(
        f"{made.path}  {made.runtime}, {len(made.manifest.files)} files, {size:,} bytes{signed}"
    )
    for side, specs in (("takes", made.model.inputs), ("gives", made.model.outputs)):
        shown = (f"{each.alias} {described_tensor(each.dtype, each.shape)}" for each in specs)
        typer.echo(f"  {side}  {', '.join(shown)}")
    typer.echo(f"  sha256 {made.manifest.digest}")


@app.command(epilog=_examples("penstock containerize app.py", "podman build -t app ."))
def containerize(
    file: File,
    python: Annotated[
        str | None,
        typer.Option(metavar="VERSION", help="Of the image.  [default: that which runs this]"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
) -> None:
    """Write a Containerfile and a .dockerignore for a project.

    The project is the working directory. Its packages are those of requirements.txt, which must
    name one version of each.
    """
    from penstock.service.containerize import containerize as write

    version = python or "{}.{}".format(*sys.version_info)
    with _errors_end_the_command():
        files = write(file, Path(), version, replaces=force)
    typer.echo(f"written: {', '.join(files)}")


@app.command()
def key(
    name: Annotated[str, typer.Argument(help="The caller's name, for logs and traces.")],
    scope: Annotated[
        list[str] | None, typer.Option(help="What the key is for, such as admin. Repeatable.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="Append the line to this file, instead of printing it.")
    ] = None,
) -> None:
    """Make an API key, and its line for the file of security.keys."""
    from penstock.security.keys import line_of, new_key

    made = new_key()
    try:
        line = line_of(name, made, scope or ())
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if to is None:
        typer.echo(f"key   {made}\nline  {line}")
        return
    # Only its owner may read it; the digests are not secret, the callers' names may be.
    with os.fdopen(os.open(to, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "a+") as file:
        file.seek(max(0, file.tell() - 1))
        ended = file.read() in ("", "\n")
        file.write(("" if ended else "\n") + line + "\n")
    typer.echo(made)


models = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show, load and change the models of a service.",
)
app.add_typer(models, name="models")

ModelName = Annotated[str, typer.Argument(metavar="NAME", help="The model's name.")]
Address = Annotated[
    str,
    typer.Option(
        "--address",
        "-a",
        metavar="HOST:PORT",
        help="The HTTP port of the service, or that of operators; https://HOST:PORT with TLS.",
    ),
]
RowsAsJson = Annotated[bool, typer.Option("--json", help="Print the versions as JSON.")]
Patience = Annotated[
    float, typer.Option(min=1.0, help="Seconds to wait; what was begun goes on after them.")
]
_ADDRESS = "127.0.0.1:9393"
_PATIENCE = 3600.0
_BAR = 30


@models.command("list", epilog=_examples("penstock models list", "penstock models list --json"))
def list_models(
    address: Address = _ADDRESS,
    ready: Annotated[bool, typer.Option("--ready", help="Only versions that serve.")] = False,
    as_json: RowsAsJson = False,
    ca_file: CaFile = None,
    token: Token = None,
) -> None:
    """Print the versions of all models, with their states."""
    from penstock.observe.models import Models

    with _errors_end_the_command():
        rows = Models(address, _text(ca_file), token).index()
    _print_rows([each for each in rows if not ready or each["state"] == "READY"], as_json=as_json)


@models.command(
    "load",
    epilog=_examples(
        "penstock models load resnet",
        "penstock models load resnet --model-config config.json",
    ),
)
def load_model(
    name: ModelName,
    model_config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Its configuration as JSON, instead of that in the repository."
        ),
    ] = None,
    address: Address = _ADDRESS,
    timeout: Patience = _PATIENCE,
    as_json: RowsAsJson = False,
    ca_file: CaFile = None,
    token: Token = None,
) -> None:
    """Load a model, or its newest version; also what failed before is tried again.

    Ends when every engine serves it. The exit status is 1 if none does; then what served before
    still does.
    """
    parameters = {}
    if model_config is not None:
        with _errors_end_the_command():
            try:
                parameters["config"] = model_config.read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise Undecodable(f"{model_config} cannot be read: {error}") from error
    body = {"parameters": parameters}
    _change(name, "load", body, address, timeout, ca_file, token, as_json=as_json)


@models.command("unload")
def unload_model(
    name: ModelName,
    dependents: Annotated[
        bool, typer.Option("--dependents", help="Also the ensembles that use it.")
    ] = False,
    address: Address = _ADDRESS,
    timeout: Patience = _PATIENCE,
    as_json: RowsAsJson = False,
    ca_file: CaFile = None,
    token: Token = None,
) -> None:
    """Unload all versions of a model. Ends when its processes have ended."""
    body = {"parameters": {"unload_dependents": dependents}}
    _change(name, "unload", body, address, timeout, ca_file, token, as_json=as_json)


@models.command(
    "label",
    epilog=_examples(
        "penstock models label resnet canary 4",
        "penstock models label resnet canary --remove",
    ),
)
def label_version(
    name: ModelName,
    label: Annotated[str, typer.Argument(help="The label, such as stable or canary.")],
    version: Annotated[str | None, typer.Argument(help="The version that it is to name.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the label.")] = False,
    address: Address = _ADDRESS,
    as_json: RowsAsJson = False,
    ca_file: CaFile = None,
    token: Token = None,
) -> None:
    """Let a label name a version, which requests can use in the place of its number."""
    if remove == (version is not None):
        raise typer.BadParameter("give either a version or --remove")
    body = {"labels": {label: version}}
    _change(name, "update", body, address, _PATIENCE, ca_file, token, as_json=as_json)


@models.command(
    "weights",
    epilog=_examples(
        "penstock models weights resnet 3=90 4=10",
        "penstock models weights resnet --clear",
    ),
)
def weigh_versions(
    name: ModelName,
    weights: Annotated[
        list[str] | None,
        typer.Argument(metavar="VERSION=SHARE", help="The share of each version."),
    ] = None,
    clear: Annotated[
        bool, typer.Option("--clear", help="All requests go to the default version again.")
    ] = False,
    address: Address = _ADDRESS,
    as_json: RowsAsJson = False,
    ca_file: CaFile = None,
    token: Token = None,
) -> None:
    """Divide the requests that name no version between versions."""
    if clear == bool(weights):
        raise typer.BadParameter("give either VERSION=SHARE for each version, or --clear")
    shares = {}
    for text in weights or ():
        version, _, share = text.rpartition("=")
        if not version or not (share.isascii() and share.isdecimal()):
            raise typer.BadParameter(f"{text!r}: write VERSION=SHARE, such as 4=10")
        shares[version] = int(share)
    body = {"weights": shares}
    _change(name, "update", body, address, _PATIENCE, ca_file, token, as_json=as_json)


@models.command("promote")
def promote_version(
    name: ModelName,
    version: Annotated[str, typer.Argument(help="The version, or its label.")],
    address: Address = _ADDRESS,
    as_json: RowsAsJson = False,
    ca_file: CaFile = None,
    token: Token = None,
) -> None:
    """Let a version run all requests that name none."""
    body = {"promote": version}
    _change(name, "update", body, address, _PATIENCE, ca_file, token, as_json=as_json)


@models.command("rollback")
def roll_back_model(
    name: ModelName,
    address: Address = _ADDRESS,
    timeout: Patience = _PATIENCE,
    as_json: RowsAsJson = False,
    ca_file: CaFile = None,
    token: Token = None,
) -> None:
    """Go back to the version that ran the requests before.

    The one that is taken back is not loaded again until it is told to.
    """
    _change(name, "update", {"rollback": True}, address, timeout, ca_file, token, as_json=as_json)


def _change(
    name: str,
    action: str,
    body: dict[str, Any],
    address: str,
    timeout: float,
    ca_file: Path | None,
    token: str | None,
    *,
    as_json: bool,
) -> None:
    """Change a model, and show how far it is: one line on a terminal, else one for each state."""
    from penstock.observe.models import Models, progress

    last = ""
    in_place = sys.stderr.isatty()

    def show(rows: list[dict[str, Any]]) -> None:
        nonlocal last
        line = progress(rows, _BAR if in_place else 0)
        if in_place:
            typer.echo(f"\r\x1b[K{line}", nl=False, err=True)
        elif line and line != last and not as_json:
            typer.echo(line, err=True)
        last = line

    with _errors_end_the_command():
        try:
            found = Models(address, _text(ca_file), token)
            rows = found.change(name, action, body, timeout, show)
        finally:
            if in_place and last:
                typer.echo("\r\x1b[K", nl=False, err=True)
    _print_rows(rows, as_json=as_json)


def _print_rows(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    from penstock.observe.models import table

    typer.echo(json.dumps(rows, indent=2) if as_json else table(rows))


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(f"penstock {VERSION}")


def _flags(
    given: dict[str, Any],
    overrides: list[str] | None,
    config: Path | None,
    lenient: bool,
    arguments: list[str] | None,
) -> flags.Flags:
    from penstock.config.load import parse_override, read_overriding

    values = dict(parse_override(text) for text in overrides or ())
    values.update({key: value for key, value in given.items() if value is not None})
    return flags.Flags(
        overrides=values,
        over={} if config is None else read_overriding(config),
        lenient=lenient,
        arguments=arguments or (),
        log=_log_options(values),
    )


def _log_options(given: Mapping[str, Any]) -> LogOptions:
    """Until a service's configuration has been read, flags and environment configure the log."""
    from penstock.config.load import from_environment

    values = {key: value for key, (_, value) in from_environment(os.environ).items()}
    values.update({key: value for key, value in given.items() if value is not None})

    def chosen(key: str, known: Sequence[str]) -> Any:
        text = str(values.get(key, "")).lower()
        return text if text in known else None

    return LogOptions(
        level=chosen("log_level", get_args(LogLevel)) or "info",
        format=chosen("log_format", get_args(LogFormat)),
    )


def _say(options: LogOptions | None, text: str, **more: Any) -> None:
    """Write a message to standard error: as a line of the log, for a command that serves."""
    line = text if options is None else log_line(options, text, **more)
    typer.echo(line.removesuffix("\n"), err=True)


@contextmanager
def _errors_end_the_command(log: flags.Flags | LogOptions | None = None) -> Iterator[None]:
    """Turn our own errors into one message and exit status 1.

    Args:
        log: of a command that serves, whose messages are lines of the log.
    """
    try:
        yield
    except PenstockError as error:
        listed = isinstance(error, ConfigError | HookError)  # one problem a line
        problems = str(error).splitlines() if listed else [str(error)]
        for problem in problems:
            _say(_of(log), f"error: {problem}", level="error", error=error)
        raise typer.Exit(1) from error


def _of(log: flags.Flags | LogOptions | None) -> LogOptions | None:
    return log.log if isinstance(log, flags.Flags) else log


@contextmanager
def _script_errors_without_our_frames(
    log: flags.Flags | LogOptions | None = None,
) -> Iterator[None]:
    """Print exceptions of user code with their traceback, without our frames."""
    from penstock.service.script import users_traceback

    try:
        yield
    except (PenstockError, typer.Exit):
        raise
    except Exception as error:
        text = users_traceback(error)
        if text is None:
            raise
        _say(_of(log), text, level="error", error=error)
        raise typer.Exit(1) from error


def main() -> None:
    """The entry point of the ``penstock`` command."""
    app()
