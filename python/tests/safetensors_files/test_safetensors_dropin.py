"""haulway.safetensors compared with the safetensors package on the same
files."""

import importlib.util
import json
import os
import pickle
import stat
import subprocess
import sys
import textwrap
import threading
import types

import numpy
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from dropin_cases import INDICES, said, same, write_model
from test_safetensors import TORCH_DTYPES, build, cases, sample

import haulway
import haulway.safetensors as ours
import haulway.safetensors.numpy
import haulway.safetensors.torch
from http_server import FaultServer

THEIRS = safetensors


def listing(module, path):
    with module.safe_open(path, "np") as file:
        # The package orders empty tensors at one offset at random.
        return file.keys(), sorted(file.offset_keys()), file.metadata()


# The package reports one of several faults at random; our tensors cannot have a
# dimension of 2^63.
ODD = {"overlap, equal", "ten tensors over one range", "shape [0, 2^63, 4]"}


@pytest.mark.parametrize(
    ("data", "reference", "strict", "lenient"),
    [case for case in cases() if case.id not in ODD],
)
def test_every_verdict_has_the_packages_words(
    tmp_path, data, reference, strict, lenient
):
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    assert said(listing, ours, path) == said(listing, THEIRS, path)
    assert (said(listing, ours, path)[0] == "ok") == (reference == "ok")
    by_bytes = [said(module.deserialize, data) for module in (ours, THEIRS)]
    if by_bytes[1][0] == "ok":
        by_bytes = [(code, sorted(got, key=lambda pair: pair[0]))
                    for code, got in by_bytes]
    assert by_bytes[0] == by_bytes[1]


NUMBERS = [
    "1e15", "1e16", "1e17", "1e21", "1234567890123456.5", "1e-4", "1e-5",
    "0.0001234", "1.5e300", "5e-324", "-0", "-0.0", "18446744073709551616",
    "-9223372036854775809", "1e400", "1e4000000000", "0e4000000000", "1E+2",
    "01", "1.", "1.e5", "1e", "1e+", "-", "-x", ".5", "+1", "NaN", "nul",
    '"\\u00e9\\n\\""', '"\\ud800"', '"\\udc00"', '"\\ud83d\\ude00"', '"\\x"',
    '"\\u12"', "true", "[", "{}", '{"a"', '{"a":}', "[1,]", "[1 2]", "]",
]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("place", [
    '{"a":{"dtype":"U8","shape":[%s],"data_offsets":[0,4]}}',
    '{"a":{"dtype":"U8","shape":[4],"data_offsets":%s}}',
    '{"a":{"dtype":{"U8":%s},"shape":[4],"data_offsets":[0,4]}}',
    '{"a":["U8",[1,1,1,1,%s,"x"],%s]}',
    '{"__metadata__":{"k":%s}}',
    '{"__metadata__":%s}',
    '{"a":%s,\n "b":1}',
    "%s",
])
def test_json_is_refused_in_the_packages_words(tmp_path, place, number):
    header = place.replace("%s", number).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    assert said(listing, ours, path) == said(listing, THEIRS, path)


def test_a_header_that_is_no_text_is_refused_in_its_words(tmp_path):
    path = tmp_path / "x.safetensors"
    for wrong in (b"\xff", b"\xc3", b"\xe2\x82", b"\xe2\x28\xa1", b"\xed\xa0\x80",
                  b"\xf0\x9f\x92", b"\xf4\x90\x80\x80", b"a\xc0\xaf"):
        for after in (b"", b"}"):
            header = b'{"a' + wrong + after
            path.write_bytes(len(header).to_bytes(8, "little") + header)
            assert said(listing, ours, path) == said(listing, THEIRS, path)


def all_dtypes():
    return {
        f"t{i}.{dtype}": sample(dtype, (3, 4))
        for i, dtype in enumerate(TORCH_DTYPES)
    } | {"none": torch.zeros(0, 3), "one": torch.tensor(7, dtype=torch.int16)}


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}])
def test_files_are_the_packages_to_the_byte(tmp_path, metadata):
    tensors = all_dtypes()
    one, other = tmp_path / "ours", tmp_path / "theirs"
    ours.torch.save_file(tensors, one, metadata)
    THEIRS.torch.save_file(tensors, other, metadata)
    assert one.read_bytes() == other.read_bytes()
    assert ours.torch.save(tensors, metadata) == one.read_bytes()
    same(ours.torch.load_file(other), tensors)
    same(THEIRS.torch.load_file(one), tensors)
    same(ours.torch.load(other.read_bytes()), tensors)
    with ours.safe_open(one, "pt") as file:
        assert file.metadata() == metadata


