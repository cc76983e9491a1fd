"""Exchanges objects by identity in every module that has bound them.

A program that was written for another package may have bound the package's
functions under its own names (`from torch import load as read`). An Exchange
searches all imported modules, replaces such objects, and can restore them.
"""

from __future__ import annotations

import sys


class Exchange:
    """The exchanges made so far, so that they can be undone.

    spares: a predicate on module names; matching modules keep their objects.

    The caller prevents concurrent calls of the same Exchange.
    """

    def __init__(self, spares):
        self._spares = spares
        self._done = []  # (module, attribute, before, after)

    def put(self, pairs):
        """Puts `after` for `before` in every module that has bound it.

        pairs: tuples (before, after).

        Returns "module.name" of the exchanged names, sorted. Another call also
        exchanges names that were bound since.
        """
        after = {id(before): (before, new) for before, new in pairs}
        done = []
        for name, module in list(sys.modules.items()):
            if self._spares(name):
                continue
            try:
                bound = vars(module)
            except TypeError:
                continue
            for attribute, value in list(bound.items()):
                pair = after.get(id(value))
                if pair is not None and pair[0] is value:
                    setattr(module, attribute, pair[1])
                    done.append((module, attribute, *pair))
        self._done.extend(done)
        return _named(done)

    def set(self, owner, attribute, after):
        """Puts `after` under one name of a module or class."""
        self._done.append((owner, attribute, vars(owner)[attribute], after))
        setattr(owner, attribute, after)

    def take_back(self):
        """Restores the old object under each name that still has the new one.

        Returns "module.name" of the restored names, sorted.
        """
        back = []
        while self._done:
            module, attribute, before, after = self._done.pop()
            if vars(module).get(attribute) is after:
                setattr(module, attribute, before)
                back.append((module, attribute))
        return _named(back)


def _named(exchanged):
    return sorted(
        f"{module.__name__}.{attribute}"
        for module, attribute, *_ in exchanged
    )
