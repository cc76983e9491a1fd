"""The number of random cases in a test: a tenth, to keep runs short, or all.

HAULWAY_ALL_CASES=1 in the environment selects all. C++ tests always try all,
which takes no measurable time.
"""

import os


def cases(count):
    """Returns `count`, or a tenth of it."""
    return count if os.environ.get("HAULWAY_ALL_CASES") == "1" else -(-count // 10)
