"""haulway.torch.dcp.Reader and LoadPlanner, checked with torch's own."""

import dataclasses
import io
import os
import pickle
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import _version
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, ReadItem

import haulway
from haulway.torch.dcp import LoadPlanner, Reader, Writer
from http_server import FaultServer
from torch_versions import dtypes, needs_no_dist

pytestmark = [
    needs_no_dist,
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
    pytest.mark.filterwarnings("ignore:ComplexHalf support"),
]

DTYPES = [
    torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
    torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
    torch.bfloat16, torch.float32, torch.float64, torch.complex32,
    torch.complex64, torch.complex128, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    *dtypes("float8_e8m0fnu", "float4_e2m1fn_x2"),
]


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def state():
    torch.manual_seed(3)
    return {
        "model": {
            "w": torch.randn(40, 30), "scalar": torch.tensor(2.5),
            "empty": torch.zeros(0, 4), "t": torch.randn(5, 7).t(),
            "large": torch.arange(300_000, dtype=torch.int32),
            **{f"d{i}": torch.arange(12, dtype=torch.uint8).repeat(16)
               .view(dtype) for i, dtype in enumerate(DTYPES)
               if dtype is not torch.bool},
            "flags": torch.tensor([True, False, True]),
        },
        "optimizer": {"groups": [{"lr": 0.5, "params": [0, 1]}],
                      "state": [torch.ones(3), torch.full((2, 2), 7.0)]},
        "epoch": 5, "name": "a run",
    }


def emptied(value):
    """Returns the same state with other numbers in it."""
    if isinstance(value, dict):
        return {key: emptied(one) for key, one in value.items()}
    if isinstance(value, list):
        return [emptied(one) for one in value]
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.shape, dtype=torch.uint8).to(value.dtype) \
            if value.dtype.itemsize > 1 or value.dtype is torch.bool \
            else torch.zeros(value.shape, dtype=torch.uint8).view(value.dtype)
    return type(value)()


def same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor):
        return (one.dtype, one.shape, bits(one)) == (
            other.dtype, other.shape, bits(other))
    return one == other


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dcp") / "checkpoint"
    dcp.save(state(), checkpoint_id=folder, no_dist=True)
    return folder


def load(into, folder, planner=None, **options):
    reader = Reader(folder, **options)
    dcp.load(into, storage_reader=reader, no_dist=True,
             planner=LoadPlanner() if planner is None else planner)
    return reader


def reason(caught):
    """Returns the exceptions of the ranks, as torch passes them on."""
    (failure,) = caught.value.failures.values()
    return failure[0]


def test_every_entry_is_what_was_saved(saved):
    found = emptied(state())
    assert not same(found, state())
    reader = load(found, saved)
    assert same(found, state())
    assert reader.stats["tensor_bytes"] > 1_200_000


def test_torchs_own_planner_works_too(saved):
    found = emptied(state())
    load(found, saved, DefaultLoadPlanner())
    assert same(found, state())


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_options_of_reading_have_an_effect(saved, io):
    found, stats = emptied(state()), {}
    load(found, saved, io=io, threads=1, verify=True, stats=stats)
    assert same(found, state()) and stats["tensor_bytes"] > 1_200_000
    with pytest.raises(TypeError, match="'ios'"):
        Reader(saved, ios="mmap")


def test_destinations_keep_their_memory_and_kind(saved):
    """Strided, of another dtype, with requires_grad; the memory stays the
    same."""
    base = torch.zeros(30, 40)
    wide = torch.zeros(40, 30, dtype=torch.float64)
    into = {"model": {
        "w": base.t(), "t": torch.nn.Parameter(torch.zeros(7, 5)),
        "large": torch.zeros(300_000, dtype=torch.int32)[::1],
    }}
    pointers = [one.data_ptr() for one in into["model"].values()]
    load(into, saved)
    model = state()["model"]
    assert torch.equal(base.t(), model["w"])
    assert torch.equal(into["model"]["t"].data, model["t"])
    assert into["model"]["t"].requires_grad
    assert [one.data_ptr() for one in into["model"].values()] == pointers
    load({"model": {"w": wide}}, saved)
    assert torch.equal(wide, model["w"].double())
    small = torch.zeros(40, 30, dtype=torch.int8)
    other = small.clone()
    load({"model": {"w": small}}, saved)
    dcp.load({"model": {"w": other}}, checkpoint_id=saved, no_dist=True)
    assert torch.equal(small, other)


