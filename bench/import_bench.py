"""The time of `import haulway`, compared with an empty extension module.

Each import is the first in its own process, in alternation with the others, and
is timed inside that process, so the start of Python does not count. "first
name" also accesses haulway.load, which loads the extension; an import alone
loads only the package.

    scripts/bench import [--rounds N] [--python PYTHON ...]

PYTHON has the package installed; default: the interpreter that runs this.
"""

import argparse
import pathlib
import statistics
import subprocess
import sys
import sysconfig
import tempfile

EMPTY = """
#include <Python.h>
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "empty"};
PyMODINIT_FUNC PyInit_empty(void) { return PyModule_Create(&module); }
"""
CASES = {
    "empty extension": "import empty",
    "haulway": "import haulway",
    "haulway, first name": "import haulway; haulway.load",
}
TIMED = """
import sys, time
sys.path.insert(0, {folder!r})
begin = time.perf_counter_ns()
{statement}
print(time.perf_counter_ns() - begin)
"""


def paths_of(python):
    """Returns an interpreter's header folder and the suffix of its
    extensions."""
    program = ("import sysconfig\n"
               "print(sysconfig.get_path('include'))\n"
               "print(sysconfig.get_config_var('EXT_SUFFIX'))")
    said = subprocess.run([python, "-c", program], check=True, text=True,
                          capture_output=True)
    return said.stdout.split()


def measure(python, rounds):
    """Returns the times of each case in milliseconds."""
    times = {case: [] for case in CASES}
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "empty.c"
        source.write_text(EMPTY)
        headers, ending = paths_of(python)
        subprocess.run(
            [*sysconfig.get_config_var("CC").split(), "-O2", "-shared", "-fPIC",
             f"-I{headers}", source, "-o", source.with_name(f"empty{ending}")],
            check=True)
        for number in range(rounds + 1):
            for case, statement in CASES.items():
                program = TIMED.format(folder=folder, statement=statement)
                said = subprocess.run([python, "-c", program], check=True, text=True,
                                      capture_output=True, cwd=folder).stdout
                if number > 0:  # The first round fills the page cache.
                    times[case].append(int(said) / 1e6)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--python", action="append", default=[])
    options = parser.parse_args()
    for python in options.python or [sys.executable]:
        print(python)
        for case, found in measure(python, options.rounds).items():
            print(f"  {case:<20} {statistics.median(found):6.2f} ms "
                  f"[{min(found):.2f} - {max(found):.2f}]")


if __name__ == "__main__":
    main()
