"""What loading is told, and what it tells."""

from __future__ import annotations

from . import _haulway


def check_stats(stats):
    if stats is not None and not hasattr(stats, "update"):
        raise TypeError(
            f"stats is {type(stats).__name__}: expected a dict to fill"
        )


class Loading:
    """Options of one load, as the library takes them, and its statistics.

    stats: a dict that is filled when the load is done, or None.
    """

    def __init__(self, io="auto", threads=None, verify=False, progress=None,
                 memory_budget=None, drop_cache=False, retries=None,
                 stats=None):
        check_stats(stats)
        self.options = {
            "io": io,
            "threads": threads,
            "verify": bool(verify),
            "memory_budget": memory_budget,
            "drop_cache": bool(drop_cache),
            "retries": retries,
        }
        self.progress = progress
        self._stats = stats

    def storages(self, core, rows):
        """Memories, parallel to the rows."""
        memories, stats = core.load_storages(
            list(rows), self.options, self.progress
        )
        self.tell(stats)
        return memories

    def tensors(self, core, requests):
        """Memories of requests without an address, None for the others; as
        _haulway.load_tensors() takes them."""
        memories, stats = _haulway.load_tensors(
            core, requests, self.options, self.progress
        )
        self.tell(stats)
        return memories

    def build(self, core, factory, from_dlpack, bases, encoding="utf-8"):
        """The whole object; loads its storages unless there are bases."""
        built, stats = core.build(
            factory, from_dlpack, bases, encoding, self.options, self.progress
        )
        self.tell(stats)
        return built

    def tell(self, stats):
        if self._stats is not None and stats is not None:
            self._stats.update(stats)
