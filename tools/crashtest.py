#!/usr/bin/env python3
"""Interrupts `haulway repack` and `haulway edit` at every system call; see
scripts/crashtest."""

import argparse
import gzip
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOURCE = ROOT / "testdata" / "small.pt"
WRITING = (
    "openat,fallocate,pwritev,pwrite64,write,ftruncate,fchmod,fchown,fsync,"
    "linkat,rename,close"
)
EDITING = (
    "openat,pwritev,pwrite64,copy_file_range,fallocate,fsync,ftruncate,flock,"
    "linkat,rename,close"
)
GOLDEN = ROOT / "testdata" / "golden" / "tensorizer"
ERRORS = ["ENOSPC", "EIO", "EINTR", "EDQUOT", "EACCES", "EMFILE", "ENOMEM"]
# An interrupted call is made again, so it must not fail every time.
RETRIED = {"EINTR"}


class Save:
    """A way to save, into a folder that has an old file."""

    def __init__(self, cli, folder, name, arguments):
        self.name = name
        self.target = folder / "model.pt"
        self.command = [
            str(cli), "repack", str(SOURCE), str(self.target), "--threads",
            "1", "--no-progress", *arguments,
        ]
        self.folder = folder
        self.old = b"the old file, which is not a checkpoint"
        self.reset()
        subprocess.run(self.command, check=True, stdout=subprocess.DEVNULL)
        self.new = self.target.read_bytes()

    def reset(self):
        for path in self.folder.iterdir():
            path.unlink()
        self.target.write_bytes(self.old)

    def run(self, *strace):
        """Returns the exit status under strace."""
        return subprocess.run(
            ["strace", "-f", "-qq", "-o", "/dev/null", *strace, *self.command],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ).returncode

    def calls(self, names):
        """Returns how often the save makes these system calls."""
        log = self.folder.parent / "calls"
        subprocess.run(
            ["strace", "-f", "-qq", "-o", str(log), "-e", f"trace={names}",
             *self.command],
            check=True, stdout=subprocess.DEVNULL,
        )
        lines = log.read_text().splitlines()
        return sum("(" in line or "resumed" not in line for line in lines)

    def check(self, what):
        """Checks that the file is the old or the new one, and that the next
        save leaves nothing else behind; returns which."""
        found = self.target.read_bytes()
        if found not in (self.old, self.new):
            sys.exit(f"{what}: the target is neither old nor new")
        subprocess.run(self.command, check=True, stdout=subprocess.DEVNULL)
        left = sorted(os.listdir(self.folder))
        if left != [self.target.name]:
            sys.exit(f"{what}: left behind {left}")
        if self.target.read_bytes() != self.new:
            sys.exit(f"{what}: the next save wrote something else")
        return "old" if found == self.old else "new"


