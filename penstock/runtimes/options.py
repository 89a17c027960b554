"""Checks of ModelOptions that several runtimes share: threads, devices, keys without effect; and
the fallback of options that this machine does not support.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from typing import Final

from penstock.errors import MissingDevice
from penstock.runtimes.runtime import ModelOptions, OptionProblem, model_problems

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
"""Keys that only libraries with optional oneDNN support."""

TENSORRT_ONLY: Final = ("min_subgraph_size", "dynamic_shape_info")
"""Keys that only TensorRT supports."""


def on_cpu(options: ModelOptions) -> bool:
    """Whether the options are for the CPU."""
    return options.device_type == CPU or (options.device_type == -1 and not options.devices)


def thread_problems(options: ModelOptions) -> list[OptionProblem]:
    """Return the problem of ``thread_num``, if any."""
    if options.thread_num >= 1:
        return []
    return [OptionProblem(key="thread_num", text=f"{options.thread_num} is below 1")]


def device_problems(
    options: ModelOptions, library: str, kinds: Collection[int], no_cards: str | None
) -> list[OptionProblem]:
    """Return the problems of ``device_type`` and ``devices``.

    Args:
        options: the options.
        library: the library's name.
        kinds: the supported device types.
        no_cards: why the installed library cannot use a GPU, as text after "but"; None if it can.
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
            text = f"card {card} was requested, but {no_cards}"
        else:
            return []
    return [OptionProblem(key="devices", text=text)]


def check_card(options: ModelOptions, cards: int, library: str) -> None:
    """Check that the GPU exists.

    Args:
        options: for a GPU, without ``device_problems``.
        cards: number of GPUs that this process sees.
        library: the library's name.

    Raises:
        MissingDevice: the GPU does not exist.
    """
    if int(options.devices[0]) >= cards:
        text = f"card {options.devices[0]} was requested, but {library} sees {cards} here"
        raise MissingDevice(str(OptionProblem(key="devices", text=text)))


def settled(
    options: ModelOptions,
    missing: str | None = None,
    named: Callable[[OptionProblem], str] = str,
) -> tuple[ModelOptions, str | None]:
    """Apply the fallbacks of ``missing_device: cpu`` on this machine.

    Missing TensorRT falls back to the GPU, a missing GPU or other device to the CPU, an unsupported
    precision to fp32.

    Args:
        options: the configured options.
        missing: why the GPU cannot be used, if known.
        named: the text of a problem, with its key or flag.

    Returns:
        The options, and a sentence without subject about the fallback and its reason; None without
        a fallback.
    """
    if options.missing_device != "cpu":
        return options, None
    why = [] if missing is None else [missing]
    for tried in _places(options, at_once_cpu=missing is not None):
        problems = model_problems(tried)
        placement = [each for each in problems if each.key in PLACEMENT]
        if not placement:
            break
        why += map(named, placement[: not why])
    numbers = [named(each) for each in problems if each.key in _NUMBERS]
    if not why and not numbers:
        return options, None
    place = "on the CPU" if on_cpu(tried) else "on the card"
    if numbers:
        tried = replace(tried, precision="fp32", use_calib=False)
        place += " in fp32"
    because = "; ".join(why + numbers)
    return tried, f"runs {place}, as missing_device: cpu allows: {because}"


PLACEMENT: Final = ("device_type", "devices")
"""Keys whose problems depend on the machine that opens the model."""
_NUMBERS: Final = ("precision", "use_calib")


def _places(options: ModelOptions, *, at_once_cpu: bool) -> Iterator[ModelOptions]:
    if not at_once_cpu:
        yield options
        if options.device_type == TENSORRT:
            yield replace(options, device_type=GPU)
    yield replace(options, device_type=CPU, devices=())


def without_effect(options: ModelOptions, keys: Iterable[str], library: str) -> tuple[str, ...]:
    """Return a note for each of these keys that is set."""
    default = ModelOptions(path="")
    return tuple(
        f"local_service_conf.{key} has no effect with {library}"
        for key in keys
        if getattr(options, key) != getattr(default, key)
    )
