"""Large values of remote ops that stay in the external store: an op of another Penstock gets the
key of what another op elsewhere has put there, and puts its own outputs there for the next one.

A service that does not take part, or whose store is another one, gets the values themselves: it
refuses before anything runs. Belongs to the engine's loop; the store is asked in threads.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any, Final

import numpy as np

from penstock.client.errors import CallFailed
from penstock.client.model_stream import as_texts
from penstock.client.remote import CallsMethods, RemoteModel, wanted_of
from penstock.client.token import token_at
from penstock.errors import InferenceFailed, RequestError, ValueLost
from penstock.executors.external_store.engine import EngineStore
from penstock.executors.external_store.kinds import open_store
from penstock.executors.external_store.octets import get_octets
from penstock.executors.external_store.rules import PAUSE, StoreOptions, changed
from penstock.executors.external_store.store import ExternalStore, Open, StoreFailed
from penstock.executors.transport.frames import FrameError
from penstock.executors.transport.values import Stored
from penstock.protocols import oip, oip_message, stored_infer
from penstock.protocols.oip import BF16, BYTES, OutTensor
from penstock.protocols.status import GrpcCode
from penstock.protocols.stored_infer import Place, Raw
from penstock.protocols.tensors import DecodeBudget
from penstock.request import Feed, Sample

_log = logging.getLogger(__name__)

NOT_THERE: Final = frozenset(
    (GrpcCode.UNIMPLEMENTED, GrpcCode.UNAUTHENTICATED, GrpcCode.PERMISSION_DENIED)
)
"""Statuses of servers that do not have the method, or not for this caller."""
LONG_PAUSE: Final = 60.0
"""Seconds for which values are sent themselves to a server that does not take part."""
_THREADS: Final = 4


class StoredModel:
    """See the module.

    Args:
        model: calls the model without the store.
        channel: calls the servers.
        side: gives out keys, and deletes them.
        options: of the service's store, with a secret.
        op: the op's label, for messages.
        open: makes the store.
        now: monotonic seconds.

    Raises:
        ModelError: there is no secret.
    """

    def __init__(
        self,
        model: RemoteModel,
        channel: CallsMethods,
        side: EngineStore,
        options: StoreOptions,
        op: str,
        open: Open = open_store,
        now: Callable[[], float] = monotonic,
    ) -> None:
        assert options.secret is not None, "others use the store with it"
        self._model = model
        self._channel = channel
        self._side = side
        self._options = options
        self._secret = token_at(options.secret)
        self._op = op
        self._open = open
        self._now = now
        self._not_before = 0.0  # when the store is tried again
        self._problem = ""  # as it was logged last
        self._proven = False  # the servers' store is ours
        self._lock = threading.Lock()
        self._store: ExternalStore | None = None  # of the threads
        self._threads = ThreadPoolExecutor(_THREADS, "external store")

    def close(self) -> None:
        """Disconnect, after the calls."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._store is not None:
            self._store.close()

    async def run(
        self,
        sample: Sample,
        feed: Feed,
        fetch: Sequence[str] | None,
        deadline: float | None,
        log_id: int,
        fields: bytes = b"",
    ) -> Feed:
        """Call the model once; large outputs may stay in the store.

        Args:
            sample: whose request it is.
            feed: may have Stored for values.
            fetch: as for ``RemoteModel.run``, like all that follow.
            deadline: monotonic seconds.
            log_id: the request's trace id.
            fields: a header block of further fields.

        Raises:
            RequestError: as that does; ValueLost: a value is needed, and cannot be had.
        """
        key = self._side.key_for(sample)
        holders = [each for each in feed.values() if _holds_stored(each)]
        stored = bool(holders)
        nested = any(type(each) is not Stored for each in holders)
        if self._now() < self._not_before:
            if key is not None or stored:
                self._side.counts.add(inline=1)
        elif (key is not None or stored) and not nested:
            try:
                found = await self._run_stored(sample, feed, fetch, deadline, log_id, fields, key)
            except CallFailed as failed:
                raise self._model.failed(failed) from None
            if found is not None:
                return found
            self._side.counts.add(inline=1)
        whole = await self._fetched(feed) if stored else feed
        return await self._model.run(whole, fetch, deadline, log_id, fields)

    async def _run_stored(
        self,
        sample: Sample,
        feed: Feed,
        fetch: Sequence[str] | None,
        deadline: float | None,
        log_id: int,
        fields: bytes,
        key: str | None,
    ) -> Feed | None:
        """The same by keys; None if nothing has run, and the values themselves must be sent."""
        interface = await self._model.interface(deadline)
        wanted = interface.fetched(self._model.fetch_list if fetch is None else fetch)
        stand_ins = {name: _stand_in(value) for name, value in feed.items()}
        if any(each is None for each in stand_ins.values()):
            return None
        tensors = interface.fit(stand_ins)
        places = {
            id(stand_ins[name]): Place(value.key, value.number, value.nbytes)
            for name, value in feed.items()
            if type(value) is Stored
        }
        raws = [raw_of(each, places) for each in tensors]
        kept = [each for each in raws if isinstance(each, Place)]
        if len(kept) != len(places):  # one is cast, or its bytes are not those of the array
            return None
        names = [*dict.fromkeys(wanted.values())]
        message = oip_message.encode_request_apart(str(log_id), self._model.name, tensors, names)
        secret = self._secret if isinstance(self._secret, str) else self._secret()
        request = stored_infer.encode_request(
            secret.encode(), message, raws, key or "", self._options.min_bytes
        )
        if key is not None:  # it may be used whatever becomes of the call
            self._side.delete_at_end(sample, key)
        try:
            reply = await self._channel.call(
                request, deadline=deadline, method=stored_infer.METHOD, fields=fields
            )
        except CallFailed as failed:
            if failed.status not in NOT_THERE:
                raise
            self._pause(f"the server does not take keys: {failed}", LONG_PAUSE)
            return None
        try:
            response = stored_infer.decode_response(reply)
            if response.refusal:
                self._pause(f"the server refuses them: {response.refusal}", PAUSE)
                return None
            outputs = outputs_of(response.message, response.raws, key)
        except RequestError as error:
            raise InferenceFailed(f"the server's answer cannot be read: {error}") from error
        self._side.counts.add(fetched=sum(each.nbytes for each in kept))
        await self._prove(outputs)
        if self._problem:
            self._problem = ""
            _log.warning("op %s: keys of the external store are sent again", self._op)
        return wanted_of(outputs, wanted)

    async def _prove(self, outputs: Feed) -> None:
        """Count what was put into the store; the first time, check that our store has it: that of
        the server may be another one.
        """
        put = [each for each in outputs.values() if type(each) is Stored]
        self._side.counts.add(put=sum(each.nbytes for each in put))
        if put and not self._proven:
            try:
                await self._fetched({"": put[0]})
            except ValueLost:
                self._pause("what the server has put there is not there", LONG_PAUSE)
                raise
            self._proven = True

    async def _fetched(self, feed: Feed) -> Feed:
        """A feed with the values themselves.

        Raises:
            ValueLost: one cannot be had.
        """
        places: list[Stored] = []
        changed(feed, lambda each: places.append(each) if type(each) is Stored else each)
        if not places:
            return feed
        loop = asyncio.get_running_loop()
        try:
            values = await loop.run_in_executor(self._threads, self._values, places)
        except (StoreFailed, FrameError) as error:
            self._side.counts.add(lost=1)
            address = self._options.address
            _log.warning(
                "op %s: a value is lost: the external store %s %s", self._op, address, error
            )
            raise ValueLost(
                f"op {self._op!r}: an input cannot be had from the external store, which {error}"
            ) from None
        self._side.counts.add(fetched=sum(each.nbytes for each in places))
        found: Feed = changed(feed, lambda each: values[id(each)] if type(each) is Stored else each)
        return found

    def _values(self, places: Sequence[Stored]) -> Mapping[int, Any]:
        """The values by the ids of what stands for them. In a thread."""
        with self._lock:
            if self._store is None:
                self._store = self._open(self._options)
            store = self._store
        return {
            id(each): each.value(get_octets(store, each.key, each.number, each.nbytes))
            for each in places
        }

    def _pause(self, problem: str, seconds: float) -> None:
        self._not_before = self._now() + seconds
        self._proven = False
        if problem != self._problem:
            self._problem = problem
            _log.warning("op %s: values are sent without the external store: %s", self._op, problem)


