#!/usr/bin/env python3
"""Fails if a public sentence opens in a way that leaves the reader guessing.

    tools/check_english.py [FILE...]

A sentence says who does what. One that opens with "Of ", or with a relative
pronoun without a noun ("Those that", "Who opens", "What is left"), makes the
reader look for its subject. Name the noun, or begin with "If", "When" or
"Returns". Questions may open with "What" and "Who".

Public text is in the comments of include/haulway, the pages, the docstrings of
names that a stub declares, the comments of stubs, the meanings of options and
of fields, the help of the command, and error texts. Prints each bad opening
with its file and line.
"""

# Design: for each kind of file, a function yields (line, text) of its public text,
# one paragraph at a time. A paragraph is split into sentences, and one pattern
# checks how each opens. Only openings are checked: within a sentence a relative
# pronoun nearly always has its noun, and rules for the rest found more good
# sentences than bad ones. Code blocks are skipped.

import ast
import functools
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OPENINGS = re.compile(
    r"(?:[Oo]f (?!course\b)"
    r"|[Tt]hose (?:that|which|who|of)\b"
    r"|Who(?:ever)? [a-z]"
    r"|What(?:ever)? (?:[a-z]+ )?(?:is|was|are|were|has|had|can|cannot|does|"
    r"needs?|comes|goes|follows|lies|stands)\b)[^?]*$"
)
SENTENCES = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z])")


def paragraphs(lines):
    """Joins runs of non-empty (line, text) and yields (line, text) of each."""
    start, words = 0, []
    for number, text in [*lines, (0, "")]:
        if text.strip():
            start = start if words else number
            words.append(text.strip())
        elif words:
            yield start, " ".join(words)
            words = []


def comments(text, mark):
    """Yields paragraphs of comments; a comment after code is a paragraph of its
    own."""
    lines, code = [], False
    for number, line in enumerate(text.splitlines(), 1):
        before, found, comment = line.partition(mark)
        behind = bool(found and before.strip())
        if comment.startswith("  "):  # An example.
            found = ""
        if not found or behind or (code and not comment.startswith(" ")):
            lines.append((number, ""))
        lines.append((number, comment if found else ""))
        code = behind
    yield from paragraphs(lines)


def page(text):
    """Yields paragraphs, items and table cells, without headings and code."""
    lines, fenced = [], False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        if fenced or line.startswith(("```", "    ", "#", "<!--")):
            lines.append((number, ""))
        elif line.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", line):
                lines += [(number, ""), (number, cell)]
        else:
            item = re.sub(r"^(?:- |\d+\. )(?:\*\*|`[^`]*`:? )?", "", line)
            if item != line:
                lines.append((number, ""))
            lines.append((number, item))
    yield from paragraphs(lines)


@functools.cache
def declared():
    """Returns the names of functions and classes in the package's stubs."""
    return {
        node.name
        for stub in (ROOT / "python/haulway").rglob("*.pyi")
        for node in ast.walk(ast.parse(stub.read_text()))
        if isinstance(node, (ast.ClassDef, ast.FunctionDef))
    }


def docstrings(text, public):
    """Yields paragraphs of the docstrings of declared names, and options'
    meanings.

    public: the module's own docstring is included.
    """
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.Module)):
            found = ast.get_docstring(node)
            name = getattr(node, "name", "")
            if found and (name in declared() or (public and not name)):
                line = node.body[0].lineno
                lines = enumerate(found.splitlines(), line)
                yield from paragraphs(
                    (number, re.sub(r"^[\w, ]+: ", "", each))
                    for number, each in lines
                )
        elif isinstance(node, ast.Call) and getattr(
            node.func, "id", ""
        ) == "Option" and isinstance(node.args[2], ast.Constant):
            yield node.lineno, node.args[2].value


def strings(text):
    """Yields C++ literals that begin with a capital letter and contain a space,
    as help texts do, and those after the member in a row of a field table."""
    literal = r'"(?:\\.|[^"\\\n])*"(?:\s*"(?:\\.|[^"\\\n])*")*'
    for found in re.finditer(rf"(::\w+,\s*)?({literal})", text):
        joined = "".join(re.findall(r'"((?:\\.|[^"\\\n])*)"', found[2]))
        if found[1] or re.match(r"[A-Z]\w* \w", joined):
            yield text.count("\n", 0, found.start(2)) + 1, joined


def messages(text):
    """Yields the texts of a Status, or of an Error of Python, with a capital
    letter."""
    literal = r'f?"(?:\\.|[^"\\\n])*"(?:\s*f?"(?:\\.|[^"\\\n])*")*'
    for found in re.finditer(
        rf"(?:Status\(\s*Code::\w+,\s*(?:fmt::format\(\s*)?|Error\(\s*)"
        rf"({literal})", text
    ):
        joined = "".join(re.findall(r'"((?:\\.|[^"\\\n])*)"', found[1]))
        start = text.count("\n", 0, found.start(1)) + 1
        yield start, joined[:1].upper() + joined[1:]


def readable(path):
    text = path.read_text()
    if path.suffix == ".md":
        yield from page(text)
    elif path.suffix == ".py":
        private = path.is_relative_to(ROOT) and any(
            part.startswith("_") and part != "__init__.py"
            for part in path.relative_to(ROOT).parts)
        yield from docstrings(text, not private)
        yield from messages(text)
    elif path.suffix == ".pyi":
        yield from comments(text, "# ")
    elif path.suffix == ".h":
        yield from comments(text, "// ")
        yield from strings(text)
    else:
        if not path.is_relative_to(ROOT / "src"):
            yield from strings(text)
        yield from messages(text)


def public_files():
    for pattern in ("*.md", "docs/**/*.md", "include/haulway/*.h",
                    "python/haulway/**/*.py", "python/haulway/**/*.pyi",
                    "cli/*.cc", "src/**/*.cc", "python/*/*.cc"):
        yield from sorted(ROOT.glob(pattern))


def openings(path):
    """Yields (line, sentence) of each sentence in a file that opens badly."""
    seen = set()  # A literal may be a message, too.
    for line, text in readable(path):
        for sentence in SENTENCES.split(text):
            found = line, sentence.lower()
            if OPENINGS.match(sentence.strip("`*( ")) and found not in seen:
                seen.add(found)
                yield line, sentence


def main():
    faults = 0
    for path in map(pathlib.Path, sys.argv[1:]) if sys.argv[1:] else (
            public_files()):
        for line, sentence in openings(path):
            faults += 1
            print(f"{path}:{line}: {sentence[:70]}")
    print(f"english: {faults} faults")
    return faults > 0


if __name__ == "__main__":
    sys.exit(main())
