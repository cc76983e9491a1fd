"""A write that fails leaves the old file: beside it and in place, on a full
disk, at a limit, at any call. A file that other links lead to is not changed.

The tests go over all verbs of the command that write a local file, and all public
calls of the package that do; for those that write folders see
test_a_set_is_one_thing.py.
"""

import errno
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys

import numpy
import pytest
import safetensors.numpy

import haulway
import sets_of_files as sets
import source_calls
import writing_calls
from chance import cases

# Words with SOURCE for a checkpoint and OUT for the file to write, by verb.
WRITING = {
    "cat": ["SOURCE.safetensors", "layer.0", "--out", "OUT"],
    "repack": ["SOURCE.pt", "OUT"],
    "convert": ["SOURCE.pt", "OUT", "--to", "safetensors"],
    "manifest": ["SOURCE.pt", "--out", "OUT"],
    "repair": ["SOURCE.safetensors", "OUT", "--to", "safetensors"],
    "encrypt": ["SOURCE.tensors", "OUT", "--keyfile", "KEY"],
    "decrypt": ["SECRET.tensors", "OUT", "--keyfile", "KEY"],
    "edit": ["SOURCE.safetensors", "-o", "OUT", "--set", "a=b"],
    "map": ["SOURCE.pt", "-o", "OUT"],
    "scan": ["SOURCE.pt", "--sarif", "OUT"],
    "get": ["SOURCE.safetensors", "OUT"],
}
# Of these the target may be only a file that has a name.
NAMED = {"get"}
# These write no file, or to a server (put), or a folder that may not exist
# (delta), or only remove files (prune), or are tested by the verbs that they run
# (bulk), or write something of another length each time (sign).
OTHERS = {"ls", "info", "verify", "load", "plan-reads", "diff", "put", "bulk",
          "arena", "completion", "delta", "latest", "prune", "sign"}
OLD = b"old content\n" * 40_000  # Larger than what is written, or smaller.
SHORT = b"old"


def test_every_verb_is_tested(run):
    listed = run("--help").stdout.partition("Subcommands:\n")[2]
    verbs = set(re.findall(r"^  ([a-z-]+)(?:, \S+)?  ", listed, re.M))
    assert verbs == set(WRITING) | OTHERS


@pytest.fixture(scope="module")
def work(tmp_path_factory, program):
    """A folder with the sources."""
    folder = tmp_path_factory.mktemp("work")
    tensors = {f"layer.{i}": numpy.full(5000, i, "f4") for i in range(8)}
    safetensors.numpy.save_file(tensors, folder / "SOURCE.safetensors")
    haulway.save(tensors, folder / "SOURCE.pt")
    haulway.save(tensors, folder / "SOURCE.tensors")
    (folder / "KEY").write_bytes(bytes(range(32)))
    subprocess.run([program, "encrypt", "SOURCE.tensors", "SECRET.tensors",
                    "--keyfile", "KEY"], cwd=folder, check=True,
                   stdout=subprocess.DEVNULL)
    sets.library(folder)
    return folder


class Written:
    """Runs a verb that writes a file with a name, or one without."""

    def __init__(self, verb, program, work, folder, named):
        self.words = [program, verb, *WRITING[verb]]
        self.work, self.named = work, named
        self.path = folder / "out.file"

    def run(self, old, limit=None, **environment):
        """Returns the exit code, what the file holds then, and what was said."""
        self.path.unlink(missing_ok=True)
        self.path.write_bytes(old)
        with open(self.path, "r+b") as file:
            out = str(self.path)
            if not self.named:
                self.path.unlink()
                out = f"/dev/fd/{file.fileno()}"
            words = [out if word == "OUT" else word for word in self.words]

            def confine():
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                if limit is not None:
                    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

            done = subprocess.run(
                words, cwd=self.work, pass_fds=[file.fileno()],
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                preexec_fn=confine, env={**os.environ, **environment})
            if self.named:
                return done.returncode, self.path.read_bytes(), done.stderr
            file.seek(0)
            return done.returncode, file.read(), done.stderr


CASES = [(verb, named) for verb in WRITING for named in (True, False)
         if named or verb not in NAMED]


@pytest.fixture(params=CASES, ids=lambda case: (
    f"{case[0]}-{'beside' if case[1] else 'in place'}"))
def written(request, program, work, tmp_path):
    verb, named = request.param
    return Written(verb, program, work, tmp_path, named)


