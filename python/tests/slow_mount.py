"""A mount whose files come from a program that takes a millisecond a request, as
mounts of networks and object stores do."""

import os
import pathlib
import subprocess
import time
from typing import NamedTuple

import pytest


class Asked(NamedTuple):
    """What a program asked of the mount."""

    opens: int
    reads: int
    read_bytes: int


class SlowMount:
    """A folder `at` that shows the files of the folder `files`."""

    def __init__(self, folder):
        self.files, self.at = folder / "files", folder / "mount"
        self.files.mkdir()
        self.at.mkdir()
        self._log = folder / "log"
        program = folder / "slow_mount"
        flags = subprocess.run(["pkg-config", "--cflags", "--libs", "fuse3"],
                               capture_output=True, text=True, check=True)
        subprocess.run(["cc", "-O1", "-o", program,
                        pathlib.Path(__file__).with_suffix(".c"),
                        *flags.stdout.split()], check=True)
        self._process = subprocess.Popen(
            [program, self.files, self._log, self.at, "-f", "-o",
             "ro,max_read=131072"], stderr=subprocess.PIPE, text=True)
        while not os.path.ismount(self.at):
            if self._process.poll() is not None:
                pytest.skip("no FUSE mounts here: "
                            + self._process.stderr.read().strip())
            time.sleep(0.01)

    def asked(self):
        """Returns what was asked since the last call, and forgets what the kernel
        has read."""
        lines = self._log.read_text().splitlines()
        os.truncate(self._log, 0)
        for path in self.at.rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while not self._log.read_text().count("open") == sum(
                path.is_file() for path in self.files.rglob("*")):
            time.sleep(0.01)
        os.truncate(self._log, 0)
        reads = [line.split(" ") for line in lines if line.startswith("read")]
        return Asked(len(lines) - len(reads), len(reads),
                     sum(int(words[-1]) for words in reads))

    def stop(self):
        subprocess.run(["umount", self.at], check=True)
        self._process.wait()
