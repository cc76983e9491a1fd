"""The programs in a page of docs/, and what they import."""

import ast
import pathlib
import re
import subprocess
import sys

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"
# What the tests of the package have anyway.
HERE = {"fsspec", "haulway", "numpy", "safetensors", "torch"}


def programs(page):
    """The blocks of Python in a page."""
    text = (DOCS / page).read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def needs(program):
    """The packages that a program imports and the tests do not have."""
    names = set()
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            names |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    return {name.partition(".")[0] for name in names} - HERE - set(
        sys.stdlib_module_names
    )


def run_program(program, folder):
    """Runs a program in a folder; what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True,
        text=True, timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