def test_arrays_are_the_packages_to_the_byte(tmp_path):
    arrays = {
        name: numpy.arange(12).reshape(3, 4).astype(name)
        for name in ("bool", "uint8", "int8", "int16", "uint16", "float16",
                     "int32", "uint32", "float32", "complex64", "float64",
                     "int64", "uint64")
    } | {"none": numpy.zeros((0, 3)), "one": numpy.array(7.0),
         "big": numpy.arange(4, dtype=">i4")}
    one, other = tmp_path / "ours", tmp_path / "theirs"
    ours.numpy.save_file(arrays, one, {"a": "b"})
    THEIRS.numpy.save_file(arrays, other, {"a": "b"})
    assert one.read_bytes() == other.read_bytes() == ours.numpy.save(
        arrays, {"a": "b"}
    )
    for got in (ours.numpy.load_file(one), ours.numpy.load(one.read_bytes()),
                THEIRS.numpy.load_file(one),
                ours.numpy.load_file(other, backend="pread")):
        assert got.keys() == arrays.keys()
        for name, array in got.items():
            assert numpy.array_equal(array, arrays[name])
            assert array.dtype == arrays[name].dtype.newbyteorder("=")
            assert array.flags.writeable or array.nbytes == 0


def test_arrays_of_any_strides_are_written_as_their_values(tmp_path):
    array = numpy.arange(12.0).reshape(3, 4)
    ours.numpy.save_file(
        {"f": numpy.asfortranarray(array), "cut": array[:, 1:3]}, tmp_path / "x"
    )
    got = THEIRS.numpy.load_file(tmp_path / "x")
    assert numpy.array_equal(got["f"], array)
    assert numpy.array_equal(got["cut"], array[:, 1:3])


def test_metadata_is_sorted_and_so_always_the_same(tmp_path):
    noted = {chr(ord("z") - i): "v" for i in range(10)}
    one = ours.torch.save({"a": torch.ones(1)}, noted)
    assert one == ours.torch.save(
        {"a": torch.ones(1)}, dict(sorted(noted.items()))
    )


