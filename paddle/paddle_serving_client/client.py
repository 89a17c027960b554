"""``Client``: calls a model server by baidu_std, brpc's default protocol."""

import logging
from collections.abc import Sequence
from typing import Any

from paddle_serving_client.configured import ConfiguredClient
from penstock.client.endpoints import parse_endpoints
from penstock.client.errors import CallFailed
from penstock.client.sdk import Endpoint, Variant
from penstock.errors import InputMismatch, RequestError, WrongType

__all__ = ["Client"]

_log = logging.getLogger(__name__)

_ALL = 100
"""The weight of the single variant that ``connect`` makes of its endpoints."""


class Client(ConfiguredClient):
    """Calls a model server. Thread-safe; a forked child may use the parent's client."""

    def __init__(self) -> None:
        super().__init__()
        self._variants: list[Variant] = []
        self._calls: Endpoint | None = None
        self._timeout = 200.0

    def set_rpc_timeout_ms(self, rpc_timeout: int) -> None:
        """Set the timeout of calls; the default is 200 seconds."""
        if not isinstance(rpc_timeout, int):
            raise ValueError("rpc_timeout must be an int of milliseconds")
        self._timeout = rpc_timeout / 1000

    def add_variant(self, tag: str, cluster: list[str], variant_weight: int) -> None:
        """Add a variant: servers that get a share of the calls in proportion to its weight."""
        if not isinstance(tag, str):
            raise ValueError("tag must be a text")
        if any(each.tag == tag for each in self._variants):
            raise ValueError(f"there is a variant {tag!r} already")
        parse_endpoints(cluster)
        self._variants.append(Variant(tag, cluster, int(variant_weight)))

    def connect(self, endpoints: list[str] | None = None, encryption: bool = False) -> None:
        """Set the endpoints. Connections are made by the first call.

        Args:
            endpoints: ``host:port`` of servers with the same model; ignored if there are variants.
            encryption: send the model's key to the first endpoint at once.

        Raises:
            ValueError: there are neither endpoints nor variants.
        """
        variants = self._variants
        if not variants:
            if not endpoints:
                raise ValueError("give endpoints to connect(), or call add_variant() first")
            where = [self.port_for_key(endpoints[0])] if encryption else endpoints
            tag = f"default_tag_{id(self)}"
            parse_endpoints(where)
            variants = [Variant(tag, where, _ALL)]
        elif endpoints:
            _log.warning("endpoints are ignored: add_variant() was called")
        self.release()
        # Without a name, as servers of the original have none for their model.
        self._calls = Endpoint(
            "model",
            variants,
            model="",
            client_config=self.model,
            protocol="baidu_std",
            rpc_timeout_ms=0,
        )

    def get_serving_port(self, endpoints: list[str]) -> str:
        """Send the key to the first endpoint; return the ``host:port`` that serves the model."""
        return self.port_for_key(endpoints[0])

    def predict(
        self,
        feed: Any = None,
        fetch: str | Sequence[str] | None = None,
        batch: bool = False,
        need_variant_tag: bool = False,
        log_id: int = 0,
    ) -> Any:
        """Make one call.

        Args:
            feed: a dict of arrays, lists or texts by input alias; a list of one such dict; or the
                value of a single input. It is not changed.
            fetch: aliases of outputs; None or an empty list selects all.
            batch: whether the values have a batch axis.
            need_variant_tag: return a list of the result and the variant's tag.
            log_id: for the server's log.

        Returns:
            Arrays by alias, with ``<alias>.lod`` for sequences; a dict of these by engine name if
            several engines answer. None if the call fails; the reason is logged.

        Raises:
            ValueError: the feed does not fit the model, or ``connect`` was not called.
        """
        if self._calls is None:
            raise ValueError("call connect() first")
        try:
            found = self._calls.predict(
                self.feed_of(feed),
                self.wanted(fetch),
                batch=batch,
                log_id=log_id,
                timeout=self._timeout if self._timeout > 0 else None,
            )
        except (InputMismatch, WrongType) as error:
            raise ValueError(str(error)) from error
        except (CallFailed, RequestError) as error:
            _log.error("no answer: %s", error)
            return None
        result = found.outputs  # those of one engine, or of several by their names
        if all(isinstance(each, dict) and not each for each in result.values()):
            raise ValueError("the answer has no output")
        return [result, found.tag] if need_variant_tag else result

    def release(self) -> None:
        """Disconnect."""
        if self._calls is not None:
            self._calls.close()
            self._calls = None
