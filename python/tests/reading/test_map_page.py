"""The page of haulway map in a browser: it draws, zooms, searches, and shows
details."""

import json
import subprocess

import numpy
import pytest
import torch
from test_map import HOSTILE, hostile_file

import haulway
from chromium import browser


@pytest.fixture(scope="module")
def made(command):
    """Makes the page of a file; returns the output of --json."""
    def make(path):
        page = path.with_suffix(".html")
        done = subprocess.run([command, "map", path, "-o", page, "--json"],
                              capture_output=True, check=True)
        return page, json.loads(done.stdout)

    return make


@pytest.fixture(scope="module")
def page(made, tmp_path_factory):
    """Returns an open browser, and the data of its page."""
    folder = tmp_path_factory.mktemp("page")
    torch.manual_seed(1)
    tensors = {}
    for i in range(6):
        for name, rows in (("attn.qkv", 96), ("attn.out", 32), ("mlp.up", 128)):
            tensors[f"model.layers.{i}.{name}.weight"] = torch.randn(rows, 32)
        tensors[f"model.layers.{i}.norm.weight"] = torch.ones(32).half()
    tensors["model.embed.weight"] = torch.randn(256, 32)
    tensors["lm_head.weight"] = tensors["model.embed.weight"]
    tensors["model.part"] = torch.ones(48)[16:32]  # Its storage has 192 bytes.
    torch.save(tensors, folder / "model.pt")
    path, told = made(folder / "model.pt")
    with browser(folder / "profile") as one:
        one.open(path)
        yield one, told
        assert one.complaints == []
        assert set(one.requests) == {path.resolve().as_uri()}


@pytest.fixture
def seen(page):
    """The same page in its initial state."""
    one, told = page
    one.reload()
    one.wait("document.querySelector('#strip').dataset.end !== undefined")
    return one, told


def window(one):
    one.wait("true")
    return tuple(int(one.run(f"document.querySelector('#strip').dataset.{end}"))
                 for end in ("begin", "end"))


def colours_of(one, selector):
    """Returns the number of colours that a canvas shows."""
    return one.run(f"""(() => {{
      const canvas = document.querySelector('{selector}');
      const {{data}} = canvas.getContext('2d').getImageData(
          0, 0, canvas.width, canvas.height);
      return new Set(new Uint32Array(data.buffer)).size;
    }})()""")


def test_it_shows_the_file(seen):
    one, told = seen
    assert one.text("h1").endswith("model.pt")
    assert "27 in 26 storages, 1 shared" in one.text("#totals")
    assert "in no tensor\n128 B" in one.text("#totals").replace("\t", "\n")
    assert one.text("#count").startswith("27 tensors")
    assert window(one) == (0, told["bytes"])
    for selector in ("#strip", "#overview", "#treemap"):
        assert colours_of(one, selector) > 4
    legend = one.text("#legend").split("\n")
    assert {"record", "shared storage", "F32", "F16", "CRC-32"} <= set(legend)


def test_the_wheel_zooms_to_a_byte(seen):
    one, told = seen
    box = one.box("#strip")
    x, y = box["x"] + box["width"] / 4, box["y"] + 60
    under = told["bytes"] / 4
    for _ in range(60):
        one.mouse("mouseWheel", x, y, deltaX=0, deltaY=-240)
    begin, end = window(one)
    assert end - begin == 16
    pixel = told["bytes"] / box["width"]
    assert begin + 4 == pytest.approx(under, abs=pixel)
    for _ in range(60):
        one.mouse("mouseWheel", x, y, deltaX=0, deltaY=240)
    assert window(one) == (0, told["bytes"])


def test_dragging_moves(seen):
    one, told = seen
    one.run("document.querySelector('#zoom-in').click()")
    begin, end = window(one)
    box = one.box("#strip")
    x, y = box["x"] + box["width"] / 2, box["y"] + 60
    one.mouse("mousePressed", x, y, button="left", buttons=1, clickCount=1)
    one.mouse("mouseMoved", x - box["width"] / 8, y, button="left", buttons=1)
    one.mouse("mouseReleased", x - box["width"] / 8, y, button="left")
    moved = window(one)
    assert moved[0] - begin == pytest.approx((end - begin) / 8, rel=0.02)
    assert moved[1] - moved[0] == pytest.approx(end - begin, abs=1)


