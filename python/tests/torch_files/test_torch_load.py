"""haulway.torch.load, which must either behave as torch.load or refuse."""

import collections
import copyreg
import gzip
import io
import itertools
import pathlib
import pickle
import struct
import tarfile
import threading

import numpy
import pytest
import torch

import haulway
import haulway.archive
import haulway.torch
from compare import Comparer


def saved(made, **settings):
    out = io.BytesIO()
    torch.save(made, out, **settings)
    return out.getvalue()


@pytest.fixture
def state():
    weight = torch.arange(12.0).view(3, 4)
    return {"w": weight, "tied": weight, "row": weight[1]}


def test_paths_and_file_objects(state, tmp_path):
    folder = tmp_path / "h\xe9 \u65e5"
    folder.mkdir()
    path = folder / "m.pt"
    torch.save(state, path)
    theirs = torch.load(path)
    for source in (path, str(path), io.BytesIO(path.read_bytes())):
        Comparer().same(haulway.torch.load(source), theirs)
    with path.open("rb") as file:
        Comparer().same(haulway.torch.load(file), theirs)


def test_an_archive_after_a_header(state, tmp_path):
    path = tmp_path / "prefixed"
    path.write_bytes(b"header" + saved(state))
    with path.open("rb") as file:
        file.seek(6)
        Comparer().same(haulway.torch.load(file), state)
    held = io.BytesIO(path.read_bytes())
    held.seek(6)
    Comparer().same(haulway.torch.load(held), state)


def test_a_gzip_file(state, tmp_path):
    path = tmp_path / "m.pt.gz"
    with gzip.open(path, "wb") as file:
        file.write(saved(state))
    with gzip.open(path, "rb") as file:
        Comparer().same(haulway.torch.load(file), state)


@pytest.mark.parametrize("real_file", [True, False])
def test_legacy_objects_one_after_another(real_file, tmp_path):
    objects = [{"a": torch.arange(3)}, [1, torch.ones(2)], "last"]
    data = b"".join(
        saved(made, _use_new_zipfile_serialization=False) for made in objects
    )
    path = tmp_path / "stack"
    path.write_bytes(data)
    with path.open("rb") if real_file else io.BytesIO(data) as file:
        for made in objects:
            Comparer().same(haulway.torch.load(file), made)
        assert file.tell() == len(data)


@pytest.mark.parametrize(
    "location",
    ["cpu", torch.device("cpu"), {"cpu": "cpu"}, lambda storage, where: storage,
     lambda storage, where: None, {"cpu": "meta"}, "meta", None],
    ids=["str", "device", "dict", "function", "function-none", "dict-meta",
         "meta", "none"],
)
def test_map_location(location, state):
    data = saved(state)
    Comparer().same(
        haulway.torch.load(io.BytesIO(data), map_location=location),
        torch.load(io.BytesIO(data), map_location=location),
    )


@pytest.mark.parametrize("returned", ["cpu", 3, torch.ones(1)])
def test_map_location_that_returns_no_storage(state, returned):
    data = saved(state)
    for load, said in (
        (haulway.torch.load, "map_location returned .*: expected a storage"),
        (torch.load, ""),
    ):
        with pytest.raises(TypeError, match=said):
            load(io.BytesIO(data), map_location=lambda *_: returned)


def test_map_location_sees_every_storage_and_its_tag(state):
    seen = []
    haulway.torch.load(
        io.BytesIO(saved(state)),
        map_location=lambda storage, where: seen.append(
            (storage.nbytes(), where)
        ),
    )
    assert seen == [(48, "cpu")]


def test_a_cuda_checkpoint_without_cuda_is_refused_as_torch_does(tmp_path):
    path = tmp_path / "cuda.pt"
    data = saved({"w": torch.ones(2)}, _use_new_zipfile_serialization=False)
    path.write_bytes(
        data.replace(b"X\x03\0\0\0cpu", b"X\x06\0\0\0cuda:0")
    )
    if torch.cuda.is_available():
        assert haulway.torch.load(path)["w"].is_cuda
    else:
        with pytest.raises(RuntimeError, match="map_location"):
            haulway.torch.load(path)
    assert haulway.torch.load(path, map_location="cpu")["w"].sum() == 2


