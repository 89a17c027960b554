"""Command lines of the original's packages that need no model."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from paddle_serving_app import package, trace
from paddle_serving_client.convert import main as convert
from paddle_serving_server import serve
from paddle_serving_server.util import ArgsParser
from penstock.version import VERSION


def test_list_model_lists_the_originals_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert package.main(["--list_model"]) == 0
    names = capsys.readouterr().out.split()
    assert len(names) == 15
    assert {"lac", "ocr_rec", "deeplabv3+cityscapes"} <= {*names}


def test_get_model_prints_the_models_address_and_downloads_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert package.main(["--get_model", "lac"]) == 1
    captured = capsys.readouterr()
    assert captured.err == "nothing was downloaded; get lac.tar.gz from\n"
    assert captured.out.endswith("/paddle_hub_models/text/LexicalAnalysis/lac.tar.gz\n")
    assert package.main(["--get_model", "none"]) == 1
    assert "unknown model 'none'" in capsys.readouterr().err
    assert package.main(["--tutorial", "lac"]) == 0


def test_profile_lines_are_converted_to_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log, out = tmp_path / "log", tmp_path / "out"
    log.write_text(
        "a line of something else\n"
        "PROFILE\tpid:7\tpy_prepro_0:1000 py_prepro_1:1250 op0_0:1300 op0_1:1900 \n"
    )
    assert trace.main(["--profile_file", str(log), "--trace_file", str(out)]) == 0
    event = {"tid": 0, "pid": "7"}
    assert json.loads(out.read_text()) == [
        {"name": "py_prepro", "ts": "1000", "ph": "B", **event},
        {"name": "py_prepro", "ts": "1250", "ph": "E", **event},
        {"name": "op0", "ts": "1300", "ph": "B", **event},
        {"name": "op0", "ts": "1900", "ph": "E", **event},
    ]
    assert trace.main(["--profile_file", str(out), "--trace_file", str(log)]) == 1
    assert f"{out} has no profile lines" in capsys.readouterr().err
    assert trace.main(["--profile_file", str(tmp_path / "none")]) == 1
    assert "none" in capsys.readouterr().err


def test_check_prints_missing_packages(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_paddle(name: str) -> str:
        if name.startswith("paddle"):
            raise PackageNotFoundError(name)
        return "1.2.3"

    monkeypatch.setattr(serve, "version", no_paddle)
    assert serve.main(["check"]) == 1
    captured = capsys.readouterr().out
    assert f"penstock          {VERSION}\n" in captured
    assert "paddlepaddle      not installed" in captured
    assert "install 'penstock-paddle[cpu]'" in captured


@pytest.mark.parametrize("text", ["maybe", ""])
def test_show_proto_is_true_or_false(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        convert(["--dirname", ".", "--show_proto", text])
    assert "true or false" in capsys.readouterr().err


def test_values_of_the_command_line_override_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yml"
    file.write_text("rpc_port: 9998\nop:\n  uci:\n    local_service_conf: {model_config: a}\n")
    opts = ["rpc_port=9999", "op.uci.concurrency=2", "op.uci.local_service_conf.model_config=b"]
    args = ArgsParser().parse_args(["-c", str(file), "-o", *opts, "dag.is_thread_op=False"])
    assert args.conf_dict == {
        "rpc_port": 9999,
        "op": {"uci": {"concurrency": 2, "local_service_conf": {"model_config": "b"}}},
        "dag": {"is_thread_op": False},
    }
    with pytest.raises(SystemExit):
        ArgsParser().parse_args(["-c", str(file), "-o", "rpc_port"])
    assert "-o rpc_port: write key=value" in capsys.readouterr().err
