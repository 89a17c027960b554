"""The keys for more than one machine: Ray, and the external store."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field

from penstock.config.section import MAX_INT32, Count, Seconds, Section, Text
from penstock.executors.external_store.rules import parse_address


def _ray_address(value: str) -> str:
    if value.startswith("ray://"):
        raise ValueError(
            "must be auto or host:port: the service's machine is a node of the cluster, and does"
            " not use Ray's client (ray://)"
        )
    host, _, port = value.rpartition(":")
    if value != "auto" and not (host and port.isascii() and port.isdecimal()):
        raise ValueError("must be auto, or host:port of the cluster's head")
    return value


def _store_url(value: str) -> str:
    parse_address(value)
    return value


StoreUrl: TypeAlias = Annotated[str, AfterValidator(_store_url)]


class ExternalStoreConfig(Section):
    """``dag.external_store_options``: how the external store is used."""

    never_blank = frozenset({"password", "ca_file", "cert_file", "key_file", "shared_secret"})

    min_bytes: Count = Field(
        default=1 << 20, description="Size from which on an array, or bytes, goes to the store."
    )
    timeout: Seconds = Field(
        default=5.0,
        description="Seconds within which the store must answer a command, which carries at most"
        " 64 MiB.",
    )
    password: Text | None = Field(
        default=None,
        description="Where the password is, if it is not in the URL: a file, or `env:NAME`. Without"
        " spaces.",
    )
    ca_file: Text | None = Field(
        default=None,
        description="PEM file of the authorities of the store's certificate (`rediss`); by default"
        " those of the system.",
    )
    cert_file: Text | None = Field(
        default=None, description="PEM file of our certificate, if the store asks for one."
    )
    key_file: Text | None = Field(
        default=None, description="PEM file of its key, if `cert_file` does not contain it."
    )
    shared_secret: Text | None = Field(
        default=None,
        description="Where the secret is that this service shares with other Penstocks that it"
        " calls, or that call it, and that use the same store: a file, or `env:NAME`. At least 16"
        " characters, without spaces. Values between remote ops then stay in the store; see"
        " [many-machines.md](many-machines.md#between-services).",
    )


class RayConfig(Section):
    """``op.<name>.ray``: the cluster that places the op's workers, and what each of them needs."""

    address: Annotated[str, AfterValidator(_ray_address)] | None = Field(
        default=None,
        description="The cluster: `auto`, the one of which this machine is a node, or `host:port`"
        " of its head. Without the key: a cluster of this machine alone, which starts and ends with"
        " the service.",
    )
    namespace: Text | None = Field(
        default=None,
        description="Namespace of the service in the cluster. Without the key: one of its own.",
    )
    num_cpus: Annotated[float, Field(ge=0, le=MAX_INT32)] = Field(
        default=1.0, description="CPUs that a worker takes from its node's."
    )
    num_gpus: Annotated[float, Field(ge=0, le=MAX_INT32)] = Field(
        default=0.0,
        description="GPUs of a worker, maybe a part of one; Ray shows it only these"
        " (`CUDA_VISIBLE_DEVICES`).",
    )
    resources: dict[str, Annotated[float, Field(gt=0, le=MAX_INT32)]] = Field(
        default={},
        description="Further resources of a worker, by their names in the cluster, such as `{tpu:"
        ' 1}`; `{"node:192.0.2.7": 0.001}` places it on that node.',
    )
    placement: Literal["default", "spread"] = Field(
        default="default",
        description="`spread` distributes the workers over the nodes; `default` fills a node by"
        " half first.",
    )
    runtime_env: dict[str, Any] = Field(
        default={},
        description="Ray's environment of the workers, such as `{working_dir: ., env_vars: {A:"
        " b}}`. Without `working_dir` each node must have the program and its models"
        " in the same folder as this machine.",
    )
