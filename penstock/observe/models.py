"""The models of a running service, for ``penstock models``: shows them, and changes them.

A command that loads a model asks for the states of its versions meanwhile, to show them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Event, Thread
from typing import Any, Final
from urllib.error import HTTPError
from urllib.parse import quote

from penstock.client.token import Token
from penstock.observe.status import NoStatus, ask

_INDEX: Final = "/v2/repository/index"
_LOOK: Final = 0.25  # seconds between two questions for the states
_MODES: Final = "models change if `penstock serve` has --model-control-mode poll or explicit"
_ELSEWHERE: Final = "--address HOST:PORT is that of another service"

_AT_ONCE: Final = 10.0  # seconds for an answer that waits for nothing


class Models:
    """The models of a service.

    Args:
        address: its HTTP port, ``host:port``, or a URL; that of operators is found.
        ca_file: as for ``ask_status``.
        token: likewise.

    Raises:
        NoStatus: it cannot be reached, or has no repository.
    """

    def __init__(
        self, address: str, ca_file: str | None = None, token: Token | None = None
    ) -> None:
        self._more: dict[str, Any] = {"ca_file": ca_file, "token": token}
        # A POST cannot be redirected to the port for operators.
        try:
            found = ask(address, _INDEX, "model repository", _AT_ONCE, **self._more)
        except NoStatus as error:
            cause = error.__cause__
            if isinstance(cause, HTTPError) and cause.code == 404:
                raise NoStatus(f"{error}; {_MODES}") from error
            if isinstance(getattr(cause, "reason", cause), ConnectionRefusedError):
                raise NoStatus(f"{error}; {_ELSEWHERE}") from error
            raise
        self._url = found.url

    def index(self) -> list[dict[str, Any]]:
        """The versions of all models."""
        rows: list[dict[str, Any]] = ask(
            self._url, _INDEX, "model repository", _AT_ONCE, **self._more
        ).value
        return rows

    def change(
        self,
        name: str,
        action: str,
        body: Mapping[str, Any],
        timeout: float,
        show: Callable[[list[dict[str, Any]]], object] = lambda rows: None,
    ) -> list[dict[str, Any]]:
        """Change a model. Returns its versions.

        Args:
            name: of the model.
            action: ``load``, ``unload`` or ``update``.
            body: of the request.
            timeout: seconds until the answer.
            show: called with the model's versions while it is being changed, in a thread.

        Raises:
            NoStatus: nothing has changed, with the reason.
        """
        path = f"/v2/repository/models/{quote(name)}/{action}"
        done = Event()

        def watch() -> None:
            while not done.wait(_LOOK):
                try:
                    show(self.of(name))
                except NoStatus:  # busy: the request itself reports an end of the service
                    continue

        watcher = Thread(target=watch, daemon=True)
        watcher.start()
        try:
            ask(self._url, path, f"model {name!r}", timeout, body=body, **self._more)
        finally:
            done.set()
            watcher.join()
        return self.of(name)

    def of(self, name: str) -> list[dict[str, Any]]:
        """The versions of one model."""
        return [each for each in self.index() if each["name"] == name]


def table(rows: list[dict[str, Any]]) -> str:
    """Versions as text, with a line for each."""
    if not rows:
        return "no models"
    shown = [("MODEL", "VERSION", "STATE", ""), *(_cells(each) for each in rows)]
    widths = [max(len(row[column]) for row in shown) for column in range(3)]
    lines = (
        "  ".join(
            [*(f"{cell:<{width}}" for cell, width in zip(row[:3], widths, strict=True)), row[3]]
        )
        for row in shown
    )
    return "\n".join(line.rstrip() for line in lines)


def _cells(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    more = [f"labels {', '.join(row['labels'])}"] if row.get("labels") else []
    if row.get("default"):
        more.insert(0, "default")
    if row.get("weight") is not None:
        more.append(f"weight {row['weight']}")
    if rollout := row.get("rollout"):
        more.append(f"rollout: step {rollout['step']} of {rollout['steps']}, {rollout['share']} %")
    if row["reason"]:
        more.append(row["reason"])
    return row["name"], row["version"] or "-", row["state"] or "-", "; ".join(more)


def progress(rows: list[dict[str, Any]], width: int) -> str:
    """One line about the versions that are being loaded or unloaded; empty if none is."""
    parts = []
    for each in rows:
        fetched = each.get("fetched")
        if fetched and each["state"] == "LOADING":
            done, size = fetched
            filled = round(width * done / size) if size else 0
            mib = f"{done / 2**20:.1f} of {size / 2**20:.1f} MiB"
            parts.append(f"version {each['version']} [{'#' * filled:<{width}}] {mib}")
        elif each["state"] in ("LOADING", "UNLOADING"):
            parts.append(f"version {each['version']}: {each['reason']}")
    return "; ".join(parts)
