"""tools/check_english.py: which sentences it refuses and accepts."""

import importlib.util
import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def checker():
    spec = importlib.util.spec_from_file_location(
        "check_english", ROOT / "tools/check_english.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name, text, line", [
    ("a.md", "# A\n\nOf no bytes, nothing need be set.\n", 3),
    ("a.md", "It is so. Who opens a file waits.\n", 1),
    ("a.md", "| a | of the file |\n|---|---|\n", 1),
    ("a.md", "- Those that the command has too.\n", 1),
    ("a.h", "int a;\n// Reads it.\n//\n// What is told counts more.\n", 4),
    ("a.h", "uint64_t bytes;  // Of the file.\n", 1),
    ("a.h", '{"bytes", &Stats::bytes, "of the file"},\n', 1),
    ("a.cc", '"Of a request that "\n"brought nothing"\n', 1),
    ("a.cc", 'return Status(\n    Code::kCorrupt, "of another "\n"file");\n', 2),
    ("a.cc", 'Status(Code::kLimit, fmt::format("what is {} is cut", a))\n', 1),
    ("a.py", 'raise ValueError(\n    f"of {type(a)}"\n)\n', 2),
    ("a.pyi", "# Of put().\n", 1),
    ("a.py", '"""A module."""\nOption(\n    0, int, "of mappings")\n', 2),
])
def test_openings_without_a_noun_are_refused(
    checker, name, text, line, tmp_path
):
    path = tmp_path / name
    path.write_text(text)
    assert [found for found, _ in checker.openings(path)] == [line]


@pytest.mark.parametrize("name, text", [
    ("a.md", "Of course this is fine. What is a tensor?\n"),
    ("a.md", "# What is checked\n\nThose files that end are read.\n"),
    ("a.md", "```\nOf code nothing is said.\n```\n"),
    ("a.h", "// The form is\n//\n//   What is wrong: expected A\n//\n"),
    ("a.h", "// Returns a copy of it,\n// of which there is one.\n"),
    ("a.cc", '"of {} bytes, which are no help"\n'),
    ("a.cc", 'Status(Code::kLimit, "the file is {} bytes").Of(name)\n'),
    ("a.py", 'def unknown():\n    """Of no concern."""\n'),
])
def test_other_sentences_pass(checker, name, text, tmp_path):
    path = tmp_path / name
    path.write_text(text)
    assert list(checker.openings(path)) == []
