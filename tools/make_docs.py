#!/usr/bin/env python3
"""Writes the parts of documents that come from programs, or checks them.

    tools/make_docs.py HAULWAY [--check]

HAULWAY is the command in a build tree that also has the extension.

docs/cli.md is made from the help of the command. Options and groups of options
that several verbs share word for word are printed once; the chapter of a verb
has the rest of `haulway VERB --help`, and the names of its shared options. The
fields of --json come from the library's tables (haulway/fields.h).

In docs/cpp.md and docs/c.md, a code block that follows a line `<!-- FILE -->`
is that file's code without the comment at its head; after `<!-- FILE NAME -->`
it is the definition of the function NAME alone. The files are programs of
examples/, which the tests run.

The descriptions of options in docs/loading.md, docs/saving.md and the package's
stub are made from the rows in python/haulway/_options.py.
"""

import collections
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

import haulway  # noqa: E402 - from this folder alone, with the built extension.

haulway.__path__ += [
    str(pathlib.Path(binary).resolve().parents[1] / "python")
    for binary in sys.argv[1:2]
]
from haulway import _haulway, _options  # noqa: E402

HEAD = """\
# The command

`tools/make_docs.py` makes this page from the help of the command, and a test
compares them. Options that several verbs share are listed once, at the end; each
chapter names those that the verb takes.

A FILE may be a file, a model's folder, an index of shards, `file://` with a
path, a URL, or `-`: [opening.md](opening.md). [slicing.md](slicing.md) describes
patterns of names and slices. A key comes from a file or the environment, never
from the command line, which every user of the machine can read.

`--json` prints one object on one line on standard output; for several files, one
line each. A failure prints one line on standard error, and with `--json` also
`{"error":{"code":...,"message":...,"byte":...}}`: [errors.md](errors.md).

"""

FIELDS = """
## Fields of `--json`

`a.b` is the field `b` of each object in `a`. Python's reports have attributes of
the same names. Verbs with a FILE also print `file`, and verbs that write also
print `out`.
"""


def help_of(binary, *verb):
    return subprocess.run(
        [binary, *verb, "--help"], text=True, capture_output=True, check=True
    ).stdout.strip()


# An option with its continuation lines, and a group of options.
OPTION = re.compile(r"^  -\S.*\n(?:   .*\n)*", re.MULTILINE)
GROUP = re.compile(
    r"^\[Option Group: .*\n(?:   \n|  \S.*\n|    .*\n)*", re.MULTILINE
)
SHARED_BY = 3


def name_of(part):
    """Returns the name: `--json` for an option, "Key" for a group."""
    group = re.match(r"\[Option Group: (.*)\]", part)
    return group[1] if group else f"`{re.search(r'--[a-z-]+', part)[0]}`"


def page_of_the_command(binary):
    whole = help_of(binary)
    listed = re.split(r"\nsubcommands:", whole, flags=re.IGNORECASE)[1]
    verbs = re.findall(r"^  ([a-z-]+)", listed, re.MULTILINE)
    helps = {verb: help_of(binary, verb) + "\n" for verb in verbs}
    parts = {
        verb: [*GROUP.findall(text), *OPTION.findall(GROUP.sub("", text))]
        for verb, text in helps.items()
    }
    count = collections.Counter(sum(parts.values(), []))
    shared = [part for part in count if count[part] >= SHARED_BY]
    page = [HEAD, f"```\n{whole}\n```\n"]
    for verb, text in helps.items():
        names = []
        for part in parts[verb]:
            if part in shared:
                text = text.replace(part, "", 1)
                names.append(name_of(part))
        text = text.replace("Options:\n\n", "\n").replace("\n\n\n", "\n\n")
        page.append(f"\n## {verb}\n\n```\n{text.rstrip()}\n```\n")
        if names:
            page.append(f"\nShared: {', '.join(sorted(names))}.\n")
    options = "".join(part for part in shared if OPTION.match(part))
    groups = "".join(part for part in shared if GROUP.match(part))
    page.append(f"\n## Shared options\n\n```\n{options}{groups}```\n")
    page.append(FIELDS)
    for verb, rows in _haulway.report_rows().items():
        page.append(f"\n### {verb} --json\n\n| field | |\n|---|---|\n")
        page += [f"| `{name}` | {meaning} |\n" for name, meaning in rows]
    return "".join(page)


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


def with_rows(text, head, rows):
    """Returns a page with new rows in the table that has this head."""
    made = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    assert head in text
    return re.sub(rf"(?<={re.escape(head)})(\|.*\n)*", lambda _: made, text)


