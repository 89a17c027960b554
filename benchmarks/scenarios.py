"""The comparisons and their targets: the rows of the table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks import callers as callers_of
from benchmarks import graphs
from benchmarks.bodies import (
    echo_json,
    echo_message,
    is_echo_json,
    is_echo_message,
    is_large_message,
    is_pieces,
    is_price,
    is_size_json,
    is_sum_json,
    is_typed_json,
    large_message,
    pieces_json,
    regress_body,
    typed_json,
)
from benchmarks.calls import INFERENCE
from benchmarks.client_calls import IN_FLIGHT, REPLY, call_message
from benchmarks.graphs import GRAPHS, requests
from benchmarks.inference import (
    MODEL_INFER,
    infer_path,
    is_price_json,
    is_price_message,
    is_scores_message,
    is_topic_text,
    price_json,
    price_message,
    resnet50_messages,
    token_messages,
    token_texts,
)
from benchmarks.servers.floor_triton import PROGRAM
from penstock.protocols.pb import Response

LONG_STEPS, SHORT_STEPS = 500_000, 5_000
"""Of the op that computes: some 20 ms, beside which nothing else counts, and some 0.2 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The number of requests in flight, their protocol, and whether their heads differ."""

    protocol: str
    connections: int
    streams: int = 1
    heads: str = "same"

    @property
    def label(self) -> str:
        """Its name in the table."""
        shape = f"{self.connections}x{self.streams}" if self.streams > 1 else f"{self.connections}"
        return f"{shape}, {self.heads} heads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One side of a comparison: a server, a client of one, or a bare loop.

    Attributes:
        server: a script in ``benchmarks/servers``; None for the bare loop of the scenario's graph.
        options: the script's.
        client: this client of ``benchmarks.client_calls`` is measured, not the server.
        ready: the path of which a GET gives 200 when the server is ready; None: when it listens.
        bearer: the key or token of every request over HTTP.
    """

    name: str
    server: str | None = None
    options: tuple[str, ...] = ()
    client: str | None = None
    ready: str | None = "/readyz"
    bearer: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The target of a row; figures are compared with the floor of the same round.

    Attributes:
        ratio: answers a second, at least this many times the floor's.
        p50: median time of an answer, at most this many times the floor's.
        later_ms: median time of an answer, at most this much above the floor's.
        cpu_ms: CPU time of an answer, at most this much above the floor's.
        loop_ms: CPU time of the event loop for an answer, at most this; not compared.
    """

    ratio: float | None = None
    p50: float | None = None
    later_ms: float | None = None
    cpu_ms: float | None = None
    loop_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A floor and its contenders under the same loads.

    Attributes:
        messages: the messages sent in turn, JSON texts over HTTP, serialised Requests over gRPC.
        is_right: whether an answer is right; None with ``graph``.
        graph: the graph of models that all of them run.
        matches: whether an answer equals that of the graph's bare models.
        models: the servers' models where there is no graph.
        exact: every answer must equal the first one, byte by byte.
        targets: the target by (contender, load's label).
        seconds: factor of the duration of a measurement.
        kind: the media type of messages over HTTP.
        path: of the route over HTTP.
        method: of gRPC, as a path.
    """

    name: str
    title: str
    messages: Callable[[], list[bytes]]
    floor: Contender
    ours: tuple[Contender, ...]
    loads: tuple[Load, ...]
    is_right: Callable[[bytes], bool] | None = None
    graph: str | None = None
    matches: Callable[[bytes, Any], bool] = graphs.is_right
    models: tuple[str, ...] = ()
    exact: bool = True
    targets: Mapping[tuple[str, str], Target] = field(default_factory=dict)
    seconds: float = 1.0
    kind: str = "application/json"
    path: str = "/bench/prediction"
    method: str = INFERENCE


def service(name: str, *options: str) -> Contender:
    """Penstock; the name of an executor is also its option."""
    own = ("--executor", name) if name in ("thread", "inline", "process") else ()
    return Contender(name=name, server="service", options=(*own, *options))


THREAD, INLINE, PROCESS = map(service, ("thread", "inline", "process"))
UVICORN = Contender(name="uvicorn", server="floor_http")
GRPC_AIO = Contender(name="grpc.aio", server="floor_grpc", ready=None)