def test_files_have_the_mode_that_the_umask_gives(tmp_path):
    before = os.umask(0o027)
    try:
        ours.torch.save_file({"a": torch.ones(1)}, tmp_path / "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o604)
    ours.torch.save_file({"a": torch.ones(2)}, tmp_path / "new")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o604


@pytest.mark.parametrize("module", [ours, THEIRS])
def test_a_link_is_replaced_and_what_it_leads_to_stays(tmp_path, module):
    """In the cache of huggingface_hub the file may be part of other snapshots."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "snapshot").mkdir()
    path = tmp_path / "snapshot" / "model.safetensors"
    for leads_to in ("blob", "none"):
        THEIRS.torch.save_file({"a": torch.ones(1)}, tmp_path / "blobs" / "blob")
        path.unlink(missing_ok=True)
        path.symlink_to(f"../blobs/{leads_to}")
        module.torch.save_file({"a": torch.zeros(2)}, path)
        assert not path.is_symlink()
        assert os.listdir(tmp_path / "blobs") == ["blob"]
        assert THEIRS.torch.load_file(path)["a"].tolist() == [0, 0]
        assert THEIRS.torch.load_file(tmp_path / "blobs" / "blob")["a"] == 1
    path.unlink()
    path.symlink_to(tmp_path / "blobs" / "blob")
    module.numpy.save_file({"a": numpy.zeros(2)}, path)
    assert not path.is_symlink()


def test_tensors_of_more_files_than_may_be_open(tmp_path):
    """The package keeps no descriptors for tensors either."""
    for i in range(150):
        tensors = {"small": torch.tensor([i]), "large": torch.full((1 << 17,), i)}
        ours.torch.save_file(tensors, tmp_path / f"{i}.safetensors")
        haulway.torch.save(tensors, tmp_path / f"{i}.pt")
    done = subprocess.run([sys.executable, "-c", textwrap.dedent("""
        import os, resource
        import haulway, haulway.torch
        import haulway.safetensors.numpy, haulway.safetensors.torch
        most = len(os.listdir("/proc/self/fd")) + 100
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        for load in (
            lambda i: haulway.safetensors.torch.load_file(f"{i}.safetensors"),
            lambda i: haulway.safetensors.numpy.load_file(f"{i}.safetensors"),
            lambda i: haulway.load(f"{i}.safetensors"),
            lambda i: haulway.torch.load(f"{i}.pt"),
            lambda i: haulway.torch.load(f"{i}.pt", mmap=True),
        ):
            kept = [load(i) for i in range(150)]
            for i, tensors in enumerate(kept):
                assert tensors["small"][0] == tensors["large"][-1] == i
            del kept, tensors
        """)], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_file_may_be_replaced_under_its_own_mapping(tmp_path):
    path = tmp_path / "x"
    ours.torch.save_file({"a": torch.arange(4096.0)}, path)
    loaded = ours.torch.load_file(path)
    ours.torch.save_file({"a": loaded["a"] + 1}, path)
    assert torch.equal(loaded["a"], torch.arange(4096.0))
    assert torch.equal(ours.torch.load_file(path)["a"], loaded["a"] + 1)


BACKENDS = ["mmap", "pread", "auto", "direct", "uring", "snapshot"]


@pytest.fixture
def model(tmp_path):
    return write_model(tmp_path)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_reads(model, backend):
    try:
        loaded = ours.torch.load_file(model, backend=backend)
    except ours.SafetensorError as error:
        assert backend == "uring" and "cannot set up io_uring" in str(error)
        pytest.skip(str(error).split("; of ")[0])
    same(loaded, THEIRS.torch.load_file(model))
    with ours.safe_open(str(model), "pt", backend=backend) as file:
        assert torch.equal(file.get_tensor("i"), torch.arange(7))
        assert file.get_slice("w")[1, 2:4].tolist() == [
            [21.0, 22.0, 23.0], [24.0, 25.0, 26.0]
        ]


def test_the_members_of_safe_open(model):
    for module in (ours, THEIRS):
        with module.safe_open(model, framework="pt", device="cpu") as file:
            assert file.keys() == ["i", "s", "w"]
            assert file.offset_keys() == ["i", "w", "s"]
            assert file.metadata() == {"format": "pt", "x": "y"}
            assert list(file.get_tensors()) == file.offset_keys()
            assert {file: 1}[file] == 1
            part = file.get_slice("w")
            tensor = file.get_tensor("i")
            assert (part.get_shape(), part.get_dtype()) == ([4, 5, 3], "F32")
        for use in (file.keys, file.offset_keys, file.metadata,
                    file.get_tensors, lambda: file.get_tensor("i"),
                    lambda: file.get_slice("i")):
            assert said(use) == ("SafetensorError", "File is closed")
        assert part[3, 4].tolist() == [57.0, 58.0, 59.0]
        assert tensor.tolist() == list(range(7))
        file.__exit__(None, None, None)


def test_writing_to_a_mapped_tensor_does_not_reach_the_file(model):
    before = model.read_bytes()
    ours.torch.load_file(model)["w"].zero_()
    assert model.read_bytes() == before


@pytest.mark.parametrize("arguments", [
    ("nope", "pt"), ("FILE", "nope"), ("FILE", "pt", "nope"),
    ("FILE", "pt", "cuda:x"), ("FILE", "pt", "cuda:1:2"), ("FILE", "pt", "mps:3"),
    ("FILE", "np", "cuda"), ("FILE", "np", 0), ("FILE", "pt", -1),
    ("FILE", "pt", 1.5), ("FILE", 3), ("FILE", "np", "cuda:+1"),
    ("FILE", "np", "cuda:\u0663"), ("FILE", "pt", "cuda:18446744073709551616"),
])
def test_wrong_arguments_are_refused_in_the_packages_words(model, arguments):
    arguments = [str(model) if a == "FILE" else a for a in arguments]
    found = said(ours.safe_open, *arguments)
    expected = said(THEIRS.safe_open, *arguments)
    assert found[0] == expected[0]
    # Argument errors of the binding are not compared.
    if found[0] != "TypeError":
        assert found[1] == expected[1]


def test_unknown_names_are_refused_in_the_packages_words(model):
    for use in (lambda m: m.safe_open(model, "pt", backend="x\"y"),
                lambda m: m.safe_open(model, "pt", backend="x\ny\u00e9"),
                lambda m: m.safe_open(model, "pt").get_tensor("nope"),
                lambda m: m.safe_open(model, "pt").get_slice("nope"),
                lambda m: m.TensorSpec(dtype="half", shape=[1], data_ptr=0,
                                       data_len=2)):
        assert said(use, ours) == said(use, THEIRS)
        assert said(use, ours)[0] == "SafetensorError"


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_slices_are_the_packages(model, index):
    def use(module, framework, backend):
        with module.safe_open(model, framework, backend=backend) as file:
            part = file.get_slice("w")[index]
        return list(part.shape), part.reshape(-1).tolist()

    for framework, backend in (("np", "mmap"), ("np", "pread"),
                               ("pt", "mmap"), ("pt", "pread")):
        found, expected = (
            said(use, module, framework, backend) for module in (ours, THEIRS)
        )
        if expected[0] == "TypeError":
            expected, found = expected[0], found[0]
        assert found == expected, (framework, backend)


def test_what_cannot_be_saved_is_refused_in_the_packages_words(tmp_path):
    base = torch.arange(6.0).reshape(2, 3)
    for tensors in (
        [base], {"a": 1}, {"a": base.numpy()}, {"a": base.T}, {"a": base[:, 1]},
        {"a": base, "b": base}, {"a": base, "b": base.view(6)[1:3]},
        {"a": base.to_sparse()}, {"a": base.to("meta")},
        {"a": base.to(torch.complex128)},
    ):
        for call in ("save", "save_file"):
            extra = [tmp_path / "x"] if call == "save_file" else []
            found, expected = (
                said(getattr(module.torch, call), tensors, *extra)
                for module in (ours, THEIRS)
            )
            # The order of several names is random.
            assert (found[0], sorted(found[1])) == (
                expected[0], sorted(expected[1])
            )
            assert found[0] != "ok" and not (tmp_path / "x").exists()
    for place in "no/x", ".":
        found, expected = (
            said(module.torch.save_file, {"a": base}, tmp_path / place)
            for module in (ours, THEIRS)
        )
        # The package names its temporary file, newer ones by its path.
        assert found[0] == expected[0] == "SafetensorError"
        assert found[1].partition(" at path")[0] == (
            expected[1].partition(" at path")[0])
    for metadata in ({"a": 1}, {1: "a"}, [1]):
        assert said(ours.torch.save, {"a": base}, metadata)[0] == "TypeError"


def test_specs_are_the_packages():
    data = numpy.arange(8, dtype="float32")

    def use(module, dtype, shape, length):
        spec = module.TensorSpec(
            dtype=dtype, shape=shape, data_ptr=data.ctypes.data,
            data_len=length,
        )
        shown = (spec.dtype, spec.shape, spec.data_len, repr(spec))
        return shown, said(module.serialize, {"a": spec}, {"k": "v"})

    for case in (
        ("float32", [2, 4], 32), ("float32", [2, 4], 31),
        ("float4_e2m1fn_x2", [32], 32), ("float4_e2m1fn_x2", [], 1),
        ("float32", [2**62, 4], 32), ("bool", [], 1),
    ):
        assert said(use, ours, *case) == said(use, THEIRS, *case)
    assert said(ours.serialize, {"a": {"dtype": "F32"}})[0] == "TypeError"


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(3, 3)
        self.b = torch.nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.register_buffer("t", torch.arange(6.0).reshape(2, 3).T)


def test_modules_with_tied_weights(tmp_path):
    torch.manual_seed(1)
    model = Tied()
    one, other = tmp_path / "ours", tmp_path / "theirs"
    ours.torch.save_model(model, one)
    THEIRS.torch.save_model(model, other)
    assert one.read_bytes() == other.read_bytes()
    fresh = Tied()
    assert ours.torch.load_model(fresh, other) == (set(), [])
    same(fresh.state_dict(), model.state_dict())
    assert said(ours.torch.save_model, model, one, force_contiguous=False) == (
        said(THEIRS.torch.save_model, model, other, force_contiguous=False)
    )
    ours.torch.save_file({"a.weight": torch.ones(3, 3), "x": torch.ones(1)}, one)
    assert said(ours.torch.load_model, Tied(), one) == (
        said(THEIRS.torch.load_model, Tied(), one)
    )
    assert said(ours.torch.load_model, Tied(), one, strict=False) == (
        said(THEIRS.torch.load_model, Tied(), one, strict=False)
    )


def test_names_that_share_memory_are_found_as_the_package_finds_them():
    base = torch.arange(12.0)
    state = {"a": base, "b": base[:4], "c": base[4:8], "d": base.view(3, 4),
             "e": torch.ones(2), "n": torch.zeros(0)}
    for call, named in (
        ("_find_shared_tensors", {}), ("_remove_duplicate_names", {}),
        ("_remove_duplicate_names", {"preferred_names": ["d", "b"]}),
        ("_remove_duplicate_names", {"discard_names": ["a"]}),
    ):
        found, expected = (
            getattr(module.torch, call)(state, **named)
            for module in (ours, THEIRS)
        )
        if isinstance(found, list):
            found, expected = map(sorted, (map(sorted, found),
                                           map(sorted, expected)))
        assert found == expected
    for tensor in state.values():
        for call in ("storage_ptr", "storage_size", "_end_ptr", "_is_complete"):
            assert getattr(ours.torch, call)(tensor) == (
                getattr(THEIRS.torch, call)(tensor)
            )
    cut = {"b": base[:4], "c": base[2:8]}
    assert said(ours.torch._remove_duplicate_names, cut)[0] == "RuntimeError"


class Sparse(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("s", torch.eye(3).to_sparse())


def test_modules_with_sparse_buffers(tmp_path):
    """They have no one memory that others could share."""
    path = tmp_path / "x"
    THEIRS.torch.save_file({"w": torch.zeros(2)}, path)
    for use in (lambda m: m.torch.load_model(Sparse(), path, strict=False),
                lambda m: m.torch.load_model(Sparse(), path),
                lambda m: m.torch.save_model(Sparse(), path),
                lambda m: m.torch.save_model(Sparse(), path,
                                             force_contiguous=False),
                lambda m: m.torch.storage_ptr(torch.eye(3).to_sparse())):
        assert said(use, ours) == said(use, THEIRS)
    model = Sparse()
    assert ours.torch.load_model(model, path, strict=False) == ({"s"}, [])
    assert model.w.tolist() == [0, 0]


def test_every_name_of_the_package_is_there():
    missing = {"Any", "Dict", "List", "Optional", "Set", "Tuple", "Union", "os",
               "sys", "defaultdict"}
    for name in dir(THEIRS.torch):
        if not name.startswith(("__", "_float")) and name not in missing:
            assert hasattr(ours.torch, name), name
    for name in dir(THEIRS.numpy):
        if not name.startswith("__") and name not in missing:
            assert hasattr(ours.numpy, name), name
    assert ours.__version__ == THEIRS.__version__
    assert set(ours.__all__) <= set(dir(ours))


def packed(count):
    names = [f"t{i}" for i in range(count)]
    entries = ",".join(
        f'"{name}":{{"dtype":"F4","shape":[4],"data_offsets":[{2 * i},{2 * i + 2}]}}'
        for i, name in enumerate(names)
    )
    header = ("{" + entries + "}").encode()
    return names, len(header).to_bytes(8, "little") + header + bytes(2 * count)


def test_headers_are_parsed_once(tmp_path, monkeypatch):
    parsed = []
    loads = ours._header.json.loads

    def counted(text):
        parsed.append(len(text))
        return loads(text)

    monkeypatch.setattr(ours._header.json, "loads", counted)
    names, data = packed(100)
    path = tmp_path / "x"
    path.write_bytes(data)
    assert [view["shape"] for _, view in ours.deserialize(data)] == [[4]] * 100
    assert len(parsed) == 1
    with ours.safe_open(path, "pt") as file:
        assert [file.get_slice(name).get_shape() for name in names] == [[4]] * 100
        assert file.metadata() is None and file.metadata() is None
    assert len(parsed) == 2


def test_what_the_header_says_is_of_the_file_that_was_opened(tmp_path):
    path, other = tmp_path / "x", tmp_path / "other"
    names, data = packed(2)
    for after in (path.unlink, lambda: os.replace(other, path)):
        path.write_bytes(data)
        other.write_bytes(
            len(HEADER).to_bytes(8, "little") + HEADER + bytes(1)
        )
        with ours.safe_open(path, "pt") as file:
            after()
            assert file.metadata() is None
            assert file.get_slice("t1").get_shape() == [4]
    assert ours.safe_open(path, "pt").metadata() == {}
    with FaultServer(lambda request: request.serve(data)) as server:
        with ours.safe_open(server.url(), "pt") as file:
            assert file.metadata() is None
            assert file.get_slice("t1").get_shape() == [4]


HEADER = b'{"__metadata__":{},"u":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'


def test_small_reads_are_memory_of_their_own(model):
    for framework, backend in (("np", "mmap"), ("np", "pread"), ("pt", "pread")):
        with ours.safe_open(model, framework, backend=backend) as file:
            whole = file.get_tensor("w")
            part = file.get_slice("w")
            for index in (0, slice(1, 3), (slice(0, 4, 2), 1), (1, 2, 0),
                          (slice(None), slice(None), 1), slice(2, 2), ...):
                assert part[index].shape == whole[index].shape
                assert part[index].tolist() == whole[index].tolist()
            kept = part[:, 1]
            if framework == "np":
                assert kept.base is None
            else:
                assert ours.torch.storage_size(kept) == 48
                assert kept.is_contiguous()
            whole[:] = 0
            assert numpy.any(numpy.asarray(part[1]))
            assert framework == "np" or file.get_slice("s")[...].shape == ()


def test_what_is_overwritten_in_place_shows_in_views_alone(tmp_path):
    """Writes to any of them never reach the file."""
    path = tmp_path / "x"
    old = torch.zeros(1 << 20)
    for framework, backend, follows in (
        ("pt", "mmap", True), ("pt", "auto", False), ("pt", "snapshot", False),
        ("pt", "pread", False), ("np", "pread", False), ("np", "snapshot", False),
    ):
        THEIRS.torch.save_file({"w": old}, path)
        with ours.safe_open(path, framework, backend=backend) as file:
            tensor = file.get_tensor("w")
        with open(path, "r+b") as file:
            file.seek(-4, os.SEEK_END)
            file.write(b"\0\0\x80\x3f")
        assert (tensor[-1] == 1) == follows, (framework, backend)
        before = path.read_bytes()
        tensor[:] = 7
        assert path.read_bytes() == before


def test_a_file_that_got_shorter_is_an_error_of_ours(tmp_path):
    path = tmp_path / "x"
    THEIRS.torch.save_file({"a": torch.ones(1 << 16)}, path)
    with ours.safe_open(path, "pt", backend="pread") as file:
        os.truncate(path, 4096)
        code, why = said(file.get_tensor, "a")
    assert code == "SafetensorError"
    assert why.startswith("Could not read tensor a from file: ")


def test_threads_may_share_a_file(model):
    expected = THEIRS.torch.load_file(model)
    wrong = []

    def use(file):
        for _ in range(50):
            for name, tensor in expected.items():
                if not torch.equal(file.get_tensor(name), tensor):
                    wrong.append(name)
                if not torch.equal(file.get_slice(name)[...], tensor):
                    wrong.append(name)

    for backend in ("mmap", "pread"):
        with ours.safe_open(model, "pt", backend=backend) as file:
            threads = [threading.Thread(target=use, args=[file])
                       for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert not wrong


def test_arrays_of_types_that_numpy_lacks(tmp_path):
    tensors = {"b": torch.ones(3, dtype=torch.bfloat16)}
    THEIRS.torch.save_file(tensors, tmp_path / "x")
    found = said(lambda: ours.numpy.load_file(tmp_path / "x")["b"].dtype.name)
    if importlib.util.find_spec("ml_dtypes") is not None:
        assert found == ("ok", "bfloat16")
    else:
        assert found == said(THEIRS.numpy.load_file, tmp_path / "x")
    packed = tmp_path / "packed"
    packed.write_bytes(build(
        {"a": {"dtype": "F6_E2M3", "shape": [8], "data_offsets": [0, 6]}},
        bytes(6),
    ))
    for framework in ("np", "pt"):
        with ours.safe_open(packed, framework) as file:
            assert file.get_slice("a").get_shape() == [8]
            assert file.get_slice("a").get_dtype() == "F6_E2M3"
            assert said(file.get_tensor, "a") == (
                "SafetensorError", "Dtype not understood: F6_E2M3"
            )


def test_other_frameworks_are_made_of_arrays(model, monkeypatch):
    jax = types.ModuleType("jax")
    jax.numpy = types.ModuleType("jax.numpy")
    jax.numpy.array = lambda array: ("jax", array.tolist())
    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setitem(sys.modules, "jax.numpy", jax.numpy)
    with ours.safe_open(model, "flax") as file:
        assert file.get_tensor("i") == ("jax", list(range(7)))
        assert file.get_slice("i")[1:3] == ("jax", [1, 2])


def test_file_objects_with_a_name(model):
    with open(model, "rb") as file:
        with ours._safe_open_handle(file, "pt") as opened:
            assert opened.keys() == ["i", "s", "w"]
    assert said(ours._safe_open_handle, 3, "pt")[0] == "AttributeError"


def test_errors_can_be_pickled_and_are_haulways(tmp_path):
    with pytest.raises(ours.SafetensorError) as caught:
        ours.safe_open(__file__, "pt")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is ours.SafetensorError and str(copy) == str(caught.value)
    assert isinstance(copy, haulway.Error)
    assert str(ours.SafetensorError()) == str(THEIRS.SafetensorError()) == ""
    assert caught.type.__module__ == "haulway.safetensors"


@pytest.mark.parametrize("common", ["", "model.layers.", "m\u00fc\0"])
def test_keys_are_sorted_as_python_sorts(common, tmp_path):
    ends = ["", "0", "0\0", "0\0\0", "1234567", "12345678", "123456789",
            "0123456789abcdef", "0123456789abcdef\0", "0123456789abcdefg",
            "0123456789abcdeg", "\x7f", "\u00e9", "\uffff", "\U0001f600"]
    ends += [f"{i}.weight" for i in range(300)]
    header = {common + end: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]}
              for i, end in enumerate(reversed(ends))}
    text = json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(len(ends)))
    found = []
    for module in (ours, THEIRS):
        with module.safe_open(path, "np") as file:
            found.append(file.keys())
    assert found[0] == found[1] == sorted(common + end for end in ends)


@pytest.mark.parametrize("wrong", [
    {"dtype": 3}, {"shape": [-1]}, {"shape": [1.5]}, {"shape": "ab"},
    {"shape": [1 << 64]}, {"data_ptr": -1}, {"data_ptr": "x"},
    {"data_ptr": 1 << 64}, {"data_len": -1}, {"data_len": None},
])
def test_specs_of_wrong_types_are_refused_as_by_the_package(wrong):
    def use(module):
        return module.TensorSpec(**{"dtype": "float32", "shape": [1],
                                    "data_ptr": 0, "data_len": 4, **wrong})

    assert said(use, ours)[0] == said(use, THEIRS)[0]
    assert said(use, ours)[0] in ("TypeError", "OverflowError")


@pytest.mark.parametrize("name", [1, None, b"a"])
def test_a_name_that_is_no_text_is_refused_in_the_packages_words(tmp_path, name):
    def refusal(package):
        with pytest.raises(TypeError) as caught:
            package.save_file({name: torch.ones(1)}, tmp_path / "a.safetensors")
        return str(caught.value)

    assert refusal(haulway.safetensors.torch) == refusal(safetensors.torch)


def test_a_small_tensor_goes_to_a_device(tmp_path, monkeypatch):
    """There need be no GPU: only the last call is made by torch."""
    state = {
        "f32": torch.randn(3, 4),
        "f8": torch.randn(8, 8).to(torch.float8_e4m3fn),
        "bool": torch.tensor([True, False]),
    }
    safetensors.torch.save_file(state, tmp_path / "m.safetensors")
    seen = []

    def to(tensor, device):
        seen.append(device)
        return tensor

    monkeypatch.setattr(torch.Tensor, "to", to)
    with haulway.safetensors.safe_open(
        tmp_path / "m.safetensors", "pt", device="cuda:0"
    ) as file:
        for name, tensor in state.items():
            found = file.get_tensor(name)
            assert found.dtype == tensor.dtype
            assert torch.equal(
                found.view(torch.uint8), tensor.view(torch.uint8)
            )
    assert seen == ["cuda:0"] * 3


def test_a_device_that_is_not_there_is_a_runtime_error(tmp_path):
    path = tmp_path / "m.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(2)}, path)
    for module in ours, THEIRS:
        with pytest.raises(RuntimeError):
            module.torch.load_file(path, device="cuda:99")
