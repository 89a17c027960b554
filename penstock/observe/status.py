"""Queries the status or a trace of a running service, and prints its status."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from penstock.client.token import Token, TokenStays, hint, with_token
from penstock.errors import PenstockError
from penstock.observe.places import idle, lines_of
from penstock.observe.swaps import unresolved
from penstock.observe.watch import quantiles
from penstock.runtimes.model_input import described_tensor


class NoStatus(PenstockError):
    """The service cannot be reached, or has no status."""


_MOST_CALLERS: Final = 10
_MOST_ERROR: Final = 16_384  # bytes of an error's body
_SAME_METHOD: Final = 307

_KEPT_BY_THREADS: Final = (
    "models that may change are open in threads: the memory of a version that was replaced may be"
    " free only when its engine is replaced, as by penstock reload"
)

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
_IF_TLS: Final = "; is it the HTTP port? If the service uses TLS, write https://HOST:PORT"


class _Redirects(TokenStays):
    """Follows redirects, those of POST by status 307 too: to the port for operators."""

    def redirect_request(
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Return the request that follows."""
        if code != _SAME_METHOD or req.data is None:
            return super().redirect_request(req, fp, code, msg, headers, newurl)
        return self.guarded(req, urllib.request.Request(newurl, req.data, dict(req.headers)))  # noqa: S310


def ask_status(
    address: str,
    timeout: float = 5.0,
    ca_file: str | None = None,
    token: Token | None = None,
) -> dict[str, Any]:
    """The status of the service at ``host:port`` (its HTTP port), or at a URL.

    ``ca_file``: certificates to trust instead of the system's. Without it, the certificate of a
    service at a loopback address is not verified: it is mostly that of a public name, by which the
    service would refuse to show its status. ``token``: a key or token with the scope of operators.

    Raises:
        NoStatus: there is none.
    """
    return _ask(address, "/status", timeout, ca_file, token)


def ask_trace(
    address: str,
    requests: int,
    seconds: float,
    ca_file: str | None = None,
    token: Token | None = None,
) -> dict[str, Any]:
    """The trace of the next requests of a service, returned after this number of requests or
    seconds. ``ca_file`` and ``token`` as for ``ask_status``.

    Raises:
        NoStatus: there is none.
    """
    path = f"/trace?requests={requests}&seconds={seconds:g}"
    return _ask(address, path, seconds + 10.0, ca_file, token)


def ask_reload(
    address: str,
    timeout: float,
    ca_file: str | None = None,
    token: Token | None = None,
) -> float:
    """Let a service run its program again; returns the seconds that this took. ``ca_file`` and
    ``token`` as for ``ask_status``.

    Raises:
        NoStatus: nothing has changed, with the reason; or there is no answer within ``timeout``
            seconds.
    """
    answer = ask(address, "/reload", "reload", timeout, ca_file, token, {})
    return float(answer.value["seconds"])


def _ask(
    address: str, path: str, timeout: float, ca_file: str | None, token: Token | None
) -> dict[str, Any]:
    what = path[1:].partition("?")[0]
    found: dict[str, Any] = ask(address, path, what, timeout, ca_file, token).value
    return found


class Answered(NamedTuple):
    """The answer of a service.

    Attributes:
        value: its JSON.
        url: of the service that gave it, without the path: that of its port for operators, if it
            has one.
    """

    value: Any
    url: str


def ask(
    address: str,
    path: str,
    what: str,
    timeout: float,
    ca_file: str | None = None,
    token: Token | None = None,
    body: Any = None,
) -> Answered:
    """Send a request of operators to a running service.

    Args:
        address: as for ``ask_status``.
        path: of a route that answers with JSON.
        what: is asked for, in messages.
        timeout: seconds until the answer.
        ca_file: as for ``ask_status``.
        token: likewise.
        body: a JSON value to post; None: the request is a GET, which follows redirects.

    Raises:
        NoStatus: there is no answer, or it is an error.
    """
    url = address if "://" in address else f"http://{address}"
    handlers: list[Any] = [urllib.request.ProxyHandler({}), _Redirects()]
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise NoStatus(f"{ca_file}: {error.strerror or error}") from error
    if ca_file is None and urlsplit(url).hostname in _LOOPBACK:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    handlers.append(urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)
    try:
        fields = {} if body is None else {"Content-Type": "application/json"}
        request = urllib.request.Request(  # noqa: S310 - the user's own URL
            url.rstrip("/") + path,
            None if body is None else json.dumps(body).encode(),
            {**fields, **dict(with_token((), token))},
        )
        with opener.open(request, timeout=timeout) as answer:
            return Answered(json.load(answer), answer.url.removesuffix(path))
    except urllib.error.HTTPError as error:
        with error:
            text = _message_of(error)
            if body is None or error.code in (401, 404, 405):
                text = f"{url} has no {what}: HTTP {error.code}{': ' if text else ''}{text}"
        raise NoStatus((text or f"{url}: HTTP {error.code}") + hint(error.code, token)) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        text = f"{url}: the {what} cannot be read: {reason}"
        if isinstance(reason, ConnectionResetError | http.client.BadStatusLine):
            text += _IF_TLS if url.startswith("http:") else ""
        raise NoStatus(text) from error