def http(connections: int, heads: str = "same") -> Load:
    """Concurrent requests, one on each of ``connections``."""
    return Load(protocol="http", connections=connections, heads=heads)


def grpc(connections: int, streams: int = 1, heads: str = "same") -> Load:
    """``streams`` concurrent calls on each of ``connections``."""
    return Load(protocol="grpc", connections=connections, streams=streams, heads=heads)


def http_echo(
    name: str,
    title: str,
    loads: tuple[Load, ...],
    *ours: Contender,
    floor: Contender = UVICORN,
    is_right: Callable[[bytes], bool] = is_echo_json,
    targets: Mapping[tuple[str, str], Target] | None = None,
    exact: bool = True,
    seconds: float = 1.0,
) -> Scenario:
    """A small JSON body."""
    return Scenario(
        name=name,
        title=title,
        messages=lambda: [echo_json()],
        is_right=is_right,
        floor=floor,
        ours=ours,
        loads=loads,
        targets=targets or {},
        exact=exact,
        seconds=seconds,
    )


def heads() -> list[Scenario]:
    """The main rows: 32 requests in flight, as real clients send them and as generators do."""
    over_http = (http(32, "different"), http(32, "same"))
    over_grpc = (grpc(8, 4, "different"), grpc(8, 4, "same"))
    return [
        http_echo(
            "heads-http",
            "echo over HTTP, 32 in flight, against a bare uvicorn callable",
            over_http,
            THREAD,
            PROCESS,
            targets={
                ("thread", over_http[0].label): Target(ratio=1.2),
                ("thread", over_http[1].label): Target(ratio=1.3),
                ("process", over_http[1].label): Target(ratio=0.85),
            },
        ),
        Scenario(
            name="heads-grpc",
            title="echo over gRPC, 8 connections of 4 calls, against a bare grpc.aio handler",
            messages=lambda: [echo_message()],
            is_right=is_echo_message,
            floor=GRPC_AIO,
            ours=(THREAD, PROCESS),
            loads=over_grpc,
            targets={
                ("thread", over_grpc[0].label): Target(ratio=8.0),
                ("thread", over_grpc[1].label): Target(ratio=10.0),
                ("process", over_grpc[1].label): Target(ratio=5.0),
            },
        ),
    ]


def instruments() -> Scenario:
    """The cost of instruments: an echo with them, against the same service without any."""
    load = http(32, "different")
    named = {
        "default": ("default", 0.95),
        "with the tracer": ("tracer", 0.95),
        "with log_requests": ("requests", None),
    }
    return http_echo(
        "instruments",
        "echo over HTTP in a thread, with instruments, against the same without any",
        (load,),
        *(service(name, "--instruments", option) for name, (option, _) in named.items()),
        floor=service("none", "--instruments", "none"),
        targets={
            (name, load.label): Target(ratio=ratio)
            for name, (_, ratio) in named.items()
            if ratio is not None
        },
    )


def callers() -> Scenario:
    """The cost of knowing callers, against the same service that admits everybody."""
    load = http(32, "different")
    kinds = {"keys": callers_of.KEY, "jwt": callers_of.token(), "limits": callers_of.KEY}
    titles = {"keys": "API keys", "jwt": "JWT", "limits": "API keys, quota, priorities"}
    return http_echo(
        "callers",
        "echo over HTTP in a thread, with known callers, against the same without",
        (load,),
        *(
            replace(service(titles[kind], "--security", kind), bearer=bearer)
            for kind, bearer in kinds.items()
        ),
        floor=replace(service("everybody"), bearer=callers_of.KEY),
        targets={(titles[kind], load.label): Target(ratio=0.95) for kind in ("keys", "jwt")},
    )