def with_reading(text):
    return with_rows(text, "| keyword | default | |\n|---|---|---|\n", [
        (f"`{name}`", "call only" if option.of_call else f"`{option.default!r}`",
         option.meaning)
        for name, option in _options.READING.items()
    ])


def with_writing(text):
    head = "| keyword | default | calls | formats | |\n|---|---|---|---|---|\n"

    def listed(words):
        return ", ".join(f"`{word}`" for word in words if word != "save_async")

    return with_rows(text, head, [
        (f"`{name}`", f"`{option.default!r}`",
         listed(option.calls) or "configuration only",
         listed(option.formats or ()) or "all", option.meaning)
        for name, option in _options.WRITING.items()
    ])


# Classes of keywords, by the call that writes.
_OF_CALLS = {
    "SavingOptions": "save",
    "ConvertingOptions": "convert",
    "WritingOptions": "writer",
    "EditingOptions": "edit",
    "RepairingOptions": "repair",
    "PuttingOptions": "put",
    "PlanOptions": "plan",
    "CreatingOptions": "create",
    "CommittingOptions": "commit",
}


# The same for one format: the call, and a format with these keywords.
_OF_FORMATS = {
    "_SavingTorch": ("save", "torch"),
    "_SavingTensors": ("save", "safetensors"),
    "_SavingArrays": ("save", "npz"),
    "_SavingTensorizer": ("save", "tensorizer"),
    "_ConvertingTorch": ("convert", "torch"),
    "_ConvertingTensors": ("convert", "safetensors"),
    "_ConvertingArrays": ("convert", "npz"),
    "_WritingPlain": ("writer", "torch"),
}


def written_formats():
    """Returns the names of the writable formats, by the name of their type."""
    names = []
    for format in haulway.formats():
        try:
            names.append(_haulway.format_to_write_by_name(format.name))
        except haulway.UnsupportedError:
            pass
    # torch's and Tensorizer's formats hold any object. NumPy's files have no
    # metadata.
    arrays = [name for name in names if name in ("npy", "npz")]
    tensors = [name for name in names if name not in ("torch", *arrays)]
    by_name = [name for name in tensors if name != "tensorizer"]
    return {"_Format": names, "_WrittenTensors": tensors,
            "_WrittenByName": by_name, "_WrittenArrays": arrays}


def with_types(stub):
    """Returns the stub with the formats, and the options of each class."""
    for name, formats in written_formats().items():
        listed = ", ".join(f'"{format}"' for format in formats)
        stub = re.sub(rf"(?<=\n{name}: TypeAlias = ).*", f"Literal[{listed}]", stub)
    table = _options
    opening = table.OPENING.keys() - table.INDEX.keys() - table.REMOTE.keys()
    # Some calls take these by position, and name them in their signature.
    by_position = {"lenient", "mmap"}
    of_opening = {"signature_scope", "require_signature"}  # Not of verify().
    keywords = {
        "_IndexWords": table.INDEX.keys() - by_position,
        "_RemoteWords": table.REMOTE,
        "_ScanningWords": opening - by_position - table.NAMING.keys()
        - table.SIGNING.keys(),
        "_UnsignedWords": table.NAMING,
        "_SignedWords": table.SIGNING.keys() - of_opening,
        "_OpeningWords": of_opening,
        "_ReadingWords": table.READING.keys() - table.OPENING.keys(),
    }
    classes = {
        name: {word: (option.check.types, True)
               for word, option in table.READING.items() if word in words}
        for name, words in keywords.items()
    }
    for name, call in _OF_CALLS.items():
        classes[name] = {word: (option.check.types, True)
                         for word, option in table.writing_of(call).items()}
    for name, (call, format) in _OF_FORMATS.items():
        classes[name] = {
            word: (option.check.types, True)
            for word, option in table.writing_of(call).items()
            if option.formats is None or format in option.formats
        }
    classes["TogetherOptions"] = {
        word: (option.check.types, True) for word, option in table.READING.items()
        if word not in ("stats", "timeout")  # These are in the signature.
    }
    classes["_ConfigWords"] = {}
    for section, options in table.SECTIONS.items():
        words = {
            name: (option.check.types, option.default is None)
            for name, option in options.items() if not option.of_call
        }
        classes[f"_{section.title()}"] = words
        classes["_ConfigWords"].update(words)
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
        "docs/loading.md": with_reading,
        "docs/saving.md": with_writing,
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