def _message_of(error: urllib.error.HTTPError) -> str:
    """The text of an error answer; empty for one that is not ours."""
    try:
        found = json.loads(error.read(_MOST_ERROR))
        return str(found["message"] if "message" in found else found["error"])
    except (OSError, ValueError, KeyError, TypeError, http.client.HTTPException):
        return ""


def shown(report: dict[str, Any]) -> str:
    """The report as text."""
    requests, seconds = report["requests"], report["seconds"]["sum"]
    mean = 1000 * seconds / requests["answered"] if requests["answered"] else 0.0
    half, most = quantiles({}, report["seconds"])
    lines = [
        f"{'ready' if report['ready'] else 'not ready: ' + report['why']}, "
        f"{report['engines']} engine{'s' if report['engines'] > 1 else ''}",
        "requests  " + "  ".join(f"{key} {count}" for key, count in requests.items()),
        f"answers   {_counts(report['answers'])}  mean {mean:.1f} ms  p50 {half}  p99 {most}",
    ]
    if report["refusals"]:
        lines.append(f"refusals  {_counts(report['refusals'])}")
    for caller in report.get("callers", [])[:_MOST_CALLERS]:
        refused = f"  refused: {_counts(caller['refused'])}" if caller["refused"] else ""
        lines.append(
            f"caller    {caller['name']}  requests {caller['requests']}  failed {caller['failed']}"
            + refused
        )
    for graph in report["graphs"]:
        lines.append(_graph(graph))
        signature = graph["signature"] or {}
        lines += [
            f"  {side:<8}{_tensors(signature[side])}" for side in signature if signature[side]
        ]
        for op in graph["ops"]:
            lines += [_op(op), *(f"    {each}" for each in lines_of(op, report["engines"]))]
    lines += _store(report.get("external_store"))
    if any(map(_opens_versions_in_threads, report["graphs"])):
        lines.append(f"memory    {_KEPT_BY_THREADS}")
    lines += [line for each in report.get("rollouts", ()) for line in _rollout(each)]
    of_repositories = {each["name"] for each in report.get("models", ())}
    for each in unresolved(report.get("swaps", ())):
        if each["model"] not in of_repositories:  # else its row has the reason
            lines.append(f"model     {_called(each['model'])}  {failure(each)}")
    for each in report.get("models", ()):
        if each["state"] != "READY" or each["reason"]:
            version = f"version {each['version']}  " if each["version"] else ""
            reason = f"  {each['reason']}" if each["reason"] else ""
            lines.append(f"model     {each['name']}  {version}{each['state']}{reason}")
    for each in report.get("repositories", ()):
        if each["why"]:
            lines.append(f"repository {each['name']}  {each['why']}")
    return "\n".join(lines)


def _store(store: dict[str, Any] | None) -> list[str]:
    """The external store: who can use it, what went there, and what is wrong with it."""
    if store is None:
        return []
    put, fetched = (f"{store[f'{each}_bytes'] / 2**20:.1f} MiB" for each in ("put", "fetched"))
    line = (
        f"store     {store['available']} of {store['users']} users can use it"
        f"  keys {store['in_use']}  put {put}  fetched {fetched}"
        f"  inline {store['inline']}  lost {store['lost']}"
    )
    return [line, *([f"  the external store {store['why']}"] if store["why"] else [])]


def _called(name: str | None) -> str:
    return name or "any name"


