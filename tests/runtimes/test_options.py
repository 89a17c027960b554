"""What becomes of options that this machine cannot obey."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    """Of a machine with one card and without TensorRT; on the CPU in fp32 only."""

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
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModelOptions]:
    entry = metadata.EntryPoint("toy", f"{__name__}:ToyRuntime", runtime.ENTRY_POINTS)
    entries = metadata.EntryPoints([entry])
    monkeypatch.setattr(runtime.metadata, "entry_points", entries.select)
    (tmp_path / "m.toy").touch()

    def options(missing_device: str = "cpu", **given: Any) -> ModelOptions:
        path = str(tmp_path / "m.toy")
        return ModelOptions(path=path, missing_device=missing_device, **given)

    return options


@pytest.mark.parametrize(
    ("given", "left", "place", "keys"),
    [
        # A card and a precision that are there.
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
def test_what_is_not_there_gives_way(
    asked: Callable[..., ModelOptions],
    given: dict[str, Any],
    left: dict[str, Any],
    place: str | None,
    keys: Sequence[str],
) -> None:
    options, note = settled(asked(**given))
    assert options == asked(**given | left)
    if place is None:
        assert note is None
    else:
        assert note is not None
        begins = f"runs on {place}, as missing_device: cpu allows: local_service_conf.{keys[0]}: "
        assert note.startswith(begins)
        assert [part.split(":")[0] for part in note.split("local_service_conf.")[1:]] == keys
    assert settled(options) == (options, None)
    assert settled(asked("error", **given)) == (asked("error", **given), None)


def test_other_options_are_as_wrong_as_ever(asked: Callable[..., ModelOptions]) -> None:
    options = asked(thread_num=0, device_type=3)
    with pytest.raises(ModelError, match="thread_num: is below 1"):
        Model.open(settled(options)[0])


def test_a_card_beyond_those_that_there_are_is_found_when_the_model_is_opened(
    asked: Callable[..., ModelOptions],
) -> None:
    assert Model.open(asked(devices=("0",), precision="fp16")).notes == ()
    model = Model.open(asked(devices=("1",), precision="fp16"))
    assert model.notes == (model.fallback,)
    assert model.fallback == (
        "runs on the CPU in fp32, as missing_device: cpu allows: local_service_conf.devices:"
        " card 1 was requested, but Toy sees 1 here;"
        " local_service_conf.precision: fp16 is for cards"
    )
    with pytest.raises(MissingDevice, match="card 1 was requested, but Toy sees 1 here"):
        Model.open(asked("error", devices=("1",)))
