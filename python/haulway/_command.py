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
    _haulway.run_command([b"haulway", *map(os.fsencode, sys.argv[1:])])
