"""Documents that are made from programs, against the programs."""

import pathlib
import re
import shlex
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_pages_are_what_programs_say(command):
    done = subprocess.run(
        [sys.executable, ROOT / "tools/make_docs.py", command, "--check"],
        text=True, capture_output=True,
    )
    assert done.returncode == 0, done.stdout


def examples():
    page = (ROOT / "docs/cli.md").read_text()
    return re.findall(r"^(haulway [a-z-]+ .*)$", page, re.MULTILINE)


def test_every_verb_has_an_example():
    page = (ROOT / "docs/cli.md").read_text()
    verbs = re.findall(r"^## ([a-z-]+)$", page, re.MULTILINE)
    assert {line.split()[1] for line in examples()} == set(verbs)


@pytest.mark.parametrize("line", examples())
def test_examples_are_understood(run, line):
    """Their files are not there, but nothing else is wrong with them."""
    words = shlex.split(line.partition(" | ")[0])[1:]
    done = run(*words, code=None)
    assert done.returncode != 4, done.stderr


def test_links_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), (page.name, link)
