"""The command of the Python package behaves like the standalone program: both
run the same code."""

import os
import signal
import subprocess
import sys

import pytest

BY_PYTHON = [sys.executable, "-c", "from haulway._command import main; main()"]


@pytest.fixture(params=["program", "package"])
def haulway(request):
    """Returns the words that start the command."""
    if request.param == "package":
        return BY_PYTHON
    return [request.getfixturevalue("program")]


@pytest.mark.parametrize("words", [
    ["--version"], ["--help"], ["ls", "SMALL"], ["info", "--json", "SMALL"],
    ["nonsense"], ["ls"], ["ls", "nothing.pt"], ["ls", "SMALL", "--include", "no"],
    ["ls", b"\xff.pt"],
])
def test_words_and_exit_codes_are_the_same(words, program, small, tmp_path):
    words = [small if word == "SMALL" else word for word in words]
    told = [subprocess.run([*start, *words], capture_output=True, cwd=tmp_path)
            for start in ([program], BY_PYTHON)]
    assert told[0].returncode == told[1].returncode
    assert told[0].stderr == told[1].stderr
    assert told[0].stdout == told[1].stdout


def test_it_reads_standard_input(haulway, small):
    done = subprocess.run([*haulway, "ls", "-"], stdin=small.open("rb"),
                          capture_output=True, check=True)
    assert b"model.embedding.weight" in done.stdout


def test_a_closed_pipe_ends_it_by_its_signal(haulway, small):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([*haulway, "ls", small], stdout=writer,
                              stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert done.returncode == -signal.SIGPIPE and done.stderr == b""


@pytest.mark.parametrize("words", [
    ["ls"], ["info"], ["verify"], ["scan"], ["ls", "--json"], ["manifest"],
    ["--help"],
], ids=" ".join)
def test_a_full_disk_is_told_with_its_cause(haulway, small, words):
    words = words if words == ["--help"] else [*words, small]
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*haulway, *words], stdout=full,
                              stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr == ("haulway: cannot write to standard output: "
                           "No space left on device (errno 28)\n")


def test_an_interrupt_ends_it_with_130(haulway, tmp_path):
    reader, writer = os.pipe()
    with subprocess.Popen([*haulway, "ls", "-"], stdin=reader,
                          stderr=subprocess.PIPE) as child:
        os.close(reader)
        # The reader consumes more than a pipe's capacity, then waits for more.
        data = bytes(1 << 20)
        while data:
            data = data[os.write(writer, data):]
        child.send_signal(signal.SIGINT)
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=120) == 130
        os.close(writer)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&-", "<&- 2>&-",
                                    ">&- 2>&-", "<&- >&- 2>&-"])
def test_it_does_without_its_standard_files(program, small, closed, tmp_path):
    out = tmp_path / "out.pt"
    for words, code in (([f"convert {small} {out}"], 0), ([f"ls {small}"], 0),
                        ([f"ls {out}.none"], 2), (["none"], 4)):
        done = subprocess.run(
            ["sh", "-c", f"exec {program} {words[0]} {closed}"],
            capture_output=True)
        cannot_print = ">&-" in closed.split() and code == 0
        assert done.returncode == (2 if cannot_print else code), words
    done = subprocess.run([program, "verify", out], stdout=subprocess.DEVNULL)
    assert done.returncode == 0


def test_messages_that_nobody_can_read_change_nothing(program, tmp_path):
    with open("/dev/full", "wb") as full:
        for words, code in (["ls", tmp_path / "none"], 2), (["none"], 4):
            done = subprocess.run([program, *words], stderr=full)
            assert done.returncode == code
