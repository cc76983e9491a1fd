#!/usr/bin/env python3
"""Makes what documents say of programs, or checks that it is so.

    tools/make_docs.py HAULWAY [--check]

docs/cli.md is made of the verbs' own help: each verb's chapter is what
`haulway VERB --help` prints, and what stands before them is here.

In docs/cpp.md and docs/c.md, a block of code that follows a line `<!-- FILE -->`
is that file's code, from its first line that is neither comment nor empty on;
after `<!-- FILE NAME -->` it is the definition of the function NAME alone. The
files are programs of examples/, which the tests run.

What docs/loading.md and the package's stub say of each option is made of its
row in python/haulway/_options.py.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

from haulway import _options  # noqa: E402 - of this folder, and of nobody else.

HEAD = """\
# The command

This page is made by `tools/make_docs.py` from the help of the command, and a
test compares them.

A FILE may be a file, a model's folder, an index of shards, `file://` with a
path, or `-`: [opening.md](opening.md). Names are chosen, and slices written, as
[slicing.md](slicing.md) says. A key comes from a file or the environment, never
from the command line, which everybody on the machine can read.

`--json` prints one object on one line on standard output; of several files, one
for each. What goes wrong is one line on standard error, and with `--json` also
`{"error":{"code":...,"message":...,"byte":...}}`: [errors.md](errors.md).

"""


def help_of(binary, *verb):
    return subprocess.run(
        [binary, *verb, "--help"], text=True, capture_output=True, check=True
    ).stdout.strip()


def page_of_the_command(binary):
    whole = help_of(binary)
    listed = re.split(r"\nsubcommands:", whole, flags=re.IGNORECASE)[1]
    verbs = re.findall(r"^  ([a-z-]+)", listed, re.MULTILINE)
    parts = [HEAD, f"```\n{whole}\n```\n"]
    for verb in verbs:
        parts.append(f"\n## {verb}\n\n```\n{help_of(binary, verb)}\n```\n")
    return "".join(parts)


def code_of(path, function):
    text = (ROOT / path).read_text()
    if function is None:
        return re.sub(r"\A(//[^\n]*\n|\n)*", "", text)
    found = re.search(
        rf"^[^\n/#][^\n]*\b{function}\((?:[^\n]|\n(?!\}}))*\n\}}\n", text,
        re.MULTILINE,
    )
    assert found, (path, function)
    return found[0]


def with_examples(text):
    return re.sub(
        r"(<!-- (\S+?)(?: (\w+))? -->\n```c(?:pp)?\n)(.*?)(?=```)",
        lambda match: match[1] + code_of(match[2], match[3]),
        text, flags=re.DOTALL,
    )


def with_options(text):
    """A page, with the table of the keywords of reading."""
    rows = "".join(
        f"| `{name}` | {'call only' if option.of_call else f'`{option.default!r}`'}"
        f" | {option.meaning} |\n"
        for name, option in _options.READING.items()
    )
    head = "| keyword | default | |\n|---|---|---|\n"
    assert head in text
    return re.sub(rf"(?<={re.escape(head)})(\|.*\n)*", lambda _: rows, text)


def with_types(stub):
    """The stub, with the options of each class of them."""
    table = _options
    opening = table.OPENING.keys() - table.INDEX.keys() - table.REMOTE.keys()
    # Some calls take these by position, and name them in their signature.
    by_position = {"lenient", "mmap"}
    keywords = {
        "_IndexWords": table.INDEX.keys() - by_position,
        "_RemoteWords": table.REMOTE,
        "_OpeningWords": opening - by_position,
        "_ReadingWords": table.READING.keys() - table.OPENING.keys(),
    }
    classes = {
        name: {word: (option.check.types, True)
               for word, option in table.READING.items() if word in words}
        for name, words in keywords.items()
    }
    for section, options in table.SECTIONS.items():
        classes[f"_{section.title()}"] = {
            name: (option.check.types, option.default is None)
            for name, option in options.items() if not option.of_call
        }
    for name, options in classes.items():
        lines = "".join(
            f"    {word}: {types}{' | None' if or_none else ''}\n"
            for word, (types, or_none) in options.items()
        )
        body = re.search(rf"class {name}\b.*\n((?:    \w+: .*\n)+)", stub)
        stub = stub[:body.start(1)] + lines + stub[body.end(1):]
    return stub


def main():
    pages = {"docs/cli.md": page_of_the_command(sys.argv[1])}
    for page, made in {
        "docs/cpp.md": with_examples,
        "docs/c.md": with_examples,
        "docs/loading.md": with_options,
        "python/haulway/__init__.pyi": with_types,
    }.items():
        pages[page] = made((ROOT / page).read_text())
    wrong = 0
    for name, new in pages.items():
        page = ROOT / name
        if "--check" not in sys.argv:
            page.write_text(new)
        elif not page.exists() or page.read_text() != new:
            wrong = 1
            print(f"{name} is not what the programs say: run "
                  "tools/make_docs.py HAULWAY")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
