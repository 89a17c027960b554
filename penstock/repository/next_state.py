"""The next state of a model's name that a load asks for: what a new version gets, and what ends.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from penstock.errors import StartupError
from penstock.repository.lifecycle import State
from penstock.repository.parameters import ANY
from penstock.repository.rollout import Plan
from penstock.repository.served import Description, Served


def with_loaded(
    description: Description,
    plan: Plan | None,
    number: int,
    wanted: Sequence[str],
    now: Served | None,
) -> Served:
    """The state with a version, which becomes the default if it is the newest that is wanted, and
    no operator has divided the requests between versions; at once, or by a rollout if there is a
    plan. Then it takes the place of an older version that is being rolled out.

    Args:
        description: of the version.
        plan: of its rollout; None: it gets all requests at once.
        number: of its rollout, different from those of earlier ones.
        wanted: the versions that the model's policy wants.
        now: the present state; None if there is none.
    """
    version = description["version"]
    now = now or Served(name=description["name"])
    newest = all(int(version) >= int(each) for each in now.versions if each in wanted)
    default, rolling = now.default, now.rolling
    becomes_default = newest and (not now.weights or rolling is not None)
    if becomes_default and plan and default is not None and int(version) > int(default):
        return now.with_rollout(description, plan, number, keep=wanted)
    if becomes_default and rolling is not None and version != default:
        now = now.rolled(rolling.taken_back("another version serves"))
    return now.with_version(
        description, default=becomes_default and now.rolling is None, again=True
    )


def with_remembered(description: Description, now: Served | None) -> Served:
    """The state with a version that served before, and that serves again from the cache."""
    state = now or Served(name=description["name"])
    return state.with_version(description, default=True, again=True)


def gone_back(before: Description, taken: str, now: Served) -> Served:
    """The state in which an earlier default version serves again. Its signature may be another one:
    what served can always serve again.

    Args:
        before: its description.
        taken: the present default version, which ends unless it has a label, or is the same one
            with other files.
        now: the present state.
    """
    version = before["version"]
    if dict(now.versions.get(version, {})) != dict(before):
        now = now.with_version({**before, "signature": ANY}, again=True)
    found = now.with_weights({}).with_default(version)
    if taken != version and taken not in found.labels.values():
        found = found.without_version(taken)
    return found


def check_number(served: Served, description: Description) -> None:
    """Check that a rollout is possible.

    Raises:
        StartupError: the version has the number of the one that gets the requests, and other files.
    """
    version, default = description["version"], served.default
    if (
        default is None
        or version != default
        or served.versions[default].get("path") == description.get("path")
    ):
        return
    raise StartupError(
        "its files have changed, which cannot be rolled out under the same number: give them the"
        f" next one, or `penstock models load {served.name}`"
    )


def is_beside(served: Served, version: str) -> bool:
    """Whether a version is newer than those that share the requests, and has no share of them."""
    shared = [int(each) for each, weight in served.weights.items() if weight]
    rolling = served.rolling is not None and served.rolling.version == version
    return bool(shared) and int(version) > max(shared) and not rolling


def without_default(wanted: Sequence[str], now: Served) -> Served:
    """The state whose default version is the newest that is wanted, if the present one is neither
    wanted nor has a label, and requests that name none all get it; else the same one.
    """
    default = now.default
    if now.weights or default in wanted or default in now.labels.values():
        return now
    there = [each for each in wanted if each in now.versions]
    return now.with_default(there[-1]) if there else now


def without_others(wanted: Sequence[str], now: Served) -> Served:
    """The state without versions that are not wanted and that no request needs; the same one if
    there are none.
    """
    for version in [*now.versions]:
        needed = version == now.default or version in now.labels.values()
        if version not in wanted and not needed and not now.weights.get(version):
            now = now.without_version(version)
    return now


def role_of(served: Served, version: str) -> State:
    """The state of a version that is served."""
    if served.weights:
        share = served.weights.get(version, 0)
        if not share:
            shadow = served.rolling is not None and served.rolling.version == version
            return State.SHADOW if shadow else State.STANDBY
        return State.SERVING if version == served.default else State.CANARY
    return State.SERVING if version == served.default else State.STANDBY


def paths_of(description: Description) -> Iterator[str]:
    """The places of the files of a version, and of the steps of an ensemble."""
    for key in ("path", "folder"):
        if description.get(key):
            yield description[key]
    for step in description.get("steps", ()):
        yield from paths_of(step)