def test_keys_do_what_the_mouse_does(seen):
    one, told = seen
    one.run("document.querySelector('#strip').focus()")
    one.press("+")
    one.press("+")
    begin, end = window(one)
    assert end - begin == pytest.approx(told["bytes"] / 4, abs=2)
    one.press("End")
    assert window(one)[1] == told["bytes"]
    one.press("ArrowLeft")
    assert window(one)[1] < told["bytes"]
    one.press("Home")
    assert window(one)[0] == 0
    one.press("0")
    assert window(one) == (0, told["bytes"])


def test_a_byte_says_what_it_is(seen):
    one, told = seen
    one.run("document.querySelector('#go').focus()")
    record = next(r for r in told["ranges"] if r["name"] == "data.pkl")
    for at, words in ((record["offset"], "data.pkl"),
                      (told["bytes"] - 1, "between and behind"),
                      (told["storages"][0]["frame_offset"] + 4, "The frame of")):
        one.run("document.querySelector('#go').value = ''")
        one.type(hex(at))
        one.press("Enter")
        assert words in one.text("#what")
        begin, end = window(one)
        assert begin <= at <= end and end - begin <= 64
    one.run("document.querySelector('#go').value = ''")
    one.type("no number")
    one.press("Enter")
    assert not one.run("document.querySelector('#go').checkValidity()")


def test_pointing_tells_of_a_tensor(seen):
    one, told = seen
    tensor = max(told["tensors"], key=lambda t: t["nbytes"])
    storage = told["storages"][tensor["storage"]]
    at = (storage["offset"] + tensor["nbytes"] / 2) / told["bytes"]
    box = one.box("#strip")
    one.mouse("mouseMoved", box["x"] + at * box["width"], box["y"] + 40)
    words = one.text("#what")
    assert words.split("\n")[0] in ("model.embed.weight", "lm_head.weight")
    assert "by 2 tensors" in words and storage["crc32"] in words
    assert "aligned to\n64 B" in words.replace("\t", "\n")


def test_search_and_choice(seen):
    one, told = seen
    one.press("/")
    one.type("layers.3 attn")
    assert one.text("#count").startswith("2 tensors")
    rows = one.run("[...document.querySelectorAll('.row .name')]"
                   ".map(row => row.textContent)")
    assert rows == ["model.layers.3.attn.qkv.weight", "model.layers.3.attn.out.weight"]
    one.run("document.querySelectorAll('.row')[1].click()")
    assert one.text("#what").startswith(rows[1])
    tensor = next(t for t in told["tensors"] if t["name"] == rows[1])
    offset = told["storages"][tensor["storage"]]["offset"]
    begin, end = window(one)
    assert begin < offset and offset + tensor["nbytes"] < end
    assert end - begin < 2 * tensor["nbytes"]
    assert one.run("document.querySelector('[aria-selected=true] .name').textContent"
                   ) == rows[1]
    # Use the list by keyboard only.
    one.run("document.querySelector('#list').focus()")
    one.press("ArrowUp")
    assert one.text("#what").startswith(rows[0])


def test_orders(seen):
    one, told = seen
    for order, first in (("size", "model.embed.weight"), ("name", "lm_head.weight"),
                         ("place", told["tensors"][0]["name"])):
        one.run(f"document.querySelector('#order').value = '{order}',"
                "document.querySelector('#order').dispatchEvent(new Event('change'))")
        assert one.text(".row .name") == first


