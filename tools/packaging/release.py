"""Implements scripts/release: makes all files of one release."""

import argparse
import hashlib
import pathlib
import re
import subprocess
import sys
import time

import deb
import libraries
import package
import repack
import sbom

import stability

ROOT = package.ROOT
CHANGELOG = ROOT / "CHANGELOG.md"


def section_of(text, name):
    """Returns a version's section of the changelog, without its heading, or
    None."""
    found = re.search(rf"^## {re.escape(name)}\b[^\n]*\n(.*?)(?=^## |\Z)", text,
                      re.MULTILINE | re.DOTALL)
    return found and found[1].strip() + "\n"


def cut(text, version, date):
    """Returns the changelog with the unreleased changes as the section of a
    version."""
    if section_of(text, version) is not None:
        raise SystemExit(f"CHANGELOG.md has a section {version} already")
    if not (section_of(text, "Unreleased") or "").strip():
        raise SystemExit("CHANGELOG.md has nothing that is unreleased")
    return text.replace("## Unreleased\n", f"## Unreleased\n\n## {version} - {date}\n",
                        1)


def say_what_is_older(folder):
    """Prints which linked libraries Debian has newer versions of."""
    sources = libraries.Sources(folder / "sources")
    for library in libraries.LIBRARIES:
        current = sources.current(library)
        if current != library.version:
            print(f"{library.name}: {library.version} is linked, Debian has {current}")


def check_promises(command):
    """Fails if the list of this version's promises is missing or out of
    date."""
    version = stability.version_of_source()
    path = stability.LISTS / f"{version}.txt"
    listed = path.read_text().splitlines() if path.exists() else []
    different = set(listed) ^ set(stability.promises_of(command))
    if different:
        raise SystemExit(f"{path.name} of testdata/stability lacks {len(different)} "
                         "lines or has them too many: tools/stability.py --write")


def write_sums(out):
    """Writes SHA256SUMS of all files in the folder."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
             for path in sorted(out.iterdir()) if path.name != "SHA256SUMS"]
    (out / "SHA256SUMS").write_text("".join(lines))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-o", dest="out", type=pathlib.Path)
    parser.add_argument("--cut", action="store_true")
    options = parser.parse_args()
    version = stability.version_of_source()
    text = CHANGELOG.read_text()
    if options.cut:
        date = time.strftime("%Y-%m-%d", time.gmtime(package.epoch()))
        CHANGELOG.write_text(cut(text, version, date))
        return
    notes = section_of(text, version)
    if notes is None:
        raise SystemExit(f"CHANGELOG.md has no section {version}: scripts/release "
                         "--cut makes it of what is unreleased")
    changed = subprocess.run(["git", "status", "--porcelain"], check=True, cwd=ROOT,
                             text=True, capture_output=True).stdout
    if changed:
        raise SystemExit(f"not all is committed:\n{changed}")
    out = options.out.resolve()
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"{out} is not empty")
    package.make(["deb"], out)
    check_promises(deb.COMMAND)
    package.make(["sdist", "wheel"], out)
    (out / f"haulway-{version}-notes.md").write_text(notes)
    (out / f"haulway-{version}.cdx.json").write_text(
        sbom.bill_of(version, libraries.LIBRARIES, repack.RUNTIME))
    write_sums(out)
    say_what_is_older(package.FOLDER / "libraries")
    for path in sorted(out.iterdir()):
        print(f"{path.stat().st_size:>10} {path.name}")


if __name__ == "__main__":
    sys.exit(main())
