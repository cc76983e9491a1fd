"""The documentation site: complete, without external files, readable in a
browser."""

import os
import re
import subprocess
import sys
import urllib.parse

import pytest

from chromium import browser
from page_code import PAGES, ROOT

TOOLS = os.environ.get("HAULWAY_DOCS_TOOLS", ROOT / "build/docs/tools/bin/python")
# Scripts that measure the open page.
WIDTHS = "[document.documentElement.scrollWidth, window.innerWidth]"
COLOURS = """(() => {
  const luminance = colour => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map(Number);
    return (0.2126 * r + 0.7152 * g + 0.0722 * b) / 255;
  };
  return [luminance(getComputedStyle(document.body).backgroundColor),
          luminance(getComputedStyle(document.body).color)];
})()"""
# Visible table cells that are too narrow for their words.
NARROW = """[...document.querySelectorAll("article td")].filter(
  cell => cell.offsetWidth > 0 && cell.innerText.trim().length > 20
          && cell.offsetWidth < 60).map(cell => cell.innerText)"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "site"
    assert os.path.exists(TOOLS), "scripts/setup tests brings Sphinx"
    done = subprocess.run(
        [sys.executable, ROOT / "tools/make_site.py", "-o", folder,
         "--sphinx", TOOLS],
        capture_output=True, text=True,
    )
    # Sphinx also warns about links and anchors that lead nowhere.
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == f"{folder}/index.html\n"
    return folder


@pytest.fixture(scope="module")
def pages(site):
    return {path.relative_to(site).as_posix(): path.read_text()
            for path in sorted(site.rglob("*.html"))}


def test_every_page_is_there(pages):
    for page in PAGES:
        name = page.removeprefix("docs/").replace(".md", ".html")
        if page.startswith("docs/") and name != "README.html":
            assert name in pages, name
            # The navigation links to it.
            assert f'href="{name}' in pages["index.html"], name


def test_the_reference_is_complete(pages):
    import haulway
    import haulway.ipc

    for module, text in (haulway, pages["python/haulway.html"]), (
            haulway.ipc, pages["python/haulway.ipc.html"]):
        missing = [name for name in module.__all__
                   if f'id="{module.__name__}.{name}"' not in text
                   and callable(getattr(module, name))]
        assert missing == []
    for header in ROOT.glob("include/haulway/*.h"):
        assert header.name in pages[f"headers/{header.stem}.html"]
    # The meaning of a parameter, from the docstring.
    assert "a glob or" in pages["python/haulway.html"]


def test_links_and_anchors_lead_somewhere(site, pages):
    ids = {name: set(re.findall(r'\bid="([^"]+)"', text))
           for name, text in pages.items()}
    for name, text in pages.items():
        for link in re.findall(r'<a [^>]*href="([^"]+)"', text):
            path, _, anchor = urllib.parse.unquote(link).partition("#")
            if re.match(r"[a-z]+:", path):
                continue
            target = (site / name).parent.joinpath(path) if path else site / name
            assert target.exists(), (name, link)
            if anchor and target.suffix == ".html":
                page = target.resolve().relative_to(site.resolve()).as_posix()
                assert anchor in ids[page], (name, link)


def test_nothing_comes_from_elsewhere(site, pages):
    for name, text in pages.items():
        loaded = re.findall(r'<(?:script|link|img|iframe|source)\b[^>]*?'
                            r'(?:src|href)="([^"]+)"', text)
        assert not [each for each in loaded if re.match(r"(https?:)?//", each)], name
    for style in site.rglob("*.css"):
        assert not re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//",
                              style.read_text()), style.name
    # The pages do not contain the path where they were made.
    for path in site.rglob("*"):
        if path.suffix in (".html", ".js"):
            assert str(ROOT) not in path.read_text(), path.name


@pytest.mark.parametrize("width, dark", [(390, True), (1280, False)])
def test_pages_read_well(site, pages, tmp_path, width, dark):
    with browser(tmp_path / "profile", width=width, dark=dark) as one:
        for name in pages:
            one.open(site / name)
            inner, outer = one.run(WIDTHS)
            assert inner <= outer, f"{name} scrolls sideways: {inner} of {outer}"
            assert one.run(NARROW) == [], name
            background, text = one.run(COLOURS)
            assert abs(background - text) > 0.6, name
            assert (background < 0.3) == dark, name
        assert one.complaints == []
        elsewhere = [url for url in one.requests
                     if not url.startswith((site.resolve().as_uri(), "data:"))]
        assert elsewhere == []


@pytest.mark.parametrize("word, page", [
    ("snapshot", "loading.html"), ("save_async", "python/haulway.html"),
    ("picklescan", "peers/picklescan.html"),
])
def test_the_search_needs_no_server(site, tmp_path, word, page):
    with browser(tmp_path / "profile") as one:
        one.open(site / "search.html", f"?q={word}")
        one.wait("document.querySelectorAll('#search-results li a').length > 0")
        found = one.run("[...document.querySelectorAll('#search-results li a')]"
                        ".map(each => each.href)")
        assert any(page in each for each in found), found
        assert one.complaints == []


def numbers(text):
    """Returns figures with a unit (58 ms, 24 us, 1.9x), and those in table
    cells, whose unit is in the column's head."""
    return set(re.findall(r"(?<![\d.,])\d+(?:\.\d+)?(?= ?ms\b| ?us\b|x\b)", text))


@pytest.mark.parametrize("page", [page for page in PAGES if "/peers/" in page])
def test_figures_beside_peers_are_those_of_the_record(page):
    record = "".join((ROOT / "docs" / name).read_text()
                     for name in ("performance.md", "figures.md", "benchmarks.md"))
    there = set(re.findall(r"(?<![\d.,])\d+(?:\.\d+)?(?![\d,])", record))
    text = (ROOT / page).read_text()
    # A ratio may be rounded: 31.69 in the record, 31.7 or 32 here.
    assert numbers(text) - there == set(), page
    for link in ("performance.md", "figures.md"):
        assert not numbers(text) or link in text or "picklescan" in page, link
