"""The progress line of a run: bytes, speed and the time left."""

from __future__ import annotations

import sys
import time

from .text import duration, size_text

_EVERY_S = 0.1


class ProgressLine:
    """A line on standard error that is redrawn during a run.

    Call clear() before printing anything else there.
    """

    def __init__(self, clock=time.monotonic, out=None):
        self._clock, self._out = clock, out or sys.stderr
        self._start = clock()
        self._drawn, self._is_shown = float("-inf"), False

    def __call__(self, done, total):
        now = self._clock()
        if now - self._drawn < _EVERY_S:
            return
        self._drawn, self._is_shown = now, True
        self._out.write(f"\r\x1b[K{line_of(done, total, now - self._start)}")
        self._out.flush()

    def clear(self):
        if self._is_shown:
            self._is_shown = False
            self._out.write("\r\x1b[K")
            self._out.flush()


def line_of(done, total, seconds):
    """Returns the text of the line after `seconds`."""
    speed = done / seconds if seconds > 0 else 0
    told = f"[{duration(seconds)}, {size_text(speed)}/s"
    if not total:
        return f"{size_text(done)} {told}]"
    left = "" if speed == 0 else (
        f", {duration(max(total - done, 0) / speed)} left"
    )
    share = min(100, 100 * done // total)
    return f"{share:3.0f}% | {size_text(done)}/{size_text(total)} {told}{left}]"
