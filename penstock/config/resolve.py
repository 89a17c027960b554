"""Merges one op's options from its constructor and its entry in YAML.

Precedence for every parameter: flag, constructor, YAML, default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal

from pydantic import ValidationError

from penstock.batching.decision import Verify
from penstock.batching.dispatch import HAND_OVER_BUDGET, LEARNED_BUDGET
from penstock.batching.joining import Joining
from penstock.batching.padding import Axes, Padding
from penstock.batching.rows import Declared
from penstock.client.endpoints import parse_endpoints
from penstock.client.remote_options import RemoteKind, RemoteOptions
from penstock.client.tls import Tls
from penstock.config.checks import unavailable_op
from penstock.config.op import OpConfig
from penstock.config.problems import dotted, explain
from penstock.errors import ConfigError
from penstock.executors.kinds import PROCESS, THREAD, ExecutorKind, kind_named
from penstock.executors.probing import PROBE_SECONDS
from penstock.executors.ray.options import USUAL, RayOptions
from penstock.executors.work import WorkOptions
from penstock.ops.words import PARAMETERS, WORDS, Given
from penstock.protocols import media
from penstock.runtimes.runtime import ModelOptions

_THREADS = 2
"""Default of a model's ``thread_num``; the original's."""


_SERVERS: Final = ("brpc", "grpc")

_KINDS: Final[dict[str | None, RemoteKind]] = {
    None: "model",
    "grpc": "model",
    "brpc": "general_model",
    "pipeline_grpc": "pipeline",
}
"""The kind of the remote model, by ``client_type``."""

CONSTRUCTOR: Final = (
    *(each for each in PARAMETERS if each not in ("local_service_handler", "jump_to_ops")),
    "rows",
    "shared_outputs",
    "verify_batches",
)
"""Keys that are also attributes of an op, most of them parameters of its constructor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpOptions(WorkOptions):
    """How one op runs: the keys of its entry, resolved. Times are seconds; None is no limit.

    Attributes:
        name: the op's name.
        kill_late: whether the worker process of a call that exceeds ``timeout`` is killed.
        memory_limit: of a worker process, in bytes.
        window: seconds that the first sample waits for its batch to fill; None is no wait, as
            always with ``batch_size`` 1.
        policy: how batches are chosen, see the key of this name.
        splits: whether a request with more rows than ``batch_size`` is split.
        overrun: whether a batch takes a request that makes it longer than ``batch_size``.
        media: the media type of bodies on ``socket``.
        cpus: CPU sets of its worker processes, one for each, in turn; empty is all CPUs.
        thread_num: CPU threads that one run of its model may use.
        fetch_list: outputs to fetch; None is all.
        rows: the row axes that the user declared.
        shared_outputs: outputs that the user says are shared.
        verify: see ``batching.decision``.
        verify_seconds: the most seconds of the probe.
        examples: files with inputs for the probe.
        model: the op's local model, or that of a server started for it; None is no model, or a
            remote one.
        versions: which version of its model runs, if the model's path is a folder of versions:
            ``latest`` or a number; None: the path is that of the model.
        ray: what its workers need, and the cluster that places them, with ``executor: ray``.
        model_version, model_place: of a model with versions: the one that runs, and the folder or
            URL that has it; None until it is chosen. The path is then that of a copy.
    """

    name: str
    concurrency: int = 1
    kill_late: bool = False
    memory_limit: int | None = None
    max_batches: int | None = None
    window: float | None = None
    splits: bool = False
    overrun: bool = False
    policy: Literal["fifo", "learned"] = "fifo"
    executor: ExecutorKind = THREAD
    socket: str | None = None
    media: str = media.JSON
    cpus: tuple[frozenset[int], ...] = ()
    thread_num: int = _THREADS
    fetch_list: tuple[str, ...] | None = None
    rows: Declared | None = None
    shared_outputs: tuple[str, ...] = ()
    verify: Verify = "auto"
    verify_seconds: float = PROBE_SECONDS
    examples: tuple[str, ...] = ()
    model: ModelOptions | None = None
    versions: str | None = None
    ray: RayOptions = USUAL
    model_version: str | None = None
    model_place: str | None = None

    @property
    def model_shown(self) -> str | None:
        """What messages call the path of its model; None without one."""
        if self.model_version is not None:
            return f"{self.model_place}/{self.model_version}"
        return None if self.model is None else self.model.path

    @property
    def starts_server(self) -> bool:
        """Whether a model server will be started for it, whose address is not known yet."""
        return self.remote is not None and not self.remote.endpoints