def one_at_a_time() -> list[Scenario]:
    """Latency: one request in flight."""
    over_http, over_grpc = http(1, "different"), grpc(1, heads="different")
    return [
        http_echo(
            "one-http",
            "echo over HTTP, one at a time, against a bare uvicorn callable",
            (over_http,),
            INLINE,
            THREAD,
            PROCESS,
            targets={
                ("thread", over_http.label): Target(later_ms=0.1),
                ("process", over_http.label): Target(later_ms=0.15),
            },
        ),
        Scenario(
            name="one-grpc",
            title="echo over gRPC, one at a time, against a bare grpc.aio handler",
            messages=lambda: [echo_message()],
            is_right=is_echo_message,
            floor=GRPC_AIO,
            ours=(INLINE, THREAD, PROCESS),
            loads=(over_grpc,),
            targets={("thread", over_grpc.label): Target(p50=0.5)},
        ),
    ]


def large() -> list[Scenario]:
    """5 MiB in a message, and 5 MiB passed from one op to the next."""
    loads = (grpc(1), grpc(2))
    array = ("--graph", "arrays", "--executor", "process", "--every-core", "--ops")
    two = service("2 process ops", *array, "2")
    return [
        Scenario(
            name="large-grpc",
            title="echo of 5 MiB over gRPC, against a bare grpc.aio handler",
            messages=lambda: [large_message()],
            is_right=is_large_message,
            floor=GRPC_AIO,
            ours=(THREAD,),
            loads=loads,
            targets={("thread", load.label): Target(ratio=1.0) for load in loads},
        ),
        http_echo(
            "array",
            "an array of 5 MiB to the next op, in another process, against no next op",
            (http(1),),
            two,
            floor=service("1 process op", *array, "1"),
            is_right=is_size_json,
            targets={(two.name, http(1).label): Target(cpu_ms=0.7, later_ms=0.7)},
        ),
    ]


def ops() -> list[Scenario]:
    """The cost of one more op, and the gain of more workers and engines on the same two cores."""
    row = service("3 ops", "--ops", "3")
    compute = ("--graph", "compute", "--steps", str(LONG_STEPS), "--every-core")
    one, *more = (
        service(f"{kind} x{count}", *compute, "--executor", kind, "--concurrency", str(count))
        for kind, count in (("process", 1), ("process", 2), ("thread", 2))
    )
    small = ("--graph", "compute", "--steps", str(SHORT_STEPS), "--every-core")
    engines = [service(f"{count} engines", *small, "--engines", str(count)) for count in (1, 2)]
    return [
        http_echo(
            "ops",
            "three ops in a row, each in a thread, against one",
            (http(32),),
            row,
            floor=service("1 op"),
            targets={(row.name, http(32).label): Target(cpu_ms=0.016)},  # 8 us for each of two
        ),
        http_echo(
            "workers",
            "20 ms of pure Python, both cores, against one worker process",
            (http(4),),
            *more,
            floor=one,
            is_right=is_sum_json,
            targets={("process x2", http(4).label): Target(ratio=1.8)},
            seconds=2.0,
        ),
        http_echo(
            "engines",
            "0.2 ms of pure Python, both cores, two engines against one",
            (http(32),),
            engines[1],
            floor=engines[0],
            is_right=is_sum_json,
        ),
    ]


def models() -> list[Scenario]:
    """The graphs of models, with and without a window, against the bare models."""
    promised = {"ensemble": 0.95, "texts": 0.8, "ragged": 0.8, "resnet50": 0.97}
    titles = {
        "ensemble": "two classifiers and the mean of both",
        "texts": "a detector, then a recogniser on 3 to 9 crops",
        "ragged": "1 to 128 tokens through one model",
        "resnet50": "the layers of ResNet-50, pictures of 600 kB, batches of 8",
    }
    made = []
    for name, graph in GRAPHS.items():
        load = grpc(graph.batch if graph.batch > 8 else 16, heads="different")
        batches = ("--graph", name, "--batch-size", str(graph.batch))
        ours = [service("no window", *batches)]
        if name != "resnet50":
            ours.append(service("window of 2 ms", *batches, "--window-ms", "2"))
        made.append(
            Scenario(
                name=f"graph-{name}",
                title=f"{titles[name]}, against the bare models",
                messages=lambda name=name: requests(name),  # type: ignore[misc]
                graph=name,
                floor=Contender(name="ONNX Runtime"),
                ours=tuple(ours),
                loads=(load,),
                exact=False,
                targets={(each.name, load.label): Target(ratio=promised[name]) for each in ours},
                seconds=4.0 if name == "resnet50" else 2.0,
            )
        )
    return made


