"""Implements scripts/package: makes the files that people install."""

import argparse
import os
import pathlib
import platform
import shutil
import subprocess
import sys

import deb
import interpreters
import sdist
import toolchain
import wheel

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/package"
# Interpreters that are built from Debian's sources.
HOME = FOLDER / "interpreters"


def epoch():
    """Returns the time of the commit, which all output files contain."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    said = subprocess.run(["git", "log", "-1", "--format=%ct"], check=True,
                          cwd=ROOT, text=True, capture_output=True).stdout
    return int(said)


def python_of(word):
    """Returns the interpreter for a word such as python3.12, a path or
    cp314."""
    if word in interpreters.INTERPRETERS:
        return interpreters.build(word, HOME)
    try:
        tag = wheel.tag_of(shutil.which(word) or word)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"{word} is not a Python that runs here") from error
    if tag not in wheel.TAGS:
        raise SystemExit(f"{word} is {tag}: expected one of {', '.join(wheel.TAGS)}")
    return pathlib.Path(shutil.which(word))


def make_wheels(out, words, machine):
    pythons = [python_of(word) for word in words] or [
        *{wheel.tag_of(python): python for python in
          [*interpreters.built(HOME), *wheel.find_pythons()]}.values()]
    if not pythons:
        raise SystemExit("no Python of 3.10 to 3.14 is found")
    for python in pythons:
        yield wheel.make_wheel(python, out, FOLDER, epoch(), machine)


def make_sdist(out, *_):
    return [sdist.make_sdist(out, FOLDER, epoch())]


def make_debs(out, *_):
    return deb.make_debs(out, FOLDER, epoch())


KINDS = {"wheel": make_wheels, "sdist": make_sdist, "deb": make_debs}


def make(kinds, out, pythons=(), machine=None):
    """Makes packages of these kinds in `out`, and prints their names. Wheels are
    for `machine`; by default for this one."""
    machine = toolchain.MACHINES[machine or platform.machine()]
    if "deb" in kinds:
        # Report a missing maintainer before everything is compiled.
        deb.maintainer()
    os.umask(0o022)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for kind in kinds:
        for path in KINDS[kind](out.resolve(), pythons, machine):
            print(f"{path.stat().st_size:>10} {path}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=[*KINDS, "all"])
    parser.add_argument("-o", dest="out", type=pathlib.Path, required=True)
    parser.add_argument("--machine", choices=toolchain.MACHINES)
    parser.add_argument("pythons", nargs="*")
    options = parser.parse_intermixed_args()
    make(KINDS if options.kind == "all" else [options.kind], options.out,
         options.pythons, options.machine)


if __name__ == "__main__":
    sys.exit(main())
