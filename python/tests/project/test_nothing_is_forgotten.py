"""Lists beside a table are silent about a new row: there is none."""

import ast
import pathlib
import re

import pytest

import haulway
from haulway import _haulway, _options

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "python/haulway"
# Options of saving that are configured, which calls pass on with for_saving().
CONFIGURED = {name for name, row in _options.WRITING.items()
              if row.engine and not row.of_call}


def lists_in(path):
    """Yields (line, the texts in it) of each list in a source."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
            yield node.lineno, {item.value for item in node.elts
                                if isinstance(item, ast.Constant)
                                and isinstance(item.value, str)}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")),
                         ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_list_of_options_of_saving_is_kept_by_hand(path):
    assert {"durability", "threads", "storage_alignment"} <= CONFIGURED
    # torch's configuration has two of them.
    own = {"compute_crc32", "storage_alignment"}
    for line, texts in lists_in(path):
        named = texts & CONFIGURED
        assert len(named) < 2 or named == own, f"{path}:{line}"


@pytest.mark.parametrize("format", ["", *(
    row.name for row in haulway.formats() if row.suffixes)])
def test_saving_takes_every_option_that_the_format_has(format):
    options = haulway._config.for_saving(format)
    assert set(options) == {
        name for name in CONFIGURED
        if not _options.WRITING[name].formats
        or format in _options.WRITING[name].formats
        if "save" in _options.WRITING[name].calls}
    with haulway.config(save={"threads": 3, "durability": "none"}):
        options = haulway._config.for_saving(format)
        assert (options["threads"], options["durability"]) == (3, "none")
        assert haulway._config.for_saving(
            format, {"threads": 2})["threads"] == 2


def test_each_report_of_a_verb_is_described():
    """A verb that prints the fields of a struct has them in docs/cli.md."""
    described = {verb.split()[0] for verb in _haulway.report_rows()}
    told = set()
    for path in sorted((ROOT / "cli").glob("*.cc")):
        text = path.read_text()
        verbs = set(re.findall(r'\nextern const Verb k\w+ = \{\s*"([a-z-]+)"',
                               text))
        if verbs and re.search(
                r"\.Fields\(|Json\(\)\.Value\(|json->?Value\(report", text):
            told |= verbs
            assert verbs <= described, path
    assert {"convert", "delta", "encrypt", "ls", "scan", "verify"} <= told
    page = (ROOT / "docs/cli.md").read_text()
    for verb, rows in _haulway.report_rows().items():
        assert rows and f"\n### {verb} --json\n" in page