def client() -> Scenario:
    """Our client against the grpc package's, 32 calls in flight from one core."""

    def contender(name: str) -> Contender:
        return Contender(name=name, server="canned_grpc", client=name, ready=None)

    load = grpc(1, IN_FLIGHT)
    return Scenario(
        name="client",
        title="calls of a client on one core, 32 in flight, against grpcio in threads",
        messages=lambda: [call_message()],
        is_right=lambda answer: Response.FromString(answer) == REPLY,
        floor=contender("grpcio-threads"),
        ours=tuple(map(contender, ("threads", "futures", "asyncio"))),
        loads=(load,),
        targets={(name, load.label): Target(ratio=3.0) for name in ("futures", "asyncio")},
    )


def typed() -> list[Scenario]:
    """Typed functions against the usual alternatives."""
    load = http(32, "different")
    fastapi = Contender(name="FastAPI", server="floor_fastapi")
    echo = tuple(
        Contender(name=f"typed, {name}", server="typed", options=("--graph", graph))
        for name, graph in (("one request", "echo"), ("batch of 32", "echo-batch"))
    )
    made = [
        Scenario(
            name="typed-echo",
            title="a pydantic model in and out, against FastAPI under uvicorn",
            messages=lambda: [typed_json()],
            is_right=is_typed_json,
            floor=fastapi,
            ours=echo,
            loads=(load,),
            targets={(each.name, load.label): Target(ratio=2.5) for each in echo},
        )
    ]
    for kind, packed in (("application/json", False), ("application/msgpack", True)):
        word = "msgpack" if packed else "json"
        ours = Contender(name="typed", server="typed", options=("--graph", "regress"))
        made.append(
            Scenario(
                name=f"typed-regress-{word}",
                title=f"a regression model in batches of 32, {word}, against Mosec",
                messages=lambda packed=packed: [regress_body(packed=packed)],  # type: ignore[misc]
                is_right=lambda answer, packed=packed: is_price(answer, packed=packed),  # type: ignore[misc]
                floor=Contender(
                    name="Mosec",
                    server="floor_mosec",
                    options=("--graph", f"regress-{word}"),
                    ready="/",
                ),
                ours=(ours,),
                loads=(load,),
                targets={(ours.name, load.label): Target(ratio=1.2)},
                kind=kind,
            )
        )
    return made


def streams() -> list[Scenario]:
    """Answers of 100 small pieces, 64 at once; the loop's limits are 10 and 15 µs a piece."""
    load = http(64, "different")
    kinds = (
        ("async def", "pieces-async", "thread", None),
        ("thread", "pieces", "thread", 1.0),
        ("process", "pieces", "process", 1.5),
    )
    ours = tuple(
        Contender(name=name, server="typed", options=("--graph", graph, "--executor", executor))
        for name, graph, executor, _ in kinds
    )
    mosec = Contender(name="Mosec", server="floor_mosec", options=("--graph", "pieces"), ready="/")
    fastapi = Contender(name="FastAPI", server="floor_fastapi")
    return [
        Scenario(
            name=name,
            title=f"100 pieces as events, 64 answers at once, against {against}",
            messages=lambda: [pieces_json()],
            is_right=is_pieces,
            floor=floor,
            ours=ours,
            loads=(load,),
            targets={
                (kind, load.label): Target(ratio=ratio, loop_ms=loop_ms)
                for kind, _, _, loop_ms in kinds
            },
            path="/pieces",
        )
        for name, against, floor, ratio in (
            ("streams", "FastAPI's StreamingResponse", fastapi, 3.0),
            ("streams-mosec", "Mosec's SSEWorker", mosec, 2.0),
        )
    ]


