"""Everything that docs/stability.md promises to keep exists as in the
releases."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import stability  # noqa: E402


def test_all_that_releases_promised_is_kept(program):
    version = stability.version_of_source()
    assert stability.lists_that_hold(version)
    gone = stability.broken(stability.promises_of(program), version)
    assert not gone, (
        "docs/stability.md promises to keep these. If the version is not "
        "released yet, tools/stability.py HAULWAY --write lists what there is.")


def test_every_kind_of_promise_is_listed():
    (path,) = stability.lists_that_hold(stability.version_of_source())
    lines = set(path.read_text().splitlines())
    assert {
        "module haulway.ipc", "call haulway.load(1: path)",
        "call haulway.load(memory_budget)", "class haulway.IoError is a OSError",
        "name haulway.Checkpoint.metadata", "verb convert --proof",
        "verb plan-reads --shard", "json ls tensors[].shape[]: number",
        "json error error.code: string", "exit 0 of ls small.pt",
        "exit 1 of scan unsafe.pkl", "exit 2 of ls nothing.pt",
        "exit 3 of ls small.pt --include nothing", "exit 4 of nonsense",
        "c haulway_open@HAULWAY_C_1", "c HAULWAY_TRUNCATED = 7",
    } <= lines


BEFORE = """\
from . import inner as inner
LIMIT: int
@type_check_only
class _Base(TypedDict, total=False):
    threads: int
@type_check_only
class Options(_Base, total=False):
    verify: bool
class Error(Exception): ...
class Box(Mapping[str, int]):
    size: int
    @property
    def name(self) -> str: ...
    def get(self, key: str, /, default: int = 0) -> int: ...
    def _own(self) -> None: ...
def load(path: str, mode: str = "r", *, strict: bool, **o: Unpack[Options]) -> Any: ...
"""


def lines_of(folder, text):
    package = folder / "package"
    package.mkdir(exist_ok=True)
    (package / "__init__.pyi").write_text(text)
    (package / "_own.pyi").write_text("def hidden() -> None: ...")
    return set(stability.Stubs(package).lines())


def test_names_and_parameters_are_those_of_the_stubs(tmp_path):
    assert lines_of(tmp_path, BEFORE) == {
        "module package", "name package.inner", "name package.LIMIT",
        "class package.Error", "class package.Error is a Exception",
        "class package.Box", "class package.Box is a Mapping[str, int]",
        "name package.Box.size", "name package.Box.name",
        "call package.Box.get()", "call package.Box.get(1: _)",
        "call package.Box.get(2: default = 0)", "call package.Box.get needs: _",
        "call package.load()", "call package.load(1: path)",
        "call package.load(2: mode = 'r')", "call package.load(strict)",
        "call package.load(threads)", "call package.load(verify)",
        "call package.load needs: path, strict",
    }


@pytest.mark.parametrize("old, new, gone", [
    ("path: str,", "file: str,", {"call package.load(1: path)",
                                  "call package.load needs: path, strict"}),
    ('mode: str = "r"', 'mode: str = "w"', {"call package.load(2: mode = 'r')"}),
    ("strict: bool", "strict: bool, new: int",
     {"call package.load needs: path, strict"}),
    ("    threads: int\n", "    workers: int\n", {"call package.load(threads)"}),
    ("Error(Exception)", "Error(ValueError)", {"class package.Error is a Exception"}),
    ("    size: int\n", "", {"name package.Box.size"}),
    # Additions, and names with an underscore, break nothing.
    ("strict: bool", "strict: bool, new: int = 0", set()),
    ("LIMIT: int", "LIMIT: int\nMORE: int", set()),
    ("    def _own(self) -> None: ...\n", "", set()),
    ("    verify: bool", "    verify: bool\n    retries: int", set()),
])
def test_what_is_gone_is_found(old, new, gone, tmp_path):
    assert old in BEFORE
    before = lines_of(tmp_path, BEFORE)
    assert before - lines_of(tmp_path, BEFORE.replace(old, new)) == gone


def test_fields_of_json_have_a_place_and_a_kind():
    value = {"file": "x", "ok": True, "tensors": [{"shape": [2]}, {"offset": None}]}
    assert set(stability.fields_of(value)) == {
        "file: string", "ok: boolean", "tensors: array", "tensors[]: object",
        "tensors[].shape: array", "tensors[].shape[]: number"}


@pytest.mark.parametrize("version, held", [
    ("0.1.3", ["0.1.0", "0.1.2"]), ("0.2.0", ["0.2.0"]), ("0.3.0", []),
    ("1.4.0", ["1.0.0", "1.1.0"]), ("2.0.0", []),
])
def test_a_version_keeps_what_those_before_it_promised(version, held, tmp_path,
                                                       monkeypatch):
    monkeypatch.setattr(stability, "LISTS", tmp_path)
    for name in ("0.1.0", "0.1.2", "0.2.0", "1.0.0", "1.1.0"):
        (tmp_path / f"{name}.txt").write_text(f"name of {name}\n")
    assert [path.stem for path in stability.lists_that_hold(version)] == held
    assert stability.broken([], version) == [
        (name, f"name of {name}") for name in held]
