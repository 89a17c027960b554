"""Routes with external workers, through the whole service, in the test process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import ormsgpack
import pytest
from pydantic import BaseModel

from penstock import App, HttpError, Op, Response
from penstock.errors import ConfigError
from penstock.executors.external.program import WorkerProgram
from penstock.protocols import media
from penstock.service.external_worker import bound_op, worker_program
from penstock.testing import client

ITEMS = 24
WRITE = {media.JSON: orjson.dumps, media.MSGPACK: ormsgpack.packb}
READ = {media.JSON: orjson.loads, media.MSGPACK: ormsgpack.unpackb}


class Item(BaseModel):
    value: int
    slow: bool = False


class Inverse(BaseModel):
    inverse: float


quick = threading.Event()


def invert(items: list[Item]) -> list[Inverse]:
    """Divides one by the value; a batch with a slow item waits for the event ``quick``."""
    if any(each.slow for each in items):
        quick.wait(10)
    return [Inverse(inverse=1 / each.value) for each in items]


def declared(items: list[Item]) -> list[Inverse]:
    raise AssertionError("the service does not run it")


@contextmanager
def worker(
    path: Path, kind: str = media.JSON, function: Any = invert, *, batched: bool = True
) -> Iterator[None]:
    program = WorkerProgram(bound_op(function, batched=batched), str(path), kind)
    thread = threading.Thread(target=program.run)
    thread.start()
    try:
        yield
    finally:
        program.stop()
        thread.join(10)
    assert not thread.is_alive()


@contextmanager
def serving(folder: Path, kind: str, workers: int = 1, **options: Any) -> Iterator[httpx.Client]:
    app, path = App("tests"), folder / "invert.sock"
    name = "msgpack" if kind == media.MSGPACK else "json"
    route = app.route(
        "/invert", batch=ITEMS, executor="external", socket=str(path), socket_format=name, **options
    )
    route(declared)
    with ExitStack() as stack:
        http = stack.enter_context(client(app))
        for _ in range(workers):
            stack.enter_context(worker(path, kind))
        yield http


def send(http: httpx.Client, body: Any, kind: str, timeout: float = 20.0) -> httpx.Response:
    headers = {"content-type": kind, "penstock-timeout": str(timeout)}
    return http.post("/invert", content=WRITE[kind](body), headers=headers)


@pytest.mark.parametrize("kind", [media.JSON, media.MSGPACK])
def test_each_item_of_a_batch_gets_its_own_result(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quick.clear()
    bodies: list[Any] = [{"value": each} for each in range(1, ITEMS + 1)]
    bodies[0]["slow"] = True
    bodies[3], bodies[7], bodies[11] = {"value": 0}, {"value": "x"}, {}
    late = {"value": 1, "slow": True}
    with serving(tmp_path, kind, workers=2) as http, ThreadPoolExecutor(ITEMS) as threads:
        calls = [threads.submit(send, http, body, kind) for body in bodies]
        timed_out = send(http, late, kind, timeout=0.3)
        assert (timed_out.status_code, timed_out.json()["error"]) == (504, "deadline")
        quick.set()
        for index, (body, each) in enumerate(zip(bodies, calls, strict=True)):
            answer = each.result(20)
            if index in (7, 11):
                assert answer.status_code == 422
                assert answer.json()["details"][0]["loc"] == ["body", "value"]
            elif index == 3:
                assert answer.status_code == 500
                error = answer.json()
                assert set(error) == {"error", "message", "id"}
                assert any(error["id"] in record.getMessage() for record in caplog.records)
            else:
                assert answer.headers["content-type"] == kind
                assert READ[kind](answer.content) == {"inverse": 1 / body["value"]}


@pytest.mark.parametrize(
    ("kind", "given", "status"),
    [
        (media.JSON, media.MSGPACK, 415),
        (media.MSGPACK, media.JSON, 415),
        (media.JSON, "multipart/form-data; boundary=b", 415),
        (media.JSON, "application/json; charset=utf-8", 200),
        (media.JSON, "", 200),
        (media.JSON, "image/png", 200),
    ],
)
def test_a_body_is_passed_on_unless_it_has_another_known_media_type(
    kind: str, given: str, status: int, tmp_path: Path
) -> None:
    with serving(tmp_path, kind) as http:
        answer = http.post("/invert", content=b'{"value": 2}', headers={"content-type": given})
        assert answer.status_code == status
        if status == 415:
            assert answer.json()["error"] == "unknown_media_type"


def test_a_reply_has_the_worker_s_media_type_whatever_the_client_accepts(tmp_path: Path) -> None:
    with serving(tmp_path, media.JSON) as http:
        headers = {"accept": media.MSGPACK, "content-type": media.JSON}
        answer = http.post("/invert", content=b'{"value": 2}', headers=headers)
        assert answer.headers["content-type"] == media.JSON
        assert answer.json() == {"inverse": 0.5}


def test_an_external_op_of_a_graph_gets_its_input_s_dict(tmp_path: Path) -> None:
    app, path = App("tests"), tmp_path / "invert.sock"
    options = {"executor": "external", "socket": str(path), "batch_size": 4}
    app.graph("/work", Op("work"), op={"work": options})
    with client(app) as http, worker(path):
        assert http.post("/work", json={"value": 4}).json() == {"inverse": 0.25}
        assert http.post("/work", json={"value": "x"}).status_code == 422


def spell(word: str) -> Iterator[str]:
    for letter in word:
        if letter == "?":
            raise HttpError(418, "no letter")
        yield letter


class SpellOp(Op):
    def process(self, feed_batch: Any, typical_logid: int = 0) -> Any:
        yield AssertionError("the service does not run it")


def test_external_workers_answer_in_pieces(tmp_path: Path) -> None:
    app, path, other = App("tests"), tmp_path / "spell.sock", tmp_path / "op.sock"
    app.post("/spell", executor="external", socket=str(path))(spell)
    options = {"executor": "external", "socket": str(other)}
    app.graph("/graph", SpellOp("work"), op={"work": options})
    many = "ab" * 50
    with (
        client(app) as http,
        worker(path, function=spell, batched=False),
        worker(other, function=spell, batched=False),
    ):
        for word in (many, "a", ""):
            assert [*http.pieces("/spell", json={"word": word})] == [*word]
            found = [*http.pieces("/graph", json={"word": word})]
            assert found == [{"result": letter} for letter in word]
        with pytest.raises(httpx.HTTPStatusError, match="418"):
            next(http.pieces("/spell", json={"word": "?"}))
        pieces = http.pieces("/spell", json={"word": "a?"})
        assert next(pieces) == "a"
        with pytest.raises(httpx.RemoteProtocolError, match="no letter"):
            next(pieces)
        assert http.post("/spell", json={"word": 1}).status_code == 422
        described = http.get("/openapi.json").json()["paths"]["/spell"]["post"]["responses"]["200"]
        assert [*described["content"]] == ["text/event-stream", "application/x-ndjson", media.JSON]


def test_pieces_of_a_route_s_external_workers_are_json(tmp_path: Path) -> None:
    app = App("tests")
    options = {"socket": str(tmp_path / "spell.sock"), "socket_format": "msgpack"}
    app.post("/spell", executor="external", **options)(spell)
    (service,) = app.services
    service.prepare_beside({})
    with pytest.raises(ConfigError, match=r"spell is a generator.*leave out socket_format"):
        service.blueprint()


@pytest.mark.parametrize("kind", [media.JSON, media.MSGPACK])
def test_the_openapi_description_has_the_worker_s_media_type(kind: str, tmp_path: Path) -> None:
    with serving(tmp_path, kind) as http:
        operation = http.get("/openapi.json").json()["paths"]["/invert"]["post"]
        assert list(operation["requestBody"]["content"]) == [kind]
        assert list(operation["responses"]["200"]["content"]) == [kind]


@pytest.mark.parametrize("kind", [media.JSON, media.MSGPACK])
def test_examples_are_run_in_the_worker_s_media_type(kind: str, tmp_path: Path) -> None:
    examples = [({"value": 4}, {"inverse": 0.25})]
    with serving(tmp_path, kind, examples=examples) as http:
        checked = http.get("/health/deep").json()["checked"]
        assert [each["state"] for each in checked] == ["ok"]


def test_without_a_worker_requests_end_at_their_deadlines(tmp_path: Path) -> None:
    with serving(tmp_path, media.JSON, workers=0) as http:
        assert http.get("/readyz").status_code == 503
        headers = {"penstock-timeout": "0.1"}
        answer = http.post("/invert", json={"value": 1}, headers=headers)
        assert answer.status_code == 504, answer.text


class Rows:
    def inference(self, rows: list[int]) -> list[int]:
        return rows


class Prepared(Rows):
    def preprocess(self, rows: list[int]) -> list[int]:
        return rows


class AlwaysBatched(Rows):
    batch_inference = Rows.inference


def one(item: Item) -> Inverse:
    return Inverse(inverse=1 / item.value)


@pytest.mark.parametrize(
    ("name", "batched", "warned"),
    [
        ("invert", False, True),
        ("Rows", False, True),
        ("invert", True, False),
        ("one", False, False),
        ("Prepared", False, False),
        ("AlwaysBatched", False, False),
    ],
)
def test_a_worker_warns_that_batched_may_be_missing(
    name: str, batched: bool, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    target = f"{__name__}:{name}"
    program = worker_program(target, Path("unused.sock"), media.JSON, batched=batched)
    program.stop()
    program.run()  # closes what it has opened
    lines = [record.getMessage() for record in caplog.records]
    assert any(target in line and "--batched" in line for line in lines) is warned


def answer(value: int) -> Response[bytes]:
    if value < 0:
        raise HttpError(409, "taken", "no_room")
    return Response(b"%d" % value, status=201, media_type="text/plain", etag=str(value))


@pytest.mark.parametrize("kind", [media.JSON, media.MSGPACK])
def test_a_worker_gives_statuses_header_fields_and_media_types(tmp_path: Path, kind: str) -> None:
    app, path = App("tests"), tmp_path / "answer.sock"
    name = "msgpack" if kind == media.MSGPACK else "json"
    app.route(
        "/answer", executor="external", socket=str(path), socket_format=name, answers={201: bytes}
    )(answer)
    program = WorkerProgram(bound_op(answer), str(path), kind)
    thread = threading.Thread(target=program.run)
    body, headers = WRITE[kind], {"Content-Type": kind}
    with client(app) as http:
        thread.start()
        good = http.post("/answer", content=body({"value": 3}), headers=headers)
        bad = http.post("/answer", content=body({"value": -3}), headers=headers)
        program.stop()
    thread.join(10)
    assert (good.status_code, good.content, good.headers["etag"]) == (201, b"3", '"3"')
    assert good.headers["content-type"] == "text/plain"
    assert bad.status_code == 409
    assert bad.json() == {"error": "no_room", "message": "taken"}
