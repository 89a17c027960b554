"""Options that this machine does not support, and the fallback of ``missing_device: cpu``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import MissingDevice, ModelError
from penstock.runtimes import runtime
from penstock.runtimes.model import Model
from penstock.runtimes.options import TENSORRT, check_card, device_problems, on_cpu, settled
from penstock.runtimes.runtime import ModelOptions, OptionProblem
from tests.kit.python_session import PythonSession

CARDS = 1


class ToyRuntime:
    """A runtime with one GPU and without TensorRT; on the CPU in fp32 only."""

    name = "toy"

    def can_open(self, path: Path) -> bool:
        return path.suffix == ".toy"

    def problems(self, path: Path, options: ModelOptions) -> list[OptionProblem]:
        kinds = (0, 1, TENSORRT)
        found = device_problems(options, "Toy", kinds, None if CARDS else "it has none")
        if not found and options.device_type == TENSORRT:
            found = [OptionProblem(key="device_type", text="2: without TensorRT")]
        if options.precision != "fp32" and on_cpu(options):
            found.append(OptionProblem(key="precision", text=f"{options.precision} is for cards"))
        if options.use_calib:
            found.append(OptionProblem(key="use_calib", text="is for TensorRT"))
        if options.thread_num < 1:
            found.append(OptionProblem(key="thread_num", text="is below 1"))
        return found

    def open(self, path: Path, options: ModelOptions) -> PythonSession:
        if problems := self.problems(path, options):
            raise ModelError("; ".join(map(str, problems)))
        if not on_cpu(options):
            check_card(options, CARDS, "Toy")
        return PythonSession(lambda feeds: {"options": options}, (), ())


@pytest.fixture
def make_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., ModelOptions]]:
    entry = metadata.EntryPoint("toy", f"{__name__}:ToyRuntime", runtime.ENTRY_POINTS)
    entries = metadata.EntryPoints([entry])
    monkeypatch.setattr(runtime.metadata, "entry_points", entries.select)
    runtime._added.cache_clear()
    (tmp_path / "m.toy").touch()

    def options(missing_device: str = "cpu", **given: Any) -> ModelOptions:
        path = str(tmp_path / "m.toy")
        return ModelOptions(path=path, missing_device=missing_device, **given)

    yield options
    runtime._added.cache_clear()


@pytest.mark.parametrize(
    ("given", "changed", "target", "keys"),
    [
        # An available card and precision.
        ({"devices": ("0",), "precision": "fp16"}, {}, None, []),
        # No TensorRT, but a card.
        (
            {"devices": ("0",), "device_type": 2, "precision": "int8"},
            {"device_type": 1},
            "the card",
            ["device_type"],
        ),
        (
            {"devices": ("0",), "device_type": 2, "use_calib": True},
            {"device_type": 1, "use_calib": False},
            "the card in fp32",
            ["device_type", "use_calib"],
        ),
        # Other hardware.
        (
            {"devices": ("0",), "device_type": 4},
            {"device_type": 0, "devices": ()},
            "the CPU",
            ["device_type"],
        ),
        (
            {"device_type": 6, "precision": "bf16", "use_calib": True},
            {"device_type": 0, "precision": "fp32", "use_calib": False},
            "the CPU in fp32",
            ["device_type", "precision", "use_calib"],
        ),
        # The CPU by choice.
        ({"precision": "fp16"}, {"precision": "fp32"}, "the CPU in fp32", ["precision"]),
    ],
)
def test_unsupported_options_fall_back_to_supported_ones(
    make_options: Callable[..., ModelOptions],
    given: dict[str, Any],
    changed: dict[str, Any],
    target: str | None,
    keys: Sequence[str],
) -> None:
    options, note = settled(make_options(**given))
    assert options == make_options(**given | changed)
    if target is None:
        assert note is None
    else:
        assert note is not None
        beginning = (
            f"runs on {target}, as missing_device: cpu allows: local_service_conf.{keys[0]}: "
        )
        assert note.startswith(beginning)
        assert [part.split(":")[0] for part in note.split("local_service_conf.")[1:]] == keys
    assert settled(options) == (options, None)
    assert settled(make_options("error", **given)) == (make_options("error", **given), None)


def test_the_fallback_does_not_change_other_invalid_options(
    make_options: Callable[..., ModelOptions],
) -> None:
    options = make_options(thread_num=0, device_type=3)
    with pytest.raises(ModelError, match="thread_num: is below 1"):
        Model.open(settled(options)[0])


def test_the_fallback_for_a_missing_card_happens_when_the_model_is_opened(
    make_options: Callable[..., ModelOptions],
) -> None:
    assert Model.open(make_options(devices=("0",), precision="fp16")).notes == ()
    model = Model.open(make_options(devices=("1",), precision="fp16"))
    assert model.notes == (model.fallback,)
    assert model.fallback == (
        "runs on the CPU in fp32, as missing_device: cpu allows: local_service_conf.devices:"
        " card 1 was requested, but Toy sees 1 here;"
        " local_service_conf.precision: fp16 is for cards"
    )
    with pytest.raises(MissingDevice, match="card 1 was requested, but Toy sees 1 here"):
        Model.open(make_options("error", devices=("1",)))
