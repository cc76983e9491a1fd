#!/usr/bin/env python3
"""Lists what docs/stability.md promises to keep, or checks that it is kept.

    tools/stability.py HAULWAY            prints what the command HAULWAY, the
    stubs
                                          and the C header have today
    tools/stability.py HAULWAY --check    fails if anything is missing that a
                                          release promised to keep
    tools/stability.py HAULWAY --write    writes the list of this version

Each line is one promise, which is kept as long as its line is printed: an
addition adds lines, and a change or removal loses some. That is why parameters,
options, fields and members have their own lines. A file of testdata/stability/
is the list of one release; `scripts/release` makes no release whose list is not
committed.

Python names come from the stubs, which mypy's stubtest compares with the
package. Fields of --json and exit codes are those that EXAMPLES show. Not
listed: the C++ headers (programs are recompiled) and types of parameters.
"""

import argparse
import ast
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import make_man

ROOT = pathlib.Path(__file__).resolve().parent.parent
STUBS = ROOT / "python/haulway"
LISTS = ROOT / "testdata/stability"

# Arguments for the command, run in this order in a folder with the files that
# main() makes. Each shows the fields of --json and an exit code.
EXAMPLES = (
    "ls small.pt", "ls small.pt --tree", "ls small.pt --stats", "info small.pt",
    "info small.safetensors", "cat small.pt model.embedding.weight",
    "verify small.pt", "verify cut.pt", "scan small.pt", "scan unsafe.pkl",
    "load small.pt", "plan-reads small.pt", "repack small.pt repacked.pt",
    "convert small.pt small.tensors --ties copy",
    "convert small.pt proven.safetensors --ties copy --proof proof.json",
    "diff small.pt small.safetensors", "diff small.safetensors other.safetensors",
    "manifest small.pt", "repair cut.safetensors repaired.safetensors",
    "encrypt small.tensors secret.tensors --keyfile key",
    "decrypt secret.tensors plain.tensors --keyfile key",
    "edit other.safetensors --set a=b", "map small.pt", "get small.pt got.pt",
    "put small.pt put.pt", "arena ls", "ls nothing.pt", "ls cut.pt",
    "ls small.pt --include nothing", "ls", "nonsense",
)


def version_of_source():
    text = (ROOT / "CMakeLists.txt").read_text()
    return re.search(r"project\(haulway VERSION ([\d.]+)", text)[1]


class Stubs:
    """The stubs of the public modules."""

    def __init__(self, folder):
        self.trees = {}
        for path in sorted(folder.rglob("*.pyi")):
            inner = path.relative_to(folder.parent).with_suffix("").parts
            if inner[-1] == "__init__":
                inner = inner[:-1]
            if not any(part.startswith("_") for part in inner):
                self.trees[".".join(inner)] = ast.parse(path.read_text())
        # Classes that only describe options, by name; the names are unique.
        self.words = {
            node.name: node for tree in self.trees.values() for node in tree.body
            if isinstance(node, ast.ClassDef) and _is_for_checkers(node)}

    def lines(self):
        for module, tree in self.trees.items():
            yield f"module {module}"
            yield from self._members(module, tree.body)

    def _members(self, place, body):
        for node in body:
            if isinstance(node, ast.ClassDef):
                if not node.name.startswith("_") and node.name not in self.words:
                    yield from self._class(place, node)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if _is_public(node.name):
                    yield from self._function(f"{place}.{node.name}", node)
            else:
                yield from (f"name {place}.{name}" for name in _names_of(node)
                            if _is_public(name))

    def _class(self, place, node):
        own = f"{place}.{node.name}"
        yield f"class {own}"
        for base in node.bases:
            # A base with a leading underscore is a detail.
            if not ast.unparse(base).startswith("_"):
                yield f"class {own} is a {ast.unparse(base)}"
        yield from self._members(own, node.body)

    def _function(self, name, node):
        marks = {ast.unparse(one) for one in node.decorator_list}
        if "property" in marks:
            yield f"name {name}"
            return
        yield f"call {name}()"
        given = node.args
        ordered = [*given.posonlyargs, *given.args]
        defaults = [None] * (len(ordered) - len(given.defaults)) + given.defaults
        if ordered and ordered[0].arg in ("self", "cls"):
            ordered, defaults = ordered[1:], defaults[1:]
        needed = []
        for number, (one, default) in enumerate(zip(ordered, defaults), 1):
            known = "_" if one in given.posonlyargs else one.arg
            yield f"call {name}({number}: {known}{_default(default)})"
            needed += [] if default else [known]
        for one, default in zip(given.kwonlyargs, given.kw_defaults):
            yield f"call {name}({one.arg}{_default(default)})"
            needed += [] if default else [one.arg]
        if given.vararg:
            yield f"call {name}(*)"
        if given.kwarg:
            taken = re.search(r"Unpack\[(\w+)\]", ast.unparse(given.kwarg))
            words = self._words_of(taken[1]) if taken else ["**"]
            yield from (f"call {name}({word})" for word in words)
        yield f"call {name} needs: {', '.join(needed) or 'nothing'}"

    def _words_of(self, name):
        if name not in self.words:
            return
        node = self.words[name]
        for base in node.bases:
            yield from self._words_of(ast.unparse(base))
        for one in node.body:
            yield from _names_of(one)


