"""haulway map: its report on files, and the page that it writes."""

import base64
import gzip
import hashlib
import itertools
import json
import os
import pathlib
import re
import zipfile

import gguf
import numpy
import pytest
import safetensors.numpy
import torch

import haulway
from http_server import FaultServer

GOLDEN = pathlib.Path(__file__).parents[3] / "testdata" / "golden"
HOSTILE = [
    "</script><script>alert(1)</script>", "<!--<script>", "]]>", '"\'`&lt;',
    "a\0b\x1b[31m\x7f", "\u202egnp.exe", "\u2028\u2029", "\ud83d\ude00.weight"
    .encode("utf-16", "surrogatepass").decode("utf-16"), "", ".", "a..b", "\\u003c",
]


def mapped(run, path, **options):
    return json.loads(run("map", path, "--json", **options).stdout)


def page_of(run, path, tmp_path, *more):
    run("map", path, "-o", tmp_path / "page.html", *more)
    return (tmp_path / "page.html").read_bytes().decode()


def data_of(page):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>',
                  page, re.DOTALL)[1])


def column(values, count):
    return values if isinstance(values, list) else [values] * count


def unpacked(data):
    """Returns the storages and tensors of a page in its script's form."""
    of, storages, at = data["storages"], [], 0
    columns = [column(of[name], of["count"])
               for name in ("gap", "before", "stored", "after")]
    for gap, before, stored, after in zip(*columns):
        begin = at + gap + before
        storages.append((begin, begin + stored))
        at = begin + stored + after
    of, tensors, name, row = data["tensors"], {}, "", -1
    columns = [column(of[name], of["count"])
               for name in ("kept", "rest", "kind", "storage", "offset")]
    for kept, rest, kind, storage, offset in zip(*columns):
        name, row = name[:kept] + rest, row + storage
        dtype, shape, nbytes, reach, _ = of["kinds"][kind]
        begin = storages[row][0] + offset if row < len(storages) else None
        tensors[name] = (dtype, shape, nbytes, begin, reach)
    return storages, tensors


def write_all(folder):
    torch.manual_seed(3)
    weight = torch.randn(16, 8)
    tensors = {"layers.0.weight": weight, "layers.0.bias": torch.randn(8),
               "layers.1.tied": weight, "layers.1.turned": weight.t(),
               "half": torch.randn(3).half(), "none": torch.empty(0)}
    torch.save(tensors, folder / "a.pt")
    torch.save(tensors, folder / "legacy.pt",
               _use_new_zipfile_serialization=False)
    plain = {k: v.contiguous().clone().numpy() for k, v in tensors.items()}
    safetensors.numpy.save_file(plain, folder / "a.safetensors")
    numpy.savez(folder / "a.npz", **plain)
    numpy.savez_compressed(folder / "deflated.npz", **plain)
    numpy.save(folder / "a.npy", plain["layers.0.weight"])
    haulway.save(plain, folder / "a.tensors")
    writer = gguf.GGUFWriter(folder / "a.gguf", "test")
    for name, array in plain.items():
        if array.size:
            writer.add_tensor(name, array)
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    return sorted(p.name for p in folder.iterdir())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("map")
    assert write_all(folder) == sorted(FILES)
    return folder


FILES = ["a.pt", "legacy.pt", "a.safetensors", "a.npz", "deflated.npz", "a.npy",
         "a.tensors", "a.gguf"]


def assert_every_byte_is_one_thing(told, path):
    size = path.stat().st_size
    assert told["bytes"] == size
    covered = [(s["frame_offset"], s["frame_end"]) for s in told["storages"]]
    covered += [(r["offset"], r["offset"] + r["bytes"]) for r in told["ranges"]]
    covered = sorted(span for span in covered if span[0] < span[1])
    assert covered[0][0] == 0 and covered[-1][1] == size
    assert all(a[1] == b[0] for a, b in itertools.pairwise(covered))


@pytest.mark.parametrize("name", FILES)
def test_every_byte_of_a_file_is_one_thing(name, run, folder):
    assert_every_byte_is_one_thing(mapped(run, folder / name), folder / name)


def test_every_byte_of_old_and_odd_files_is_one_thing(run, tmp_path):
    paths = [p for p in GOLDEN.rglob("*") if p.suffix in (".gz", ".pt", ".tensors")]
    assert len(paths) > 90
    for path in paths:
        if path.suffix == ".gz":
            plain = tmp_path / path.stem
            plain.write_bytes(gzip.decompress(path.read_bytes()))
            path = plain
        done = run("map", path, "--json", code=None)
        assert done.returncode in (0, 1, 2), (path, done.stderr)
        if done.returncode == 0:
            assert_every_byte_is_one_thing(json.loads(done.stdout), path)