@pytest.mark.parametrize("options", [{}, {"include": "w"}, {"dtype": "f64"}])
def test_load_ignores_where_tensors_were_when_they_were_saved(tmp_path, options):
    path = tmp_path / "cuda.pt"
    data = saved({"w": torch.ones(2)}, _use_new_zipfile_serialization=False)
    path.write_bytes(
        data.replace(b"X\x03\0\0\0cpu", b"X\x06\0\0\0cuda:0")
    )
    loaded = haulway.load(path, **options)["w"]
    assert loaded.device.type == "cpu"
    assert loaded.sum() == 2


def test_mmap_writes_never_reach_the_file(state, tmp_path):
    path = tmp_path / "m.pt"
    torch.save(state, path)
    before = path.read_bytes()
    loaded = haulway.torch.load(path, mmap=True)
    loaded["w"].fill_(-1)
    assert loaded["row"].tolist() == [-1] * 4
    assert path.read_bytes() == before


def test_mmap_needs_a_path_and_a_zip(state, tmp_path):
    with pytest.raises(ValueError, match="f must be a file path"):
        haulway.torch.load(io.BytesIO(saved(state)), mmap=True)
    path = tmp_path / "legacy.pt"
    path.write_bytes(saved(state, _use_new_zipfile_serialization=False))
    with pytest.raises(RuntimeError, match="mmap can only be used"):
        haulway.torch.load(path, mmap=True)


@pytest.mark.parametrize("weights_only", [None, False, True])
def test_what_is_data_loads_and_code_is_refused_with_the_way_out(
    state, weights_only
):
    loaded = haulway.torch.load(
        io.BytesIO(saved(state)), weights_only=weights_only
    )
    assert loaded.keys() == state.keys()
    data = saved({**state, "p": Point(3, torch.ones(2))})
    with pytest.raises(
        haulway.UnsafeError, match=r"Point' is not allowed; at byte \d+; in .*"
        "data.pkl; .*safe_globals or --allow.*haulway.open"
    ) as caught:
        haulway.torch.load(io.BytesIO(data), weights_only=weights_only)
    assert caught.value.byte > 0


def test_pythons_pickle_is_taken_and_not_used(state):
    data = saved(state)
    haulway.torch.load(io.BytesIO(data), pickle_module=pickle)
    for module, weights_only in ((pickle, True), (copyreg, None)):
        with pytest.raises(haulway.UnsafeError):
            haulway.torch.load(
                io.BytesIO(data), pickle_module=module,
                weights_only=weights_only,
            )


class Point:
    def __init__(self, x, weight):
        self.x = x
        self.weight = weight


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


def test_classes_the_caller_allows_are_made_from_data():
    data = saved({"p": Point(3, torch.ones(2)), "s": Slotted(7)})
    with pytest.raises(haulway.UnsafeError, match="Point"):
        haulway.torch.load(io.BytesIO(data))
    with haulway.torch.safe_globals([Point, Slotted]):
        loaded = haulway.torch.load(io.BytesIO(data))
    assert type(loaded["p"]) is Point and loaded["p"].x == 3
    assert loaded["p"].weight.tolist() == [1, 1]
    assert loaded["s"].value == 7
    assert haulway.torch.get_safe_globals() == torch.serialization.get_safe_globals()
    with torch.serialization.safe_globals([Point, Slotted]):
        assert haulway.torch.load(io.BytesIO(data))["p"].x == 3


def test_blocks_that_allow_classes_may_overlap():
    """As blocks of two threads do."""

    def allowed():
        return [one for one in haulway.torch.get_safe_globals()
                if one in (Point, Slotted)]

    one, other, third = (
        haulway.torch.safe_globals([kind]) for kind in (Point, Slotted, Point)
    )
    for block in (one, other, third):
        block.__enter__()
    haulway.torch.add_safe_globals([Slotted])
    try:
        one.__exit__(None, None, None)
        assert allowed() == [Slotted, Point, Slotted]
        other.__exit__(None, None, None)
        third.__exit__(None, None, None)
        assert allowed() == [Slotted]
    finally:
        haulway.torch.clear_safe_globals()


def test_nothing_runs():
    class Evil:
        def __reduce__(self):
            return (print, ("this must never be printed",))

    data = saved({"w": torch.ones(1), "x": Evil()})
    with pytest.raises(haulway.UnsafeError, match="builtins.print"):
        haulway.torch.load(io.BytesIO(data))
    report = haulway.scan(data)
    assert not report.safe
    names = {f"{g.module}.{g.name}" for g in report.pickles[0].globals}
    assert "builtins.print" in names


