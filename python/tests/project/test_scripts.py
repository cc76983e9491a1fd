"""The scripts document their options and refuse all others."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
SCRIPTS = sorted(path.name for path in (ROOT / "scripts").iterdir()
                 if path.suffix == "")
# These scripts pass unknown options on to pytest.
HAND_ON = {"test-hosts", "test-radosgw", "test-tensorizer"}


def run(script, *arguments, cwd=ROOT, **options):
    return subprocess.run([ROOT / "scripts" / script, *arguments], cwd=cwd,
                          capture_output=True, text=True, timeout=60, **options)


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


@pytest.mark.parametrize("target, said", [
    ("no/such.pt", "there is no file 'no/such.pt'\n"),
    ("file:///no/such.pt", "file:///no/such.pt could not be downloaded\n"),
])
def test_quickstart_notices_a_wrong_target_before_it_builds(target, said):
    done = run("quickstart", target)
    assert done.returncode == 2 and done.stderr.endswith("quickstart: " + said)
    assert done.stdout in ("", f"downloading {target}\n")


def test_what_quickstart_proposes_runs_as_printed(command, tmp_path):
    proposed = re.findall(r"^  build/haulway ([^$]*?)(?:  .*)?$",
                          (ROOT / "scripts/quickstart").read_text(), re.MULTILINE)
    assert len(proposed) == 3
    (tmp_path / "testdata").symlink_to(ROOT / "testdata")
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(ROOT / "testdata/small.pt", home)
    for words in proposed:
        subprocess.run(f"'{command}' {words}", shell=True, cwd=tmp_path, check=True,
                       capture_output=True, env={**os.environ, "HOME": str(home)})


def test_the_tests_see_the_same_variables_everywhere():
    kept = {"PATH": "/usr/bin:/bin", "HOME": "/h", "TERM": "vt100", "PIP_CERT": "c",
            "https_proxy": "p", "CURL_CA_BUNDLE": "b"}
    more = {"PYTHONUNBUFFERED": "1", "CXX": "vc++", "LANG": "de_DE", "LC_ALL": "C",
            "AWS_PROFILE": "a", "HAULWAY_LOAD_IO": "mmap", "PYTHONPATH": "x"}
    said = subprocess.run(
        ["bash", "-c", ". scripts/arguments.sh; choose_environment; env"], cwd=ROOT,
        capture_output=True, text=True, check=True, env=kept | more).stdout
    seen = dict(line.split("=", 1) for line in said.splitlines())
    assert seen.pop("PWD") == str(ROOT)
    for own in "_", "OLDPWD", "SHLVL":  # The shell sets them.
        seen.pop(own, None)
    assert seen == kept | {"LANG": "C.UTF-8"}
    assert "\nchoose_environment\n" in (ROOT / "scripts/test").read_text()


@pytest.fixture
def machine(tmp_path):
    """Returns a function that runs scripts/setup where only a few programs are,
    and each of its own says how it was called."""
    own = tmp_path / "bin"
    own.mkdir()
    for name in ("bash", "basename", "cat", "dirname", "env", "grep", "paste", "sed",
                 "sort", "tr"):
        (own / name).symlink_to(shutil.which(name))

    def machine(*arguments, **programs):
        for name, script in programs.items():
            path = own / name.replace("_", "-")
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
        return run("setup", *arguments, env={"PATH": str(own)})

    return machine


NONE_IS_INSTALLED = {"dpkg_query": "exit 1", "apt_get": 'echo "apt-get $*" >&2'}
LINE = ("  apt-get update && apt-get install -y --no-install-recommends "
        "build-essential ")


def test_a_user_without_sudo_is_told_what_root_must_run(machine):
    done = machine(id="echo 1000", **NONE_IS_INSTALLED)
    assert (done.returncode, done.stdout) == (2, "")
    said, line = done.stderr.splitlines()
    assert said.startswith("scripts/setup: packages are missing. Run this as root")
    assert line.startswith(LINE) and "libfmt-dev" in line


def test_a_user_with_sudo_is_told_that_it_is_used(machine):
    done = machine(id="echo 1000", sudo='echo "sudo $*" >&2', **NONE_IS_INSTALLED)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("installing with sudo: build-essential ")
    first, second = done.stderr.splitlines()
    assert first == "sudo apt-get update -qq"
    assert second.startswith("sudo env DEBIAN_FRONTEND=noninteractive apt-get install")


def test_a_user_whose_sudo_refuses_is_told_what_root_must_run(machine):
    done = machine(id="echo 1000", sudo="echo not you >&2; exit 1",
                   **NONE_IS_INSTALLED)
    assert done.returncode == 2
    assert done.stderr.startswith("not you\n")
    assert done.stderr.splitlines()[-1].startswith(LINE)


def test_where_all_is_installed_no_rights_are_needed(machine):
    done = machine(id="echo 1000", dpkg_query='echo "install ok installed"',
                   apt_get="exit 1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_apt_get_other_systems_names_are_told(machine):
    done = machine(**dict.fromkeys(["cmake", "ninja", "curl"], "exit 1"))
    assert (done.returncode, done.stdout) == (2, "")
    first, *_ = done.stderr.splitlines()
    assert first == "scripts/setup: these programs are missing: c++ pkg-config"
    for words in ("dnf install ca-certificates ", " fmt-devel ", "brew install ",
                  "pacman -S base-devel ", "apk add build-base "):
        assert words in done.stderr


def test_without_apt_get_no_more_is_needed_than_what_is_missing(machine):
    there = ["c++", "cmake", "ninja", "curl", "pkg_config"]
    done = machine(**dict.fromkeys(there, "exit 1"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_build_says_before_how_much_it_is(tmp_path):
    script = (f". '{ROOT}/scripts/arguments.sh'; set -euo pipefail; "
              "nproc() { echo 2; }; cmake() { mkdir -p build/x; }; "
              'ninja() { if [[ $* == *" -t "* ]]; then '
              'for i in {1..40}; do echo "c++ -o $i.o -c $i.cc"; done; '
              'else echo "built $*"; fi; }; '
              "build x; touch build/x/{1..40}.o; build x a")
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True,
                          text=True)
    assert done.stdout.splitlines() == [
        "compiling 40 units of about 5 s with 2 processors: 2 min, less with the "
        "compiler cache", "built -C build/x", "built -C build/x a"], done.stderr
