"""The scripts document their options and refuse all others."""

import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SCRIPTS = sorted(path.name for path in (ROOT / "scripts").iterdir()
                 if path.suffix == "")
# These scripts pass unknown options on to pytest.
HAND_ON = {"test-hosts", "test-radosgw", "test-tensorizer"}


def run(script, *arguments, cwd=ROOT):
    return subprocess.run([ROOT / "scripts" / script, *arguments], cwd=cwd,
                          capture_output=True, text=True, timeout=60)


def head(script):
    """Returns the comment at the head of a script, after its first line."""
    lines = (ROOT / "scripts" / script).read_text().splitlines()[1:]
    end = next(i for i, line in enumerate(lines) if line[:1] != "#")
    return "".join(line.removeprefix("#").removeprefix(" ") + "\n"
                   for line in lines[:end])


@pytest.mark.parametrize("script, option", [
    *((script, "--help") for script in SCRIPTS), ("test", "-h"),
])
def test_help_is_the_head_of_the_script(script, option, tmp_path):
    done = run(script, option, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, head(script), "")
    assert f"scripts/{script}" in done.stdout


@pytest.mark.parametrize("script, option", [
    *((script, "--no-such-option") for script in SCRIPTS
      if script not in HAND_ON),
    ("test", "-z"), ("bench", "--no-such-option=1"),
])
def test_an_unknown_option_is_refused_at_once(script, option):
    before = {"bench": ["load"], "soak": ["arena"]}.get(script, [])
    done = run(script, *before, option)
    assert done.returncode == 4
    assert done.stdout == ""
    assert done.stderr.startswith(
        f"scripts/{script}: unknown option {option}\n")
    assert done.stderr.endswith(head(script))


@pytest.mark.parametrize("script, words", [
    ("bench", ["no-such-benchmark"]), ("bench", []),
    ("crashtest", ["area"]), ("fuzz", ["soon"]), ("fuzz", ["1", "no_fuzz"]),
    ("lint", ["fix"]), ("package", []), ("package", ["wheel"]),
    ("package", ["wheel", "-o"]), ("package", ["wheel", "-o", "out", "ruby"]),
    ("package", ["all", "-o", "out", "python3"]),
    ("quickstart", ["one.pt", "another.pt"]),
    ("release", []), ("release", ["-o"]), ("release", ["-o", "out", "more"]),
    ("release", ["--cut", "more"]),
    ("setup", ["test"]), ("setup", ["tests", "bench"]), ("soak", []),
    ("soak", ["hostile", "many"]), ("soak", ["hostile", "1", "2"]),
    ("test", ["tsan"]), ("test", ["--tsan", "more"]),
    ("test", ["test_cli.py"]), ("test", ["--quick", "test_nothing.py"]),
    ("test", ["--quick", "test_cli.py", "conftest.py"]),
    ("test-aarch64", ["tsan"]), ("test-aarch64", ["arena", "nothing"]),
    ("package", ["wheel", "--machine", "vax"]),
    ("test-gpu", ["python3", "more"]), ("test-packages", []),
    ("test-packages", ["no/folder"]), ("test-packages", ["docs", "more"]),
])
def test_an_unknown_word_is_refused_at_once(script, words):
    done = run(script, *words)
    assert done.returncode == 4
    assert done.stdout == ""
    assert done.stderr.startswith(f"scripts/{script}: ")
    assert done.stderr.endswith(head(script))


def test_every_script_is_in_the_list_for_contributors():
    listed = re.findall(r"^\| `scripts/([a-z0-9-]+)` \|",
                        (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert sorted(listed) == SCRIPTS
