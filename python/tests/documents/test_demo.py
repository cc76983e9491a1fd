"""scripts/demo: one round of small files; checks the output, not the speed."""

import json
import subprocess
import sys
import xml.etree.ElementTree

from page_code import ROOT


def test_one_round(tmp_path):
    plot, figures = tmp_path / "demo.svg", tmp_path / "demo.json"
    done = subprocess.run(
        [sys.executable, ROOT / "bench/demo.py", "--seconds", "0", "--mib", "8",
         "--plot", plot, "--json", figures, "--directory", tmp_path],
        capture_output=True, text=True, timeout=600,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(figures.read_text())
    cases = list(dict.fromkeys(row["case"] for row in rows))
    assert len(cases) == 8 and len(rows) == 19
    for case in cases:
        ours, *peers = [row for row in rows if row["case"] == case]
        assert ours["contender"].startswith("haulway") and ours["ratio"] == 1
        assert peers
        for row in (ours, *peers):
            assert len(row["seconds"]) == 1 and row["seconds"][0] > 0
            assert f"  {row['contender']} " in done.stdout
    # Each case of a load says whether the file is in the page cache.
    assert all("warm" in case or "cold" in case for case in cases
               if case.startswith(("load", "open")))
    assert done.stdout.rstrip().endswith(f"The plot: {plot}")
    assert xml.etree.ElementTree.parse(plot).getroot().tag.endswith("svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "demo.json", "demo.svg"]
