"""Names, sizes and times as they are printed."""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def shown(text):
    """A text or name from a file, with control characters escaped."""
    return "".join(
        one if one.isprintable() else one.encode(
            "unicode_escape", "surrogatepass"
        ).decode()
        for one in text
    )


def size_text(count, exact=False):
    """Bytes as "1.5 GiB"; exact: as "1610612736 B"."""
    if exact:
        return f"{int(count)} B"
    unit = 0
    while count >= 1024 and unit + 1 < len(_UNITS):
        count /= 1024
        unit += 1
    return f"{count:.1f} {_UNITS[unit]}" if unit else f"{int(count)} B"


def duration(seconds):
    """Seconds as "2 h 5 min", "3 min 20 s" or "4.2 s"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
