"""NumPy arrays, pickled as the corresponding tensors."""

import importlib.util
import io
import mmap
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import torch
from test_pickle_object import saved_by_torch

import haulway
from haulway import _haulway

DTYPES = ["float64", "float32", "float16", "int64", "int32", "int16", "int8",
          "uint8", "bool", "complex64", "complex128", "uint16", "uint32",
          "uint64"]
# Types that NumPy has only with that package installed.
ML_DTYPES = [
    name for name in ("bfloat16", "float8_e4m3fn", "float8_e5m2",
                      "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
    if importlib.util.find_spec("ml_dtypes")
]


def pickled(obj, **options):
    return _haulway.pickle_object(obj, arrays_as_tensors=True, **options)


def whole(result):
    """Returns a file of the pickle and its records for torch.load."""
    import ctypes

    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", result.pickle)
        archive.writestr("archive/byteorder", "little")
        for key, _, address, nbytes, location in result.storages:
            assert location == "cpu"
            archive.writestr(
                f"archive/data/{key}", ctypes.string_at(address, nbytes)
            )
        archive.writestr("archive/version", "3\n")
    buffer.seek(0)
    return buffer


def loaded(obj, **options):
    return torch.load(whole(pickled(obj, **options)), weights_only=True)


def values(dtype, count=24):
    if dtype in ML_DTYPES:
        import ml_dtypes

        raw = np.arange(count * 2, dtype=np.uint8)
        dtype = np.dtype(getattr(ml_dtypes, dtype))
        return raw.view(dtype)[:count]
    raw = np.arange(count * np.dtype(dtype).itemsize, dtype=np.uint8)
    if dtype == "bool":
        raw %= 2
    return raw.view(dtype)


def raw_bytes(array):
    return np.ascontiguousarray(array).tobytes()


VIEWS = {
    "whole": lambda a: a.reshape(4, 6),
    "scalar": lambda a: a[5:6].reshape(()),
    "empty": lambda a: a[:0].reshape(0, 3),
    "transposed": lambda a: a.reshape(4, 6).T,
    "sliced": lambda a: a.reshape(4, 6)[1:, ::2],
    "expanded": lambda a: np.broadcast_to(a[3:7], (5, 4)),
    "reversed": lambda a: a[::-1],
    "fortran": lambda a: np.asfortranarray(a.reshape(4, 6)),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", DTYPES + ML_DTYPES)
def test_loads_as_the_tensor(dtype, view):
    array = VIEWS[view](values(dtype))
    tensor = loaded({"a": array})["a"]
    assert str(tensor.dtype) == f"torch.{array.dtype.name}"
    assert tuple(tensor.shape) == array.shape
    flat = tensor.contiguous()
    assert bytes(flat.untyped_storage())[
        flat.storage_offset() * flat.element_size():
    ][: flat.numel() * flat.element_size()] == raw_bytes(array)


@pytest.mark.parametrize("dtype", DTYPES)
def test_has_the_bytes_of_the_tensors_pickle(dtype):
    array = values(dtype)
    objects = [array[2:9].copy(), {"b": array.copy().reshape(2, 3, 4)}]
    tensors = [torch.from_numpy(objects[0]), {"b": torch.from_numpy(objects[1]["b"])}]
    assert pickled(objects).pickle == saved_by_torch(tensors)[0]


def test_views_of_one_array_share_a_storage():
    base = np.arange(10.0)
    made = loaded([base, base[2:5], base.reshape(2, 5)[1], base])
    assert made[3] is made[0]
    made[0][3] = -1
    assert made[1].tolist() == [2, -1, 4]
    assert len(pickled([base, base[2:5], base[::3]]).storages) == 1


def test_views_of_one_buffer_share_a_storage():
    memory = bytearray(80)
    first = np.frombuffer(memory, "<f8", 4)
    second = np.frombuffer(memory, "<f8", 4, offset=16)
    result = pickled([first, second])
    assert [row[3] for row in result.storages] == [80]
    made = torch.load(whole(result), weights_only=True)
    made[0][2] = 7
    assert made[1].tolist() == [7, 0, 0, 0]


def test_dtypes_over_one_memory_are_kept_apart():
    base = np.arange(4, dtype=np.int32)
    made = loaded([base, base.view(np.uint8)])
    assert made[0].tolist() == [0, 1, 2, 3]
    assert made[1].tolist() == list(base.tobytes())


def test_odd_strides_swapped_bytes_and_odd_offsets_are_copied():
    record = np.zeros(3, [("a", "u1"), ("b", "<f4")])
    record["b"] = [1, 2, 3]
    swapped = np.array([1, 258], ">i4")
    odd = np.frombuffer(b"x" + np.arange(3, dtype="<i2").tobytes(), "<i2", 3, 1)
    made = loaded([record["b"], swapped, odd, swapped[::-1]])
    assert [t.tolist() for t in made] == [[1, 2, 3], [1, 258], [0, 1, 2], [258, 1]]


def test_a_mapped_file_is_not_saved_whole(tmp_path):
    path = tmp_path / "numbers"
    np.arange(1000.0).tofile(path)
    mapped = np.memmap(path, "f8", "r", offset=80, shape=(5,))
    result = pickled([mapped, mapped[1:3]])
    assert [row[3] for row in result.storages] == [40]
    assert loaded([mapped])[0].tolist() == [10, 11, 12, 13, 14]
    with open(path, "rb") as file, mmap.mmap(
        file.fileno(), 0, access=mmap.ACCESS_READ
    ) as mapping:
        few = np.frombuffer(mapping, "f8", 3, 16)
        assert loaded(few).tolist() == [2, 3, 4]
        del few


def test_scalars_are_numbers():
    numbers = [np.float64(1.5), np.float32(0.1), np.int8(-3), np.bool_(True),
               np.uint64(2**63), np.complex64(1j), np.str_("s"), np.float16(2)]
    made = loaded(numbers)
    assert made == [n.item() for n in numbers]
    assert [type(m) for m in made] == [float, float, int, bool, int, complex,
                                       str, float]


@pytest.mark.parametrize("bad", [
    np.array(["text"]), np.array([object()]), np.array([1], "M8[s]"),
    np.zeros(2, [("a", "i4")]), np.zeros(1, np.longdouble),
    np.ma.masked_array([1, 2], [True, False]),
])
def test_refuses_what_no_tensor_holds(bad):
    with pytest.raises(haulway.UnsafeError, match=r"^object\.model\[1\]: "):
        pickled({"model": [0, bad]})


def test_arrays_are_objects_unless_asked_for():
    made = _haulway.pickle_object({"a": np.ones(1), "t": np.datetime64(1, "s")})
    assert made.pickle == saved_by_torch(
        {"a": np.ones(1), "t": np.datetime64(1, "s")})[0]
    assert not made.storages


def test_tensors_and_arrays_together():
    made = loaded({"t": torch.ones(2), "a": np.zeros(3), "h": np.uint16([4])})
    assert made["t"].tolist() == [1, 1]
    assert made["a"].tolist() == [0, 0, 0]
    assert made["h"].dtype is torch.uint16
    both = pickled([torch.ones(2), np.ones(2, np.float32)]).pickle
    assert both.count(b"_rebuild_tensor_v2") == 1
    assert both == saved_by_torch([torch.ones(2), torch.ones(2)])[0]


def test_needs_no_torch():
    program = (
        "import sys, numpy as np\n"
        "from haulway import _haulway\n"
        "made = {'a': np.arange(6.0).reshape(2, 3), 'b': np.uint32([1]),\n"
        "        'c': [np.float32(1.5), 'x'], 'd': np.ones(2)}\n"
        "made['e'] = made['a'][1]\n"
        "result = _haulway.pickle_object(made, arrays_as_tensors=True)\n"
        "assert 'torch' not in sys.modules\n"
        "sys.stdout.buffer.write(result.pickle)\n"
    )
    alone = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True
    ).stdout
    made = {"a": np.arange(6.0).reshape(2, 3), "b": np.uint32([1]),
            "c": [np.float32(1.5), "x"], "d": np.ones(2)}
    made["e"] = made["a"][1]
    assert alone == pickled(made).pickle
