"""Facts that must be stated in two places are stated in both."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_every_verb_is_in_the_list():
    defined = set()
    for path in (ROOT / "cli").glob("*.cc"):
        defined |= set(re.findall(r"^extern const Verb k(\w+) =",
                                  path.read_text(), re.MULTILINE))
    text = (ROOT / "cli/CMakeLists.txt").read_text()
    listed = re.search(r"^set\(verbs ([^)]*)\)", text, re.MULTILINE)[1].split()
    assert len(listed) == len(set(listed))
    assert defined == set(listed)


def test_every_table_of_fields_is_compared_with_its_struct():
    """src/base/fields_test.cc does not compile if a member has no row."""
    structs = set()
    for path in (ROOT / "include/haulway").glob("*.h"):
        structs |= set(re.findall(r"\bFieldsOf\(const (\w+)&", path.read_text()))
    test = (ROOT / "src/base/fields_test.cc").read_text()
    compared = set(re.findall(r"\] =\s+(\w+)\(\);", test))
    assert len(structs) > 30
    assert structs - compared == set()