def saved_models() -> list[Scenario]:
    """Saved models by the Open Inference Protocol, served by ``penstock serve``."""

    def served(batch: int) -> Contender:
        return Contender(name="serve", server="inference", options=("--batch-size", str(batch)))

    oip = ("--graph", "inference")
    uvicorn, grpc_aio = replace(UVICORN, options=oip), replace(GRPC_AIO, options=oip)
    floors = [("", uvicorn, 0.8, grpc_aio, 5.0)]
    if PROGRAM.exists():
        triton = Contender(name="Triton", server="floor_triton", ready="/v2/health/ready")
        floors.append(("-triton", triton, 1.5, triton, 2.0))
    over_http, over_grpc = http(32, "different"), grpc(32, heads="different")
    made = []
    for suffix, http_floor, http_ratio, grpc_floor, grpc_ratio in floors:
        for protocol, floor, load, ratio in (
            ("HTTP", http_floor, over_http, http_ratio),
            ("gRPC", grpc_floor, over_grpc, grpc_ratio),
        ):
            is_http = protocol == "HTTP"
            message = price_json if is_http else price_message
            form = "JSON" if is_http else "raw bytes"
            what = floor.name if suffix else f"{floor.name} without the model"
            made.append(
                Scenario(
                    name=f"oip-{protocol.lower()}{suffix}",
                    title=f"a model 13-64-1, Open Inference Protocol over {protocol} with {form},"
                    f" against {what}",
                    messages=lambda message=message: [message()],  # type: ignore[misc]
                    is_right=is_price_json if is_http else is_price_message,
                    models=("price",),
                    floor=floor,
                    ours=(served(32),),
                    loads=(load,),
                    targets={("serve", load.label): Target(ratio=ratio)},
                    path=infer_path("price"),
                    method=MODEL_INFER,
                )
            )
    load = grpc(16, heads="different")
    made.append(
        Scenario(
            name="oip-resnet50",
            title="the layers of ResNet-50, Open Inference Protocol over gRPC with raw bytes,"
            " batches of 8, against the bare model",
            messages=resnet50_messages,
            graph="resnet50",
            matches=is_scores_message,
            floor=Contender(name="ONNX Runtime"),
            ours=(served(8),),
            loads=(load,),
            exact=False,
            targets={("serve", load.label): Target(ratio=0.95)},
            seconds=4.0,
            method=MODEL_INFER,
        )
    )
    return made


def ragged() -> list[Scenario]:
    """Texts of 1 to 128 tokens with learned batches, against peers that pad whole batches and that
    run them text by text, and against the bare model text by text.
    """
    over_http, over_grpc = http(32, "different"), grpc(32, heads="different")

    def ours(server: str) -> tuple[Contender, ...]:
        options = ("--graph", "ragged", "--batch-size", "32", "--policy")
        return tuple(
            Contender(name=policy, server=server, options=(*options, policy))
            for policy in ("learned", "fifo")
        )

    def scenario(name: str, floor: Contender, load: Load, ratio: float, title: str) -> Scenario:
        is_http = load is over_http
        return Scenario(
            name=f"ragged-{name}",
            title=f"texts of 1 to 128 tokens, {title}",
            messages=token_texts if is_http else token_messages,
            graph="ragged",
            matches=is_topic_text if is_http else is_scores_message,
            floor=floor,
            ours=ours("reader" if is_http else "inference"),
            loads=(load,),
            exact=False,
            targets={("learned", load.label): Target(ratio=ratio)},
            path="/reader",
            method=MODEL_INFER,
        )

    made = [
        scenario(
            "bare",
            Contender(name="ONNX Runtime", options=("--one-by-one",)),
            over_grpc,
            0.6,
            "Open Inference Protocol, against the bare model text by text",
        )
    ]
    for graph, words in (("ragged", "in padded batches"), ("ragged-one", "text by text")):
        mosec = Contender(name="Mosec", server="floor_mosec", options=("--graph", graph), ready="/")
        made.append(scenario(f"mosec{graph[6:]}", mosec, over_http, 1.25, f"against Mosec {words}"))
        if PROGRAM.exists():
            ready = "/v2/health/ready"
            triton = Contender(
                name="Triton", server="floor_triton", options=("--graph", graph), ready=ready
            )
            made.append(
                scenario(f"triton{graph[6:]}", triton, over_grpc, 1.25, f"against Triton {words}")
            )
    return made


def all_scenarios() -> list[Scenario]:
    """Every scenario, the main ones first."""
    return [
        *heads(),
        *models(),
        *saved_models(),
        *ragged(),
        *typed(),
        *one_at_a_time(),
        *large(),
        *ops(),
        instruments(),
        callers(),
        *streams(),
        client(),
    ]
