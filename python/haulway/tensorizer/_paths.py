"""Tensors by path: names, trees, and mappings of intermediate levels."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Mapping

from .._describing import described, shown

FilterFuncType = typing.Callable[
    [str | typing.Sequence[str | int]], typing.Any
]


def name_of(path):
    """Returns a tensor's name for filters and iteration: its only key, or its
    path."""
    if len(path) == 1 and isinstance(path[0], str):
        return path[0]
    return path


def nest(items):
    """Builds dicts of dicts with the leaves in them from (path, leaf) pairs."""
    root = {}
    for path, leaf in items:
        level = root
        for step in path[:-1]:
            level = level.setdefault(step, {})
        level[path[-1]] = leaf
    return root


class View(Mapping):
    """One level of the tree; looks up leaves on access."""

    def __init__(self, level, leaf):
        self._level = level
        self._leaf = leaf

    def __getitem__(self, key):
        # A dict treats True as 1, but a bool is not an index of a list.
        if isinstance(key, bool) or not isinstance(key, (str, int)):
            raise KeyError(key)
        found = self._level[key]
        if isinstance(found, dict):
            return View(found, self._leaf)
        return self._leaf(found)

    def __contains__(self, key):
        return (
            isinstance(key, (str, int))
            and not isinstance(key, bool)
            and key in self._level
        )

    def __iter__(self):
        return iter(self._level)

    def __len__(self):
        return len(self._level)

    def __repr__(self):
        return described(self, f"{len(self)} entries",
                         shown(list(itertools.islice(self._level, 5))))


def build(level, leaf):
    """Builds dicts and lists. Indices with gaps stay keys of a dict."""
    if not isinstance(level, dict):
        return leaf(level)
    built = {key: build(below, leaf) for key, below in level.items()}
    if built and sorted(map(str, built)) == sorted(
        map(str, range(len(built)))
    ) and all(isinstance(key, int) for key in built):
        return [built[i] for i in range(len(built))]
    return built
