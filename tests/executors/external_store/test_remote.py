"""Values of remote ops in the external store: by keys if the server takes them, else themselves."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.client.endpoints import parse_endpoints
from penstock.client.errors import CallFailed
from penstock.client.remote import RemoteModel
from penstock.client.remote_options import RemoteOptions
from penstock.errors import InferenceFailed, InputMismatch, ValueLost
from penstock.executors.external_store.engine import EngineStore
from penstock.executors.external_store.remote import LONG_PAUSE, StoredModel
from penstock.executors.external_store.rules import PAUSE, StoreOptions
from penstock.executors.external_store.server import ServerStore
from penstock.executors.external_store.store import StoreFailed
from penstock.executors.transport.values import Stored, storable
from penstock.protocols import oip, oip_message, stored_infer
from penstock.protocols.oip import OutTensor
from penstock.protocols.standard_messages import inference_messages
from penstock.protocols.status import GrpcCode
from penstock.protocols.stored_infer import Place, StoredResponse
from penstock.request import Sample
from tests.executors.external_store.fake import OPTIONS, FakeStore
from tests.executors.external_store.test_engine import Request, sample_of

LARGE = np.arange(500, dtype=np.float32)
KEY = "penstock:svc:7:before:ab"


class Server:
    """A server whose models add one to ``x``; it takes keys as the application of a service does.

    Attributes:
        calls: the methods that were called; ``ran``, how many of them ran the model.
        fails: what a call with keys raises, if set.
    """

    def __init__(self, store: ServerStore) -> None:
        self._store = store
        self.calls: list[str] = []
        self.ran = 0
        self.fails: CallFailed | None = None
        self.change: Callable[[StoredResponse], StoredResponse] = lambda each: each
        self.datatype = "FP32"

    async def call(
        self, request: bytes, *, deadline: float | None, method: str = "", fields: bytes = b""
    ) -> bytes:
        name = method.rpartition("/")[2] if method != stored_infer.METHOD else "stored"
        self.calls.append(name)
        if name == "ModelMetadata":
            response = inference_messages(name)[1](name="m")
            for tensors in (response.inputs, response.outputs):
                tensors.add(name="x", datatype=self.datatype, shape=[-1])
            return bytes(response.SerializeToString())
        if name == "ModelInfer":
            found, raw = oip_message.decode(request)
            return oip_message.encode(found, raw, "m", "1", [self._run(found.feed["x"])])
        if self.fails is not None:
            raise self.fails
        return await asyncio.to_thread(self._stored, request)

    def _stored(self, data: bytes) -> bytes:
        store, request = self._store, stored_infer.decode_request(data)
        if not store.is_marked(request):
            return stored_infer.encode_response(StoredResponse(refusal="the secret"))
        try:
            octets = iter(store.fetch(request.places))
        except StoreFailed as error:
            return stored_infer.encode_response(StoredResponse(refusal=f"its store {error}"))
        raws = [next(octets) if isinstance(each, Place) else each for each in request.raws]
        found, _ = oip_message.decode(
            stored_infer.whole_request(request.message, map(memoryview, raws))
        )
        output = self._run(found.feed["x"])
        raw = oip.to_raw(output)
        large = request.answer != "" and len(raw) >= request.least
        kept: Any = [raw]
        if large:
            kept = store.keep(request.answer, [raw], [True], 100.0, lambda: False)
        head = oip_message.head_of("", "m", "1")
        message = oip_message.encode_response_apart(head, [output])
        return stored_infer.encode_response(self.change(StoredResponse(message=message, raws=kept)))

    def _run(self, x: Any) -> OutTensor:
        self.ran += 1
        return OutTensor("x", self.datatype, x + 1)


class Site:
    """A remote op and the server that it calls, each with a store."""

    def __init__(self, folder: Path, store: FakeStore, other: FakeStore) -> None:
        (folder / "secret").write_text("0123456789abcdef")
        self.folder, self.store, self.other = folder, store, other
        self.now = 50.0
        options = replace(OPTIONS, secret=str(folder / "secret"))
        self.far = ServerStore(options, lambda _: other, lambda: self.now)
        self.server = Server(self.far)
        self.side = EngineStore(OPTIONS, "op", store.opened)
        remote = RemoteOptions(kind="model", endpoints=parse_endpoints(["h:1"]), name="m", op="op")
        model = RemoteModel(remote, None, self.server)
        self.model = StoredModel(
            model, self.server, self.side, options, "op", lambda _: store, lambda: self.now
        )
        self.request = Request(0)

    def stored(self, value: Any = LARGE) -> Stored:
        """A value in the store, as another op has put it there."""
        found = storable(value, KEY, 2, 0)
        assert found is not None
        self.store.put(KEY, "2.0", found[1], 60.0)
        return found[0]

    async def run(self, value: Any, request: Request | None = None) -> Any:
        sample: Sample = sample_of(request or self.request)
        return (await self.model.run(sample, {"x": value}, None, 100.0, 3))["x"]

    def value(self, found: Any) -> Any:
        """The array that is returned, or that is in the store."""
        if type(found) is not Stored:
            return found
        return found.value(bytearray(self.store.get(found.key, f"{found.number}.0")))

    def close(self) -> None:
        """End the threads."""
        self.model.close()
        self.far.threads.shutdown(wait=False)

    def end(self) -> None:
        for each in self.request.endings:
            each()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    store = FakeStore()
    found = Site(tmp_path, store, store)
    yield found
    found.close()


NOBODY = Request()  # whose outputs are needed here


async def test_values_pass_as_keys_and_are_deleted_at_the_end(site: Site) -> None:
    site.side.start()
    found = await site.run(site.stored())
    assert type(found) is Stored
    assert (site.value(found) == LARGE + 1).all()
    assert site.server.calls == ["ModelMetadata", "stored"]
    assert site.store.seconds[found.key] == 80.0, "the rest of its time, and 30 s"
    counts = site.side.counts
    assert (counts.in_use, counts.put_bytes) == (1, LARGE.nbytes)
    assert (site.far.counts.put_bytes, site.far.counts.fetched_bytes) == (LARGE.nbytes,) * 2
    site.end()
    await site.side.close()
    assert [*site.store.kept] == [KEY], "that of the op before, which it deletes"
    assert counts.in_use == 0


async def test_only_what_is_elsewhere_uses_the_store(site: Site) -> None:
    assert ((await site.run(LARGE, NOBODY)) == LARGE + 1).all()
    assert site.server.calls == ["ModelMetadata", "ModelInfer"]
    assert ((await site.run(site.stored(), NOBODY)) == LARGE + 1).all()
    small = await site.run(LARGE[:3])
    assert (small == LARGE[:3] + 1).all()
    assert site.server.calls[2:] == ["stored", "stored"]
    assert [*site.store.kept] == [KEY]


async def test_a_list_of_a_caller_is_sent_and_the_output_stays_in_the_store(site: Site) -> None:
    found = await site.run(LARGE.tolist())
    assert type(found) is Stored
    assert (site.value(found) == LARGE + 1).all()


async def test_a_value_inside_another_one_is_fetched(site: Site) -> None:
    with pytest.raises(InputMismatch, match=r"got \[1, 500\]"):
        await site.run([site.stored()])
    assert site.store.calls.count("get") == 1


async def test_a_value_that_is_cast_is_fetched_and_sent(site: Site) -> None:
    value = site.stored(LARGE.astype(np.float64))
    assert ((await site.run(value, NOBODY)) == LARGE + 1).all()
    turned = site.stored(np.asfortranarray(np.ones((20, 20), np.float32)))
    with pytest.raises(InputMismatch, match=r"expected the shape \[\?\]"):
        await site.run(turned, NOBODY)
    with pytest.raises(InputMismatch, match=r"expected the shape \[\?\]"):
        await site.run(site.stored(np.ones((20, 20), np.float32)), NOBODY)
    assert "stored" not in site.server.calls


async def test_the_bytes_of_bf16_are_not_those_of_the_array(site: Site) -> None:
    site.server.datatype = "BF16"
    found = await site.run(site.stored())
    assert type(found) is not Stored
    assert site.server.calls == ["ModelMetadata", "ModelInfer"]


@pytest.mark.parametrize("status", [GrpcCode.UNIMPLEMENTED, GrpcCode.PERMISSION_DENIED])
async def test_a_server_without_the_method_gets_the_values(
    site: Site, status: GrpcCode, caplog: pytest.LogCaptureFixture
) -> None:
    site.server.fails = CallFailed(status, "no such method")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert (site.value(await site.run(site.stored())) == LARGE + 1).all()
    assert site.server.calls == ["ModelMetadata", "stored", *["ModelInfer"] * 3]
    assert len(caplog.records) == 1
    assert "op op: values are sent without the external store" in caplog.text
    site.server.fails = None
    site.now += LONG_PAUSE
    assert type(await site.run(site.stored())) is Stored
    assert "are sent again" in caplog.text
    assert site.side.counts.inline == 3


async def test_another_error_of_the_call_is_that_of_the_request(site: Site) -> None:
    site.server.fails = CallFailed(GrpcCode.INTERNAL, "it broke")
    with pytest.raises(InferenceFailed, match="it broke"):
        await site.run(site.stored())
    assert site.server.calls == ["ModelMetadata", "stored"]
    assert len(site.request.endings) == 1, "what it may have stored is deleted"


async def test_a_server_with_another_secret_refuses_before_it_reads_the_store(site: Site) -> None:
    value = site.stored()
    site.far._secret = "another secret of"
    site.store.calls.clear()
    site.far._open = lambda _: pytest.fail("the store is read")
    assert (site.value(await site.run(value)) == LARGE + 1).all()
    assert site.store.calls == ["get"], "by the caller"
    assert site.server.ran == 1


async def test_a_server_that_cannot_reach_the_store_gets_the_values(site: Site) -> None:
    value = site.stored()
    site.far._store = FakeStore()
    site.far._store.fails = StoreFailed("cannot be reached")
    assert (site.value(await site.run(value)) == LARGE + 1).all()
    assert site.server.calls == ["ModelMetadata", "stored", "ModelInfer"]
    assert site.far.counts.wrong == "cannot be reached"
    site.far._store = site.store
    site.now += PAUSE
    assert type(await site.run(value)) is Stored
    assert site.far.counts.wrong == ""


async def test_a_server_that_cannot_store_its_outputs_sends_them(site: Site) -> None:
    value = site.stored()
    site.store.fails_after = 1  # the fetch
    found = await site.run(value)
    assert (found == LARGE + 1).all()
    assert site.server.calls == ["ModelMetadata", "stored"]
    assert site.far.counts.inline == 1
    site.store.fails_after = None
    assert type(await site.run(value)) is not Stored, "it waits before it tries again"
    site.now += PAUSE
    assert type(await site.run(value)) is Stored


async def test_a_value_that_nobody_has_is_lost(site: Site) -> None:
    value = site.stored()
    site.store.delete([KEY])
    with pytest.raises(ValueLost, match=r"op 'op': an input cannot be had .* does not have it"):
        await site.run(value)
    assert site.server.ran == 0
    assert site.side.counts.lost == 1


async def test_values_that_are_fetched_at_once_share_one_connection(site: Site) -> None:
    value = site.stored()
    both, opened = threading.Barrier(2), []

    def open_slowly(_: StoreOptions) -> FakeStore:
        opened.append(site.store)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)  # for another one, which must not come
        return site.store

    site.model._open = open_slowly
    site.server.fails = CallFailed(GrpcCode.UNIMPLEMENTED, "no such method")
    found = await asyncio.gather(*(site.run(value, NOBODY) for _ in range(2)))
    assert all((each == LARGE + 1).all() for each in found)
    assert len(opened) == 1


async def test_a_server_with_a_store_of_its_own_is_noticed(tmp_path: Path) -> None:
    site = Site(tmp_path, FakeStore(), FakeStore())
    with pytest.raises(ValueLost):
        await site.run(LARGE)
    found = await site.run(LARGE)
    assert (found == LARGE + 1).all()
    assert site.server.calls == ["ModelMetadata", "stored", "ModelInfer"]
    site.close()


@pytest.mark.parametrize(
    "change",
    [
        lambda each: replace(each, raws=[each.raws[0]._replace(key=KEY)]),
        lambda each: replace(each, raws=[each.raws[0]._replace(nbytes=7)]),
        lambda each: replace(each, raws=[each.raws[0], each.raws[0]]),
        lambda each: replace(each, message=b"\xff"),
        lambda each: replace(each, message=each.message + each.message, raws=[*each.raws] * 2),
    ],
)
async def test_a_server_cannot_name_keys(site: Site, change: Any) -> None:
    site.server.change = change
    with pytest.raises(InferenceFailed, match="cannot be read"):
        await site.run(site.stored())


async def test_what_a_caller_that_has_gone_would_have_got_is_deleted(tmp_path: Path) -> None:
    store = FakeStore()
    site = Site(tmp_path, store, store)
    kept = site.far.keep("key", [b"a" * 9, b"b"], [True, False], 100.0, lambda: False)
    assert kept == [Place("key", 0, 9), b"b"]
    assert [*store.kept] == ["key"]
    site.far.keep("other", [b"a" * 9], [True], 100.0, lambda: True)
    assert [*store.kept] == ["key"]
    site.close()
