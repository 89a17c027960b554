"""The keys that an op declares itself: ``op.<name>.<key>`` in the configuration.

A declaration is the key's default, whose type the value must have; any value if that is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, TypeAlias

from pydantic import Field, ValidationError, create_model

from penstock.config.op import OpConfig
from penstock.config.problems import Problem, explain
from penstock.config.section import Section, keys_of

Declared: TypeAlias = Mapping[str, Mapping[str, object]]
"""Default by key, by the name of an op."""

_TYPES = (bool, int, float, str, list, dict)


def problem_of_declaration(declared: object) -> str | None:
    """Why ``config_keys`` cannot be used; None if they can."""
    if not isinstance(declared, Mapping):
        return f"config_keys must be a dict of a default by key, got {type(declared).__name__}"
    for key, default in declared.items():
        if not isinstance(key, str) or not key.isidentifier():
            return f"config_keys: {key!r} is no name of a key"
        if key in keys_of(OpConfig):
            return f"config_keys: {key} is a key of every op: choose another name"
        if default is not None and type(default) not in _TYPES:
            names = ", ".join(each.__name__ for each in _TYPES)
            return f"config_keys: the default of {key} must be None or of {names}"
    return None


def own_values(
    name: str, declared: Mapping[str, object], given: Mapping[str, object]
) -> tuple[Mapping[str, Any], list[Problem]]:
    """Check the values of an op's own keys.

    Args:
        name: the op's name.
        declared: default by key, without ``problem_of_declaration``.
        given: value by key, for some of these keys.

    Returns:
        A value for each key, and the problems.
    """
    fields: Any = {
        f"own_{index}": (Any if default is None else type(default), Field(default, alias=key))
        for index, (key, default) in enumerate(declared.items())
    }
    try:
        checked = create_model("Own", __base__=Section, **fields).model_validate(dict(given))
    except ValidationError as error:
        problems = [replace(each, path=("op", name, *each.path)) for each in explain(error)]
        return MappingProxyType({**declared}), problems
    values = (getattr(checked, field) for field in fields)
    return MappingProxyType(dict(zip(declared, values, strict=True))), []


def is_of_op(problem: Problem) -> bool:
    """Whether it is about a key directly below ``op.<name>``."""
    return len(problem.path) == 3 and problem.path[0] == "op"


def nearest_own(problem: Problem, declared: Declared) -> Problem:
    """The problem of an unknown key, with the op's own key that is meant, if any."""
    if not is_of_op(problem):
        return problem
    near = get_close_matches(str(problem.path[2]), declared.get(str(problem.path[1]), {}), n=1)
    if not near:
        return problem
    return replace(problem, text=f"is not a known key; did you mean {near[0]}?")