def resolve_op(
    name: str,
    constructor: Mapping[str, Any],
    yaml: OpConfig | None,
    executor: ExecutorKind = THREAD,
    cpus: int = _THREADS,
    model_path: str | None = None,
    given_as: Given | None = None,
    usual_workers: int = 1,
) -> OpOptions:
    """Merge the constructor's values and the op's entry in YAML.

    Args:
        name: the op's name, for messages.
        constructor: the constructor's values of ``CONSTRUCTOR``. None, an empty list and ``retry``
            0 mean "not given"; a time of -1 overrides YAML with no limit.
        yaml: the op's entry of a loaded configuration, or None.
        executor: the default executor.
        cpus: number of CPUs for the op's workers.
        model_path: path of the constructor's model; a flag may override it.
        given_as: how the constructor's values were written, if in the short form.
        usual_workers: the default of ``concurrency``; external workers are as many as connect.

    Raises:
        ConfigError: a value of the constructor is invalid or unavailable.
    """
    given = _given(constructor)
    code = _checked(name, given, given_as)
    entry = yaml if yaml is not None else OpConfig()

    def source(key: str) -> OpConfig:
        return code if key in given and key not in entry.forced else entry

    batch_size = source("batch_size").batch_size
    window = source("auto_batching_timeout").window if batch_size > 1 else None
    # Whoever says how long a request waits has found out which batches are good.
    policy = entry.policy or ("learned" if batch_size > 1 and window is None else "fifo")
    fetch_list = _fetch_list(code, entry, model_path)
    concurrency = source("concurrency").concurrency
    place = executor if entry.executor is None else kind_named(entry.executor)
    is_set = "concurrency" in given or "concurrency" in entry.model_fields_set
    if not is_set and not place.needs_socket:
        concurrency = usual_workers
    thread_num = entry.local_service_conf.thread_num
    if thread_num is None:
        # More threads than CPUs gain nothing: a model of two threads on one core took a fifth more
        # CPU time a request than with one thread.
        thread_num = _threads(entry, place, concurrency, cpus)
    client_type = source("client_type").client_type
    remote = _remote(
        name, source("server_endpoints"), client_type, entry, source("client_config"), fetch_list
    )
    model = None
    if remote is None or not remote.endpoints:
        model = _model(entry, fetch_list, thread_num, model_path)
    if remote is not None and not remote.endpoints and model is None:
        text = (
            f"op.{name}.local_service_conf.client_type: a model server needs model_config: the"
            " model that it serves"
        )
        raise ConfigError([text])
    return OpOptions(
        name=name,
        concurrency=concurrency,
        timeout=source("timeout").timeout,
        kill_late=entry.on_timeout == "kill",
        memory_limit=None if entry.memory_limit_mib is None else entry.memory_limit_mib << 20,
        max_batches=entry.max_batches,
        retry=source("retry").retry,
        batch_size=batch_size,
        policy=policy,
        hand_over=_hand_over(policy, place, concurrency),
        window=window,
        splits=entry.batch_rows and entry.allow_split_request and not entry.enable_overrun,
        overrun=entry.batch_rows and entry.enable_overrun,
        joining=_joining(entry),
        executor=place,
        seats=entry.seats,
        socket=entry.socket,
        media=media.MSGPACK if entry.socket_format == "msgpack" else media.JSON,
        isolate_errors=entry.isolate_errors,
        retry_on_crash=entry.retry_on_crash,
        cpus=entry.cpus,
        thread_num=thread_num,
        fetch_list=fetch_list,
        rows=source("rows").rows,
        shared_outputs=source("shared_outputs").shared_outputs,
        verify=source("verify_batches").verify_batches,
        verify_seconds=entry.verify_seconds,
        examples=entry.examples,
        model=model,
        remote=remote,
        versions=entry.versions,
        ray=RayOptions(**dict(entry.ray)),
    )


