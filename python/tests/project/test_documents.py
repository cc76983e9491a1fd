"""Documents that are made from programs, compared with the programs."""

import pathlib
import re
import shlex
import subprocess
import sys

import pytest

import haulway

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_pages_are_what_programs_say(command):
    done = subprocess.run(
        [sys.executable, ROOT / "tools/make_docs.py", command, "--check"],
        text=True, capture_output=True,
    )
    assert done.returncode == 0, done.stdout


def test_every_statistic_has_its_row(tmp_path):
    """Each statistic in a table of fields.h is on its page."""
    loaded, saved = {}, {}
    tensors = haulway.load(ROOT / "testdata/small.pt", stats=loaded)["model"]
    haulway.save(tensors, tmp_path / "again.pt", stats=saved)
    for page, stats in ("loading.md", loaded), ("saving.md", saved):
        rows = re.findall(r"^\| (`[^|]*) \|", (ROOT / "docs" / page).read_text(),
                          re.MULTILINE)
        told = set(re.findall(r"`(\w+)`", " ".join(rows)))
        assert len(stats) > 10 and set(stats) <= told


def test_what_was_promised_of_networks_is_tested():
    """Each row of the tables has tests that contain its number, and the tests
    that it names exist. The pages for users have no such tables."""
    tests = "\n".join(
        path.read_text() for path in [*ROOT.glob("python/tests*/**/*.py"),
                                      *ROOT.glob("src/*/*_test.cc")])
    numbers = set()
    table = (ROOT / "docs/remote-checklist.md").read_text()
    for row in re.findall(r"^\| R.*", table, re.MULTILINE):
        numbers.update(map(int, re.findall(r"R([0-9]+)", row.split("|")[1])))
    for name in re.findall(r"`(test_\w+)`", table):
        assert f"def {name}(" in tests
    for page in "remote", "s3", "redis":
        assert not re.search(r"test_\w+|_test\.cc",
                             (ROOT / f"docs/{page}.md").read_text()), page
    assert numbers == set(range(1, 67))
    named = {int(number) for number in re.findall(r"\bR([0-9]+)\b", tests)}
    assert numbers <= named, sorted(numbers - named)


def examples():
    page = (ROOT / "docs/cli.md").read_text()
    return re.findall(r"^(haulway [a-z-]+ .*)$", page, re.MULTILINE)


def test_every_verb_has_an_example():
    page = (ROOT / "docs/cli.md").read_text()
    verbs = re.findall(r"^## ([a-z-]+)$", page, re.MULTILINE)
    assert {line.split()[1] for line in examples()} == set(verbs)


@pytest.mark.parametrize("line", examples())
def test_examples_are_understood(run, line):
    """Their files do not exist, but nothing else is wrong with them."""
    words = shlex.split(line.partition(" | ")[0])[1:]
    done = run(*words, code=None)
    assert done.returncode != 4, done.stderr


def test_links_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]:
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), (page.name, link)