@pytest.mark.parametrize("name", FILES)
def test_the_page_has_what_json_has(name, run, folder, tmp_path):
    told = mapped(run, folder / name)
    data = data_of(page_of(run, folder / name, tmp_path))
    assert (data["bytes"], data["format"]) == (told["bytes"], told["format"])
    assert data["ranges"] == [[r["kind"], r["offset"], r["bytes"], r["name"]]
                              for r in told["ranges"]]
    storages, tensors = unpacked(data)
    begins = [s["offset"] for s in told["storages"]]
    assert storages == sorted(
        (s["offset"], s["offset"] + s["stored_bytes"]) for s in told["storages"])
    assert tensors == {
        t["name"]: (t["dtype"], t["shape"], t["nbytes"],
                    None if t["storage"] is None
                    else begins[t["storage"]] + t["begin"], t["reach"])
        for t in told["tensors"]}


def test_tensors_lie_where_it_says(run, folder):
    told = mapped(run, folder / "a.pt")
    saved = torch.load(folder / "a.pt")
    data = (folder / "a.pt").read_bytes()
    rows = {}
    for tensor in told["tensors"]:
        if tensor["nbytes"]:
            at = told["storages"][tensor["storage"]]["offset"] + tensor["begin"]
            raw = bytes(saved[tensor["name"]].untyped_storage())
            assert data[at:at + tensor["reach"]] == raw[:tensor["reach"]]
        rows.setdefault(tensor["storage"], []).append(tensor["name"])
    assert ["layers.0.weight", "layers.1.tied", "layers.1.turned"] in rows.values()


def test_records_of_an_archive_have_their_names(run, folder):
    ranges = mapped(run, folder / "a.pt")["ranges"]
    with zipfile.ZipFile(folder / "a.pt") as archive:
        members = {m.filename.split("/", 1)[1]: m.header_offset
                   for m in archive.infolist() if "/data/" not in m.filename}
    assert {r["name"]: r["offset"] for r in ranges if r["kind"] == "record"} == members
    assert ranges[-1]["kind"] == "structure"  # The directory.


def test_a_header_and_holes(run, tmp_path):
    header = b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert mapped(run, path)["ranges"] == [
        {"kind": "header", "offset": 0, "bytes": 8 + len(header), "name": ""}]
    # GGUF has gaps between tensors.
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "test")
    for name in "ab":
        writer.add_tensor(name, numpy.ones(3, numpy.float32))
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    told = mapped(run, tmp_path / "x.gguf")
    assert [(r["kind"], r["bytes"]) for r in told["ranges"]] == [
        ("header", told["container"]["data_offset"]), ("hole", 20), ("hole", 20)]


def test_digests_are_those_of_the_file(run, folder):
    told = mapped(run, folder / "a.pt")
    with zipfile.ZipFile(folder / "a.pt") as archive:
        crcs = {m.filename.split("/")[-1]: f"{m.CRC:08x}"
                for m in archive.infolist()
                if "/data/" in m.filename and m.file_size}
    assert {s["key"]: s["crc32"] for s in told["storages"] if s["nbytes"]} == crcs
    told = mapped(run, folder / "a.tensors")
    assert all(s["sha256"] or s["crc32"] for s in told["storages"] if s["nbytes"])
    assert all(s["crc32"] is s["sha256"] is None
               for s in mapped(run, folder / "a.safetensors")["storages"])


