"""The plan of a rollout: from the configuration of a service, and from that of a model."""

from __future__ import annotations

from collections.abc import Mapping

from penstock.config.load import load, typed
from penstock.config.problems import KeyPath
from penstock.config.schema import RolloutConfig
from penstock.engine.engine import ANY_NAME
from penstock.errors import ConfigError, ModelError
from penstock.repository.comparison import Comparison
from penstock.repository.parameters import ROLLOUT
from penstock.repository.rollout import Limits, Plan, Shadow, Step


def plan_of(config: RolloutConfig) -> Plan | None:
    """The plan of a model's entry; None without steps."""
    shadow = config.shadow
    comparison = Comparison(by=shadow.compare, relative=shadow.relative, absolute=shadow.absolute)
    plan = Plan(
        steps=tuple(Step(share=each, hold=config.hold) for each in config.steps),
        limits=Limits(
            error_rate=config.error_rate,
            p99_ratio=config.p99_ratio,
            disagreement=config.disagreement,
            samples=config.samples,
        ),
        shadow=Shadow(share=shadow.share, most=shadow.requests, comparison=comparison),
    )
    return plan if plan.steps else None


def entry_for(
    name: str | None, entries: Mapping[str, RolloutConfig], own: RolloutConfig | None = None
) -> RolloutConfig | None:
    """The entry that counts for a model: that of the service with its name, else the model's own,
    else that of the service for all others.
    """
    return entries.get(name or ANY_NAME) or own or entries.get(ANY_NAME)


def own_entry(name: str, parameters: Mapping[str, str], source: str) -> RolloutConfig | None:
    """The entry that a model's own configuration has; None without one.

    Args:
        name: of the model.
        parameters: those of its configuration.
        source: the name of its file, for messages.

    Raises:
        ModelError: a value is none of its key.
    """
    entry: dict[str, object] = {}
    places: dict[KeyPath, str] = {}
    for parameter, text in parameters.items():
        if parameter.startswith(ROLLOUT):
            *above, key = parameter.removeprefix(ROLLOUT).split(".")
            section = entry
            for each in above:
                section = section.setdefault(each, {})  # type: ignore[assignment] # then refused
                if not isinstance(section, dict):
                    raise ModelError(f"{source}: parameters: {parameter}: {each} has no keys")
            section[key] = typed(("rollout", name, *above, key), text)
            places["rollout", name, *above, key] = f"{source}: parameters: {parameter}"
    if not entry:
        return None
    try:
        found = {"rollout": {name: entry}, "http_port": 0}  # a service has a port
        loaded = load(yml_dict=found, environ={}, dict_name=source, places=places)
    except ConfigError as error:
        raise ModelError("\n".join(error.problems)) from error
    return loaded.config.rollout[name]
