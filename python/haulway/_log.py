"""The logger "haulway": at debug level, what was chosen and why.

    logging.getLogger("haulway").setLevel(logging.DEBUG)

Messages hold no key, no passphrase and no credentials of a URL.
"""

# How: importing logging takes longer than importing this package, so that a
# program that has not imported it is not made to. Without it nobody can have
# set a level, and there is nothing to say. Where the level is above debug, the
# cost is one look at a level that logging remembers.


from __future__ import annotations

import sys

_DEBUG = 10
_logger = None


def debug_log():
    """The logger if it takes messages of debug level, else None."""
    global _logger
    if _logger is None:
        get = getattr(sys.modules.get("logging"), "getLogger", None)
        if get is None:
            return None
        _logger = get("haulway")
    return _logger if _logger.isEnabledFor(_DEBUG) else None


def said(count, seconds):
    """"1,024 bytes in 0.100 s"."""
    return f"{count:,} bytes in {seconds:.3f} s"