def _graph(graph: dict[str, Any]) -> str:
    """A version of a graph: its share of the requests and its labels, if versions may change."""
    share, labels = graph.get("share"), graph.get("labels")
    return (
        f"{_called(graph['name'])}  version {graph['version']}  {graph['state']}"
        f"  inside {graph['inside']}"
        + ("" if share is None else f"  share {100 * share:.4g} %")
        + (f"  labels {', '.join(labels)}" if labels else "")
    )


def _opens_versions_in_threads(graph: dict[str, Any]) -> bool:
    """Whether the version may be replaced, and its engine itself has opened a model of it."""
    return "share" in graph and any(op["model"] and "threads" in op for op in graph["ops"])


def failure(swap: dict[str, Any]) -> str:
    """A swap that has failed, as text."""
    what = f"version {', '.join(swap['versions'])}" if swap["versions"] else "a further version"
    tries = f" (tried {swap['tries']} times)" if swap["tries"] > 1 else ""
    return f"{what} is not served{tries}: {swap['why'] or 'an engine could not make it ready'}"


def _rollout(rollout: dict[str, Any]) -> list[str]:
    """A rollout: its step, and what both versions did in it, with the limits."""
    start = f"rollout   {_called(rollout['name'])}  version {rollout['version']}"
    why = f": {rollout['why']}" if rollout["why"] else ""
    if rollout["state"] != "running":
        return [f"{start} {rollout['state']}{why}"]
    step = f"step {rollout['step']} of {rollout['steps']}"
    lines = [f"{start}  {step}  share {rollout['share']} %  beside {rollout['stable']}{why}"]
    given = {key: each for key, each in rollout["limits"].items() if each is not None}
    lines.append("  limits  " + "  ".join(f"{key} {each:g}" for key, each in given.items()))
    for side, seen in rollout.get("seen", {}).items():
        p99 = "-" if seen["p99"] is None else f"{1000 * seen['p99']:.1f} ms"
        compared = f"  compared {seen['compared']}  differed {seen['differed']}"
        lines.append(
            f"  {side:<6}  answers {seen['answers']}  failed {seen['failed']}  p99 {p99}"
            + (compared if seen["compared"] else "")
        )
    return lines


def _counts(counts: dict[str, int]) -> str:
    return "  ".join(f"{key} {count}" for key, count in counts.items())


def _tensors(tensors: list[dict[str, Any]]) -> str:
    return ", ".join(
        f"{each['name']} {described_tensor(np.dtype(each['dtype']), each['shape'])}"
        for each in tensors
    )


def _op(op: dict[str, Any]) -> str:
    return (
        f"  op    {op['name']}  {_model(op)}{_steps(op) if 'steps' in op else _batches(op)}"
        + (f"  filled in {100 * op['filled_in'] / op['elements']:.0f} %" if op["elements"] else "")
        + "".join(f"  {key} {op[key]}" for key in ("errors", "timeouts", "deaths") if op.get(key))
        + _batched(op["batching"], op.get("costs"))
    )


def _model(op: dict[str, Any]) -> str:
    """Which version of its model an op runs, if that may change."""
    version = op.get("model_version")
    return f"version {version}  " if version else ""


def _batches(op: dict[str, Any]) -> str:
    """The workers of an op, and its batches."""
    batches = op["batches"] or 1
    size = op["samples"] / batches
    phases = " + ".join(f"{1000 * each / batches:.2f}" for each in op["seconds"].values())
    return (
        f"{idle(op)} of {op['workers']} workers idle  waiting {op['waiting']}"
        f"  batches {op['batches']} of {size:.1f}  ms a batch {phases}"
    )


def _steps(op: dict[str, Any]) -> str:
    """The seats of an op, and its steps."""
    seats, steps = op["seats"], op["steps"]
    count = steps["count"] or 1
    running, seconds = (steps[each]["sum"] / count for each in ("running", "seconds"))
    return (
        f"{seats['taken']}/{seats['all']} seats  waiting {op['waiting']}  requests {op['samples']}"
        f"  steps {steps['count']} of {running:.1f}  ms a step {1000 * seconds:.2f}"
    )


def _batched(batching: dict[str, Any], costs: dict[str, Any] | None) -> str:
    """How the op's requests are batched, if at all, and why; and what a batch costs."""
    if batching.get("why") in (None, "its batch_size is 1", "its batch is 1"):
        return ""
    by = batching["by"]
    learned = "" if costs is None else f"; {costs['words']}"
    return f"  {'not batched' if by is None else f'batched by {by}'}: {batching['why']}{learned}"
