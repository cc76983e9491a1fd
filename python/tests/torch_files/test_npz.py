"""npy and npz files, compared with NumPy."""

import io
import json
import zipfile

import numpy
import pytest
import torch

import haulway

DTYPES = [
    "?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8",
    "c8", "c16",
]
SHAPES = [(), (0,), (5,), (2, 3), (0, 4), (2, 1, 3, 2)]


def noise(shape, dtype, seed=1):
    dtype = numpy.dtype(dtype)
    count = int(numpy.prod(shape, dtype=int)) * dtype.itemsize
    most = 2 if dtype.kind == "b" else 256
    raw = numpy.random.default_rng(seed).integers(0, most, count, numpy.uint8)
    return raw.view(dtype).reshape(shape)


def arrays():
    made = {
        f"{dtype}{len(shape)}{order}": noise(shape, dtype, seed).astype(
            numpy.dtype(dtype).newbyteorder(order))
        for order in "<>"
        for seed, dtype in enumerate(DTYPES)
        for shape in (SHAPES if dtype in ("f4", "i2") else [(2, 3)])
    }
    made["fortran"] = numpy.asfortranarray(noise((3, 4, 5), "f4"))
    made["größe"] = noise((3,), "f4")
    made["A"], made["a"] = noise((1,), "i1"), noise((2,), "i1")
    made["deep/name"] = noise((2,), "f8")
    return made


def same(ours, theirs):
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype.newbyteorder("=")
    assert ours.tobytes() == theirs.astype(ours.dtype).tobytes()


@pytest.fixture(params=[numpy.savez, numpy.savez_compressed])
def model(request, tmp_path):
    path = tmp_path / "model.npz"
    request.param(path, **arrays())
    return path


def test_every_array_is_what_numpy_reads(model):
    peer = numpy.load(model)
    with haulway.open(model, "numpy") as checkpoint:
        assert checkpoint.format == "npz"
        assert list(checkpoint) == peer.files
        for name in peer.files:
            same(checkpoint[name], peer[name])
        fortran = checkpoint["fortran"]
        assert fortran.flags.f_contiguous and not fortran.flags.c_contiguous
        assert numpy.array_equal(
            checkpoint.get_slice("fortran")[1:, 2], peer["fortran"][1:, 2])


@pytest.mark.parametrize("save", [numpy.savez, numpy.savez_compressed])
@pytest.mark.parametrize("io_mode", ["auto", "mmap", "pread"])
def test_arrays_without_elements_alone(save, io_mode, tmp_path):
    empty = {"a": numpy.zeros((0, 3)), "b": numpy.zeros(0, bool)}
    save(tmp_path / "empty.npz", **empty)
    found = haulway.load(tmp_path / "empty.npz", "numpy", io=io_mode)
    assert found.keys() == empty.keys()
    for name, array in found.items():
        same(array, empty[name])


@pytest.mark.parametrize("io_mode", ["auto", "mmap", "pread"])
def test_every_call_that_reads_takes_it(model, io_mode):
    expected = arrays()
    whole = haulway.load(model, "numpy", io=io_mode, verify=True)
    assert whole.keys() == expected.keys()
    for name, array in whole.items():
        same(array, expected[name])
    for name, array in haulway.iterate(model, "numpy"):
        same(array, expected[name])
    tensors = haulway.load(model, "torch")
    assert tensors["fortran"].stride() == (1, 3, 12)
    same(tensors["fortran"].numpy(), expected["fortran"])
    assert haulway.verify(model).ok
    assert haulway.scan(model).safe


@pytest.mark.parametrize("descr", [*DTYPES, ">f4"])
def test_a_file_of_one_array_is_the_array(tmp_path, descr):
    for i, shape in enumerate(SHAPES):
        path = tmp_path / f"{i}.npy"
        array = noise(shape, descr, seed=i)
        numpy.save(path, array)
        same(haulway.load(path, "numpy"), array)
        with haulway.open(path, "numpy") as checkpoint:
            assert (checkpoint.format, list(checkpoint)) == ("npy", ["tensor"])
            same(checkpoint["tensor"], array)


def test_fortran_order_comes_as_a_view_with_strides(tmp_path):
    path = tmp_path / "f.npy"
    array = numpy.asfortranarray(noise((3, 5), "f4"))
    numpy.save(path, array)
    ours = haulway.load(path, "numpy")
    assert ours.flags.f_contiguous
    same(ours, array)
    assert haulway.load(path, "torch").stride() == (1, 3)