def test_the_treemap_goes_into_modules(seen):
    one, _ = seen
    names = "[...document.querySelectorAll('#children .name')].map(n => n.textContent)"
    assert one.run(names) == ["model", "lm_head"]
    box = one.box("#treemap")
    one.click(box["x"] + 40, box["y"] + 8)  # The title of the largest tensor.
    assert one.run(names)[:2] == ["layers", "embed"]
    assert one.text("#path").split() == ["all", "model"]
    one.run("document.querySelector('#children button').click()")
    assert sorted(one.run(names)) == list("012345")
    one.run("document.querySelector('#path button').click()")
    assert one.run(names) == ["model", "lm_head"]


def test_hostile_names_stay_text(made, tmp_path):
    hostile_file(tmp_path / "x.safetensors")
    path, told = made(tmp_path / "x.safetensors")
    with browser(tmp_path / "profile") as one:
        one.open(path)
        one.wait("document.querySelectorAll('.row').length > 0")
        names = one.run("[...document.querySelectorAll('.row .name')]"
                        ".map(row => row.textContent)")
        assert len(names) == len(HOSTILE)
        assert "</script><script>alert(1)</script>" in names
        assert "\\u{202e}gnp.exe" in names and "a\\u{0}b\\u{1b}[31m\\u{7f}" in names
        for i in range(len(HOSTILE)):
            one.run(f"document.querySelectorAll('.row')[{i}].click()")
        # The only script is the page's own, and names became text.
        assert one.run("document.scripts.length") == 2
        assert one.run("document.querySelectorAll('#rows script').length") == 0
        assert one.complaints == []


def test_nothing_else_is_allowed_to_run(made, tmp_path):
    hostile_file(tmp_path / "x.safetensors")
    path, _ = made(tmp_path / "x.safetensors")
    path.write_text(path.read_text().replace(
        "</main>", "</main><script>window.ran = true</script>"
        '<img src="http://localhost:1/x" onerror="window.ran = true">'))
    with browser(tmp_path / "profile") as one:
        one.open(path)
        one.wait("document.querySelectorAll('.row').length > 0")
        assert one.run("window.ran") is None
        assert any("Content Security Policy" in str(c) for c in one.complaints)


@pytest.mark.parametrize("options", [{"dark": True}, {"width": 420}],
                         ids=["dark", "narrow"])
def test_it_fits(made, tmp_path, options):
    haulway.save({"a.b": numpy.ones(9), "a.c": numpy.ones(5)}, tmp_path / "x.npz")
    path, _ = made(tmp_path / "x.npz")
    with browser(tmp_path / "profile", **options) as one:
        one.open(path)
        one.wait("document.querySelectorAll('.row').length === 2")
        assert one.run("document.documentElement.scrollWidth <= innerWidth")
        colour = one.run("getComputedStyle(document.body).backgroundColor")
        assert (colour == "rgb(255, 255, 255)") != options.get("dark", False)
        assert one.complaints == []


def test_a_file_of_nothing(made, tmp_path):
    haulway.save({}, tmp_path / "x.safetensors")
    path, _ = made(tmp_path / "x.safetensors")
    with browser(tmp_path / "profile") as one:
        one.open(path)
        one.wait("document.querySelector('#count').textContent === '0 tensors, 0 B'")
        assert one.complaints == []


def test_100_000_tensors_stay_usable(made, tmp_path):
    haulway.save({f"model.layers.{i // 100}.block.{i % 100}.weight":
                  numpy.full(i % 7 + 1, i, numpy.float32) for i in range(100_000)},
                 tmp_path / "x.safetensors", durability="none")
    path, _ = made(tmp_path / "x.safetensors")
    with browser(tmp_path / "profile") as one:
        one.open(path)
        one.wait("document.querySelectorAll('.row').length > 0")
        # Few enough elements for the browser to stay fast.
        assert one.run("document.querySelectorAll('*').length") < 3000
        one.press("/")
        one.type("layers.999. .99.")
        one.wait("document.querySelector('#count').textContent.startsWith('1 tensor')")
        one.run("document.querySelector('.row').click()")
        begin, end = window(one)
        assert end - begin < 100
        assert "model.layers.999.block.99.weight" in one.text("#what")
        assert one.complaints == []
