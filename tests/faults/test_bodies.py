"""No body delays other requests, or takes much more memory than its size."""

from __future__ import annotations

import gzip
import http.client
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest

from penstock.protocols.pb import Request, Tensor
from penstock.protocols.protobuf import varint
from tests.services.process import ServiceProcess, running

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
MOST = 60 * MIB
MOST_TYPED = 4 * MIB - 100  # of JSON and msgpack of typed routes
MOST_LISTS = 390_000  # of the 400,000 that a body may have
LONGEST_WAIT = 0.25
GROWTH = 400 * MIB
CALL = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"


@dataclass(frozen=True)
class Body:
    """One row of the table.

    Attributes:
        name: of the row.
        make: makes the body, or the message.
        fits: whether it is valid and answered; None if both are correct.
        sampled: whether it is also tested without ``long``.
        route: the path of HTTP.
        media: the body's type; None is not named.
        compressed: whether it is sent with gzip.
    """

    name: str
    make: Callable[[], bytes]
    fits: bool | None = False
    sampled: bool = False
    route: str = "/sizes/prediction"
    media: str | None = None
    compressed: bool = False


def _filled(start: bytes, unit: bytes, end: bytes, size: int = MOST) -> bytes:
    return start + unit * ((size - len(start) - len(end)) // len(unit)) + end


def _json(start: bytes, unit: bytes, end: bytes) -> Callable[[], bytes]:
    return lambda: _filled(start, unit, end)


def _field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def _tensor(number: int, unit: bytes) -> Callable[[], bytes]:
    """A tensor with one long field, packed."""
    return lambda: _field(3, _field(number, unit * ((MOST - 100) // len(unit)))) + _field(5, b"m")


def _request(unit: bytes) -> Callable[[], bytes]:
    return lambda: unit * ((MOST - 100) // len(unit)) + _field(5, b"m")


def _message(count: int, dtype: str) -> Callable[[], bytes]:
    def make() -> bytes:
        rng = np.random.default_rng(1)
        codes = {"int64": (0, "int64_data"), "float32": (1, "float_data")}
        code, field = codes[dtype]
        values = rng.integers(0, 1 << 48, count) if dtype == "int64" else rng.random(count)
        tensor = Tensor(name="x", elem_type=code, shape=[count], **{field: values.tolist()})
        return Request(tensors=[tensor], method="m").SerializeToString()

    return make


def _document(count: int, dtype: str) -> Callable[[], bytes]:
    def make() -> bytes:
        rng = np.random.default_rng(1)
        numbers = rng.integers(0, 10**6, count).tolist()
        code, field = {"int64": (0, "int64_data"), "float32": (1, "float_data")}[dtype]
        written = ",".join(map(str, numbers) if dtype == "int64" else map("0.{}".format, numbers))
        return (
            f'{{"tensors":[{{"name":"x","elem_type":{code},"shape":[{count}],'
            f'"{field}":[{written}]}}]}}'
        ).encode()

    return make


def _text() -> bytes:
    return b'{"key":["x"],"value":["%b"]}' % (b"a" * (MOST - 100))


def _typed(start: bytes, unit: bytes, end: bytes, size: int = MOST_TYPED) -> Callable[[], bytes]:
    return lambda: _filled(start, unit, end, size)


def _msgpack_lists(count: int) -> Callable[[], bytes]:
    return lambda: b"\x81\xa1x\xdd" + count.to_bytes(4) + b"\x90" * count


def _form(unit: bytes, first: bytes = b"") -> Callable[[], bytes]:
    """A form with one file."""
    head = b'Content-Disposition: form-data; name="x"; filename="x"\r\n\r\n'
    return lambda: _filled(b"--%b\r\n%b%b" % (_BOUNDARY, head, first), unit, _END)


_BOUNDARY = b"near" * 15
_END = b"\r\n--%b--\r\n" % _BOUNDARY
_FORM = f"multipart/form-data; boundary={_BOUNDARY.decode()}"
_TREES = (b'{"children":[', b"{},", b"{}]}")


HTTP = [
    Body("a shape of numbers", _json(b'{"tensors":[{"shape":[', b"0,", b"0]}]}")),
    Body("a shape of texts", _json(b'{"tensors":[{"shape":[', b'"0",', b"0]}]}")),
    Body("lists in a shape", _json(b'{"tensors":[{"shape":[', b"[],", b"0]}]}")),
    Body("empty keys", _json(b'{"key":[', b'"",', b'""]}')),
    Body("lists as keys", _json(b'{"key":[', b"[],", b'""]}')),
    Body("a key of lists", _json(b'{"key":[[', b"[],", b"[]]]}")),
    Body("empty tensors", _json(b'{"tensors":[', b"{},", b"{}]}"), sampled=True),
    Body("empty texts", _json(b'{"tensors":[{"str_data":[', b'"",', b'""]}]}')),
    Body("an unknown list", _json(b'{"key":[],"value":[],"x":[', b"[],", b"0]}"), True, True),
    Body("an unknown object", _json(b'{"key":[],"value":[],"x":{', b'"a":[],', b'"b":0}}'), True),
    Body("unknown members", _json(b"{", b'"a":0,', b'"b":0}')),
    Body("one member again and again", _json(b"{", b'"key":[],', b'"b":0}')),
    Body("unknown members of a tensor", _json(b'{"tensors":[{', b'"a":0,', b'"b":0}]}')),
    Body("brackets", _json(b'{"x":', b"[", b"0}")),
    Body("blanks", _json(b"", b" ", b"{}"), fits=True),
    Body("one number", _json(b'{"logid":', b"1", b"}")),
    Body("quotes in a text", _json(b'{"key":["x"],"value":["', b'\\"', b'"]}'), fits=True),
    Body("a text of wide letters", _json(b'{"key":["x"],"value":["', b"\xc3\xa9", b'"]}'), True),
    Body("a text", _text, fits=True),
    Body("integers", _document(7_000_000, "int64"), fits=True, sampled=True),
    Body("floats", _document(6_000_000, "float32"), fits=True),
]
_MSGPACK = "application/msgpack"
TYPED = [
    Body("empty models", _typed(*_TREES), route="/tree", sampled=True),
    Body("compressed models", _typed(*_TREES), route="/tree", compressed=True),
    Body("few empty models", _typed(*_TREES, MOST_LISTS // 4 * 3), True, route="/tree"),
    Body("nested models", _typed(b"", b'{"children":[', b""), route="/tree"),
    Body("empty lists", _typed(b'{"x":[', b"[],", b"[]]}"), route="/lists"),
    Body("empty lists of msgpack", _msgpack_lists(MOST_TYPED), route="/lists", media=_MSGPACK),
    Body("few lists of msgpack", _msgpack_lists(MOST_LISTS), True, True, "/lists", _MSGPACK),
    Body("few lists", _typed(b'{"x":[', b"[],", b"[]]}", MOST_LISTS * 3), True, route="/lists"),
    Body("quotes", _typed(b'{"x":["', b'\\"', b'"]}'), route="/lists"),
    Body("numbers", _typed(b'{"x":[', b"0.5,", b"1]}"), True, route="/array"),
    Body("a file", _form(b"a"), True, route="/file", media=_FORM),
    Body("carriage returns", _form(b"\r"), True, route="/file", media=_FORM),
    Body("lines", _form(b"\r\n"), True, route="/file", media=_FORM),
    Body("a carriage return", _form(b"1", b"\r"), True, route="/file", media=_FORM),
    Body("after the end", _form(b"-", _END), True, route="/file", media=_FORM),
    Body("dashes", _form(b"\r\n--"), True, route="/file", media=_FORM),
    Body("near-boundaries", _form(b"\r\n--" + _BOUNDARY[:-1]), True, True, "/file", _FORM),
    Body("boundaries without ends", _form(b"\r\n--" + _BOUNDARY), route="/file", media=_FORM),
]
GRPC = [
    Body("a shape", _tensor(21, b"\1")),
    Body("small numbers", _tensor(1, b"\1")),
    Body("truths", _tensor(6, b"\1")),
    Body("numbers without an end", _tensor(1, b"\xff")),
    Body("numbers that are not packed", lambda: _field(3, b"\x08\1" * (MOST // 2)), sampled=True),
    Body("empty keys", _request(b"\x0a\0")),
    Body("empty tensors", _request(b"\x1a\0")),
    Body("empty texts", lambda: _field(3, b"\x4a\0" * (MOST // 2)) + _field(5, b"m")),
    Body("unknown fields", _request(b"\x7a\0"), sampled=True),
    Body("groups", _request(b"\x7b\x7c")),
    Body("int64_data", _message(8_500_000, "int64"), fits=True, sampled=True),
    Body("float_data", _message(15_000_000, "float32"), fits=True),
]


class Probe:
    """Requests ``/livez`` repeatedly, and measures the service's memory.

    Attributes:
        longest: seconds of the longest wait, or the service's CPU time meanwhile if that is less:
            time taken by other processes on the machine does not count.
        waited: the longest wait by the clock.
        most, before: bytes of memory at its peak, and at the begin.
    """

    def __init__(self, server: ServiceProcess) -> None:
        self._port = server.http_port
        self._process = psutil.Process(server.pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._probe)
        self.longest = self.waited = 0.0
        self.most = self.before = self._process.memory_info().rss

    def __enter__(self) -> Probe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _probe(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        while not self._over.wait(0.002):
            begun, had = time.perf_counter(), self._cpu()
            connection.request("GET", "/livez")
            connection.getresponse().read()
            waited = time.perf_counter() - begun
            self.waited = max(self.waited, waited)
            if waited > self.longest:
                self.longest = max(self.longest, min(waited, self._cpu() - had))
            self.most = max(self.most, self._process.memory_info().rss)
        connection.close()

    def _cpu(self) -> float:
        times = self._process.cpu_times()
        return times.user + times.system


@pytest.fixture(scope="module")
def server() -> Iterator[ServiceProcess]:
    environment = {"PYTHONPATH": str(ROOT)}
    with running(Path(__file__).with_name("sizes.py"), environment=environment) as started:
        yield started


@pytest.fixture(scope="module")
def typed_server() -> Iterator[ServiceProcess]:
    with running(Path(__file__).with_name("typed_sizes.py")) as started:
        yield started


def over_http(server: ServiceProcess, body: bytes, *, compressed: bool) -> tuple[bool, str]:
    status, text = _posted(server, HTTP[0], body, compressed=compressed)
    return status == 200 and '"err_no":0' in text, f"{status} {text[:200]}"


def over_route(server: ServiceProcess, row: Body, body: bytes) -> tuple[bool, str]:
    status, text = _posted(server, row, body, compressed=row.compressed)
    return status == 200, f"{status} {text[:200]}"


def _posted(server: ServiceProcess, row: Body, body: bytes, *, compressed: bool) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    headers = {"Content-Encoding": "gzip"} if compressed else {}
    if row.media is not None:
        headers["Content-Type"] = row.media
    body = gzip.compress(body) if compressed else body
    connection.request("POST", row.route, body, headers)
    response = connection.getresponse()
    text = response.read(1000).decode(errors="replace")
    connection.close()
    return response.status, text


def over_grpc(server: ServiceProcess, body: bytes, *, compressed: bool) -> tuple[bool, str]:
    compression = grpc.Compression.Gzip if compressed else grpc.Compression.NoCompression
    options = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
    with grpc.insecure_channel(server.rpc_endpoint, options=options) as channel:
        call = channel.unary_unary(CALL)
        try:
            reply = call(body, timeout=60, compression=compression)
        except grpc.RpcError as error:
            return False, f"{error.code()} {error.details()}"
        return not reply.startswith(b"\x08"), repr(reply[:200])


def judge(
    server: ServiceProcess, send: Callable[[], tuple[bool, str]], row: Body, size: int
) -> None:
    with Probe(server) as probe:
        answered, seen = send()
    growth = probe.most - probe.before - size
    result = (
        f"{row.name}: {probe.longest:.3f} s of {probe.waited:.3f} s, {growth >> 20} MiB, {seen}"
    )
    print(result, file=sys.stderr)
    assert answered == row.fits, result
    assert probe.longest <= LONGEST_WAIT, result
    assert growth <= GROWTH, result


def _rows(table: list[Body]) -> list[object]:
    return [
        pytest.param(row, id=row.name, marks=() if row.sampled else pytest.mark.long)
        for row in table
    ]


@pytest.mark.faults
@pytest.mark.parametrize("row", _rows(HTTP))
def test_a_large_http_body_neither_blocks_others_nor_takes_more_memory(
    server: ServiceProcess, row: Body
) -> None:
    body = row.make()
    judge(server, lambda: over_http(server, body, compressed=False), row, len(body))


@pytest.mark.faults
@pytest.mark.parametrize("row", _rows(TYPED))
def test_a_large_body_of_a_typed_route_neither_blocks_others_nor_takes_more_memory(
    typed_server: ServiceProcess, row: Body
) -> None:
    body = row.make()
    judge(typed_server, lambda: over_route(typed_server, row, body), row, len(body))


@pytest.mark.faults
@pytest.mark.parametrize("row", _rows(GRPC))
def test_a_large_grpc_message_neither_blocks_others_nor_takes_more_memory(
    server: ServiceProcess, row: Body
) -> None:
    body = row.make()
    judge(server, lambda: over_grpc(server, body, compressed=False), row, len(body))


@pytest.mark.faults
@pytest.mark.parametrize("send", [over_http, over_grpc])
@pytest.mark.parametrize("row", [HTTP[0], GRPC[0]], ids=["JSON", "protobuf"])
def test_a_body_compressed_a_thousandfold_is_refused(
    server: ServiceProcess, send: Callable[..., tuple[bool, str]], row: Body
) -> None:
    body = row.make()
    judge(server, lambda: send(server, body, compressed=True), row, 0)


@pytest.mark.faults
@pytest.mark.parametrize("send", [over_http, over_grpc])
@pytest.mark.parametrize("array", ["float32 2000000", "int8 8000000"])
def test_encoding_a_large_reply_does_not_block_other_requests(
    server: ServiceProcess, send: Callable[..., tuple[bool, str]], array: str
) -> None:
    if send is over_http:
        body = b'{"key":["array"],"value":["%b"]}' % array.encode()
    else:
        body = Request(key=["array"], value=[array], method="m").SerializeToString()
    judge(server, lambda: send(server, body, compressed=False), Body(array, bytes, fits=True), 0)


@pytest.mark.faults
def test_a_reply_above_max_inflight_bytes_is_an_error_with_the_keys_name(
    server: ServiceProcess,
) -> None:
    body = b'{"key":["array"],"value":["int8 400000000"]}'
    answered, seen = over_http(server, body, compressed=False)
    assert not answered
    assert '"err_no":8000' in seen
    assert "max_inflight_bytes" in seen
