"""Finds what contains itself."""

from __future__ import annotations

from typing import Any


def knots_of(value: object) -> frozenset[int]:
    """The containers that contain themselves, in time in proportion to their number.

    Goes without recursion, since how deeply they are nested is what it must find out. Source:
    Tarjan's strongly connected components, by their paths.
    """
    order: dict[int, int] = {}  # when each was first seen
    lowest: dict[int, int] = {}  # the first seen that can be reached on the path
    path: list[int] = []
    on_path: set[int] = set()
    knots: set[int] = set()
    work: list[tuple[Any, list[Any]]] = []

    def enter(container: Any) -> None:
        key = id(container)
        order[key] = lowest[key] = len(order)
        path.append(key)
        on_path.add(key)
        items = list(container.values()) if type(container) is dict else list(container)
        work.append((container, [item for item in items if type(item) in (list, tuple, dict)]))

    if type(value) in (list, tuple, dict):
        enter(value)
    while work:
        container, items = work[-1]
        key = id(container)
        if items:
            item = items.pop()
            if item is container:
                knots.add(key)
            if id(item) not in order:
                enter(item)
            elif id(item) in on_path:
                lowest[key] = min(lowest[key], order[id(item)])
            continue
        work.pop()
        if work:
            parent = id(work[-1][0])
            lowest[parent] = min(lowest[parent], lowest[key])
        if lowest[key] == order[key]:
            group = [path.pop()]
            while group[-1] != key:
                group.append(path.pop())
            on_path.difference_update(group)
            if len(group) > 1:
                knots.update(group)
    return frozenset(knots)
