#!/usr/bin/env python3
"""Lists the tests that the last scripts/test left out, and why.

    tools/not_possible.py [--refuse]

A test leaves out what the machine does not allow: a container refuses io_uring,
only root can be somebody else. With --refuse, as in .ci/run, it fails if this
machine does allow it, or if the reason is none of REASONS.
"""

import collections
import ctypes
import errno
import os
import pathlib
import re
import subprocess
import sys

BUILD = pathlib.Path(__file__).resolve().parent.parent / "build"
# Written by python/tests/conftest.py, a line for each test.
FROM_PYTHON = BUILD / "not_possible.txt"


def has_io_uring():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(425, 0, None)
    return ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM)


def has_all_rights():
    return not subprocess.run(["unshare", "--mount", "true"],
                              capture_output=True).returncode


# Parts of reasons, and what says whether the machine allows it all the same; None
# if that is a matter of its kernel, file system or processor.
REASONS = {
    "io_uring": has_io_uring,
    "root alone": lambda: os.geteuid() == 0,
    "no FUSE mounts": lambda: has_all_rights() and os.path.exists("/dev/fuse"),
    "threads cannot be stopped|no filters can be set|process_vm_readv":
        has_all_rights,
    "direct|O_DIRECT|lease|overlay|no pages are brought in|x86-64": None,
}


def reasons():
    """Yields the reason of each test that was left out."""
    if FROM_PYTHON.exists():
        yield from FROM_PYTHON.read_text().splitlines()
    log = BUILD / "test/Testing/Temporary/LastTest.log"
    if log.exists():
        yield from re.findall(r"^\S+:\d+: Skipped\n(.*)",
                              log.read_text(errors="replace"), re.MULTILINE)


def why_refused(reason):
    """Returns why the reason does not count here, or None."""
    for part, allows in REASONS.items():
        if re.search(part, reason):
            return "this machine allows it" if allows and allows() else None
    return "tools/not_possible.py does not know this reason"


def main():
    refused = False
    for reason, count in sorted(collections.Counter(reasons()).items()):
        print(f"not possible here: {count} test{'s' if count > 1 else ''}: {reason}")
        if sys.argv[1:] == ["--refuse"] and (why := why_refused(reason)):
            print(f"  refused: {why}")
            refused = True
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main())
