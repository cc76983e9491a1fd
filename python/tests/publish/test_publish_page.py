"""docs/publish.md: its programs run and its tables are correct."""

import json
import pathlib
import re

import haulway

PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs/publish.md"
        ).read_text()


def test_the_programs_of_the_page_run(tmp_path, monkeypatch, run):
    monkeypatch.chdir(tmp_path)
    known = {}
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(programs) == 3
    try:
        for program in programs:
            exec(program, known)  # noqa: S102
        shown = json.loads(run("arena", "ls", "--json").stdout)
        found = {each["name"]: each for each in shown["publications"]}
        assert found["page-weights"]["version"] == 4
        assert found["page-model"]["version"] == 2
        fields = re.search(r"`publications:\[\{(.*?)\}\]`", PAGE)[1].split(",")
        assert list(found["page-weights"]) == fields
        table = run("arena", "ls").stdout
        assert re.search(r"^page-weights +4 ", table, re.MULTILINE)
        head = re.search(r"^name +version.*$", PAGE, re.MULTILINE)[0]
        assert head.split() in [line.split() for line in table.splitlines()]
    finally:
        for publication in list(haulway._sharing.publish._publications.values()):
            publication.close()


def test_every_call_is_in_the_table():
    for name in ("publish", "publish_file", "publish_buffer", "subscribe"):
        assert re.search(rf"^\| `{name}\(", PAGE, re.MULTILINE)
        assert hasattr(haulway, name)
