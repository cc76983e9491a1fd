#!/usr/bin/env python3
"""Writes the output of the README's commands into it, or checks it.

    tools/update_readme.py HAULWAY [--check]

A fenced block that begins with `$ haulway ...` continues with that command's
output. Figures that differ from run to run are left unchanged. The C++ block is
the program with which the installed library is tested.
"""

import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"```\n\$ (haulway [^\n]*)\n(.*?)```", re.DOTALL)
PROGRAM = re.compile(r"(?<=```cpp\n).*?(?=```)", re.DOTALL)
VARYING = re.compile(r"\d+\.\d+ s|\d+\.\d+ GB/s")


def main():
    binary = sys.argv[1]
    readme = ROOT / "README.md"
    text = readme.read_text()

    def run(match):
        words = shlex.split(match.group(1))
        output = subprocess.run(
            [binary, *words[1:]], cwd=ROOT, text=True, capture_output=True
        ).stdout
        old = match.group(2)
        if VARYING.sub("N", old) == VARYING.sub("N", output):
            output = old
        return f"```\n$ {match.group(1)}\n{output}```"

    program = (ROOT / "cmake/consumer_test/main.cc").read_text()
    new = PROGRAM.sub(lambda _: program, BLOCK.sub(run, text))
    if "--check" in sys.argv:
        if new != text:
            print("README.md is not what the commands print, or what is tested")
        return new != text
    readme.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
