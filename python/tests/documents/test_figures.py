"""The records in bench/results/, and the pages that are made from them."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "bench"))

import record  # noqa: E402

NAMES = sorted(path.stem for path in record.RESULTS.glob("*.json"))


@pytest.fixture
def copy(tmp_path):
    """Returns copies of the records, the pages and the tool."""
    for folder in ("bench", "docs", "tools"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / "README.md", tmp_path)
    return tmp_path


def make(root, *words):
    return subprocess.run(
        [sys.executable, str(root / "tools/make_figures.py"), *words],
        capture_output=True, text=True)


def test_pages_say_what_the_records_say():
    done = make(ROOT, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_figure_that_is_changed_in_a_page_is_noticed_and_mended(copy):
    page = copy / "docs/figures.md"
    before = page.read_text()
    assert before.count("| torch.save | 1126 [890 - 1362] |") == 1
    page.write_text(before.replace("| 1126 [890", "| 1127 [890"))
    done = make(copy, "--check")
    assert done.returncode == 1
    assert done.stdout.startswith("docs/figures.md differs from the records")
    assert make(copy).returncode == 0
    assert page.read_text() == before


def test_a_figure_that_is_measured_anew_reaches_every_page(copy):
    file = copy / "bench/results/remote.json"
    file.write_text(file.read_text().replace(
        '["Redis, write 256 MiB", "tensorizer", [193, 183, 202], [0.66, 0.63, 0.7],',
        '["Redis, write 256 MiB", "tensorizer", [386, 366, 404], [1.33, 1.3, 1.4],'))
    assert make(copy).returncode == 0
    assert ("|  | tensorizer | 386 [366 - 404] | 1.33x [1.3 - 1.4] | 1.5x: **not "
            "reached** |") in (copy / "docs/figures.md").read_text()
    assert ("| write 256 MiB to Redis | 290 ms | tensorizer 386 ms | 1.3x |"
            ) in (copy / "docs/performance.md").read_text()
    file = copy / "bench/results/publish.json"
    file.write_text(file.read_text().replace("[108.", "[308.", 1))
    assert make(copy).returncode == 0
    assert "| a new version of 1 GiB for another process | 308 ms |" in (
        copy / "README.md").read_text()


def test_a_contender_that_no_record_has_is_named(copy):
    file = copy / "bench/results/summary.json"
    file.write_text(file.read_text().replace('"peer": "torch.load mmap"',
                                             '"peer": "torch.load remembered"'))
    done = make(copy)
    assert done.returncode == 1
    assert done.stderr == (
        "summary.json: first.json has no 'torch.load remembered' in 'load 1 GiB, "
        "warm, idle 3 s, mappings once more, 3 rounds'\n")


@pytest.mark.parametrize("name", NAMES)
def test_files_are_as_they_are_written(name):
    text = (record.RESULTS / f"{name}.json").read_text()
    if name == "summary":
        json.loads(text)
        return
    assert record.dump(json.loads(text)) == text
    for table in json.loads(text)["tables"]:
        assert all(len(row) == len(table["columns"]) for row in table["rows"])


def test_what_ran_in_turn_becomes_a_table():
    rows = [
        {"case": "load", "contender": "haulway", "seconds": [0.2, 0.1, 0.4],
         "ratios": [1, 1, 1], "target": None},
        {"case": "load", "contender": "torch", "seconds": [0.4, 0.3, 0.1],
         "ratios": [2, 3, 0.25], "target": 1.5},
        {"case": "save", "contender": "haulway", "seconds": [0.0123456],
         "ratios": [1], "target": None},
        {"case": "save", "contender": "limit", "seconds": [0.01],
         "ratios": [0.81], "target": 0.9},
    ]
    table = record.compared(rows)
    assert table["rows"] == [
        ["load", "haulway", [200, 100, 400], None, None],
        ["load", "torch", [300, 100, 400], [2, 0.25, 3], 1.5],
        ["save", "haulway", 12.35, None, None],
        ["save", "limit", 10, 0.81, 0.9],
    ]
    assert list(record.markdown([{"title": "In turn", **table}])) == [
        "**In turn**", "",
        "| case | contender | ms | ratio | to reach |", "|---|---|---|---|---|",
        "| load | haulway | 200 [100 - 400] |  |  |",
        "|  | torch | 300 [100 - 400] | 2x [0.25 - 3] | 1.5x: reached |",
        "| save | haulway | 12.3 |  |  |",
        "|  | limit | 10 | 0.81x | 0.9x: **not reached** |",
        "",
    ]