def steady(written):
    """Returns what does not depend on the page cache, which a map shows."""
    return re.sub(rb'"cache":\{[^}]*\}', b"", written)


@pytest.mark.parametrize("old", [OLD, SHORT], ids=["shorter", "longer"])
def test_a_call_that_fails(written, work, tmp_path, old):
    told = tmp_path / "calls"
    library = {"LD_PRELOAD": str(sets.library(work))}
    code, new, _ = written.run(old, KILL_AT="1000000", CALLS_TO=str(told),
                            **library)
    assert code == 0 and new != old
    total = int(told.read_text())
    for call in sorted(random.sample(range(total), min(total, cases(200)))):
        code, found, said = written.run(
            old, KILL_AT=str(call), **library,
            ERROR_AT=str(random.choice([errno.EIO, errno.ENOSPC])))
        # Some calls need not succeed. The folder is synced after the new file
        # took its name.
        if code == 0 or b"cannot sync the folder" in said:
            assert len(steady(found)) == len(steady(new)), call
        else:
            assert found == old, (call, said)


def test_a_limit_of_size(written):
    code, new, _ = written.run(SHORT)
    assert code == 0
    for limit in (0, 1, len(SHORT), len(new) // 2, len(new) - 1):
        code, found, _ = written.run(SHORT, limit)
        assert code == 2 and found == SHORT


@pytest.mark.parametrize("verb", [*WRITING, "edit the file itself"])
def test_what_other_links_lead_to_stays(verb, program, work, tmp_path):
    """A file in the cache of huggingface_hub, which is named by its hash."""
    source = work / "SOURCE.safetensors"
    blob = tmp_path / "blobs" / ("0123456789abcdef" * 4)
    blob.parent.mkdir()
    blob.write_bytes(source.read_bytes())
    suffix = {"repack": "pt", "encrypt": "tensors", "decrypt": "tensors"}
    link = tmp_path / "snapshots" / f"model.{suffix.get(verb, 'safetensors')}"
    link.parent.mkdir()
    link.symlink_to(blob)
    words = WRITING.get(verb, ["OUT", "--set", "a=b"])
    done = subprocess.run(
        [program, verb.split()[0],
         *(str(link) if word == "OUT" else word for word in words)],
        cwd=work, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert blob.read_bytes() == source.read_bytes()
    assert not link.is_symlink()


def test_a_file_that_others_link_to_is_not_edited_in_place(run, work, tmp_path):
    blob = tmp_path / ("0123456789abcdef" * 4)
    blob.write_bytes((work / "SOURCE.safetensors").read_bytes())
    (tmp_path / "model.safetensors").symlink_to(blob.name)
    done = run("edit", "model.safetensors", "--in-place", "--rename",
               "layer.0=layer.8", "--json", code=2)
    assert "named by the digest" in json.loads(done.stdout)["error"]["message"]
    assert blob.read_bytes() == (work / "SOURCE.safetensors").read_bytes()


# These write sets of files, which test_a_set_is_one_thing.py goes over, or to S3,
# or return bytes.
NOT_TO_A_FILE = {
    "haulway.delta.apply", "haulway.delta.compact", "haulway.delta.fold",
    "haulway.delta.write", "haulway.torch.dcp.SafetensorsWriter",
    "haulway.torch.dcp.Writer", "haulway.tensorizer.stream_io.s3_upload",
    "haulway.safetensors.numpy.save", "haulway.safetensors.torch.save",
}


def test_every_call_is_tested():
    calls = {name.partition(",")[0] for name in writing_calls.calls()}
    assert source_calls.writing() - NOT_TO_A_FILE <= calls


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_call_of_python_that_fails(work, tmp_path, error):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", writing_calls.__file__, tmp_path,
         str(cases(60))], capture_output=True, text=True, timeout=300,
        env={**os.environ, "LD_PRELOAD": str(sets.library(work)),
             "ERROR_AT": str(error)})
    assert done.returncode == 0, done.stderr
    for name, told in json.loads(done.stdout).items():
        assert told["is_new"] and told["rows"], name
        assert told["left"] == ["out.file"], name
        for call, said, is_old, is_new in told["rows"]:
            # As above.
            if not said or "cannot sync the folder" in said:
                assert is_new, (name, call)
            else:
                assert is_old, (name, call, said)
