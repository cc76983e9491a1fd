"""The blocks of code in the pages, and the programs that pages form.

A page is run as a reader would try it: its Python blocks in order, as one
program in an initially empty folder, and between them the commands of its
"console" blocks, which must print what the page shows. In the program each
block has the line numbers of the page, so that a traceback names them.
"""

import ast
import os
import pathlib
import re
import subprocess
import sys
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
)
# Packages that examples import and the tests install.
INSTALLED = {"fsspec", "haulway", "numpy", "safetensors", "torch"}


class Block(NamedTuple):
    page: str
    line: int  # The first line of its code, counted from 1.
    language: str
    text: str
    before: str  # The line before the block.


def blocks(page):
    lines = (ROOT / page).read_text().splitlines()
    found, begin = [], None
    for number, line in enumerate(lines):
        if not line.startswith("```"):
            continue
        if begin is None:
            begin = number
        else:
            assert line == "```", f"{page}:{number + 1}: no end of a block"
            text = "".join(each + "\n" for each in lines[begin + 1:number])
            found.append(Block(page, begin + 2, lines[begin][3:], text,
                               lines[begin - 1] if begin else ""))
            begin = None
    assert begin is None, f"{page}: a block has no end"
    return found


def packages(text):
    """Returns the packages that a program imports and the tests do not have."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    return {name.partition(".")[0] for name in names} - INSTALLED - set(
        sys.stdlib_module_names)


def programs(page):
    """Returns the Python blocks of a page in which each is a separate
    program."""
    return [block.text for block in blocks(page) if block.language == "python"]


def run_alone(text, folder):
    """Runs one block in a folder; returns its output."""
    done = subprocess.run([sys.executable, "-c", text], cwd=folder,
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def commands(text):
    """Returns [(command, output)] of a "console" block."""
    steps = re.split(r"^\$ ", text, flags=re.MULTILINE)
    assert steps[0] == "", "a block begins with a command"
    return [step.partition("\n")[::2] for step in steps[1:]]


def check_commands(text):
    """Runs a "console" block in the current folder; called by a page's
    program."""
    for command, expected in commands(text):
        done = subprocess.run(["bash", "-c", command], capture_output=True,
                              text=True)
        assert (done.stdout, done.stderr) == (expected, ""), (command, done)


def run_here(block):
    if block.language == "console":
        return True
    return block.language == "python" and not packages(block.text)


def program(page):
    """Returns the program of a page, or None if there is nothing to run."""
    lines = []
    for block in filter(run_here, blocks(page)):
        if block.language == "python":
            text = block.text
        else:
            text = f"__import__('page_code').check_commands({block.text!r})\n"
        lines += [""] * (block.line - 1 - len(lines)) + text.splitlines()
    # Names of publications are global: another test run must have others.
    return re.sub(r'"((?:page|guide)-[a-z]+)"', rf'"\1-{os.getpid()}"',
                  "\n".join(lines) + "\n") if lines else None


def promised(text):
    """Returns the output that comments after print calls promise."""
    return re.findall(r"^ *print\(.*\)  +# (.*)$", text, re.MULTILINE)


def run_program(page, folder, **environment):
    """Runs a page's program in a folder; returns its output."""
    text = program(page)
    script = folder / "page.py"
    script.write_text(text)
    path = os.pathsep.join([str(ROOT / "python/tests"),
                            os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, script], cwd=folder, capture_output=True, text=True,
        timeout=600,
        # Buffered, so that lines of several processes do not mix.
        env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "",
             **environment},
    )
    assert done.returncode == 0, f"{page}\n{done.stdout}\n{done.stderr}"
    return done.stdout
