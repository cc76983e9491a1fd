"""Whoever reads a set of files sees the old one, the new one or an error, never
a mixture, whatever happens to those who write it; and the next one who writes
leaves nothing else there.

The tests go over all formats that can be written in several files.
"""

import errno
import random
import shutil
import signal
import threading

import pytest

import haulway
import sets_of_files as sets
from chance import cases

KINDS = sets.kinds()
OLD, NEW = 1, 2


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def rewrite(kind, program, work, out, allowed):
    """Checks what a writer left, lets another one write, and checks that this
    leaves only its own files. Returns what was found."""
    found = sets.found(kind, out)
    assert found in allowed
    assert sets.found_by_names(out) in (OLD, NEW, sets.ERROR)
    assert kind.write(program, work, out, NEW) == 0
    assert sets.found(kind, out) == NEW
    assert sets.hidden(out) == []
    return found


def points(kind, program, work, out):
    """Yields some of the calls at which a writer may be stopped; before each, `out`
    becomes the old set."""
    assert kind.write(program, work, out, OLD) == 0
    old = shutil.copytree(out, work / "old")
    total = sets.calls(kind, program, work, out, NEW)
    assert total > 10
    for call in sorted(random.sample(range(total), min(total, cases(120)))):
        shutil.rmtree(out)
        shutil.copytree(old, out)
        yield call


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_a_writer_that_is_killed(kind, program, tmp_path, out):
    for call in points(kind, program, tmp_path, out):
        assert kind.write(
            program, tmp_path, out, NEW, KILL_AT=str(call),
            LD_PRELOAD=str(sets.library(tmp_path))) == sets.KILLED
        rewrite(kind, program, tmp_path, out, (OLD, NEW, sets.ERROR))


# Python ends at once, as if it were killed.
@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind.name.startswith("convert")], ids=repr)
def test_a_writer_that_is_asked_to_end(kind, program, tmp_path, out):
    """SIGTERM, in the command: nothing hidden stays, nor does an error."""
    for call in points(kind, program, tmp_path, out):
        code = kind.write(
            program, tmp_path, out, NEW, KILL_AT=str(call),
            KILL_WITH=str(int(signal.SIGTERM)),
            LD_PRELOAD=str(sets.library(tmp_path)))
        assert code in (0, 128 + signal.SIGTERM)
        assert sets.hidden(out) == []
        found = rewrite(kind, program, tmp_path, out, (OLD, NEW))
        assert found == (NEW if code == 0 else OLD)


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_a_call_that_fails(kind, program, tmp_path, out):
    """A disk that fails in the middle of the set, too."""
    for call in points(kind, program, tmp_path, out):
        before = sets.named(kind, out)
        code = kind.write(
            program, tmp_path, out, NEW, KILL_AT=str(call),
            ERROR_AT=str(random.choice([errno.EIO, errno.ENOSPC])),
            LD_PRELOAD=str(sets.library(tmp_path)))
        assert code == 0 or sets.named(kind, out) == before, call
        found = rewrite(kind, program, tmp_path, out, (OLD, NEW))
        assert found == (NEW if code == 0 else OLD), call


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_readers_beside_writers(kind, program, tmp_path, out):
    """Two writers at once, and a reader all the while."""
    assert kind.write(program, tmp_path, out, OLD) == 0
    ended, seen = threading.Event(), []

    def read():
        while not ended.is_set():
            seen.append(sets.found(kind, out))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(cases(30)):
            writers = [kind.start(program, tmp_path, out, number)
                       for number in (OLD, NEW)]
            failed = [writer.wait(120) for writer in writers if writer.wait(120)]
            assert len(failed) <= kind.excludes
            assert sets.found(kind, out) in (OLD, NEW)
            assert sets.found_by_names(out) in (OLD, NEW, sets.ERROR)
            assert sets.hidden(out) == []
    finally:
        ended.set()
        reader.join()
    assert seen and sets.MIXTURE not in seen


def test_a_save_that_did_not_end_is_told(tmp_path, program, out):
    """By whoever reads what is left of it."""
    kind = next(one for one in KINDS if one.name == "convert, safetensors")
    told = set()
    for call in range(sets.calls(kind, program, tmp_path, out, NEW)):
        assert kind.write(program, tmp_path, out, OLD) == 0
        kind.write(program, tmp_path, out, NEW, KILL_AT=str(call),
                   LD_PRELOAD=str(sets.library(tmp_path)))
        if sets.found(kind, out) == sets.ERROR:
            with pytest.raises(haulway.NotFoundError) as error:
                haulway.load(out / kind.opens)
            told.add("a save goes on, or did not end (save again)" in str(
                error.value))
    assert told == {True}


def test_old_shards_go_with_the_set(tmp_path, out):
    """Into a folder, a model in fewer files, and in one."""
    path = sets.source(tmp_path, NEW)
    for shard in (sets.SHARD, 2 * sets.SHARD, None, sets.SHARD):
        done = haulway.convert(path, out, "safetensors", shard=shard)
        assert sorted(str(one) for one in out.iterdir()) == sorted(done.files)
        assert set(haulway.load(out, "numpy")) == set(
            haulway.load(path, "numpy"))