class Edit:
    """A way to edit a file whose initial content is `start`."""

    def __init__(self, cli, folder, name, ending, start, arguments):
        self.name = name
        self.cli = str(cli)
        self.folder = folder
        self.target = folder / f"model.{ending}"
        self.start = start
        self.command = [
            self.cli, "edit", str(self.target), "--threads", "1", *arguments,
        ]
        self.reset()
        self.old = self.state("before")
        subprocess.run(self.command, check=True, stdout=subprocess.DEVNULL)
        self.new = self.state("after")
        if self.old == self.new:
            sys.exit(f"{name}: the edit changes nothing")
        self.reset()

    def reset(self):
        self.target.write_bytes(self.start)

    run = Save.run

    def calls(self, names):
        self.reset()
        return Save.calls(self, names)

    def state(self, what):
        """Returns every tensor, verified, and all metadata."""
        checked = subprocess.run([self.cli, "verify", str(self.target)],
                                 capture_output=True, text=True)
        if checked.returncode != 0:
            sys.exit(f"{what}: torn: {checked.stdout}{checked.stderr}")
        listed, described = (
            json.loads(subprocess.run(
                [self.cli, verb, str(self.target), "--json"], check=True,
                capture_output=True,
            ).stdout) for verb in ("ls", "info")
        )
        tensors = [(tensor["name"], tensor["dtype"], tensor["shape"])
                   for tensor in listed["tensors"]]
        return tensors, described.get("metadata")

    def check(self, what):
        """Checks that the file is the old or the new one; if old, repeats the
        edit."""
        found = self.state(what)
        if found not in (self.old, self.new):
            sys.exit(f"{what}: the file is neither old nor new")
        if found == self.new:
            return "new"
        done = subprocess.run(self.command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{what}: the next edit fails: {done.stderr}")
        if self.state(what) != self.new:
            sys.exit(f"{what}: the next edit made something else")
        left = sorted(os.listdir(self.folder))
        if left != [self.target.name]:
            sys.exit(f"{what}: left behind {left}")
        return "old"


def golden(name):
    with gzip.open(GOLDEN / f"{name}.tensors.gz") as file:
        return file.read()


def edits_of_segments(cli, scratch):
    """Yields every way in which an edit rearranges a file."""
    other, more = scratch / "other.tensors", scratch / "more.tensors"
    other.write_bytes(golden("2.11.1_v1_nested"))
    more.write_bytes(golden("1.1.0_v1_u8_f32"))
    append = ["--append", str(other)]
    rename = ["--rename", "u=v", "--set", "step=1"]
    for number, (name, start, arguments) in enumerate((
        ("append", "segments_f32", append),
        # In this file the blocks of the header segment are full.
        ("append, inserting", "segments_full", append),
        ("append, moving", "segments_full", [*append, "--move"]),
        ("rename, inserting", "segments_notes", rename),
        ("rename, moving", "segments_notes", [*rename, "--move"]),
        ("all, of PR #170", "pr170_f32", [*append, *rename]),
        # Fits the slack, so the file keeps the layout of the pull request.
        ("append, of PR #170", "pr170_max_tensors", ["--append", str(more)]),
    )):
        folder = scratch / f"edit-{number}"
        folder.mkdir()
        yield Edit(cli, folder, name, "tensors", golden(start), arguments)


def edits_of_others(cli, scratch):
    """Yields edits that need one write, and edits that write another file."""
    def run(*arguments):
        subprocess.run([str(cli), *arguments], check=True,
                       stdout=subprocess.DEVNULL)

    plain, roomy = scratch / "plain.safetensors", scratch / "roomy.safetensors"
    for path in (plain, roomy):
        run("convert", str(SOURCE), str(path), "--ties", "copy")
    run("edit", str(roomy), "--set", "step=1")
    drop = ["--drop", "model.embedding.weight"]
    for number, (name, start, arguments) in enumerate((
        ("one sector", roomy, ["--set", "step=2"]),
        ("a header", plain, ["--set", "step=2"]),
        ("a tensor", roomy, drop),
        ("an object", SOURCE, drop),
    )):
        folder = scratch / f"other-{number}"
        folder.mkdir()
        yield Edit(cli, folder, name, start.suffix[1:], start.read_bytes(),
                   arguments)


def kill_everywhere(save, step):
    counts = {"old": 0, "new": 0}
    total = save.calls("all")
    for number in range(1, total + 1, step):
        save.reset()
        save.run("-e", "trace=all", "-e",
                 f"inject=all:signal=KILL:when={number}")
        counts[save.check(f"{save.name}, killed at call {number}")] += 1
    print(f"{save.name:<22} SIGKILL at {sum(counts.values()):>4} of {total} "
          f"calls: {counts['old']} old, {counts['new']} new, 0 torn, "
          "0 left behind", flush=True)


def fail_everywhere(save, error, step, calls=WRITING):
    counts = {"old": 0, "new": 0}
    failed = 0
    for call in calls.split(","):
        total = save.calls(call)
        for number in range(1, total + 1, step):
            save.reset()
            what = f"{save.name}, {error} at {call} {number}"
            status = save.run(
                "-e", f"trace={call}", "-e",
                f"inject={call}:error={error}:when={number}",
            )
            if status < 0:
                sys.exit(f"{what}: died of signal {-status}")
            if status != 0:
                failed += 1
                left = set(os.listdir(save.folder)) - {save.target.name}
                # The file under the name that it failed to unlink may remain.
                if left:
                    sys.exit(f"{what}: left behind {sorted(left)}")
            result = save.check(what)
            if status == 0 and result == "old":
                sys.exit(f"{what}: said that it saved, but did not")
            counts[result] += 1
    print(f"{save.name:<22} {error:<8} at {sum(counts.values()):>4} calls: "
          f"{failed} reported, {counts['old']} old, {counts['new']} new, "
          "0 torn, 0 left behind", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cli", type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--directory", help="where files are written")
    parser.add_argument("--only", choices=["save", "edit"])
    options = parser.parse_args()
    step = 10 if options.quick else 1
    if shutil.which("strace") is None:
        sys.exit("strace is not installed")
    with tempfile.TemporaryDirectory(dir=options.directory) as scratch:
        saves = [("durable", []), ("not durable", ["--no-sync"])]
        for name, arguments in saves if options.only != "edit" else []:
            folder = pathlib.Path(scratch) / name.replace(" ", "-")
            folder.mkdir()
            save = Save(options.cli.resolve(), folder, name, arguments)
            kill_everywhere(save, step)
            for error in ERRORS:
                fail_everywhere(save, error, step)
        if options.only == "save":
            return
        place = options.cli.resolve(), pathlib.Path(scratch)
        for edit in (*edits_of_others(*place), *edits_of_segments(*place)):
            kill_everywhere(edit, step)
            for error in ERRORS:
                fail_everywhere(edit, error, step, EDITING)


if __name__ == "__main__":
    main()
