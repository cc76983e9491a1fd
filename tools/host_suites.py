"""Runs the test suites of programs with and without Haulway, and compares.

scripts/test-hosts --suites runs it. "With Haulway" means in place of the
packages that the programs know. The tests come from the source archives of the
installed releases. Tests that also fail without Haulway (most need a model from
the hub) are counted, not compared. One line per program is printed; the exit
code is 1 if any outcome differs.
"""

import argparse
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ElementTree

HERE = pathlib.Path(__file__).parent
# A program, its tests that read or write files, and a selection (-k).
SUITES = {
    "accelerate": (
        ["test_accelerator", "test_big_modeling", "test_modeling_utils",
         "test_offload", "test_state_checkpointing"],
        None,
    ),
    "huggingface_hub": (
        ["test_dduf", "test_hub_mixin_pytorch", "test_serialization"],
        None,
    ),
    # Its other tests need models from the hub.
    "peft": (
        ["test_bufferdict", "test_custom_models"],
        "save_pretrained or (load and not unload)",
    ),
}

# Entries in pytest's report for a test that did not pass.
MARKS = ("failure", "error", "skipped")


def archive(name, folder):
    """Downloads and unpacks the source archive of the installed release."""
    version = importlib.metadata.version(name)
    unpacked = folder / f"{name}-{version}"
    if not unpacked.exists():
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
             "--no-binary", ":all:", "--no-build-isolation", "--dest", folder,
             f"{name}=={version}"],
            check=True,
        )
        with tarfile.open(folder / f"{name}-{version}.tar.gz") as files:
            files.extractall(folder, filter="data")
    # Tests import one another as members of a package.
    (unpacked / "tests" / "__init__.py").touch()
    return unpacked


def outcomes(source, tests, chosen, plugin, report):
    """Returns the outcome of each test by name, and the total time."""
    command = [
        sys.executable, "-m", "pytest", "-q", "--no-header", "-o", "addopts=",
        "-p", "no:cacheprovider", f"--junit-xml={report}",
        *(f"tests/{test}.py" for test in tests),
    ]
    if chosen:
        command += ["-k", chosen]
    if plugin:
        command += ["-p", "haulway_in_place"]
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, cwd=source, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode not in (0, 1):
        sys.exit(f"{source.name}: pytest ended with {done.returncode}\n{done.stdout}")
    if plugin and "haulway in place" not in done.stdout:
        sys.exit(f"{source.name}: Haulway was not in place\n{done.stdout}")
    suite = ElementTree.parse(report).getroot().find("testsuite")
    found = {}
    for case in suite.iter("testcase"):
        marks = [part.tag for part in case if part.tag in MARKS]
        name = case.get("classname") + "." + case.get("name")
        found[name] = marks[0] if marks else "passed"
    return found, float(suite.get("time"))


def compared(name, folder):
    """Prints the results of one program's tests; returns how many tests
    differ."""
    tests, chosen = SUITES[name]
    source = archive(name, folder)
    theirs, before = outcomes(source, tests, chosen, False, folder / f"{name}.xml")
    ours, now = outcomes(source, tests, chosen, True, folder / f"{name}-haulway.xml")
    different = sorted(
        test for test in theirs.keys() | ours.keys()
        if theirs.get(test) != ours.get(test)
    )
    count = list(theirs.values()).count
    print(
        f"{source.name:24} {count('passed'):5} pass, "
        f"{count('failure') + count('error'):4} fail, {count('skipped'):4} are "
        f"skipped in {before:.0f} s; with Haulway {len(different)} differ, {now:.0f} s",
        flush=True,
    )
    for test in different:
        print(f"  {test}: {theirs.get(test)}, with Haulway {ours.get(test)}")
    return len(different)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=pathlib.Path, help="where archives are kept")
    parser.add_argument("program", nargs="*", help=f"by default {', '.join(SUITES)}")
    given = parser.parse_args()
    unknown = set(given.program) - SUITES.keys()
    if unknown:
        parser.error(f"no tests of {', '.join(sorted(unknown))} are known")
    given.folder.mkdir(parents=True, exist_ok=True)
    folder = given.folder.resolve()
    differ = sum(compared(name, folder) for name in given.program or SUITES)
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
