"""The base class of ``Client`` and ``HttpClient``: model configuration, key, feeds."""

import base64
import json
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from penstock.client.model_feeds import ModelFeeds
from penstock.runtimes.model import read_client_conf
from penstock.runtimes.prototxt import ModelConf

HANDSHAKE_SECONDS = 60.0
"""Timeout of sending a key, in seconds: the server answers when the model is loaded."""


class ConfiguredClient:
    """A client with the configuration of its model."""

    def __init__(self) -> None:
        self._feeds: ModelFeeds | None = None
        self._key: bytes | None = None

    def load_client_config(self, model_config_path_list: str | Sequence[str]) -> None:
        """Read ``serving_client_conf.prototxt``.

        Args:
            model_config_path_list: path of the file or its folder; of several paths, the first
                has the inputs and the last the outputs.

        Raises:
            ModelError: a file is missing or cannot be read.
        """
        given = model_config_path_list
        paths = [given] if isinstance(given, str | Path) else list(given)
        confs = [read_client_conf(Path(each)) for each in paths]
        first, last = confs[0], confs[-1]
        both = ModelConf(feeds=first.feeds, fetches=last.fetches, source=first.source)
        self._feeds = ModelFeeds(both)

    def get_feed_names(self) -> list[str]:
        """Aliases of the inputs."""
        return list(self.model.feed_names)

    def get_fetch_names(self) -> list[str]:
        """Aliases of the outputs."""
        return list(self.model.fetch_names)

    @property
    def feed_names_(self) -> list[str]:
        """Aliases of the inputs; empty without a configuration."""
        return [] if self._feeds is None else self.get_feed_names()

    @property
    def fetch_names_(self) -> list[str]:
        """Aliases of the outputs; empty without a configuration."""
        return [] if self._feeds is None else self.get_fetch_names()

    def use_key(self, key_filename: str) -> None:
        """Read the key of an encrypted model; ``connect(..., encryption=True)`` sends it."""
        self._key = Path(key_filename).read_bytes()

    @property
    def model(self) -> ModelFeeds:
        """The model's configuration.

        Raises:
            ValueError: ``load_client_config`` was not called.
        """
        if self._feeds is None:
            raise ValueError("call load_client_config() first")
        return self._feeds

    def port_for_key(self, endpoint: str) -> str:
        """Send the key to the server at an endpoint; return the ``host:port`` of the model.

        Raises:
            ValueError: the server refuses the key.
        """
        key = {} if self._key is None else {"key": base64.b64encode(self._key).decode()}
        request = urllib.request.Request(f"http://{endpoint}/", json.dumps(key).encode())
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(request, timeout=HANDSHAKE_SECONDS) as reply:
            answer = json.load(reply)
        if not answer.get("endpoint_list"):
            raise ValueError(f"{endpoint} does not serve the model: {answer}")
        host = endpoint.rpartition(":")[0]
        return f"{host}:{answer['endpoint_list'][0]}"

    def wanted(self, fetch: str | Sequence[str] | None) -> list[str]:
        """Return the names in ``fetch`` that are outputs of the model, or all outputs."""
        names = [fetch] if isinstance(fetch, str) else list(fetch or ())
        return [name for name in names if name in self.model.fetch_names]

    def feed_of(self, feed: Any) -> Mapping[str, Any]:
        """Convert a feed to a dict: a dict, a list of one dict, or the value of a single input.

        Raises:
            ValueError: the feed has none of these forms.
        """
        names = self.model.feed_names
        if isinstance(feed, Mapping):
            return feed
        if isinstance(feed, list | tuple) and feed and isinstance(feed[0], Mapping):
            if len(feed) == 1:
                return feed[0]
            raise ValueError("give one dict: its arrays have a batch axis")
        if feed is None:
            raise ValueError("feed is missing")
        if len(names) != 1:
            raise ValueError(f"give a dict of the inputs {names}, got {type(feed).__name__}")
        return {names[0]: feed}