def test_directories_of_older_releases_are_read(tmp_path, monkeypatch):
    """Up to torch 2.3 such a list was one entry; later fields are missing."""
    value = {"model": {"w": torch.arange(6.0)}, "epoch": 5,
             "groups": [{"lr": 0.5, "params": [3, 4]}, {"lr": 0.25, "params": []}]}
    monkeypatch.setattr(_version, "_derived_version", "2_3")
    dcp.save(value, checkpoint_id=tmp_path, no_dist=True)
    monkeypatch.undo()
    path = tmp_path / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    assert list(metadata.state_dict_metadata) == ["model.w", "epoch", "groups"]
    for later in ("storage_meta", "version"):
        del vars(metadata)[later]
    path.write_bytes(pickle.dumps(metadata, 4))
    assert same(haulway.load(tmp_path), value)
    found = {"model": {"w": torch.zeros(6)}, "epoch": 0,
             "groups": [{"lr": 0.0, "params": [0, 0]}, {"lr": 0.0, "params": []}]}
    load(found, tmp_path)
    assert same(found, value)


class Part(LoadPlanner):
    """Loads all except the first and the last of each dimension."""

    def create_local_plan(self):
        self.parts = {}
        items = []
        for name, entry in self.metadata.state_dict_metadata.items():
            (chunk,) = entry.chunks
            lengths = torch.Size(size - 2 for size in entry.size)
            self.parts[name] = torch.zeros(lengths, dtype=entry.properties.dtype)
            index = MetadataIndex(name, chunk.offsets, 0)
            ones = torch.Size([1] * len(lengths))
            items.append(ReadItem(
                LoadItemType.TENSOR, index, ones, index, ones, lengths))
        return LoadPlan(items)

    def resolve_tensor(self, read_item):
        return self.parts[read_item.dest_index.fqn]

    def commit_tensor(self, read_item, tensor):
        pass