def _holds_stored(value: Any) -> bool:
    """Whether a value is in the store, or a part of it."""
    kind = type(value)
    if kind is dict:
        value = value.values()
    elif kind is not list and kind is not tuple:
        return kind is Stored
    return any(map(_holds_stored, value))


def _stand_in(value: Any) -> Any:
    """An array without memory of its own of the same dtype and shape as a stored one, other values
    as they are; None for a stored one that no tensor can be.
    """
    if type(value) is not Stored:
        return value
    form = value.form()
    if form is None:
        return None
    dtype, shape = form
    return np.broadcast_to(np.zeros((), dtype), shape)


def raw_of(tensor: OutTensor, places: Mapping[int, Place]) -> Raw:
    """The raw bytes of a tensor, or where they are if its array stands for a stored one.

    Args:
        tensor: to send.
        places: where the values are, by the ids of the arrays that stand for them.
    """
    place = places.get(id(tensor.array))
    if place is not None and is_plain(tensor):
        return place
    return b"" if place is not None else oip.to_raw(tensor)


def is_plain(tensor: OutTensor) -> bool:
    """Whether its raw bytes are those of its array in C order, on every machine."""
    dtype = tensor.array.dtype
    return tensor.datatype not in (BF16, BYTES) and dtype == dtype.newbyteorder("<")


def outputs_of(message: bytes, raws: Sequence[Raw], key: str | None) -> Feed:
    """Decode the outputs of a response: arrays, and Stored for those under our key.

    Raises:
        RequestError: the response contradicts itself, or has another key.
    """
    described = oip_message.decode_response_apart(message)
    if len(described) != len(raws):
        raise InferenceFailed(f"there are {len(described)} outputs, and bytes of {len(raws)}")
    budget = DecodeBudget(sum(len(each) for each in raws if not isinstance(each, Place)))
    found: Feed = {}
    for each, raw in zip(described, raws, strict=True):
        where = f"output {each.name[:64]!r}"
        if each.name in found:
            raise InferenceFailed(f"{where} is there twice")
        if not isinstance(raw, Place):
            array = oip.from_raw(where, each.datatype, each.shape, memoryview(raw), budget)
            found[each.name] = as_texts(array)
            continue
        stored = None
        if each.datatype not in (BF16, BYTES):
            oip.elements(where, each.shape)
            dtype = oip.dtype_of(where, each.datatype)
            stored = Stored.array(raw.key, raw.number, dtype, each.shape)
        if stored is None or raw.key != key or stored.nbytes != raw.nbytes:
            raise InferenceFailed(f"{where} is not where it should be")
        found[each.name] = stored
    return found
