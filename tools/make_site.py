#!/usr/bin/env python3
"""Builds the documentation site.

    tools/make_site.py -o DIR [--sphinx PYTHON]

PYTHON has the packages of docs/site/requirements.txt; the interpreter that runs
this must be able to import haulway.
"""

# Design: the pages of docs/ are copied into a temporary folder, docs/README.md as
# index.md. Each chapter of that page is a chapter of the navigation, and its
# links are the chapter's pages; so a page that the list of documents lacks is
# an error. Files outside docs/ that pages link to are copied to a folder
# "project", and the links are changed accordingly. Reference pages are added:
# for Python by reference_pages.py, for the headers here. Then Sphinx runs, and
# every warning (such as a broken link or anchor) is a failure.

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)(?=[)#])")
# A link whose text is the page's file name: the site shows the page's title.
NAMED = re.compile(r"(?<!!)\[[\w/-]+\.md\](?=\([^)]*\.md[)#])")

# In a table, a figure must not be separated from its unit by a line break.
UNIT = re.compile(r"(?m)(?<=[\d.]) (?=(?:ms|us|s|[KMG]iB|GB/s)\b[^\n]*\|$)")


def version():
    text = (ROOT / "CMakeLists.txt").read_text()
    return re.search(r"project\(haulway VERSION ([0-9.]+)", text)[1]


def staged(path):
    """Returns the place of a repository file in the folder of the pages."""
    if path == DOCS / "README.md":
        return pathlib.Path("index.md")
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS)
    return "project" / path.relative_to(ROOT)


def outside(text, page):
    """Returns the files outside docs/ that a page links to."""
    for link in LINK.findall(text):
        target = (page.parent / link).resolve()
        if target.is_file() and not target.is_relative_to(DOCS):
            yield target


def with_links(text, page):
    """Returns the text with its links adapted to the page's new place."""
    def link(found):
        target = (page.parent / found[1]).resolve()
        if not target.exists():
            raise SystemExit(f"{page}: no {found[1]}")
        if target.is_dir():  # The list of documents names its pages.
            return "index.md"
        place = staged(target)
        here = staged(page).parent
        up = "../" * len(here.parts)
        return up + place.as_posix()

    return UNIT.sub("\u00a0", LINK.sub(link, NAMED.sub("[]", text)))


def navigation(text):
    """Returns (chapter, [page]) of the list of documents, each page once."""
    chapters, seen = [], set()
    for chapter in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        title, _, body = chapter.partition("\n")
        pages = []
        for link in LINK.findall(body):
            if link.endswith(".md") and link not in seen:
                seen.add(link)
                pages.append(link)
        chapters.append((title, pages))
    return chapters


def toctree(title, pages):
    names = "\n".join(page.removesuffix(".md") for page in pages)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{names}\n```\n"


def header_page(path):
    """Returns the page of a header: its first comment, then the header
    itself."""
    lines = path.read_text().splitlines()
    about = []
    for line in lines:
        if not line.startswith("//"):
            break
        about.append(line.removeprefix("//").removeprefix(" "))
    language = "c" if path.name == "haulway_c.h" else "cpp"
    code = "\n".join(lines[len(about):]).strip()
    return (f"# {path.name}\n\n" + "\n".join(about) +
            f"\n\n```{{code-block}} {language}\n:lineno-start: "
            f"{len(lines) - len(code.splitlines()) + 1}\n:linenos:\n\n"
            f"{code}\n```\n")


def headers(folder):
    """Writes the pages of the headers; returns the name of their list."""
    folder.mkdir(parents=True)
    paths = sorted((ROOT / "include/haulway").glob("*.h"))
    rows = []
    for path in paths:
        (folder / f"{path.stem}.md").write_text(header_page(path))
        text = path.read_text()
        first = re.match(r"(?://|/\*) ?(.*?[.:])(?:\s|$)", re.sub(
            r"\n(?://| \*) ?", " ", text))
        rows.append(f"| [{path.name}](headers/{path.stem}.md) | {first[1]} |")
    names = "\n".join(f"headers/{path.stem}" for path in paths)
    folder.with_suffix(".md").write_text(
        "# The C++ and C headers\n\nThe comments of the headers are the "
        "reference; [C++ by example](cpp.md) says which header to begin "
        "with.\n\n| header | |\n|---|---|\n" + "\n".join(rows) +
        f"\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n")
    return "headers.md"


def lay_out(folder):
    """Copies the pages into `folder`, and adds the reference pages."""
    import reference_pages

    text = (DOCS / "README.md").read_text()
    chapters = navigation(text)
    listed = {"README.md", *(page for _, pages in chapters for page in pages)}
    pages = {path: path.read_text() for path in sorted(DOCS.rglob("*.md"))}
    missing = {path.relative_to(DOCS).as_posix() for path in pages} - listed
    if missing:
        raise SystemExit(f"docs/README.md does not list {sorted(missing)}")
    for page, text in list(pages.items()):
        for target in outside(text, page):
            if target.suffix == ".md":
                pages[target] = target.read_text()
            else:
                place = folder / staged(target)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(target, place)
    reference = [reference_pages.write(folder / "python"),
                 headers(folder / "headers")]
    shutil.copytree(DOCS / "figures", folder / "figures")
    for page, text in pages.items():
        place = folder / staged(page)
        place.parent.mkdir(parents=True, exist_ok=True)
        text = with_links(text, page)
        if place.name == "index.md":
            project = [staged(path).as_posix() for path in pages
                       if not path.is_relative_to(DOCS)]
            for title, names in chapters:
                names = names + (reference if title == "Reference" else [])
                text += toctree(title, names)
            text += toctree("Project", project)
        place.write_text(text)
    conf = (DOCS / "site/conf.py").read_text()
    (folder / "conf.py").write_text(conf.replace("@VERSION@", version()))
    shutil.copytree(DOCS / "site/static", folder / "static")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", dest="out", type=pathlib.Path, required=True)
    parser.add_argument("--sphinx", default=ROOT / "build/docs/tools/bin/python")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pages = pathlib.Path(folder, "pages")
        pages.mkdir()
        lay_out(pages)
        done = subprocess.run([
            options.sphinx, "-m", "sphinx", "-q", "-W", "--keep-going", "-E",
            "-d", pathlib.Path(folder, "doctrees"), pages, options.out,
        ])
    if done.returncode == 0:
        (options.out / ".buildinfo").unlink(missing_ok=True)
        (options.out / "objects.inv").unlink(missing_ok=True)
        print(options.out / "index.html")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
