"""How many random cases a test tries: a tenth, so that a run is short, or all.

HAULWAY_ALL_CASES=1 in the environment asks for all. C++ tests always try all,
which takes no time that can be measured.
"""

import os


def cases(count):
    """`count`, or a tenth of it."""
    return count if os.environ.get("HAULWAY_ALL_CASES") == "1" else -(-count // 10)
