"""What is synced before what, and what stays if a system call fails."""

import os
import zlib

import pytest
import safetensors.numpy
import torch

import haulway

CONVERT = """
import sys, haulway
haulway.convert(sys.argv[1], sys.argv[2], to="safetensors", shard=1 << 20)
"""


def model(path, value, tensors=4):
    haulway.save({f"t{i}": torch.full((200_000,), float(value))
                  for i in range(tensors)}, path)
    return path


@pytest.mark.parametrize("number", ["1", "2", "3", "4", "5"])
@pytest.mark.parametrize(("fault", "said"), [
    ("FAIL_FSYNC", "cannot sync"),
    # The folder has no space for another name.
    ("FAIL_LINK", "No space left on device"),
])
def test_a_fault_leaves_all_shards_as_they_were(tmp_path, watched, fault, said,
                                                number):
    """The files of both models have the same names."""
    folder = tmp_path / "model"
    code, errors, _ = watched(CONVERT, model(tmp_path / "old.pt", 1), f"{folder}/")
    assert code == 0, errors
    old = {path: path.read_bytes() for path in folder.iterdir()}
    assert len(old) == 5
    code, errors, _ = watched(CONVERT, model(tmp_path / "new.pt", 2), folder,
                              **{fault: number})
    assert code != 0 and said in errors
    assert {path: path.read_bytes() for path in folder.iterdir()} == old


def test_the_removal_of_older_files_is_synced(tmp_path, watched):
    folder = tmp_path / "model"
    code, errors, _ = watched(CONVERT, model(tmp_path / "old.pt", 1), f"{folder}/")
    assert code == 0, errors
    code, errors, calls = watched(
        CONVERT, model(tmp_path / "new.pt", 2, tensors=1), folder)
    assert code == 0, errors
    assert os.listdir(folder) == ["model.safetensors"]
    removed = [i for i, call in enumerate(calls)
               if call.startswith("unlink ") and str(folder) in call]
    assert len(removed) == 5
    # They lost their names before, when the new set was on the disk.
    renamed = [i for i, call in enumerate(calls) if call.startswith("renameat2 ")]
    assert len(renamed) == 5 and renamed[-1] < removed[0]
    assert calls[renamed[0] - 1] == f"fsync {folder}"


def test_new_folders_are_synced(tmp_path, watched):
    code, errors, calls = watched(
        CONVERT, model(tmp_path / "old.pt", 1), f"{tmp_path}/a/b/")
    assert code == 0, errors
    assert {f"fsync {tmp_path}", f"fsync {tmp_path}/a",
            f"fsync {tmp_path}/a/b"} <= set(calls)


def test_a_full_disk_that_close_reports(tmp_path, watched):
    """A network file system writes back when a file is closed."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"old")
    code, errors, _ = watched(
        "import sys, haulway, torch\n"
        "haulway.save({'a': torch.ones(1000)}, sys.argv[1],"
        " durability='none')", path, FAIL_CLOSE=str(tmp_path))
    assert code != 0 and "No space left on device" in errors
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x.safetensors"]


EDIT = """
import sys, haulway
haulway.edit(sys.argv[1], rename={f"layer.{i:03}": f"block.{i:03}"
                                  for i in range(60)}, in_place=True)
"""


def many(path):
    safetensors.numpy.save_file(
        {f"layer.{i:03}": torch.full((5,), float(i)).numpy()
         for i in range(60)}, path)
    return path


def write_journal(path, offset, before, after):
    body = (b"haulway-header 1" + offset.to_bytes(8, "little")
            + len(before).to_bytes(8, "little") + before + after)
    path.write_bytes(body + zlib.crc32(body).to_bytes(4, "little"))


def test_the_file_is_synced_before_its_journal_goes(tmp_path, watched):
    """Also by the edit that finds the journal of one that was killed after its
    last write: its bytes may not be on the disk."""
    path = many(tmp_path / "x.safetensors")
    journal = tmp_path / ".x.safetensors.haulway-header"
    new = path.read_bytes().replace(b"layer.", b"block.")
    before = path.read_bytes()
    begin = before.index(b"layer.")
    end = before.rindex(b"layer.") + len(b"layer.")
    write_journal(journal, begin, before[begin:end], new[begin:end])
    path.write_bytes(new)
    code, errors, calls = watched(
        "import sys, haulway\n"
        "haulway.edit(sys.argv[1], set={'k': 'v'})", path)
    assert code == 0, errors
    assert not journal.exists()
    assert calls.index(f"fsync {path}") < calls.index(f"unlink {journal}")


def test_a_link_finds_the_journal_of_its_file(tmp_path, watched):
    folder = tmp_path / "blobs"
    folder.mkdir()
    path = many(folder / "x.safetensors")
    link = tmp_path / "link.safetensors"
    link.symlink_to(path)
    code, errors, calls = watched(EDIT, link)
    assert code == 0, errors
    assert f"unlink {folder}/.x.safetensors.haulway-header" in calls
    old = path.read_bytes()
    new = old.replace(b"block.", b"other.")
    begin = old.index(b"block.")
    middle = begin + 1024  # A part of the header was written.
    end = old.rindex(b"block.") + len(b"block.")
    write_journal(folder / ".x.safetensors.haulway-header", begin,
                    old[begin:end], new[begin:end])
    half = 512 * (middle // 512)
    path.write_bytes(new[:half] + old[half:])
    report = haulway.repair(link, tmp_path / "out.npz")
    assert len(report.kept) == 60
    assert path.read_bytes() == old
