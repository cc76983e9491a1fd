"""The command of an installed package: the extension holds the engine already,
and runs what the program of the other packages runs."""

import os
import signal
import sys

from haulway import _haulway


def main():
    """Runs the command with the words of sys.argv. Does not return."""
    # Python catches or ignores these. The command ends with a pipe that nobody
    # reads, and handles an interrupt itself.
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    # What `bulk` is run by: see cli/bulk.cc.
    os.environ["HAULWAY_PYTHON"] = sys.executable
    _haulway.run_command([b"haulway", *map(os.fsencode, sys.argv[1:])])