def test_python_2_strings():
    # SHORT_BINSTRING, as Python 2 wrote a str.
    body = b"\x80\x02}U\x03k\xc3\xa9q\x00K\x01s."
    legacy = b"".join(
        [
            pickle.dumps(0x1950A86A20F9469CFC6C, 2),
            pickle.dumps(1001, 2),
            pickle.dumps({"little_endian": True}, 2),
            body,
            pickle.dumps([], 2),
        ]
    )
    load = haulway.torch.load
    assert load(io.BytesIO(legacy)) == {"k\xe9": 1}
    assert load(io.BytesIO(legacy), encoding="bytes") == {b"k\xc3\xa9": 1}
    assert load(io.BytesIO(legacy), encoding="latin1") == {"k\xc3\xa9": 1}
    with pytest.raises(haulway.ArgumentTypeError, match="encoding is NoneType"):
        load(io.BytesIO(legacy), encoding=None)


def test_big_endian_files_of_every_type(tmp_path):
    import zipfile

    tensors = {
        "f64": torch.arange(5, dtype=torch.float64),
        "bf16": torch.arange(5, dtype=torch.bfloat16),
        "c64": torch.tensor([1 + 2j, 3 - 4j]),
        "u16": torch.arange(5, dtype=torch.int32).to(torch.uint16),
        "u8": torch.arange(5, dtype=torch.uint8),
    }
    units = [8, 2, 4, 2, 1]
    path = tmp_path / "big.pt"
    with zipfile.ZipFile(io.BytesIO(saved(tensors))) as old, zipfile.ZipFile(
        path, "w"
    ) as new:
        for entry in old.infolist():
            data = old.read(entry)
            name = entry.filename
            if name.endswith("/byteorder"):
                data = b"big"
            if "/data/" in name:
                unit = units[int(name.rsplit("/", 1)[1])]
                data = b"".join(
                    data[i : i + unit][::-1] for i in range(0, len(data), unit)
                )
            new.writestr(name, data)
    Comparer().same(haulway.torch.load(path), tensors)
    for name, array in haulway.load(path, framework="numpy").items():
        assert array.tobytes() == tensors[name].view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("deflate", [False, True])
def test_archives_zipped_again_by_another_tool(deflate, state, tmp_path):
    import zipfile

    path = tmp_path / "again.pt"
    method = zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED
    with zipfile.ZipFile(io.BytesIO(saved(state))) as old, zipfile.ZipFile(
        path, "w", method
    ) as new:
        for entry in reversed(old.infolist()):
            new.writestr(entry.filename, old.read(entry))
    Comparer().same(haulway.torch.load(path), state)
    assert haulway.verify(path).ok
    if not deflate:
        Comparer().same(haulway.torch.load(path, mmap=True), state)


def test_a_tar_of_the_first_releases(tmp_path):
    class Id:
        def __init__(self, number):
            self.number = number

    class Pickler(pickle.Pickler):
        def persistent_id(self, made):
            return str(made.number) if isinstance(made, Id) else None

    def dumps(made):
        out = io.BytesIO()
        Pickler(out, 2).dump(made)
        return out.getvalue()

    storages = (
        dumps(1) + dumps((10, "cpu", torch.FloatStorage)) + struct.pack("<q", 6)
        + struct.pack("<6f", *range(6)) + dumps([(11, 10, 2, 3)])
    )
    tensors = dumps(2)
    for key, storage, size, stride, offset in (
        (20, 10, (2, 3), (3, 1), 0), (21, 11, (3,), (1,), 0),
    ):
        tensors += dumps((key, storage, torch.FloatTensor)) + struct.pack(
            f"<i4x{len(size)}q{len(size)}qq", len(size), *size, *stride, offset
        )
    members = {
        "sys_info": dumps({"protocol_version": 1000}),
        "pickle": dumps(collections.OrderedDict([("w", Id(20)), ("v", Id(21))])),
        "tensors": tensors,
        "storages": storages,
    }
    path = tmp_path / "old.tar"
    with tarfile.open(path, "w") as made:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))
    theirs = torch.load(path, weights_only=False)
    loaded = haulway.torch.load(path)
    assert list(loaded) == ["w", "v"]
    for name in theirs:
        assert torch.equal(loaded[name], theirs[name])
    assert haulway.verify(path).ok and haulway.scan(path).safe


