"""What scripts/package runs: makes what people install."""

import argparse
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/package"


def epoch():
    """The time of the commit, which stands in all that is made."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return int(given)
    said = subprocess.run(["git", "log", "-1", "--format=%ct"], check=True,
                          cwd=ROOT, text=True, capture_output=True).stdout
    return int(said)


def make_wheels(out, pythons):
    import interpreters
    import wheel

    # A word such as cp314 is an interpreter that is built from Debian's source.
    home = FOLDER / "interpreters"
    found = [interpreters.build(python, home) if python in interpreters.INTERPRETERS
             else pathlib.Path(python) for python in pythons]
    found = found or [*{wheel.tag_of(python): python for python in
                        [*interpreters.built(home), *wheel.find_pythons()]}.values()]
    if not found:
        raise SystemExit("no Python of 3.10 to 3.14 is found")
    return [wheel.make_wheel(python, out, FOLDER, epoch()) for python in found]


def make_sdist(out, _):
    import sdist

    return [sdist.make_sdist(out, FOLDER, epoch())]


def make_debs(out, _):
    import deb

    return deb.make_debs(out, FOLDER, epoch())


KINDS = {"wheel": make_wheels, "sdist": make_sdist, "deb": make_debs}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=[*KINDS, "all"])
    parser.add_argument("-o", dest="out", type=pathlib.Path, required=True)
    parser.add_argument("pythons", nargs="*")
    options = parser.parse_intermixed_args()
    os.umask(0o022)
    FOLDER.mkdir(parents=True, exist_ok=True)
    kinds = KINDS if options.kind == "all" else [options.kind]
    for kind in kinds:
        for path in KINDS[kind](options.out.resolve(), options.pythons):
            print(f"{path.stat().st_size:>10} {path}")


if __name__ == "__main__":
    sys.exit(main())
