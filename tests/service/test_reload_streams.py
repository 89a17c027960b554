"""Streams that are open when the code of their service is reloaded."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from penstock.api.call import ENDING
from penstock.api.stream_call import CUT
from penstock.protocols.standard_messages import inference_messages
from penstock.supervisor.reload import reload_process
from tests.service.scripts import PENSTOCK, fetch, until
from tests.services.process import ServiceProcess, running

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

SCRIPT = """
import pathlib, time
from collections.abc import Iterator
from penstock import App

app = App("ticks", supervised=True, drain_timeout={drain})


@app.route("/ticks", workers=4)
def ticks(gate: str) -> Iterator[int]:
    yield {version}
    while not pathlib.Path(gate).exists():
        time.sleep(0.01)
        yield {version}
    yield -1
"""


def write(folder: Path, version: int, drain: float) -> Path:
    script = folder / "service.py"
    script.write_text(SCRIPT.format(version=version, drain=drain))
    return script


class Events:
    """An answer of server-sent events, which has begun."""

    def __init__(self, server: ServiceProcess, gate: Path) -> None:
        self._client = httpx.Client(timeout=60, trust_env=False)
        self._answer = self._client.send(
            self._client.build_request(
                "POST", f"{server.http_url}/ticks", json={"gate": str(gate)}
            ),
            stream=True,
        )
        self._lines = self._answer.iter_lines()
        self.first = next(self._lines)

    def rest(self) -> tuple[list[str], bool]:
        """The lines that follow, and whether the answer is complete."""
        lines = []
        try:
            for line in self._lines:
                lines.append(line)
        except httpx.RemoteProtocolError:
            return lines, False
        return lines, True

    def close(self) -> None:
        self._client.close()


def test_events_go_on_until_drain_timeout_and_then_end_with_an_error(tmp_path: Path) -> None:
    gate, never = tmp_path / "gate", tmp_path / "never"
    with running(write(tmp_path, 1, 8.0), command=PENSTOCK) as server:
        with closing(Events(server, gate)) as short, closing(Events(server, never)) as long:
            assert (short.first, long.first) == ("data: 1", "data: 1")
            write(tmp_path, 2, 8.0)
            reload_process(server.pid, 60)
            with closing(Events(server, gate)) as new:
                assert new.first == "data: 2"
                gate.touch()
                for each in (short, new):
                    lines, complete = each.rest()
                    assert lines[-2:] == ["data: -1", ""]
                    assert complete
            lines, complete = long.rest()
            assert lines[-3] == "event: error"
            error = json.loads(lines[-2].removeprefix("data: "))
            assert error["error"] == "closed", error
            assert error["message"] == CUT
            assert not complete
        until(lambda: len(server.descendants()) == 2, "the engine and the template are left")
        assert server.stop() == 0


def test_a_stream_of_grpc_is_answered_and_then_ends_with_unavailable(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with running(write(tmp_path, 1, 30.0), command=PENSTOCK) as server:
        request_class, answer_class = inference_messages("ModelStreamInfer")
        sent: queue.Queue[Any] = queue.Queue()

        def requests() -> Iterator[Any]:
            yield from iter(sent.get, None)

        def ask() -> None:
            request = request_class(model_name="ticks")
            tensor = request.inputs.add(name="gate", datatype="BYTES", shape=[1])
            tensor.contents.bytes_contents.append(str(gate).encode())
            sent.put(request)

        def version(answer: Any) -> int:
            assert not answer.error_message
            return int(answer.infer_response.outputs[0].contents.int64_contents[0])

        with grpc.insecure_channel(server.rpc_endpoint) as channel:
            call = channel.stream_stream(
                "/inference.GRPCInferenceService/ModelStreamInfer",
                request_serializer=request_class.SerializeToString,
                response_deserializer=answer_class.FromString,
            )
            stream = call(requests(), timeout=60)
            ask()
            assert version(next(stream)) == 1
            write(tmp_path, 2, 30.0)
            reload_process(server.pid, 60)
            gate.touch()
            found: list[int] = []
            with pytest.raises(grpc.RpcError) as raised:
                found.extend(map(version, stream))
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            assert raised.value.details() == ENDING
            assert found[-1] == -1
            sent.put(None)
        assert fetch(f"{server.http_url}/readyz").status == 200