def test_torchscript_is_refused_and_its_weights_readable(tmp_path):
    path = tmp_path / "script.pt"
    module = torch.nn.Linear(3, 2)
    torch.jit.script(module).save(str(path))
    with pytest.raises(RuntimeError, match="TorchScript"):
        haulway.torch.load(path)
    with haulway.open(path, framework="torch") as checkpoint:
        assert checkpoint.format == "torchscript"
        assert torch.equal(checkpoint["weight"], module.weight)


def test_a_hundred_thousand_tensors(tmp_path):
    path = tmp_path / "many.pt"
    torch.save({f"t{i}": torch.full((2,), float(i)) for i in range(100_000)}, path)
    loaded = haulway.torch.load(path)
    assert len(loaded) == 100_000
    assert loaded["t99999"].tolist() == [99999.0] * 2
    with haulway.open(path, framework="numpy") as checkpoint:
        assert checkpoint["t5"].tolist() == [5.0, 5.0]


def test_beyond_four_gibibytes(tmp_path):
    """Sparse files: every record after the first needs zip64 fields."""
    path = tmp_path / "large.pt"
    with torch.serialization.skip_data():
        torch.save(
            {
                "large": torch.empty(2**32 + 8, dtype=torch.uint8),
                "after": torch.empty(3),
                "none": torch.empty(0),
                "exact": torch.empty(0xFFFFFFFF, dtype=torch.uint8),
            },
            path,
        )
    theirs = torch._C.PyTorchFileReader(str(path))
    with haulway.open(path, framework="torch", mmap=True) as checkpoint:
        assert checkpoint["after"].tolist() == [0, 0, 0]
        assert checkpoint["exact"].numel() == 0xFFFFFFFF
        for row, name in enumerate(checkpoint):
            offset = checkpoint._core.storage(row)[5]
            assert offset == theirs.get_record_offset(f"data/{row}"), name


def test_tensors_outlive_everything_and_threads_share(state, tmp_path):
    path = tmp_path / "m.pt"
    torch.save(state, path)
    kept = []

    def work():
        with haulway.open(path, framework="numpy", mmap=False) as checkpoint:
            for _ in range(50):
                kept.append(checkpoint["row"])

    checkpoint = haulway.open(path, framework="numpy")
    view = checkpoint["w"]
    checkpoint.close()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    path.unlink()
    assert len(kept) == 200
    assert all(numpy.array_equal(row, [4, 5, 6, 7]) for row in kept)
    assert view.sum() == 66
    with pytest.raises(ValueError, match="closed"):
        checkpoint["w"]


def test_slices_read_only_their_rows(state, tmp_path):
    path = tmp_path / "m.pt"
    saved = {"w": torch.arange(60).view(10, 6), "t": torch.arange(6).view(2, 3).T}
    torch.save(saved, path)
    with haulway.open(path, framework="numpy", mmap=False) as checkpoint:
        whole = checkpoint["w"]
        part = checkpoint.get_slice("w")
        for index in (
            slice(2, 5), 3, -1, slice(None), slice(1, 9, 3), (slice(2, 4), 1),
            (slice(None), slice(1, 3)), ..., (..., 2), slice(5, 2),
        ):
            assert numpy.array_equal(part[index], whole[index]), index
        assert numpy.array_equal(
            checkpoint.get_slice("t")[1:, 0], checkpoint["t"][1:, 0]
        )
        with pytest.raises(IndexError):
            part[10]


def test_errors_are_typed_and_can_be_pickled(tmp_path):
    missing = tmp_path / "missing.pt"
    with pytest.raises(FileNotFoundError) as caught:
        haulway.open(missing)
    assert isinstance(caught.value, haulway.Error)
    with pytest.raises(haulway.TruncatedError) as cut:
        haulway.load(saved({"w": torch.ones(1)})[:-30])
    again = pickle.loads(pickle.dumps(cut.value))
    assert type(again) is haulway.TruncatedError
    assert (str(again), again.code, again.byte) == (
        str(cut.value), "kTruncated", cut.value.byte,
    )
    with pytest.raises(KeyError):
        haulway.open(saved({"w": torch.ones(1)}))["v"]


