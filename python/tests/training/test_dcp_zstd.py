"""DCP directories that torch's extension ZStandard compressed, and those that
Writer compresses."""

import json
import shutil
import subprocess
import sys
import threading

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.api import CheckpointException

import haulway
from dcp_zstd import (
    NAME,
    change,
    describe,
    items,
    packed,
    replace,
    save,
    state,
    unpacked,
)
from haulway import _haulway
from haulway.torch.dcp import LoadPlanner, Reader, Writer
from http_server import FaultServer
from torch_versions import needs_no_dist

pytestmark = [
    needs_no_dist,
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
]
STATE = state()
NAMES = list(STATE["model"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zstd") / "one"
    save(STATE, folder)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    """Returns a copy to damage."""
    return shutil.copytree(whole, tmp_path / "dcp")


def is_same(model):
    return model.keys() == STATE["model"].keys() and all(
        model[name].equal(STATE["model"][name]) for name in NAMES)


def emptied():
    return {"model": {name: torch.full(one.shape, 9, dtype=one.dtype)
                      for name, one in STATE["model"].items()},
            "step": 0, "groups": [{"lr": 0.0, "params": [0, 0]}]}


@pytest.mark.parametrize("options", [
    {}, {"extensions": 2}, {"single_file_per_rank": False},
    {"thread_count": 3}, {"extensions": 3, "thread_count": 2},
], ids=str)
def test_what_torch_compressed_is_read(tmp_path, options):
    save(STATE, tmp_path / "dcp", **options)
    found = haulway.load(tmp_path / "dcp", verify=True)
    assert is_same(found["model"]) and found["step"] == 7
    assert found["groups"] == STATE["groups"]
    into = emptied()
    dcp.load(into, storage_reader=Reader(tmp_path / "dcp"),
             planner=LoadPlanner(), no_dist=True)
    assert is_same(into["model"]) and into["groups"] == STATE["groups"]
    report = haulway.verify(tmp_path / "dcp")
    assert report.ok and report.checked_bytes > 15_000_000


@pytest.mark.parametrize("budget", ["1MiB", "256MiB"])
def test_every_way_of_reading(whole, budget, tmp_path):
    loaded = haulway.load(whole, memory_budget=budget, threads=3)
    assert is_same(loaded["model"])
    by_name = {}
    for name, tensor in haulway.iterate(whole, memory_budget=budget):
        by_name[name] = tensor.clone()
    assert is_same({name.partition(".")[2]: one
                    for name, one in by_name.items() if name[:5] == "model"})
    with haulway.open(whole) as checkpoint:
        rows = checkpoint.get_slice("model.rows")
        assert rows[890:].equal(STATE["model"]["rows"][890:])
        assert rows[3:700:9, 5:77].equal(STATE["model"]["rows"][3:700:9, 5:77])
        assert checkpoint.get_slice("model.turned")[1:7, 3].equal(
            STATE["model"]["turned"][1:7, 3])
    out = tmp_path / "model.safetensors"
    haulway.convert(whole, out, include=["model.*"], memory_budget=budget)
    found = haulway.load(out)
    assert is_same({name.partition(".")[2]: found[name] for name in found})


def test_verbs_take_such_a_directory(whole, run, tmp_path):
    said = json.loads(run("info", whole, "--json").stdout)
    assert said["container"]["transforms"] == [NAME]
    assert "model.rows" in run("ls", whole).stdout
    assert json.loads(run("verify", whole, "--json").stdout)["ok"] is True
    assert "SAFE" in run("scan", whole).stdout
    dcp.save(STATE, checkpoint_id=tmp_path / "plain", no_dist=True)
    run("diff", whole, tmp_path / "plain")
    run("convert", whole, "out.pt")
    found = haulway.load(tmp_path / "out.pt")
    assert all(found[f"model.{name}"].equal(STATE["model"][name])
               for name in NAMES)
    assert "transforms" not in run("info", tmp_path / "plain", "--json").stdout


def chunks_of_ranks(tmp_path):
    """Makes a tensor of rows and one of columns, in two chunks each."""
    plain = {"rows": torch.arange(60_000.0).reshape(300, 200),
             "columns": torch.randn(200, 300)}
    halves = [
        {"rows": plain["rows"][:100], "columns": plain["columns"][:, :77]},
        {"rows": plain["rows"][100:], "columns": plain["columns"][:, 77:]},
    ]
    for rank, half in enumerate(halves):
        save({name: one.contiguous() for name, one in half.items()},
             tmp_path / f"half{rank}")
    folder = tmp_path / "halves"
    folder.mkdir()
    for rank in range(2):
        shutil.copy(tmp_path / f"half{rank}" / "__0_0.distcp",
                    folder / f"__{rank}_0.distcp")
    shutil.copy(tmp_path / "half0" / ".metadata", folder)
    other = items(tmp_path / "half1")

    def edit(metadata):
        for name, whole in plain.items():
            entry = metadata.state_dict_metadata[name]
            entry.size = whole.shape
            begin = torch.Size([100, 0] if name == "rows" else [0, 77])
            entry.chunks.append(type(entry.chunks[0])(
                begin, halves[1][name].shape))
            place = other[name]
            place.relative_path = "__1_0.distcp"
            index = next(one for one in metadata.storage_data
                         if one.fqn == name)
            metadata.storage_data[type(index)(name, begin, 1)] = place
    change(folder, edit)
    return folder, plain


def test_chunks_are_joined_and_resharded(tmp_path):
    folder, plain = chunks_of_ranks(tmp_path)
    found = haulway.load(folder)
    for name, whole in plain.items():
        assert found[name].equal(whole)
        into = {name: torch.zeros(whole.shape)}
        dcp.load(into, storage_reader=Reader(folder), no_dist=True)
        assert into[name].equal(whole)
        with haulway.open(folder) as checkpoint:
            assert checkpoint.get_slice(name)[90:120, 70:80].equal(
                whole[90:120, 70:80])


def test_frames_may_be_several(folder):
    """As pyzstd writes them: a flush ends a frame, and the last may be
    empty."""
    def cut(frame):
        data = unpacked(frame)
        parts = [data[at:at + 300_000] for at in range(0, len(data), 300_000)]
        return b"".join(map(packed, [*parts, b"", b""]))

    (value,) = [one for one in items(folder) if one.endswith("lr")]
    for name in ("model.rows", value):
        replace(folder, name, cut)
    assert is_same(haulway.load(folder)["model"])
    assert haulway.verify(folder).ok


@pytest.mark.parametrize("names", [
    ["stream.lz4/1"], ["stream.zstd/2"], ["stream.zstd"], ["mine@here/1"],
    ["stream.zstd@here/1"], [NAME, "x/1"],
], ids=str)
def test_other_extensions_are_unsupported(folder, run, names):
    describe(folder, names)
    with pytest.raises(haulway.UnsupportedError, match="expected stream.zstd"):
        haulway.load(folder)
    for verb in ("verify", "ls", "info"):
        done = run(verb, folder, code=2)
        assert "FAILED" not in done.stdout
    said = json.loads(run("verify", folder, "--json", code=2).stdout or "{}")
    assert said.get("ok") is None
    with pytest.raises(CheckpointException, match="expected stream.zstd"):
        dcp.load(emptied(), storage_reader=Reader(folder), no_dist=True)


@pytest.mark.parametrize("version", ["stream.zstd/1.4", NAME])
def test_minor_versions_are_read(folder, version):
    describe(folder, [version])
    assert is_same(haulway.load(folder)["model"])


def flipped(frame):
    """Changes the payload, and compresses it again: only its CRC-32 shows."""
    data = bytearray(unpacked(frame))
    data[5000] ^= 1
    return packed(bytes(data))


DAMAGE = {
    "payload": (flipped, "CRC-32"),
    "frame": (lambda frame: frame[:900] + bytes([frame[900] ^ 0x55]) + frame[901:],
              "zstd|CRC-32"),
    "cut": (lambda frame: frame[:-9], "ends early"),
    "junk": (lambda frame: frame + b"PK\5\6 is no frame", "no zstd frame"),
    "longer": (lambda frame: frame + packed(bytes(200_000)),
               "more than the .* bytes"),
    "bomb": (lambda frame: frame + packed(bytes(1 << 28)),
             "more than the .* bytes"),
    "plain": (unpacked, "no zstd frame"),
    "other": (lambda frame: packed(b"text" * 500), "no archive|no record"),
    "short": (lambda frame: packed(unpacked(frame)[:60_000]), "item|chunk"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_with_its_place(folder, run, damage):
    edit, message = DAMAGE[damage]
    replace(folder, "model.rows", edit)
    with pytest.raises(haulway.Error, match=message) as caught:
        haulway.load(folder)
    assert "model.rows" in str(caught.value)
    assert "__0_0.distcp" in str(caught.value)
    into = emptied()
    with pytest.raises(CheckpointException, match=message):
        dcp.load(into, storage_reader=Reader(folder), planner=LoadPlanner(),
                 no_dist=True)
    done = run("verify", folder, code=1)
    assert "model.rows" in done.stdout and "__0_0.distcp" in done.stdout
    run("convert", folder, "out.safetensors", "--include", "model.rows", code=1)
    # Other tensors are still read.
    with haulway.open(folder) as checkpoint:
        assert checkpoint["model.ramp"].equal(STATE["model"]["ramp"])


def test_damaged_values_are_refused(folder):
    (name,) = [one for one in items(folder) if one.endswith("lr")]
    replace(folder, name, lambda frame: frame + packed(bytes(1 << 26)))
    with pytest.raises(haulway.LimitError, match="max_inflate_ratio"):
        haulway.load(folder)
    replace(folder, name, lambda frame: frame[:20])
    with pytest.raises(haulway.TruncatedError, match=name):
        haulway.load(folder)


def test_nothing_is_allocated_for_a_claim(folder):
    """A frame may state any size of its content."""
    frame = bytearray(packed(bytes(200_000)))
    assert frame[4] >> 6 == 2  # The size has four bytes.
    frame[5:9] = (0x7FFFFFFF).to_bytes(4, "little")
    replace(folder, "model.rows", lambda _: bytes(frame))
    with pytest.raises(haulway.Error, match="model.rows"):
        haulway.load(folder)


@pytest.mark.parametrize("options", [
    {}, {"single_file_per_rank": False}, {"thread_count": 2},
], ids=str)
def test_torch_reads_what_the_writer_compressed(tmp_path, options):
    dcp.save(STATE, no_dist=True, storage_writer=Writer(
        tmp_path / "dcp", compress="zstd", **options))
    into = emptied()
    dcp.load(into, storage_reader=FileSystemReader(tmp_path / "dcp"),
             no_dist=True)
    assert is_same(into["model"]) and into["step"] == 7
    assert into["groups"] == STATE["groups"]
    assert is_same(haulway.load(tmp_path / "dcp", verify=True)["model"])
    assert haulway.verify(tmp_path / "dcp").ok
    for place in items(tmp_path / "dcp").values():
        assert place.transform_descriptors == [NAME]
    size = sum(one.stat().st_size for one in (tmp_path / "dcp").iterdir())
    assert size < 5_000_000  # Of 15 MB.


def test_large_entries_are_compressed_too(tmp_path):
    value = {"w": torch.arange(20_000_000, dtype=torch.int32)}
    dcp.save(value, no_dist=True,
             storage_writer=Writer(tmp_path / "dcp", compress="zstd"))
    into = {"w": torch.zeros(20_000_000, dtype=torch.int32)}
    dcp.load(into, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert into["w"].equal(value["w"])


def test_a_word_of_the_writer_is_checked(tmp_path):
    with pytest.raises(haulway.InvalidArgumentError, match="'gzip'"):
        Writer(tmp_path, compress="gzip")


def test_threads_share_one_item(whole):
    """Ranges of a large tensor that threads want in any order."""
    tensor = STATE["model"]["zeros"]
    with haulway.open(whole) as checkpoint:
        part = checkpoint.get_slice("model.zeros")
        wrong = []

        def read(at):
            if not part[at:at + 200_000].equal(tensor[at:at + 200_000]):
                wrong.append(at)

        threads = [threading.Thread(target=read, args=(at,))
                   for at in range(2_800_000, -1, -400_000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_a_server_is_asked_for_few_ranges(whole):
    def serve(request):
        path = whole / request.target.rpartition("/")[2]
        if not path.is_file():
            return request.answer(404)
        return request.serve(path.read_bytes())

    with FaultServer(serve) as server:
        url = server.url("/dcp/.metadata")
        assert is_same(haulway.load(url)["model"])
        assert len(server.requests) < 30
        with haulway.open(url) as checkpoint:
            assert checkpoint["model.one"].item() == 2.5
        into = {"model": {"rows": torch.zeros(900, 1000).bfloat16()}}
        dcp.load(into, storage_reader=Reader(server.url("/dcp")), no_dist=True)
        assert into["model"]["rows"].equal(STATE["model"]["rows"])


def test_the_metadata_is_parsed_once(whole, monkeypatch):
    parsed = []

    def counting(name):
        call = getattr(_haulway, name)

        def counted(source, *arguments, **options):
            if source.name.endswith(".metadata"):
                parsed.append(name)
            return call(source, *arguments, **options)

        monkeypatch.setattr(_haulway, name, counted)

    counting("dcp_metadata")
    counting("open_checkpoint")
    reader = Reader(whole)
    for _ in range(2):
        into = emptied()
        dcp.load(into, storage_reader=reader, planner=LoadPlanner(),
                 no_dist=True)
        assert is_same(into["model"]) and into["step"] == 7
    assert parsed == ["dcp_metadata"] * 2


def test_zstandard_is_not_needed_to_read(whole):
    code = ("import sys; sys.modules['zstandard'] = None\n"
            "import haulway; print(haulway.load(sys.argv[1])['step'])")
    done = subprocess.run([sys.executable, "-c", code, whole],
                          capture_output=True, text=True, check=True)
    assert done.stdout == "7\n"