def test_what_is_in_the_page_cache(run, tmp_path):
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file({"a": numpy.ones(8 << 20, numpy.uint8)}, path)
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    cells = mapped(run, path)["cache"]
    assert len(cells["percent"]) == -(-path.stat().st_size // cells["cell_bytes"])
    assert set(cells["percent"]) == {100}  # The file was just written.
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    # The cache is examined before anything is read from the file.
    assert set(mapped(run, path)["cache"]["percent"]) <= {0, 100}


def test_shards_are_one_map(run, folder, tmp_path):
    run("convert", folder / "a.safetensors", tmp_path / "m.safetensors",
        "--shard", "600")
    told = mapped(run, tmp_path / "m.safetensors.index.json")
    assert len(told["parts"]) > 1
    headers = [r["offset"] for r in told["ranges"] if r["kind"] == "header"]
    assert headers == [part["offset"] for part in told["parts"]]
    for part in told["parts"]:
        assert part["bytes"] == (tmp_path / part["name"]).stat().st_size
        done = run("map", tmp_path / "m.safetensors.index.json", "-o",
                   tmp_path / part["name"], code=2)
        assert "would overwrite" in done.stderr
    assert len(mapped(run, tmp_path)["tensors"]) == len(told["tensors"])


def test_a_server_is_asked_for_little(run, folder):
    data = (folder / "a.gguf").read_bytes()
    told = mapped(run, folder / "a.gguf")
    with FaultServer(lambda request: request.serve(data)) as server:
        remote = mapped(run, server.url())
        assert len(server.requests) < 6
    assert remote["cache"] is None
    assert remote["tensors"] == told["tensors"]
    kinds = [r["kind"] for r in remote["ranges"]]
    assert "hole" not in kinds and len(kinds) == len(told["ranges"])


def test_the_input_is_not_overwritten(run, folder, tmp_path):
    path = tmp_path / "a.pt"
    path.write_bytes((folder / "a.pt").read_bytes())
    (tmp_path / "link").symlink_to(path)
    os.link(path, tmp_path / "hard")
    for out in ("a.pt", "./a.pt", "link", "hard"):
        done = run("map", "a.pt", "-o", out, code=2)
        assert "the page would overwrite the file that it describes" in done.stderr
    assert path.read_bytes() == (folder / "a.pt").read_bytes()


def test_a_page_is_whole_or_not_there(run, folder, tmp_path):
    (tmp_path / "page.html").write_text("older")
    (tmp_path / "bad.pt").write_bytes((folder / "a.pt").read_bytes()[:-30])
    run("map", "bad.pt", "-o", "page.html", code=1)
    assert (tmp_path / "page.html").read_text() == "older"
    run("map", folder / "a.pt", "-o", "no/such/page.html", code=2)
    full = run("map", folder / "a.pt", "-o", "/dev/full", code=2)
    assert "No space" in full.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.pt", "page.html"]


def test_output_goes_where_it_is_sent(run, folder, tmp_path):
    page = page_of(run, folder / "a.pt", tmp_path)
    assert run("map", folder / "a.pt", "-o", "-").stdout == page
    both = run("map", folder / "a.pt", "--json", "-o", "other.html").stdout
    assert json.loads(both)["format"] == "torch"
    assert (tmp_path / "other.html").read_text() == page
    assert "expected --out or --json" in run("map", folder / "a.pt", code=4).stderr
    run("map", folder / "a.pt", "--json", "-o", "-", code=4)


def hostile_file(path):
    header = {name: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
              for i, name in enumerate(HOSTILE)}
    header["__metadata__"] = {"</script>": "<script>alert(2)</script>"}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(len(HOSTILE)))


def test_no_name_gets_out_of_the_data(run, tmp_path):
    hostile_file(tmp_path / "x.safetensors")
    page = page_of(run, tmp_path / "x.safetensors", tmp_path)
    _, tensors = unpacked(data_of(page))
    assert sorted(tensors) == sorted(HOSTILE)
    # The page has these elements only: nothing is fetched, and no other script
    # is allowed.
    assert re.findall(r"</?(?:script|style|link|img|iframe|base)\b[^>]*>", page) == [
        "<style>", "</style>", '<script type="application/json" id="data">',
        "</script>", "<script>", "</script>"]
    assert "http:" not in page and "https:" not in page
    policy = re.search(r'content="(default-src [^"]*)"', page)[1]
    kinds = dict(part.split(" ", 1) for part in policy.split("; "))
    assert kinds["default-src"] == "'none'"
    for kind, tag in (("style-src", "style"), ("script-src", "script")):
        text = re.search(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert kinds[kind] == f"'sha256-{digest}'"


def test_names_that_are_no_utf_8(run, tmp_path):
    # A key with a lone surrogate, as Python's pickle writes it.
    torch.save({"a\ud800b": torch.ones(2), "a\udcffc": torch.ones(2)},
               tmp_path / "x.pt")
    listed = json.loads(run("ls", "x.pt", "--json").stdout)["tensors"]
    told = mapped(run, tmp_path / "x.pt")["tensors"]
    assert [t["name"] for t in told] == [t["name"] for t in listed]
    _, tensors = unpacked(data_of(page_of(run, tmp_path / "x.pt", tmp_path)))
    assert list(tensors) == [t["name"] for t in listed]


def test_100_000_tensors_make_a_small_page_soon(run, tmp_path):
    tensors = {f"model.layers.{i // 100}.block.{i % 100}.weight":
               numpy.full(i % 7 + 1, i, numpy.float32) for i in range(100_000)}
    for name in ("x.safetensors", "x.tensors"):
        haulway.save(tensors, tmp_path / name, durability="none")
        before = os.times()
        page = page_of(run, tmp_path / name, tmp_path)
        after = os.times()
        # Measure processor time, so that other processes do not count.
        assert (after.children_user - before.children_user
                + after.children_system - before.children_system) < 2
        assert len(page.encode()) < 10_000_000
        _, found = unpacked(data_of(page))
        assert len(found) == 100_000
