#!/usr/bin/env python3
"""Fails if a file includes what its layer may not, or breaks a house rule.

The order of the modules and the owners of public headers are those declared by
haulway_module() in CMakeLists.txt: there is no other table.
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PUBLIC = ROOT / "include" / "haulway"

INCLUDE = re.compile(r'^\s*#include "([^"]+)"')
MODULE = re.compile(r"^haulway_module\((.*?)\)", re.MULTILINE | re.DOTALL)
# Pattern, fault, and the files in which it is allowed.
RULES = [
    (
        re.compile(r"hardware_concurrency|_SC_PHYS_PAGES|_SC_NPROC|meminfo|"
                   r"sched_getaffinity|fs/cgroup"),
        "a question about memory or processors: ask haulway/machine.h",
        {"base/machine.cc", "base/machine_test.cc"},
    ),
    (re.compile(r"::preadv?\("), "pread outside base/posix", {"base/posix.cc"}),
    (
        re.compile(r"reinterpret_cast<(const )?u?int(16|32|64)_t\s*\*>"),
        "a pointer cast to a wider integer: read through ByteCursor",
        set(),
    ),
]

# What a folder of python/ may include besides itself and include/haulway/.
PYTHON = {
    "base": set(),
    "pickling": {"base"},
    "items": {"base"},
    "bind": {"base", "pickling", "items"},
}


# The packages of the Python package, each above those before it.
PACKAGES = ("_torch", "_making", "_reading", "_writing")
IMPORT = re.compile(r"^\s*from \.\.(\w+)|imported\(\"haulway\.(\w+)")


class Modules:
    """The modules as declared in CMakeLists.txt."""

    def __init__(self, text):
        self.uses = {}  # Module -> modules whose headers it may include.
        self.owner = {}  # File of include/haulway/ -> module.
        self.faults = []
        for call in MODULE.findall(text):
            words = call.split()
            name = words[0]
            self.uses[name] = set()
            keyword = None
            for word in words[1:]:
                if word in ("USES", "HEADERS", "LINKS"):
                    keyword = word
                elif keyword == "USES":
                    self._add_use(name, word)
                elif keyword == "HEADERS":
                    self._add_header(name, f"{word}.h")

    def _add_use(self, name, used):
        if used not in self.uses:
            self.faults.append(f"CMakeLists.txt: {name} uses {used}, which is "
                               "not declared before it")
        self.uses[name].add(used)

    def _add_header(self, name, header):
        if header in self.owner:
            self.faults.append(f"CMakeLists.txt: {header} is of {name} and of "
                               f"{self.owner[header]}")
        self.owner[header] = name

    def module_of(self, include):
        """Returns the module of an #include's path; None if it has none."""
        folder, _, rest = include.partition("/")
        return self.owner.get(rest) if folder == "haulway" else folder

    def may_include(self, module, include):
        of = self.module_of(include)
        return of == module or of in self.uses.get(module, ())


def check_includes(modules, path, module):
    """Yields includes in a module's file that its layer does not allow."""
    place = path.relative_to(ROOT).as_posix()
    public = path.is_relative_to(PUBLIC)
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = INCLUDE.match(line)
        if not found:
            continue
        include = found.group(1)
        if public and not include.startswith("haulway/"):
            yield f"{place}:{number}: a public header includes {include}"
        elif not modules.may_include(module, include):
            yield f"{place}:{number}: {module} may not include {include}"


def check_rules(path):
    """Yields broken house rules in a file of src/."""
    name = path.relative_to(ROOT / "src").as_posix()
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for pattern, wrong, exempt in RULES:
            if name not in exempt and pattern.search(line):
                yield f"src/{name}:{number}: {wrong}"


def check_owners(modules):
    """Yields public headers without a module, and modules without a folder."""
    there = {path.name for path in PUBLIC.glob("*.h")}
    for header in sorted(there ^ modules.owner.keys()):
        wrong = "has no owner" if header in there else "is not there"
        yield f"include/haulway/{header}: {wrong}"
    folders = {path.name for path in (ROOT / "src").iterdir()}
    for name in sorted((folders - {"testing"}) ^ modules.uses.keys()):
        yield f"src/{name}: is no module, or has no folder"


def is_test(path):
    return path.name.endswith("_test.cc") or path.parent.name == "testing"


def check_user(path):
    """Yields faults of a file above the public API."""
    rooms = set()
    folder = path.parent.name
    if path.is_relative_to(ROOT / "python"):
        rooms = PYTHON[folder] | {folder}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = INCLUDE.match(line)
        if not found:
            continue
        room, slash, _ = found.group(1).partition("/")
        if slash and room != "haulway" and room not in rooms:
            place = f"{path.relative_to(ROOT).as_posix()}:{number}"
            yield f"{place}: {folder} may not include {found.group(1)}"


def check_packages():
    """Yields imports of a package that is above the importing one."""
    for place, package in enumerate(PACKAGES):
        for path in sorted((ROOT / "python/haulway" / package).glob("*.py")):
            for number, line in enumerate(path.read_text().splitlines(), 1):
                found = IMPORT.match(line) or IMPORT.search(line)
                used = found and (found.group(1) or found.group(2))
                if used in PACKAGES[place + 1:]:
                    yield (f"{path.relative_to(ROOT).as_posix()}:{number}: "
                           f"{package} may not import {used}")


def main():
    modules = Modules((ROOT / "CMakeLists.txt").read_text())
    faults = modules.faults + list(check_owners(modules))
    for header in sorted(PUBLIC.glob("*.h")):
        faults += check_includes(modules, header,
                                 modules.owner.get(header.name))
    for path in sorted((ROOT / "src").rglob("*.[hc]*")):
        if is_test(path) or path.suffix not in (".h", ".cc"):
            continue
        module = path.relative_to(ROOT / "src").parts[0]
        faults += check_includes(modules, path, module)
        faults += check_rules(path)
    for folder in ("cli", "python", "bench"):
        for path in sorted((ROOT / folder).rglob("*.[hc]*")):
            if path.suffix in (".h", ".cc"):
                faults += check_user(path)
    faults += check_packages()
    for fault in faults:
        print(fault)
    print(f"layers: {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