def test_objects_are_refused_by_name_and_the_others_read(tmp_path, run):
    path = tmp_path / "o.npz"
    numpy.savez(path, good=numpy.ones(3), bad=numpy.array([{}], object),
                text=numpy.array(["x"]), when=numpy.array(["2020"], "M8[s]"))
    with haulway.open(path, "numpy") as checkpoint:
        assert numpy.array_equal(checkpoint["good"], numpy.ones(3))
        for name in ("bad", "text", "when"):
            with pytest.raises(haulway.Error, match=f"member '{name}.npy'"):
                checkpoint[name]
        with pytest.raises(haulway.UnsafeError, match="Python objects"):
            checkpoint["bad"]
    assert list(haulway.load(path, "numpy", include=["good"])) == ["good"]
    with pytest.raises(haulway.Error, match=r"member '.*\.npy'"):
        haulway.load(path, "numpy")
    assert haulway.scan(path).safe  # Its objects are data.
    listed = json.loads(run("ls", path, "--json").stdout)["tensors"]
    assert [row["dtype"] for row in listed] == ["F64", *["OPAQUE"] * 3]
    assert "member 'bad.npy'" in run("cat", path, "bad", code=1).stderr


def test_objects_alone_are_refused(tmp_path):
    path = tmp_path / "o.npy"
    numpy.save(path, numpy.array([{}], object), allow_pickle=True)
    with pytest.raises(haulway.UnsafeError, match="Python objects"):
        haulway.load(path, "numpy")
    assert haulway.scan(path).safe


def test_two_members_of_one_name_are_refused(tmp_path):
    path = tmp_path / "twice.npz"
    numpy.savez(path, a=numpy.ones(3))
    with pytest.warns(UserWarning), zipfile.ZipFile(path, "a") as archive:
        data = io.BytesIO()
        numpy.save(data, numpy.zeros(3))
        archive.writestr("a.npy", data.getvalue())
    with pytest.raises(haulway.CorruptError, match="duplicate record 'a.npy'"):
        haulway.open(path)


def test_a_zip_that_is_both_is_refused(tmp_path):
    path = tmp_path / "both.npz"
    numpy.savez(path, a=numpy.ones(3))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
    with pytest.raises(haulway.CorruptError, match="torch and npz"):
        haulway.open(path)


def test_archives_of_other_writers(tmp_path):
    class Stream(io.RawIOBase):
        """Cannot seek, so descriptors follow the data."""

        def __init__(self):
            self.data = b""

        def writable(self):
            return True

        def write(self, data):
            self.data += bytes(data)
            return len(data)

    stream = Stream()
    numpy.savez(stream, a=noise((2, 3), "f4"), b=noise((3,), "i2"))
    path = tmp_path / "stream.npz"
    path.write_bytes(stream.data)
    loaded = haulway.load(path, "numpy", verify=True)
    same(loaded["a"], noise((2, 3), "f4"))
    same(loaded["b"], noise((3,), "i2"))
    # An array without padding: the elements begin at any offset.
    array = noise((2, 3), "f8")
    odd = (b"\x93NUMPY\x01\x00\x3e\x00"
           b"{'descr': '<f8', 'fortran_order': False, 'shape': (2, 3), }\n  ")
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("a.npy", odd + array.tobytes())
        for mode in ("auto", "pread"):
            same(haulway.load(path, "numpy", io=mode)["a"], array)


def test_verbs_take_it(model, tmp_path, run):
    peer = numpy.load(model)
    info = json.loads(run("info", model, "--json").stdout)
    assert (info["format"], info["tensor_count"]) == ("npz", len(peer.files))
    report = json.loads(run("verify", model, "--json").stdout)
    assert report["ok"] and report["checked_bytes"] > 0
    run("cat", model, "i82<", "--out", "x.npy")
    same(numpy.load(tmp_path / "x.npy"), peer["i82<"])
    for verb in ("ls", "load", "plan", "scan"):
        run(verb, model)


def test_a_changed_byte_is_found(model):
    data = bytearray(model.read_bytes())
    with zipfile.ZipFile(model) as archive:
        entry = archive.getinfo("fortran.npy")
    data[entry.header_offset + 300] ^= 1
    model.write_bytes(data)
    assert not haulway.verify(model).ok
    with pytest.raises(haulway.Error):
        haulway.load(model, "numpy", verify=True)


def test_tensors_of_torch_share_nothing_with_headers(tmp_path):
    path = tmp_path / "a.npz"
    numpy.savez(path, a=noise((4,), "f4"))
    tensor = haulway.load(path, "torch")["a"]
    assert tensor.untyped_storage().nbytes() == 16
    assert torch.equal(tensor, torch.from_numpy(noise((4,), "f4")))
