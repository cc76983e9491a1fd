#!/usr/bin/env python3
"""Makes what documents say of programs, or checks that it is so.

    tools/make_docs.py HAULWAY [--check]

docs/cli.md is made of the verbs' own help: each verb's chapter is what
`haulway VERB --help` prints, and what stands before them is here.

In docs/cpp.md and docs/c.md, a block of code that follows a line `<!-- FILE -->`
is that file's code, from its first line that is neither comment nor empty on;
after `<!-- FILE NAME -->` it is the definition of the function NAME alone. The
files are programs of examples/, which the tests run.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
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


def main():
    pages = {"cli.md": page_of_the_command(sys.argv[1])}
    for page in ("cpp.md", "c.md"):
        pages[page] = with_examples((ROOT / "docs" / page).read_text())
    wrong = 0
    for name, new in pages.items():
        page = ROOT / "docs" / name
        if "--check" not in sys.argv:
            page.write_text(new)
        elif not page.exists() or page.read_text() != new:
            wrong = 1
            print(f"docs/{name} is not what the programs say: run "
                  "tools/make_docs.py HAULWAY")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