def _is_public(name):
    return not name.startswith("_") or name.endswith("__")


def _is_for_checkers(node):
    return any(ast.unparse(one) == "type_check_only" for one in node.decorator_list)


def _default(node):
    return f" = {ast.unparse(node)}" if node else ""


def _names_of(node):
    if isinstance(node, ast.AnnAssign):
        return [node.target.id]
    if isinstance(node, ast.Assign):
        return [one.id for one in node.targets if isinstance(one, ast.Name)]
    if isinstance(node, (ast.ImportFrom, ast.Import)):
        return [one.asname for one in node.names if one.asname == one.name]
    return []


def options_of(command):
    """Yields verbs, and the options of each."""
    for verb in ("", *make_man.verbs_of(make_man.help_of(command))):
        said = make_man.help_of(command, *([verb] if verb else []))
        yield f"verb {verb or '-'}"
        for line in re.findall(r"^ +(-\S+(?: |$))", said, re.MULTILINE):
            yield from (f"verb {verb or '-'} {one}" for one in line.strip().split(","))


def fields_of(value, place=""):
    """Yields the fields of a JSON value, and the type of each value."""
    kinds = {bool: "boolean", int: "number", float: "number", str: "string",
             list: "array", dict: "object"}
    if value is not None and place:
        yield f"{place}: {kinds[type(value)]}"
    if isinstance(value, dict):
        for key, one in value.items():
            yield from fields_of(one, f"{place}.{key}" if place else key)
    elif isinstance(value, list):
        for one in value:
            yield from fields_of(one, f"{place}[]")


def make_files(command, folder):
    """Makes the files that EXAMPLES names."""
    small = ROOT / "testdata/small.pt"
    shutil.copy(small, folder)
    (folder / "cut.pt").write_bytes(small.read_bytes()[:-100])
    shutil.copy(ROOT / "testdata/dangerous_pickles/eval.pkl", folder / "unsafe.pkl")
    for words in (["small.pt", "small.safetensors", "--ties", "copy"],
                  ["small.pt", "other.safetensors", "--ties", "copy",
                   "--include", "model.*"]):
        subprocess.run([command, "convert", *words], check=True, cwd=folder,
                       stdout=subprocess.DEVNULL)
    whole = (folder / "small.safetensors").read_bytes()
    (folder / "cut.safetensors").write_bytes(whole[:-100])
    (folder / "key").write_bytes(bytes(32))


def examples_of(command):
    """Yields the exit codes and the --json fields of the examples."""
    with tempfile.TemporaryDirectory() as folder:
        make_files(command, pathlib.Path(folder))
        for example in EXAMPLES:
            done = subprocess.run([command, *example.split(), "--json"], cwd=folder,
                                  text=True, capture_output=True)
            yield f"exit {done.returncode} of {example}"
            verb = example.split()[0] if done.returncode in (0, 1) else "error"
            for line in done.stdout.splitlines():
                # The arenas in use on this machine vary.
                yield from (f"json {verb} {one}" for one in fields_of(json.loads(line))
                            if verb != "arena" or "[]" not in one)


def c_lines():
    """Yields the functions, types and constants of the C header, and the symbol
    versions of the functions."""
    text = (ROOT / "include/haulway/haulway_c.h").read_text()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    for found in re.findall(r"HAULWAY_C_EXPORT ([^;{}]*);", text):
        yield "c " + " ".join(found.split())
    for kind, body, name in re.findall(r"typedef (enum|struct) \w+ \{(.*?)\} (\w+);",
                                       text, re.DOTALL):
        if kind == "struct":  # The order of members is part of the promise.
            yield f"c struct {name} {{ {' '.join(body.split())} }}"
        else:
            yield from (f"c {' '.join(one.split())}" for one in body.split(","))
    versions = (ROOT / "src/c_abi/haulway_c.map").read_text()
    for version, body in re.findall(r"^(\w+) \{(.*?)^\}", versions,
                                    re.MULTILINE | re.DOTALL):
        for name in re.findall(r"\b(haulway_\w+);", body):
            yield f"c {name}@{version}"


def promises_of(command):
    """Returns all lines of today."""
    command = pathlib.Path(command).resolve()
    return sorted({*Stubs(STUBS).lines(), *options_of(command),
                   *examples_of(command), *c_lines()})


def lists_that_hold(version):
    """Returns the lists of the releases that this version must keep: those with
    the same MAJOR version and, while that is 0, the same MINOR version."""
    def kept(text):
        parts = text.split(".")
        return parts[:2] if parts[0] == "0" else parts[:1]

    return [path for path in sorted(LISTS.glob("*.txt"))
            if kept(path.stem) == kept(version)]


def broken(promises, version):
    """Yields the missing lines, each with the release that had it."""
    kept = set(promises)
    return [(path.stem, line) for path in lists_that_hold(version)
            for line in path.read_text().splitlines() if line not in kept]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("command", type=pathlib.Path)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    promises = promises_of(options.command)
    version = version_of_source()
    if options.check:
        gone = broken(promises, version)
        for release, line in gone:
            print(f"{release} had: {line}", file=sys.stderr)
        return 1 if gone else 0
    text = "\n".join(promises) + "\n"
    if options.write:
        LISTS.mkdir(exist_ok=True)
        (LISTS / f"{version}.txt").write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    sys.exit(main())
