"""Statements of docs/threat-model.md that no other test covers completely."""

import gzip
import io
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest
import torch

import haulway
import haulway.torch
import scan_cases

ROOT = pathlib.Path(__file__).resolve().parents[3]
COMMAND = pathlib.Path(sys.executable).with_name("haulway")
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def number(text):
    """Parses '2 GiB' and '16,000,000', and '2 * kGiB' and '16'000'000'."""
    value = 1
    for part in re.findall(r"[\d,']+|k?[KMG]iB", text):
        unit = UNITS.get(part.removeprefix("k"))
        value *= unit or int(re.sub("[,']", "", part))
    return value


def test_the_limits_are_those_of_the_table():
    table = {
        name: number(default) for name, default in re.findall(
            r"^\| `(max_\w+)` \| ([^|]+) \|",
            (ROOT / "docs" / "threat-model.md").read_text(), re.M)
    }
    fields = {
        name: number(default) for name, default in re.findall(
            r"^  (?:\w|:)+ (max_\w+) =\s+([^;]+);",
            (ROOT / "include" / "haulway" / "options.h").read_text(), re.M)
    }
    assert table == fields and len(table) > 20


@pytest.mark.parametrize("module", ["sys", "os", "posix", "nt"])
def test_some_names_are_never_allowed(module, tmp_path):
    path = tmp_path / "x.pt"
    path.write_bytes(scan_cases.torch_zip(
        b"\x80\x02c" + module.encode() + b"\nsystem\n."))
    name = f"{module}.system"
    with pytest.raises(haulway.UnsafeError, match=f"'{name}' is not allowed"):
        haulway.load(path, safe_globals=[name])
    done = subprocess.run([COMMAND, "scan", "--allow", name, path],
                          capture_output=True, text=True)
    assert done.returncode == 1 and "NOT ALLOWED" in done.stdout
    assert haulway.scan(path, allow=[name]).verdict == "UNSAFE"


@pytest.mark.parametrize("head", [
    b"\xfd7zXZ\0", b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd", b"BZh9",
    b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07\0", b"\x89HDF\r\n\x1a\n",
    b"\x7fELF\2\1\1\0", b"#!/usr/bin/env python3\nimport os\n",
], ids=["xz", "lz4", "zstd", "bzip2", "7z", "rar", "HDF5", "program", "source"])
def test_what_can_hold_code_and_is_not_looked_into_is_unknown(head):
    report = haulway.scan(head + bytes(100) if head[:2] != b"#!" else head)
    assert report.verdict == "UNKNOWN" and report.reason


def test_archives_are_followed_eight_deep():
    data = scan_cases.evil(2)
    clean = b"\x80\x02N."
    for depth in range(1, 9):
        data = scan_cases.zipped({"a": data})
        clean = scan_cases.zipped({"a": clean})
        assert haulway.scan(data).verdict == "UNSAFE", depth
        assert haulway.scan(clean).verdict == "SAFE", depth
    data = scan_cases.zipped({"a": data})
    clean = scan_cases.zipped({"a": clean})
    assert haulway.scan(data).verdict == haulway.scan(clean).verdict == "UNKNOWN"


def test_what_inflates_too_much_is_unknown():
    assert haulway.scan(gzip.compress(b"words " * 10)).verdict == "SAFE"
    report = haulway.scan(gzip.compress(bytes(10_000_000)))
    assert report.verdict == "UNKNOWN" and "inflates" in report.reason


def test_zips_that_strict_reading_refuses_are_unknown_at_best():
    out = io.BytesIO()
    torch.save(torch.ones(2), out)
    with zipfile.ZipFile(out, "a") as archive:
        archive.comment = b"x"
    data = out.getvalue().replace(b"byteorder", b"byteORDER", 1)
    report = haulway.scan(data)
    assert report.verdict == "UNKNOWN", report.reason


def test_control_bytes_are_not_printed(tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"a\x1b[31m\x07\nb": torch.ones(1)}, path)
    for verb in ("ls", "info", "verify", "scan"):
        done = subprocess.run([COMMAND, verb, path], capture_output=True)
        assert b"\x1b" not in done.stdout + done.stderr
        assert b"\x07" not in done.stdout + done.stderr
    assert b"\\x1b" in subprocess.run([COMMAND, "ls", path],
                                      capture_output=True).stdout
