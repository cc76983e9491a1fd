"""The binaries have the hardening that the compiler and linker were told to
apply."""

import pathlib
import platform
import subprocess

import pytest

from haulway import _haulway


@pytest.fixture(params=["program", "extension"])
def binary(request):
    if request.param == "extension":
        return pathlib.Path(_haulway.__file__)
    return pathlib.Path(request.getfixturevalue("program"))


def read(binary, *options):
    return subprocess.run(["readelf", "--wide", *options, binary], check=True,
                          capture_output=True, text=True).stdout


def test_symbols_are_bound_at_start_and_then_read_only(binary):
    assert "BIND_NOW" in read(binary, "--dynamic")
    assert "GNU_RELRO" in read(binary, "--program-headers")


def test_no_segment_is_both_writable_and_executable(binary):
    rows = [line.split() for line in
            read(binary, "--program-headers").splitlines()
            if line.split()[:1] in (["LOAD"], ["GNU_STACK"])]
    assert len(rows) > 2
    for row in rows:
        flags = "".join(row[6:-1])
        assert not {"W", "E"} <= set(flags), row


def test_the_command_is_placed_at_random(program):
    assert "(Position-Independent Executable" in read(program, "--file-header")


def test_the_extension_shows_one_symbol():
    shown = subprocess.run(["nm", "-D", "--defined-only", _haulway.__file__],
                           check=True, capture_output=True, text=True).stdout
    assert [line.split()[-1] for line in shown.splitlines()] == ["PyInit__haulway"]


@pytest.mark.parametrize("symbol", [
    "__stack_chk_fail",  # From the stack protector.
    "__memcpy_chk",  # From _FORTIFY_SOURCE.
])
def test_overflows_are_looked_for(binary, symbol):
    assert f" {symbol}@" in read(binary, "--dyn-syms")


@pytest.mark.skipif(platform.machine() != "x86_64",
                    reason="other processors mark their branches otherwise")
def test_indirect_calls_land_on_marks(binary):
    # There is at least one ENDBR64 per 4 KiB of code. Linked libraries may lack
    # them, so the binary as a whole does not declare support.
    size = next(int(line.split()[line.split().index("PROGBITS") + 3], 16)
                for line in read(binary, "--sections").splitlines()
                if " .text " in line)
    marks = binary.read_bytes().count(bytes.fromhex("f30f1efa"))
    assert marks > size / 4096
