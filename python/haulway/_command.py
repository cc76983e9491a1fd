"""The command of an installed package. The extension already contains the
engine; it runs the same code as the standalone program."""

import os
import signal
import sys

from haulway import _haulway


def main():
    """Runs the command with the words of sys.argv. Does not return."""
    # Python catches or ignores these signals. The command must end when no one
    # reads its pipe, and it handles interrupts itself.
    for number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    # The interpreter for `bulk`: see cli/bulk.cc.
    os.environ["HAULWAY_PYTHON"] = sys.executable
    _haulway.run_command([b"haulway", *map(os.fsencode, sys.argv[1:])])
