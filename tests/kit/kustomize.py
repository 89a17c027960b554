"""Merges the overlays of `deploy/kubernetes`, as `kubectl kustomize` does.

It knows what the files there use, and refuses the rest: resources, components, patches that name
their object (a strategic merge for kinds of Kubernetes, RFC 7396 for others), `namespace`, and
`images`.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml

_FIELDS = {"apiVersion", "kind", "resources", "components", "patches", "namespace", "images"}
_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "topologySpreadConstraints": "topologyKey",
}
"""Lists of a pod whose elements are merged, by the field that names one. In containers, `ports`
are, too; those of a Service and of a policy are not used in patches."""
_OF_KUBERNETES = ("apps/v1", "v1", "policy/v1", "networking.k8s.io/v1", "autoscaling/v2")

Resource = dict[str, Any]


class Loader(yaml.SafeLoader):
    """Refuses a key that stands twice in a mapping."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        found = super().construct_mapping(node, deep)
        assert len(found) == len(node.value), f"a key twice{node.start_mark}"
        return found


def documents(file: Path) -> list[Any]:
    """The documents of a file of YAML."""
    return list(yaml.load_all(file.read_text(), Loader))


def files_of(folder: Path) -> Iterator[Path]:
    """The files that a kustomization reads, itself included."""
    file = folder / "kustomization.yaml"
    yield file
    (found,) = documents(file)
    for name in (*found.get("resources", ()), *found.get("components", ())):
        place = (folder / name).resolve()
        yield from files_of(place) if place.is_dir() else [place]
    yield from ((folder / each["path"]).resolve() for each in found.get("patches", ()))


def build(folder: Path) -> list[Resource]:
    """The objects of a kustomization.

    Raises:
        AssertionError: it says what this does not know, or what kustomize refuses.
    """
    return _apply(folder, [])


def _apply(folder: Path, resources: list[Resource]) -> list[Resource]:
    (found,) = documents(folder / "kustomization.yaml")
    assert found.keys() <= _FIELDS, found.keys() - _FIELDS
    assert found["kind"] in ("Kustomization", "Component")
    for name in found.get("resources", ()):
        place = folder / name
        more = _apply(place, []) if place.is_dir() else documents(place)
        assert not {_identity(each) for each in resources} & {_identity(each) for each in more}
        resources += more
    for name in found.get("components", ()):
        (inner,) = documents(folder / name / "kustomization.yaml")
        assert inner["kind"] == "Component"
        resources = _apply(folder / name, resources)
    for each in found.get("patches", ()):
        assert each.keys() == {"path"}
        for patch in documents(folder / each["path"]):
            (target,) = (each for each in resources if _identity(each) == _identity(patch))
            merged = _merged(target, patch, strategic=patch["apiVersion"] in _OF_KUBERNETES)
            resources[resources.index(target)] = merged
    if "namespace" in found:
        for each in resources:
            each["metadata"]["namespace"] = found["namespace"]
    for image in found.get("images", ()):
        assert image.keys() <= {"name", "newName", "newTag"}
        for container in (each for found in resources for each in containers_of(found)):
            name, _, tag = container["image"].rpartition(":")
            if name == image["name"]:
                container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"
    return resources


def containers_of(value: Any) -> Iterator[dict[str, Any]]:
    """All containers in an object."""
    if isinstance(value, list):
        for each in value:
            yield from containers_of(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            if name in ("containers", "initContainers"):
                yield from each
            else:
                yield from containers_of(each)


def _identity(resource: Resource) -> tuple[str, str, str]:
    return resource["apiVersion"], resource["kind"], resource["metadata"]["name"]


def _merged(target: Any, patch: Any, *, strategic: bool, name: str = "", inside: str = "") -> Any:
    """The target with a patch; null removes. A new list, unless its elements have names."""
    if isinstance(patch, dict) and isinstance(target, dict):
        found = deepcopy(target)
        for key, value in patch.items():
            if value is None:
                found.pop(key, None)
            else:
                found[key] = _merged(
                    found.get(key), value, strategic=strategic, name=key, inside=name
                )
        return found
    key = "containerPort" if (name, inside) == ("ports", "containers") else _KEYS.get(name)
    if strategic and key and isinstance(patch, list) and isinstance(target, list):
        given = {each[key]: each for each in patch}
        assert len(given) == len(patch)
        kept = [
            _merged(each, given.pop(each[key]), strategic=True, inside=name)
            if each[key] in given
            else each
            for each in target
        ]
        # kustomize puts new elements of a patch first.
        return [*given.values(), *kept]
    return deepcopy(patch)
