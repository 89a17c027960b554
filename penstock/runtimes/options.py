"""Checks of ModelOptions that several runtimes make: threads, devices, keys without effect."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from penstock.runtimes.runtime import ModelOptions, OptionProblem

CPU: Final = 0
GPU: Final = 1
TENSORRT: Final = 2

_DEVICES: Final = {
    CPU: "CPU",
    GPU: "GPU",
    TENSORRT: "GPU with TensorRT",
    3: "ARM CPU",
    4: "Kunlun XPU",
    5: "Ascend 310",
    6: "Ascend 910",
}

ONEDNN: Final = (
    "use_mkldnn",
    "mkldnn_cache_capacity",
    "mkldnn_op_list",
    "mkldnn_bf16_op_list",
)
"""Keys that only a library with oneDNN as one of its choices can obey."""

TENSORRT_ONLY: Final = ("min_subgraph_size", "dynamic_shape_info")
"""Keys that only TensorRT obeys."""


def on_cpu(options: ModelOptions) -> bool:
    """Whether the model shall run on the CPU."""
    return options.device_type == CPU or (options.device_type == -1 and not options.devices)


def thread_problems(options: ModelOptions) -> list[OptionProblem]:
    """What is wrong with ``thread_num``."""
    if options.thread_num >= 1:
        return []
    return [OptionProblem(key="thread_num", text=f"{options.thread_num} is below 1")]


def device_problems(
    options: ModelOptions, library: str, kinds: Collection[int], no_cards: str | None
) -> list[OptionProblem]:
    """What is wrong with ``device_type`` and ``devices``.

    Args:
        options: what is asked for.
        library: its name for people.
        kinds: the types of devices that the runtime can drive.
        no_cards: why the installed library reaches no card, to be read after "but"; None if it may.
    """
    kind = options.device_type
    if kind != -1 and kind not in kinds:
        what = _DEVICES.get(kind)
        reason = f"({what}) is not available with {library}" if what else "is unknown"
        usable = " or ".join(f"{each} ({_DEVICES[each]})" for each in sorted(kinds))
        return [OptionProblem(key="device_type", text=f"{kind} {reason}; use {usable}")]
    if on_cpu(options):
        return []
    if not options.devices:
        text = f"device_type {kind} needs the id of a card, such as '0'"
    else:
        card = options.devices[0]
        if not (card.isascii() and card.isdigit()):
            text = f"{card!r} is not the id of a card, such as '0'"
        elif no_cards is not None:
            text = f"card {card} was asked for, but {no_cards}"
        else:
            return []
    return [OptionProblem(key="devices", text=text)]


def without_effect(options: ModelOptions, keys: Iterable[str], library: str) -> tuple[str, ...]:
    """A note for each of the keys that somebody has written down."""
    default = ModelOptions(path="")
    return tuple(
        f"local_service_conf.{key} has no effect with {library}"
        for key in keys
        if getattr(options, key) != getattr(default, key)
    )
