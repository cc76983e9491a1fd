"""tools/check_includes.py: which files it refuses and accepts."""

import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture
def checker(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_file_location(
        "check_includes", ROOT / "tools/check_includes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "src/a").mkdir(parents=True)
    (tmp_path / "src/a/a.h").write_text("#include <vector>\n")
    (tmp_path / "src/a/b.h").write_text('#include "a/a.h"\n')
    return module


@pytest.mark.parametrize("text, missing", [
    ("int a;\nuint32_t b;\n", ["2: uint32_t is of <cstdint>"]),
    ("#include <string>\nstd::vector<std::string> a;\n",
     ["2: std::vector is of <vector>"]),
    ('#include "a/b.h"\nstd::vector<int> a = std::move(b);\n',
     ["2: std::move is of <algorithm> or <utility>"]),
    ("#include <fmt/format.h>\nauto a = fmt::format(b, fmt::join(c, d));\n",
     ["2: fmt::join is of <fmt/ranges.h>"]),
    ("auto a = std::ranges::sort(b);\nauto c = std::chrono::hours(1);\n",
     ["1: std::ranges::sort is of <algorithm>",
      "2: std::chrono::hours is of <chrono>"]),
    ("std::nothing_like_it a;\n",
     ["1: std::nothing_like_it is not in tools/check_includes.py"]),
])
def test_a_missing_header_is_named(checker, tmp_path, text, missing):
    path = tmp_path / "src/a/c.cc"
    path.write_text(text)
    assert list(checker.faults(path)) == [
        f"src/a/c.cc:{fault}" for fault in missing]


@pytest.mark.parametrize("text", [
    '#include "a/b.h"\nstd::vector<int> a;\n',
    '#include "a.h"\nstd::vector<int> a;\n',
    "#include <stdint.h>\nuint32_t a;\n",
    "// std::vector\nconst char* a = \"std::map\"; /* std::set\nstd::list */\n",
    'auto a = R"(std::vector")";\n',
    "#include <vector>\nint a = b.size() + c->uint32_t;\nstd::erase_if(d, e);\n",
])
def test_what_is_included_or_not_used_is_no_fault(checker, tmp_path, text):
    path = tmp_path / "src/a/c.cc"
    path.write_text(text)
    assert list(checker.faults(path)) == []