class Columns(Part):
    """Loads an eighth of the columns."""

    def create_local_plan(self):
        (plan,) = super().create_local_plan().items
        rows, columns = self.metadata.state_dict_metadata["w"].size
        lengths = torch.Size([rows, columns // 8])
        self.parts["w"] = torch.zeros(lengths)
        begin = torch.Size([0, columns // 4])
        return LoadPlan([dataclasses.replace(
            plan, dest_offsets=begin, storage_offsets=begin, lengths=lengths)])


def test_columns_of_long_rows_are_read_without_the_rest(tmp_path):
    whole = torch.arange(32 * 65536.0).reshape(32, 65536)
    dcp.save({"w": whole}, checkpoint_id=tmp_path, no_dist=True)
    planner = Columns()
    reader = load({"w": None}, tmp_path, planner)
    wanted = whole[:, 16384:16384 + 8192]
    assert torch.equal(planner.parts["w"], wanted)
    assert wanted.nbytes <= reader.stats["read_bytes"] < 2 * wanted.nbytes


SLICE_COLUMNS = """
import sys, haulway
rows, folder = int(sys.argv[1]), sys.argv[2]
part = haulway.open(folder, "numpy", memory_budget=8 << 20).get_slice("w")
part[:2, :1]
def held():
    with open("/proc/self/status") as file:
        (line,) = (one for one in file if one.startswith("VmHWM"))
    return int(line.split()[1]) << 10
before = held()
assert (part[:, 3:4] == 3).all() and len(part[:, 3:4]) == rows
print(held() - before)
"""


def test_columns_of_short_rows_take_no_memory_of_the_tensor(tmp_path):
    """A page a row would be a GiB, and a read a row would take ten seconds."""
    rows = 1 << 18
    whole = torch.arange(64, dtype=torch.uint8).expand(rows, 64).contiguous()
    dcp.save({"w": whole}, checkpoint_id=tmp_path, no_dist=True)
    more = int(subprocess.run(
        [sys.executable, "-c", SLICE_COLUMNS, str(rows), tmp_path],
        capture_output=True, text=True, check=True).stdout)
    assert more < 200 * rows


BASE = torch.arange(3 * 4 * 5 * 6.0)
PAIRS = torch.complex(BASE, BASE + 0.5).reshape(18, 20)
ORDERS = {
    "transposed": BASE.reshape(18, 20).t(),
    "columns": BASE.reshape(18, 20)[:, 3:9].t(),
    "channels_last": BASE.reshape(3, 4, 5, 6).to(
        memory_format=torch.channels_last),
    "permuted": BASE.reshape(3, 4, 5, 6).permute(3, 1, 0, 2),
    "pairs": PAIRS.t(),
    "expanded": torch.arange(5.0).expand(7, 5),
    "large": torch.arange(600_000, dtype=torch.int16).reshape(1000, 600).t(),
}
CHANGED = {"conjugate": PAIRS.t().conj(), "negative": PAIRS.conj().imag.t()}


@pytest.mark.parametrize("ours", [False, True])
def test_orders_of_elements_are_kept_by_writers_and_read(tmp_path, ours):
    """Writers keep the strides of a dense tensor."""
    tensors = {**ORDERS, **CHANGED}
    dcp.save(tensors, checkpoint_id=tmp_path, no_dist=True,
             storage_writer=Writer(tmp_path) if ours else None)
    for verify in (False, True):
        found = {name: torch.zeros(one.shape, dtype=one.dtype)
                 for name, one in tensors.items()}
        load(found, tmp_path, verify=verify)
        for name, tensor in tensors.items():
            assert torch.equal(found[name], tensor), name
    planner = Part()
    load(dict.fromkeys(tensors), tmp_path, planner)
    for name, tensor in tensors.items():
        inner = tensor[(slice(1, -1),) * tensor.dim()]
        assert torch.equal(planner.parts[name], inner), name


@pytest.mark.parametrize("ours", [False, True])
def test_a_directory_has_chunks_in_other_orders(tmp_path, ours):
    folder = tmp_path / "c"
    dcp.save(ORDERS, checkpoint_id=folder, no_dist=True,
             storage_writer=Writer(folder) if ours else None)
    for options in ({}, {"verify": True}, {"io": "mmap"},
                    {"memory_budget": 1 << 16}):
        found = haulway.load(folder, **options)
        for name, tensor in ORDERS.items():
            assert torch.equal(found[name], tensor), (name, options)
    with haulway.open(folder) as opened:
        for name, tensor in ORDERS.items():
            part = opened.get_slice(name)
            for cut in ((2,), (slice(1, 4), slice(2, 5)),
                        (slice(None), slice(0, 5, 2))):
                assert torch.equal(part[cut], tensor[cut]), (name, cut)
    report = haulway.verify(folder)
    assert report.ok and report.checked_bytes
    haulway.convert(folder, tmp_path / "m.safetensors")
    found = haulway.load(tmp_path / "m.safetensors")
    assert all(torch.equal(found[name], ORDERS[name]) for name in ORDERS)


def test_a_changed_bit_is_found_in_other_orders(tmp_path):
    dcp.save(ORDERS, checkpoint_id=tmp_path, no_dist=True)
    path = tmp_path / "__0_0.distcp"
    data = bytearray(path.read_bytes())
    data[data.index(ORDERS["large"].t()[7].numpy().tobytes())] ^= 1
    path.write_bytes(data)
    with pytest.raises(haulway.MismatchError, match="large|CRC"):
        haulway.load(tmp_path, verify=True)
    assert not haulway.verify(tmp_path).ok


def test_elements_that_are_not_as_in_the_data_are_refused(tmp_path):
    dcp.save({"c": CHANGED["conjugate"]}, checkpoint_id=tmp_path, no_dist=True)
    with pytest.raises(haulway.UnsupportedError, match="not all elements of its data"):
        haulway.load(tmp_path)
    report = haulway.verify(tmp_path)  # The directory is intact.
    assert report.ok and "not all elements" in report.notes[0]


def test_strict_dtype_refuses_a_cast(saved):
    wide = torch.zeros(40, 30, dtype=torch.float64)
    with pytest.raises(CheckpointException) as caught:
        load({"model": {"w": wide}}, saved, strict_dtype=True)
    error = reason(caught)
    assert isinstance(error, haulway.MismatchError)
    assert "model.w at [0, 0] is torch.float32 in the checkpoint" in str(error)
    assert not wide.any()


def test_missing_keys_and_shapes_are_torchs_errors(saved):
    for into in ({"model": {"none": torch.zeros(3)}},
                 {"model": {"w": torch.zeros(41, 30)}}):
        said = []
        for reader in (Reader(saved), dcp.FileSystemReader(saved)):
            with pytest.raises(CheckpointException) as caught:
                dcp.load(into, storage_reader=reader, no_dist=True)
            said.append((type(reason(caught)), str(reason(caught))))
        assert said[0] == said[1]
    into = {"model": {"none": torch.ones(3), "w": torch.zeros(40, 30)}}
    load(into, saved, LoadPlanner(allow_partial_load=True))
    assert torch.equal(into["model"]["w"], state()["model"]["w"])
    assert torch.equal(into["model"]["none"], torch.ones(3))


class Renaming(LoadPlanner):
    """Loads to intermediate memory in half precision, and counts."""

    def __init__(self):
        super().__init__()
        self.committed = []

    def resolve_tensor(self, read_item):
        self.between = torch.zeros(tuple(read_item.lengths), dtype=torch.half)
        return self.between

    def commit_tensor(self, read_item, tensor):
        assert tensor.data_ptr() == self.between.data_ptr()
        self.lookup_tensor(read_item.dest_index).copy_(tensor)
        self.committed.append(read_item.dest_index.fqn)


def test_planners_of_ones_own_get_what_they_resolved(saved):
    planner, into = Renaming(), {"model": {"w": torch.zeros(40, 30)}}
    load(into, saved, planner)
    assert planner.committed == ["model.w"]
    assert torch.equal(into["model"]["w"], state()["model"]["w"].half().float())


class Exploit:
    def __reduce__(self):
        return (os.mkdir, ("exploited",))


def test_entries_are_not_executed(tmp_path, monkeypatch):
    """Calls in a BYTE_IO entry are not run."""
    monkeypatch.chdir(tmp_path)
    dcp.save({"a": Exploit()}, checkpoint_id="evil", no_dist=True)
    assert not os.path.exists("exploited")
    with pytest.raises(CheckpointException) as caught:
        load({"a": 0}, "evil")
    assert isinstance(reason(caught), haulway.UnsafeError)
    assert "mkdir" in str(reason(caught)) and "at byte" in str(reason(caught))
    assert not os.path.exists("exploited")


def test_metadata_are_not_executed(tmp_path, monkeypatch):
    """Calls in .metadata are not run, wherever they are."""
    monkeypatch.chdir(tmp_path)
    for entries in (Exploit(), {"w": Exploit()}):
        data = pickle.dumps(Metadata(entries, None, {}), 4)
        (tmp_path / ".metadata").write_bytes(data)
        with pytest.raises(haulway.UnsafeError) as caught:
            Reader(tmp_path).read_metadata()
        assert "mkdir' is not allowed" in str(caught.value)
        assert f"of {tmp_path}/.metadata" in str(caught.value)
        assert caught.value.byte == data.index(b"\x93", data.index(b"mkdir"))
    assert not os.path.exists("exploited")


@pytest.mark.parametrize("name", [
    "collections.OrderedDict", "torch._utils._rebuild_tensor_v2",
    "torch.storage.UntypedStorage", "builtins.eval",
    "torch.distributed.checkpoint.metadata.os",
])
def test_only_names_of_metadata_stand_there(tmp_path, name):
    module, _, attribute = name.rpartition(".")
    pickled = f"\x80\x02c{module}\n{attribute}\n)R.".encode("latin-1")
    (tmp_path / ".metadata").write_bytes(pickled)
    with pytest.raises(haulway.Error) as caught:
        Reader(tmp_path).read_metadata()
    assert caught.value.code in ("kUnsafe", "kCorrupt")


def change(saved, tmp_path, edit):
    """Returns a copy of a checkpoint with changed Metadata."""
    folder = tmp_path / "changed"
    shutil.copytree(saved, folder)
    with open(folder / ".metadata", "rb") as file:
        metadata = pickle.load(file)
    edit(metadata)
    with open(folder / ".metadata", "wb") as file:
        pickle.dump(metadata, file)
    return folder


W = MetadataIndex("model.w", torch.Size([0, 0]))


def first_half(metadata):
    metadata.state_dict_metadata["model.w"].chunks[0].sizes = torch.Size([20, 30])


def twice(metadata):
    entry = metadata.state_dict_metadata["model.w"]
    entry.chunks = [ChunkStorageMetadata(torch.Size(at), torch.Size([20, 30]))
                    for at in ([0, 0], [10, 0])]
    metadata.storage_data[MetadataIndex("model.w", torch.Size([10, 0]))] = \
        metadata.storage_data[W]


def outside(metadata):
    metadata.state_dict_metadata["model.w"].chunks[0].offsets = torch.Size([1, 0])


def no_place(metadata):
    del metadata.storage_data[W]


def same_bytes(metadata):
    metadata.storage_data[W] = metadata.storage_data[
        MetadataIndex("model.t", torch.Size([0, 0]))]


def path(value):
    def edit(metadata):
        metadata.storage_data[W].relative_path = value
    return edit


@pytest.mark.parametrize(("edit", "said"), [
    (first_half, r"hole at \[20, 0\]: expected 1200 elements, found 600; in "
     "'model.w'"),
    (twice, r"chunk \[10, 0\]\+\[20, 30\] overlaps chunk \[0, 0\]\+\[20, 30\]"),
    (outside, r"chunk \[1, 0\]\+\[40, 30\] lies outside the tensor"),
    (no_place, r"chunk \[0, 0\]\+\[40, 30\] is stored nowhere; in 'model.w'"),
    (same_bytes, "shares bytes with"),
    (path("../checkpoint/__0_0.distcp"), "expected a path down"),
    (path("/etc/passwd"), "expected a path down"),
    (path("a/./b"), "expected a path down"),
])
def test_parts_that_contradict_each_other_are_refused(
    saved, tmp_path, edit, said
):
    with pytest.raises(haulway.CorruptError, match=said):
        Reader(change(saved, tmp_path, edit)).read_metadata()


def later(metadata):
    metadata.storage_data[W].offset += 1 << 40


def other_entry(metadata):
    t = MetadataIndex("model.t", torch.Size([0, 0]))
    places = metadata.storage_data
    places[W], places[t] = places[t], places[W]


def other_dtype(metadata):
    metadata.state_dict_metadata["model.w"].properties.dtype = torch.int32


def missing_file(metadata):
    metadata.storage_data[W].relative_path = "__7_0.distcp"


@pytest.mark.parametrize(("edit", "kind", "said"), [
    (later, haulway.TruncatedError, r"in model.w at \[0, 0\]"),
    (other_entry, haulway.CorruptError, r"model.w at \[0, 0\] is F32 \[7, 5\]"),
    (other_dtype, haulway.CorruptError, "expected I32"),
    (missing_file, haulway.NotFoundError, "__7_0.distcp"),
])
def test_files_that_are_not_what_metadata_say_are_refused(
    saved, tmp_path, edit, kind, said
):
    folder = change(saved, tmp_path, edit)
    into = torch.zeros(40, 30, dtype=torch.int32 if edit is other_dtype
                       else torch.float32)
    with pytest.raises(CheckpointException) as caught:
        load({"model": {"w": into}}, folder)
    assert isinstance(reason(caught), kind)
    with pytest.raises(kind, match=said):
        raise reason(caught)


def test_chunks_of_unknown_extensions_are_refused_by_name(saved, tmp_path):
    def compress(metadata):
        metadata.storage_data[W].transform_descriptors = ["stream.lz4/1"]

    folder = change(saved, tmp_path, compress)
    with pytest.raises(haulway.UnsupportedError, match="'stream.lz4/1'"):
        Reader(folder).read_metadata()


def test_data_of_other_planners_are_kept_by_value(saved, tmp_path):
    data = {"a": [1, 2.5, None, (True, b"x")], 3: {"deep": ["y"]}}

    def note(metadata):
        metadata.planner_data = data

    found = Reader(change(saved, tmp_path, note)).read_metadata()
    assert found.planner_data == data


def test_a_link_out_of_the_directory_is_refused(saved, tmp_path):
    folder = tmp_path / "linked"
    folder.mkdir()
    shutil.copy(saved / ".metadata", folder)
    (folder / "__0_0.distcp").symlink_to(saved / "__0_0.distcp")
    with pytest.raises(CheckpointException) as caught:
        load({"model": {"w": torch.zeros(40, 30)}}, folder)
    assert "leads out of the directory" in str(reason(caught))


@pytest.mark.parametrize("name", ["model.large", "epoch"])
def test_verify_finds_a_flipped_bit(saved, tmp_path, name):
    def flip(metadata):
        index = next(one for one in metadata.storage_data if one.fqn == name)
        place = metadata.storage_data[index]
        path = tmp_path / "changed" / place.relative_path
        data = bytearray(path.read_bytes())
        within = data.index(b"\x07\0\0\0\x08", place.offset) \
            if name == "model.large" else data.index(b"K\x05", place.offset)
        data[within + (0 if name == "model.large" else 1)] ^= 1
        path.write_bytes(data)

    folder = change(saved, tmp_path, flip)
    found = emptied(state())
    if name == "model.large":
        load(found, folder)  # The change is not detected.
        assert found["model"]["large"][7] == 6
    with pytest.raises(CheckpointException) as caught:
        load(found, folder, DefaultLoadPlanner(), verify=True)
    assert isinstance(reason(caught), haulway.MismatchError)


def test_a_server_is_asked_for_merged_ranges(saved):
    """One or two requests for .metadata, few afterwards; no listing."""
    asked = []

    def serve(request):
        asked.append((request.method, request.target))
        name = request.target.rpartition("/")[2]
        if not (saved / name).is_file():
            return request.answer(404)
        if request.method == "HEAD":
            data = (saved / name).read_bytes()
            return request.send(
                "HTTP/1.1 200 X\r\nAccept-Ranges: bytes\r\n"
                f"Content-Length: {len(data)}\r\n\r\n")
        return request.serve((saved / name).read_bytes())

    with FaultServer(serve) as server:
        found = emptied(state())
        load(found, server.url("/run/step"))
    assert same(found, state())
    targets = [target for _, target in asked]
    assert set(targets) == {"/run/step/.metadata", "/run/step/__0_0.distcp"}
    assert targets.count("/run/step/.metadata") <= 2 and len(targets) <= 16


def test_a_reader_is_asked_whether_an_id_is_its_own(saved):
    assert Reader.validate_checkpoint_id(saved)
    assert Reader.validate_checkpoint_id("s3://bucket/run")
    assert not Reader.validate_checkpoint_id("ftp://host/run")
    assert not Reader.validate_checkpoint_id(saved / "none")
    reader = Reader("elsewhere")
    reader.reset(saved)
    assert reader.checkpoint_id == str(saved)


def test_metadata_are_those_that_torch_reads(saved):
    ours = Reader(saved).read_metadata()
    theirs = dcp.FileSystemReader(saved).read_metadata()
    ours.storage_meta.load_id = theirs.storage_meta.load_id
    theirs.storage_meta.checkpoint_id = str(theirs.storage_meta.checkpoint_id)
    assert ours == theirs
    assert ours.storage_data[W] == _StorageInfo(**vars(theirs.storage_data[W]))
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pickle.dump(ours, buffer)


@pytest.mark.parametrize(("change", "error"), [
    (lambda path: path.write_bytes(path.read_bytes()[:300]), haulway.TruncatedError),
    (lambda path: path.write_bytes(b"\x80\x04N."), haulway.CorruptError),
    (lambda path: path.unlink(), haulway.NotFoundError),
])
def test_torch_shows_the_error_of_the_metadata(change, error, tmp_path):
    """torch asks for the metadata of the rank next, which do not exist."""
    dcp.save({"a": torch.ones(3)}, checkpoint_id=tmp_path / "step")
    change(tmp_path / "step" / ".metadata")
    with pytest.raises(CheckpointException) as raised:
        dcp.load({"a": torch.zeros(3)}, storage_reader=Reader(tmp_path / "step"))
    (failure, _), = raised.value.failures.values()
    assert isinstance(failure, error)