def _hand_over(policy: str, place: ExecutorKind, concurrency: int) -> float:
    """See WorkOptions. Where there are several workers, the next idle one takes the next batch."""
    if policy == "learned" and concurrency == 1 and place in (THREAD, PROCESS):
        return LEARNED_BUDGET
    return HAND_OVER_BUDGET


def advice(worker_num: int | None, ops: Iterable[OpOptions]) -> list[str]:
    """Warnings about resolved options that are valid but suspicious."""
    largest = max(ops, key=lambda each: each.batch_size, default=None)
    if worker_num is None or largest is None or worker_num >= largest.batch_size:
        return []
    return [
        f"worker_num is {worker_num}, below the batch_size {largest.batch_size} of"
        f" op.{largest.name}: its batches can never be full"
    ]


def _given(constructor: Mapping[str, Any]) -> dict[str, Any]:
    listed = {key: list(v) if isinstance(v, tuple) else v for key, v in constructor.items()}
    if listed.get("retry") == 0:
        del listed["retry"]
    return {key: value for key, value in listed.items() if value is not None and value != []}


def _checked(name: str, given: dict[str, Any], given_as: Given | None) -> OpConfig:
    """Check the constructor's values with the schema of YAML."""
    problems = []
    try:
        code = OpConfig.model_validate(given)
    except ValidationError as error:
        words = {} if given_as is None else WORDS
        for each in explain(error):
            key = dotted(each.path)
            problems.append(f"{words.get(key, key)}: {each.text}")
    else:
        problems += [f"{dotted(each.path)}: {each.text}" for each in unavailable_op(code)]
    if problems:
        where = f"constructor of op {name}" if given_as is None else given_as.where
        raise ConfigError([f"{where}: {each}" for each in problems])
    return code


def _fetch_list(code: OpConfig, entry: OpConfig, model_path: str | None) -> tuple[str, ...] | None:
    local = entry.local_service_conf
    within = None if local.path is None and model_path is None else local.fetch_list
    if "local_service_conf.fetch_list" in entry.forced:
        lists = (within, code.fetch_list, entry.fetch_list)
    elif "fetch_list" in entry.forced:
        lists = (entry.fetch_list, code.fetch_list, within)
    else:
        lists = (code.fetch_list, within, entry.fetch_list)
    return next((each for each in lists if each), None)


def _remote(
    name: str,
    endpoints: OpConfig,
    client_type: str | None,
    entry: OpConfig,
    conf: OpConfig,
    fetch_list: tuple[str, ...] | None,
) -> RemoteOptions | None:
    """The remote model of the op; without endpoints, one in a server that will be started."""
    where = f"op.{name}"
    listed = endpoints.server_endpoints
    if entry.server_token is not None and (not listed or client_type == "brpc"):
        why = (
            "baidu_std (client_type brpc) carries no token" if listed else "needs server_endpoints"
        )
        raise ConfigError([f"{where}.server_token: {why}"])
    tls = _tls(where, entry, bool(listed) and client_type != "brpc")
    if not listed:
        if entry.local_service_conf.client_type in _SERVERS:
            return RemoteOptions(
                kind="model",
                endpoints=(),
                name=None,
                op=name,
                fetch_list=fetch_list,
                client_config=conf.client_config,
            )
        if client_type in (None, "local_predictor"):
            return None
        text = f"{where}.client_type: {client_type} needs server_endpoints: the host:port to call"
        raise ConfigError([text])
    if client_type == "local_predictor":
        text = f"{where}.client_type: local_predictor calls no server: leave out server_endpoints"
        raise ConfigError([text])
    return RemoteOptions(
        kind=_KINDS[client_type],
        endpoints=parse_endpoints(listed),
        name=entry.model_name,
        op=name,
        fetch_list=fetch_list,
        client_config=conf.client_config,
        encryption_key=entry.encryption_key if entry.use_encryption_model else None,
        token=entry.server_token,
        tls=tls,
    )