def test_every_way_to_read_a_record_checks_it(tmp_path):
    path = tmp_path / "m.pt"
    torch.save({"w": torch.arange(1000.0)}, path)
    reader = haulway.archive.PyTorchFileReader(path)
    data = bytearray(path.read_bytes())
    data[reader.get_record_offset("data/0") + 2000] ^= 1
    path.write_bytes(data)
    ways = [
        lambda r: r.get_record("data/0"),
        lambda r: r.get_record("data/0", [path]),
        lambda r: r.get_storage_from_record("data/0", 1000, torch.float32),
        lambda r: list(r.get_chunks("data/0", 1 << 20)),
        lambda r: list(r.get_chunks("data/0", 100)),
    ]
    for way in ways:
        with pytest.raises(haulway.MismatchError, match="CRC-32 of record"):
            way(haulway.archive.PyTorchFileReader(path))
    reader = haulway.archive.PyTorchFileReader(path)
    # Earlier chunks are returned: the checksum is complete only at the last
    # one.
    chunks = reader.get_chunks("data/0", 100)
    assert len(list(itertools.islice(chunks, 39))) == 39
    assert len(next(reader.get_chunks("data/0", "1KiB"))) == 1024
    for size in (0, -1, "x", True, 1.0):
        with pytest.raises(haulway.InvalidArgumentError, match="chunk_size"):
            list(reader.get_chunks("data/0", size))
    with pytest.raises(haulway.InvalidArgumentError, match="size"):
        reader.set_additional_reader_size_threshold(-1)
    reader.set_additional_reader_size_threshold("8MiB")


def test_archive_reader_agrees_with_torchs(state, tmp_path):
    path = tmp_path / "m.pt"
    torch.save(state, path)
    theirs = torch._C.PyTorchFileReader(str(path))
    ours = haulway.archive.PyTorchFileReader(path)
    assert ours.get_all_records() == theirs.get_all_records()
    assert ours.serialization_id() == theirs.serialization_id()
    assert ours.archive_name() == "m" and ours.version() == 3
    for name in theirs.get_all_records():
        assert ours.get_record(name) == theirs.get_record(name)
        assert ours.get_record(name, [path, path]) == theirs.get_record(name)
        assert b"".join(ours.get_chunks(name, 7)) == theirs.get_record(name)
        assert ours.get_record_offset(name) == theirs.get_record_offset(name)
        header = ours.get_record_header_offset(name)
        if hasattr(theirs, "get_record_header_offset"):  # Not in 2.6.
            assert theirs.get_record_header_offset(name) == header
        size = ours.get_record_size(name)
        assert ours.get_record_offset_no_read(header, name, size, 64) == (
            theirs.get_record_offset(name)
        )
    assert ours.has_record("data.pkl") and not ours.has_record("nothing")
    tensor = ours.get_storage_from_record("data/0", 12, torch.float32)
    assert tensor.tolist() == list(range(12))
    with pytest.raises(haulway.MismatchError):
        ours.get_storage_from_record("data/0", 11, torch.float32)
    with pytest.raises(FileNotFoundError):
        ours.get_record("nothing")


def test_include_loads_a_flat_dict(tmp_path):
    path = tmp_path / "m.pt"
    weight = torch.arange(4.0)
    torch.save({"a": {"w": weight, "v": weight}, "b": torch.ones(3)}, path)
    loaded = haulway.load(path, include="a.*")
    assert list(loaded) == ["a.w", "a.v"]
    assert loaded["a.w"].data_ptr() == loaded["a.v"].data_ptr()
    arrays = haulway.load(path, framework="numpy", include=["b", "a.w"])
    assert sorted(arrays) == ["a.w", "b"]


def test_progress_and_verify(tmp_path):
    path = tmp_path / "m.pt"
    torch.save({"w": torch.arange(3_000_000)}, path)
    calls = []
    haulway.load(path, verify=True, progress=lambda *done: calls.append(done))
    assert calls[-1][0] == calls[-1][1] >= 24_000_000
    data = bytearray(path.read_bytes())
    data[data.index(struct.pack("<q", 1_500_000))] ^= 1
    path.write_bytes(data)
    haulway.load(path)
    with pytest.raises(haulway.MismatchError, match="CRC-32"):
        haulway.load(path, verify=True)
    report = haulway.verify(path)
    assert [finding.code for finding in report.findings] == ["kMismatch"]


def test_numpy_and_torch_are_not_needed_to_look(small):
    import subprocess
    import sys

    script = (
        "import sys; sys.modules['torch'] = sys.modules['numpy'] = None\n"
        "import haulway\n"
        f"with haulway.open({str(small)!r}, framework='numpy') as c:\n"
        "    print(len(c), c.info('model.norm.bias').shape, c.tree()['epoch'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    )
    assert done.stdout == "26 (32,) 3\n", done.stderr


def test_path_objects(small):
    assert len(haulway.open(pathlib.Path(small), framework="numpy")) == 26
