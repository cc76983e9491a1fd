"""Small files that would cost much: what they really take."""

import io
import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

import haulway

COMMAND = pathlib.Path(sys.executable).with_name("haulway")
MANY = 20_000_000


def bomb(body):
    """A deflated pickle, incompressible enough to pass as one."""
    filler = os.urandom(340_000)
    content = (
        b"\x80\x02B" + len(filler).to_bytes(4, "little") + filler + b"0"
        + body + b"."
    )
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", content)
        archive.writestr("archive/version", "3\n")
    return out.getvalue()


BOMBS = {
    "lists": b"](" + b"]" * MANY + b"e",
    "dicts": b"](" + b"}" * MANY + b"e",
    "thrown away": b"}0" * (MANY // 2) + b"N",
    "stack": b"(" + b")" * MANY + b"1N",
    "memo": b"](" + b"]\x94" * (MANY // 2) + b"e",
    "tuples": b"](" + b"N\x85" * (MANY // 2) + b"e",
    "objects": b"](ctorch\nSize\nq\0" + b"h\0)R" * (MANY // 4) + b"e",
    "opaque": b"](cmy\nClass\nq\0" + b"h\0)R" * (MANY // 4) + b"e",
    "meta tensors": b"](ctorch._utils\n_rebuild_meta_tensor_no_storage\nq\0"
    b"ctorch\nfloat32\nq\1)q\2(h\1h\2h\2\x89tq\3"
    + b"h\0h\3R" * (MANY // 5) + b"e",
}


# A child's maximum begins with what its parent has, so one of its own.
PARENT = """
import os, sys
pid = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
_, status, used = os.wait4(pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_maxrss, file=sys.stderr)
"""


def measured(*args):
    """(exit code, KiB at most, what it said) of the command."""
    done = subprocess.run(
        [sys.executable, "-S", "-c", PARENT, COMMAND, *args],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )
    *said, last = done.stderr.splitlines()
    code, kib = map(int, last.split())
    return code, kib, said


@pytest.mark.parametrize("body", BOMBS.values(), ids=BOMBS)
def test_a_deflated_pickle_takes_no_more_than_its_file_allows(body, tmp_path):
    path = tmp_path / "x.pt"
    path.write_bytes(bomb(body))
    for verb in ("ls", "verify"):
        code, kib, said = measured(verb, path)
        assert code in (0, 1), said
        # The inflated pickle is 20 MB, and the tree's budget 90.
        assert kib < 300 << 10, said


def test_the_limit_is_said(tmp_path):
    with pytest.raises(
        haulway.LimitError, match="max_tree_bytes_per_stored_byte = 256"
    ):
        haulway.open(bomb(BOMBS["dicts"]))


@pytest.mark.parametrize("kind", ["FloatTensor", "Tensor", "cuda.FloatTensor"])
def test_a_tensor_is_never_larger_than_its_file(kind):
    module, name = f"torch.{kind}".rsplit(".", 1)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(
            "archive/data.pkl",
            f"\x80\x02]c{module}\n{name}\nJ\0\0\0\x40\x85Ra.".encode("latin1"),
        )
        archive.writestr("archive/version", "3\n")
    for load in (haulway.open, haulway.load):
        with pytest.raises(haulway.CorruptError, match="expected none"):
            load(out.getvalue())
