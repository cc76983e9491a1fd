"""The logger "haulway": at debug level, what was chosen and why.

    logging.getLogger("haulway").setLevel(logging.DEBUG)

Messages hold no key, no passphrase and no credentials of a URL.
"""

# Design: importing logging takes longer than importing this package, so the
# package never does. If the program has not imported logging, nobody can have
# set a level, and nothing is logged. If the level is above debug, a call costs
# one lookup of a level that logging caches.


from __future__ import annotations

import sys

_DEBUG = 10
_logger = None


def debug_log():
    """Returns the logger if debug messages are enabled, else None."""
    global _logger
    if _logger is None:
        get = getattr(sys.modules.get("logging"), "getLogger", None)
        if get is None:
            return None
        _logger = get("haulway")
    return _logger if _logger.isEnabledFor(_DEBUG) else None


def said(count, seconds):
    """Formats a size and a time: "1,024 bytes in 0.100 s"."""
    return f"{count:,} bytes in {seconds:.3f} s"
