"""Formats names, sizes and times for printing."""

from __future__ import annotations

from .._describing import bytes_text


def shown(text):
    """Returns a text or name from a file with control characters escaped."""
    return "".join(
        one if one.isprintable() else one.encode(
            "unicode_escape", "surrogatepass"
        ).decode()
        for one in text
    )


def size_text(count, exact=False):
    """Formats bytes as "1.5 GiB"; exact: as "1610612736 B"."""
    count = int(count)
    return f"{count} B" if exact or count < 1024 else bytes_text(count)


def duration(seconds):
    """Formats seconds as "2 h 5 min", "3 min 20 s" or "4.2 s"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