def _tls(where: str, entry: OpConfig, possible: bool) -> Tls | None:
    """The files for TLS with the servers of an op; None for connections without it."""
    files = {
        key: getattr(entry, key)
        for key in ("server_key_file", "server_cert_file", "server_ca_file")
        if getattr(entry, key) is not None
    }
    if files and not possible:
        text = f"{where}.{min(files)}: TLS needs server_endpoints that are called by gRPC"
        raise ConfigError([text])
    for key, needed in (
        ("server_key_file", "server_cert_file"),
        ("server_cert_file", "server_ca_file"),
    ):
        if key in files and needed not in files:
            raise ConfigError([f"{where}.{key}: needs {needed}"])
    if not files:
        return None
    certificate = entry.server_cert_file
    return Tls(
        ca_file=entry.server_ca_file,
        cert_file=certificate,
        key_file=entry.server_key_file or certificate,
    )


def _threads(entry: OpConfig, place: ExecutorKind, workers: int, cpus: int) -> int:
    """The threads of a model: worker processes together use at most the number of CPUs, and one
    that Ray places those that it is given.
    """
    if place.name == "ray":
        return max(1, int(entry.ray.num_cpus))
    if not place.own_processes:
        return min(_THREADS, cpus)
    if sets := entry.cpus:
        sharing = -(-workers // len(sets))
        each = min(len(each) for each in sets) // sharing
    else:
        each = cpus // workers
    return max(1, min(_THREADS, each))


def _joining(entry: OpConfig) -> Joining | None:
    pad = entry.pad
    if not pad.on:
        return Joining(by_rows=True) if entry.batch_rows else None
    padding = Padding(
        inputs={name: _axes(given) for name, given in pad.inputs.items()} or None,
        outputs={name: _axes(given) for name, given in pad.outputs.items()},
        values=pad.values,
        sizes=pad.sizes,
        max_elements=pad.max_elements,
        min_similarity=Fraction(str(pad.min_similarity)),
    )
    return Joining(by_rows=entry.batch_rows, padding=padding)


def _axes(given: Sequence[str | int]) -> Axes:
    """The names of an array's axes; the first, and those of a fixed size, are never padded."""
    return tuple(
        each if index and isinstance(each, str) else None for index, each in enumerate(given)
    )


def _model(
    entry: OpConfig,
    fetch_list: tuple[str, ...] | None,
    thread_num: int,
    model_path: str | None,
) -> ModelOptions | None:
    local = entry.local_service_conf
    forced = "local_service_conf.model_config" in entry.forced
    path = local.path if forced or model_path is None else model_path
    if path is None:
        return None
    return ModelOptions(
        path=path,
        fetch_list=fetch_list,
        thread_num=thread_num,
        device_type=local.device_type,
        devices=local.device_ids,
        mem_optim=local.mem_optim,
        ir_optim=local.ir_optim,
        precision=local.precision,
        use_calib=local.use_calib,
        use_mkldnn=local.use_mkldnn,
        mkldnn_cache_capacity=local.mkldnn_cache_capacity,
        mkldnn_op_list=local.mkldnn_op_list or (),
        mkldnn_bf16_op_list=local.mkldnn_bf16_op_list or (),
        min_subgraph_size=local.min_subgraph_size,
        encryption_key=entry.encryption_key if entry.use_encryption_model else None,
    )
