#!/usr/bin/env python3
"""Makes manual pages from the output of the command's --help.

    tools/make_man.py HAULWAY FOLDER

FOLDER gets haulway.1, and haulway-VERB.1 for each verb.
"""

import pathlib
import re
import subprocess
import sys

# A line with an option or a verb, and its description.
ENTRY = re.compile(r"^ {2,}(\S.*?)(?: {2,}(\S.*))?$")
NAMES = {"Positionals": "ARGUMENTS"}


def help_of(binary, *verb):
    return subprocess.run([binary, *verb, "--help"], text=True, check=True,
                          capture_output=True).stdout.strip("\n")


def escaped(text):
    """Escapes a text for roff, so that nothing in it is a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return "\\&" + text if text.startswith(".") else text


def sections_of(text):
    """Splits a help text: [(heading, lines)]; the first part has no heading."""
    parts = [("", [])]
    for line in text.splitlines():
        if heading := re.match(r"^\s*\[?(?:Option Group: )?([A-Z][A-Za-z ]*)(\]|:)$",
                               line):
            if heading[2] == ":" and line.startswith(" "):
                continue  # "Options:" within a group.
            parts.append((NAMES.get(heading[1], heading[1].upper()), []))
        else:
            parts[-1][1].append(line)
    return parts


def entries_of(lines):
    """Yields options with their descriptions, which may be on the next line."""
    entries, notes = [], []
    for line in lines:
        found = ENTRY.match(line)
        if not found:
            if line.strip():
                notes.append(line.strip())
        elif line.startswith(" " * 20) and entries:
            entries[-1][1] = f"{entries[-1][1]} {line.strip()}".strip()
        elif found[1].startswith("["):
            notes.append(found[1].strip("[]"))
        else:
            entries.append([found[1].strip(), found[2] or ""])
    return entries, notes


def page_of(binary, version, verb=None):
    """Returns the text of one manual page."""
    text = help_of(binary, *([verb] if verb else []))
    name = f"haulway-{verb}" if verb else "haulway"
    first, *rest = sections_of(text)
    about = first[1][0].rstrip(".")
    usage = next(line for line in first[1] if line.startswith("Usage: "))
    usage = usage.removeprefix("Usage: ").removeprefix("haulway ")
    out = [f'.TH {name.upper()} 1 "" "haulway {version}" "Haulway"', ".SH NAME",
           f"{escaped(name)} \\- {escaped(about[0].lower() + about[1:])}",
           ".SH SYNOPSIS", ".B haulway", escaped(usage)]
    footer = []
    for number, (heading, lines) in enumerate(rest):
        if number == len(rest) - 1:
            # After the last empty line are the examples or the exit codes.
            while lines and not lines[0].startswith(" "):
                footer.append(lines.pop(0))
            blank = max((at for at, line in enumerate(lines) if not line.strip()),
                        default=len(lines))
            footer = lines[blank + 1:]
            lines = lines[:blank]
        entries, notes = entries_of(lines)
        out.append(f".SH {heading}")
        out += [escaped(note) for note in notes]
        for option, why in entries:
            out += [".TP", f".B {escaped(option)}", escaped(why)]
    if footer and verb:
        out += [".SH EXAMPLES", ".nf", *map(escaped, footer), ".fi"]
    elif footer:
        out += [".SH EXIT STATUS", *map(escaped, footer)]
    if verb:
        out += [".SH SEE ALSO", ".BR haulway (1)"]
    else:
        out += [".SH SEE ALSO"]
        out += [f".BR haulway\\-{escaped(one)} (1)" for one in verbs_of(text)]
    return "\n".join(out) + "\n"


def verbs_of(text):
    listed = re.split(r"\nsubcommands:\n", text, flags=re.IGNORECASE)[1]
    return re.findall(r"^  ([a-z-]+)", listed, re.MULTILINE)


def make_pages(binary, folder):
    """Writes all pages into the folder and returns their paths."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    said = subprocess.run([binary, "--version"], text=True, check=True,
                          capture_output=True).stdout
    version = said.split()[1]
    pages = {"haulway.1": page_of(binary, version)}
    for verb in verbs_of(help_of(binary)):
        pages[f"haulway-{verb}.1"] = page_of(binary, version, verb)
    for name, text in pages.items():
        (folder / name).write_text(text)
    return [folder / name for name in pages]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    make_pages(sys.argv[1], sys.argv[2])
