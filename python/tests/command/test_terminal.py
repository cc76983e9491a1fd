"""The command on a terminal: help in its width, and no binary output."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest
import torch

import haulway


@pytest.fixture
def on_terminal(command, tmp_path):
    def on_terminal(*words, columns=60, **environment):
        """Returns (exit code, what the terminal shows)."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ,
                    struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen(
            [command, *map(str, words)], stdin=subprocess.DEVNULL,
            stdout=theirs, stderr=theirs, cwd=tmp_path,
            env={**os.environ, "TERM": "xterm", **environment})
        os.close(theirs)
        shown = b""
        try:
            while more := os.read(ours, 65536):
                shown += more
        except OSError:  # The terminal has no writer any more.
            pass
        os.close(ours)
        return process.wait(), shown.decode().replace("\r\n", "\n")

    return on_terminal


def verbs(run):
    listed = run("--help").stdout.partition("Subcommands:\n")[2]
    return [line.split()[0].rstrip(",") for line in listed.splitlines()
            if line.startswith("  ") and line[2] != " "]


def words_of(text):
    return text.split()


def test_help_is_as_wide_as_the_terminal(run, on_terminal):
    assert len(verbs(run)) > 15
    for words in ((), *((verb,) for verb in verbs(run))):
        code, shown = on_terminal(*words, "--help", columns=100)
        assert code == 0
        for line in shown.splitlines():
            assert len(line) < 100 or "  " not in line.strip() or (
                "haulway " in line), line
        plain = run(*words, "--help").stdout
        assert words_of(shown) == words_of(plain)


def test_the_short_help_begins_with_examples(run, on_terminal):
    for verb in verbs(run):
        whole, short = run(verb, "--help").stdout, run(verb, "-h").stdout
        examples = [line for line in whole.splitlines()
                    if line.startswith("haulway ")]
        assert examples and all(line in short for line in examples)
        assert short.index(examples[0]) < short.index("Options:")
        has_urls = "[Option Group: URLs]" in whole
        assert "[Option Group" not in short
        assert (f"Options for keys and URLs: haulway {verb} --help; URLs: "
                "docs/remote.md\n" in short) == has_urls
    assert run("-h").stdout == run("--help").stdout


def test_ways_to_ask(run):
    assert run("help").stdout == run("--help").stdout
    assert run("help", "ls").stdout == run("ls", "--help").stdout
    assert run("-V").stdout == run("--version").stdout
    done = subprocess.run([sys.executable, "-m", "haulway", "-V"],
                          capture_output=True, text=True)
    assert done.stdout == run("-V").stdout
    assert "no verb 'hlep'" in run("hlep", code=4).stderr


@pytest.mark.parametrize("words", [
    "convert m.pt - --to safetensors", "repack m.pt -", "put m.pt -",
    "encrypt m.tensors - --keyfile key", "cat m.pt w --raw",
    "repair m.pt - --to torch",
])
def test_binary_output_is_not_shown(tmp_path, on_terminal, run, words):
    torch.save({"w": torch.ones(3)}, tmp_path / "m.pt")
    haulway.save({"w": torch.ones(3)}, tmp_path / "m.tensors")
    (tmp_path / "key").write_bytes(bytes(32))
    code, shown = on_terminal(*words.split(), columns=200)
    assert code == 2, shown
    assert "standard output is a terminal: expected a file, or a pipe" in shown
    assert run(*words.split(), text=False).stdout


def test_verdicts_have_colours_on_a_terminal(on_terminal, run, small, tmp_path):
    (tmp_path / "bad.pkl").write_bytes(b"cos\nsystem\n(S'id'\ntR.")
    (tmp_path / "cut.pt").write_bytes(small.read_bytes()[:-40])
    for words, colour, word in ((("scan", small), 32, "SAFE   "),
                                (("scan", "bad.pkl"), 31, "UNSAFE "),
                                (("verify", small), 32, "OK    "),
                                (("verify", "cut.pt"), 31, "FAILED")):
        coloured = f"\x1b[{colour}m{word}\x1b[0m"
        assert coloured in on_terminal(*words)[1]
        assert word in (plain := run(*words, code=None).stdout)
        assert "\x1b" not in plain
        for off in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            assert f"\x1b[{colour}m" not in on_terminal(*words, **off)[1]
        assert coloured in on_terminal(*words, NO_COLOR="")[1]


def test_wide_characters_line_up(on_terminal, tmp_path):
    haulway.save({"\u6743\u91cd.weight": torch.zeros(2), "plain": torch.zeros(3)},
                 tmp_path / "model.safetensors")
    lines = on_terminal("ls", "model.safetensors")[1].splitlines()
    places = set()
    for line in lines:
        before = line.partition("F32")[0] if "F32" in line else None
        if before is not None:
            places.add(sum(2 if ord(c) > 0x2E80 else 1 for c in before))
    assert len(places) == 1, lines


def test_scan_and_manifest_show_how_far_they_are(on_terminal, run, tmp_path):
    for name in ("one.pt", "two.pt"):
        haulway.save({"a": torch.zeros(1000)}, tmp_path / name)
    code, shown = on_terminal("scan", ".", "-q")
    assert code == 0 and "\x1b[Kone.pt: 1 done\r\x1b[K" in shown.replace("./", "")
    assert shown.endswith("two.pt: 2 done\r\x1b[K")
    code, shown = on_terminal("manifest", "one.pt", "-o", "m.json")
    assert code == 0 and "one.pt: 100% | 3.9 KiB/3.9 KiB" in shown
    for words in (("scan", "."), ("manifest", "one.pt", "-o", "m.json")):
        assert "\x1b" not in on_terminal(*words, "--no-progress", NO_COLOR="1")[1]
        assert run(*words).stderr == ""
