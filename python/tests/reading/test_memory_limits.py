"""Small files that claim to be expensive: their actual cost."""

import hashlib
import io
import json
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
    """Returns a deflated pickle, incompressible enough to pass the check of the
    ratio."""
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


# A child's peak memory starts at its parent's, so it gets a small parent.
PARENT = """
import os, sys
pid = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])
_, status, used = os.wait4(pid, 0)
print(os.waitstatus_to_exitcode(status), used.ru_maxrss, file=sys.stderr)
"""


def measured(*args):
    """Returns (exit code, peak KiB, output) of the command."""
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
        # The inflated pickle takes 20 MB, and the tree's budget 90 MB.
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


HEADERS = {
    "a list": (b'{"a":[', b"0,", b"0]}", "invalid type: integer `0`"),
    "a shape": (
        b'{"a":{"dtype":"U8","shape":[', b"1,", b'1],"data_offsets":[0,9]}}',
        "invalid shape",
    ),
    "fields": (b'{"a":{', b'"":0,', b'"":0}}', "missing field `dtype`"),
    "lists": (b'{"a":[', b"[0,0,0],", b"[]]}", "invalid type: sequence"),
    "inside a dtype": (
        b'{"a":{"dtype":{"U8":[', b"[],", b'[]]},"shape":[],"data_offsets":[0,1]}}',
        "invalid type: sequence, expected unit",
    ),
}
REFUSED = """
import resource, sys
import numpy
from haulway.safetensors import SafetensorError, _file, safe_open
with open("/proc/self/statm") as file:
    now = int(file.read().split()[0]) * resource.getpagesize()
most = now + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    safe_open(sys.argv[1], "np")
except SafetensorError as error:
    print(error)
"""


@pytest.mark.parametrize("parts", HEADERS.values(), ids=HEADERS)
def test_a_refused_header_takes_a_few_times_its_size(parts, tmp_path):
    begin, many, end, why = parts
    header = begin + many * (10_000_000 // len(many)) + end
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(1))
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, path, str(12 * len(header))],
        capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stderr
    assert why in done.stdout


def write_sparse(path, *sizes):
    """Writes a safetensors file of zeros of which only the header takes
    space."""
    header, end = {}, 0
    for i, size in enumerate(sizes):
        header[f"{i}.weight"] = {"dtype": "U8", "shape": [size],
                                 "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


def test_what_is_converted_need_not_fit_into_memory(tmp_path):
    # One tensor has three quarters of the bytes: not even the largest tensor
    # needs to fit.
    write_sparse(tmp_path / "a.safetensors", 768 << 20, *[1 << 20] * 256)
    # The proof also reads the new file.
    code, kib, said = measured(
        "convert", tmp_path / "a.safetensors", tmp_path / "b.pt",
        "--proof", tmp_path / "proof", "--no-sync",
    )
    assert code == 0, said
    assert kib < 256 << 10, said
    proof = json.loads((tmp_path / "proof").read_text())["proof"]
    digests = {one["name"]: one["sha256"] for one in proof}
    assert len(digests) == 257
    assert digests["7.weight"] == hashlib.sha256(bytes(1 << 20)).hexdigest()
    assert (tmp_path / "b.pt").stat().st_size > 1 << 30
