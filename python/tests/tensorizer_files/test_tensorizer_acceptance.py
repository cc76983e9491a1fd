"""The requirements of the reference's own tests, for both packages side by
side.

docs/formats/tensorizer-acceptance.md lists which test proves which item.
"""

import copy
import io
import re
import struct

import pytest
import tensorizer
import torch
from test_tensorizer_differential import COST, KEY, compare, of, same

import haulway
import haulway.tensorizer as ours

PACKAGES = {"ours": ours, "theirs": tensorizer}
BOTH = pytest.mark.parametrize("reader", PACKAGES)


def head(path):
    """Returns the version and feature flags."""
    data = open(path, "rb").read(41)
    return struct.unpack_from("<I", data, 5)[0], data[9]


def written(path, *states, package=ours, **options):
    serializer = package.TensorSerializer(str(path), **options)
    for state in states:
        serializer.write_state_dict(state)
    serializer.close()
    return str(path)


def opened(reader, path, **options):
    return PACKAGES[reader].TensorDeserializer(path, "cpu", **options)


class Model(torch.nn.Module):
    def __init__(self, fill=0.5):
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)
        self.inner = torch.nn.Module()
        self.inner.weight = torch.nn.Parameter(torch.full((2, 3), fill))
        self.inner.small = torch.nn.Parameter(torch.ones(5).bfloat16())
        self.inner.register_buffer("kept", torch.arange(4))
        self.inner.register_buffer("lost", torch.ones(2), persistent=False)


def model_written(path, package, model, **options):
    write = {}
    if "include_non_persistent_buffers" in options:
        write["include_non_persistent_buffers"] = options.pop(
            "include_non_persistent_buffers")
    serializer = package.TensorSerializer(str(path), **options)
    serializer.write_module(model, **write)
    serializer.close()
    return str(path)


# 1, 3: modules and state dicts, buffers that are not persistent, bfloat16


def test_a_module_is_written_as_the_reference_writes_it(tmp_path):
    model = Model()
    files = [open(model_written(tmp_path / name, package, model), "rb").read()
             for name, package in PACKAGES.items()]
    assert files[0] == files[1]


def test_remove_tensors_leaves_none(tmp_path):
    names = []
    for name, package in PACKAGES.items():
        model = torch.nn.Linear(2, 2)
        serializer = package.TensorSerializer(str(tmp_path / name))
        serializer.write_module(model, remove_tensors=True)
        serializer.close()
        assert model.weight is None and model.bias is None
        names.append(open(tmp_path / name, "rb").read()[73:200].strip(b"\0"))
    assert names[0] == names[1]


# 4: meta tensors


@BOTH
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("encrypted", [False, True])
def test_meta_tensors_among_others(tmp_path, reader, lazy, encrypted):
    state = {"a": of(torch.float32), "m": torch.empty(3, 4, device="meta"),
             "b": of(torch.int64), "n": torch.empty(7, device="meta")}
    path = written(
        tmp_path / "x", state,
        encryption=ours.EncryptionParams(KEY) if encrypted else None)
    assert head(path) == (4, 1 if encrypted else 0)
    params = PACKAGES[reader].DecryptionParams.from_key(KEY)
    with opened(reader, path, lazy_load=lazy, verify_hash=True,
                encryption=params if encrypted else None) as tensors:
        for name, tensor in state.items():
            if tensor.is_meta:
                tensor = torch.zeros(tensor.shape)
            same(tensors[name].data, tensor)


@BOTH
def test_a_model_of_meta_tensors(tmp_path, reader):
    with torch.device("meta"):
        model = torch.nn.TransformerEncoderLayer(16, 2, 32)
    path = model_written(tmp_path / "x", ours, model)
    assert head(path) == (4, 0)
    with opened(reader, path) as tensors:
        for name, parameter in model.named_parameters():
            assert tensors[name].shape == parameter.shape
            assert not tensors[name].any()


# 5: persistent buffers


@pytest.mark.parametrize("include", [True, False])
def test_buffers_that_are_not_persistent(tmp_path, include):
    model = Model()
    files = [
        open(model_written(tmp_path / name, package, model,
                           include_non_persistent_buffers=include),
             "rb").read()
        for name, package in PACKAGES.items()
    ]
    assert files[0] == files[1]
    assert (b"inner.lost" in files[0]) == include
    assert b"inner.kept" in files[0]


# 6: structures


def small(i):
    return torch.full((2,), float(i))


STRUCTURES = {
    "list": [small(0), small(1), small(2)],
    "digits": {"0": small(0), "1": small(1), "10": small(2), "2": small(3)},
    "list of dicts": [{"a": small(0), "b": small(1)}, {"c": small(2)}],
    "dict of lists": {"x": [small(0), small(1)], "y": [small(2)]},
    "list of pairs": [{"k": small(0), "v": small(1)},
                      {"k": small(2), "v": small(3)}],
}


def shape(view):
    """Returns the keys of every level, in order, with their types."""
    if isinstance(view, torch.Tensor):
        return view.tolist()
    return [(type(key), key, shape(value)) for key, value in view.items()]


@pytest.mark.parametrize("readers", [1, 4])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_structures_are_seen_alike(tmp_path, structure, lazy, readers):
    state = STRUCTURES[structure]
    path = written(tmp_path / "x", state)
    found = []
    for reader in PACKAGES:
        with opened(reader, path, lazy_load=lazy, num_readers=readers) as t:
            tree = t.tree()
            compare(state, tree)
            first = next(iter(t.keys()))
            level = t[first]
            wrong = str(first) if isinstance(first, int) else 0
            keys = list(level.keys()) if hasattr(level, "keys") else None
            leaf = level
            prefix = [first]
            while not isinstance(leaf, torch.Tensor):
                prefix.append(next(iter(leaf)))
                leaf = leaf[prefix[-1]]
            found.append([
                list(t), len(t), shape(t), keys, wrong in t, first in t,
                t.get(wrong), None in t, t.tree((wrong,), default="none"),
                shape(t.tree(prefix)), prefix,
                [m.tolist() for m in torch.utils._pytree.tree_leaves(
                    t.tree(prefix[:1]))],
            ])
    assert found[0] == found[1]


# 7: long dimensions


def test_long_dimensions_among_others(tmp_path):
    states = [
        {"a": torch.ones(2)},
        {"L": torch.empty(2**32 + 128, dtype=torch.int8, device="meta")},
        {"b": torch.ones(3, 4), "M": torch.empty(2, 2**32, dtype=torch.int8,
                                                 device="meta")},
        {"c": torch.ones(1).bfloat16()},
    ]
    files = [
        open(written(tmp_path / name, *states, package=package), "rb").read()
        for name, package in PACKAGES.items()
    ]
    assert files[0] == files[1]
    assert head(tmp_path / "ours") == (5, 2)
    assert head(written(tmp_path / "y", states[0])) == (1, 0)
    for reader in PACKAGES:
        with opened(reader, str(tmp_path / "ours"), lazy_load=True) as tensors:
            assert tensors["a"].tolist() == [1, 1]
            assert tensors["b"].shape == (3, 4)
            assert tensors["c"].dtype == torch.bfloat16
    with haulway.open(tmp_path / "ours") as checkpoint:
        assert checkpoint.info("M").shape == (2, 2**32)


# 8: encryption


SALT = bytes(range(16))
ENCRYPTIONS = {
    "fixed salt": lambda p: p.EncryptionParams.from_string(
        "phrase", p.EncryptionParams.OpsLimit.MIN,
        p.EncryptionParams.MemLimit.MIN, SALT),
    "bytes": lambda p: p.EncryptionParams.from_string(b"phrase", **COST),
    "default cost": lambda p: p.EncryptionParams.from_string("phrase"),
    "random key": lambda p: p.EncryptionParams.random(),
    "key": lambda p: p.EncryptionParams(KEY),
}


@BOTH
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("kind", ENCRYPTIONS)
def test_encryption(tmp_path, kind, reader, lazy):
    state = {"a": of(torch.float32, (300, 7)), "b": of(torch.bfloat16)}
    params = ENCRYPTIONS[kind](ours)
    path = written(tmp_path / "x", state, encryption=params)
    package = PACKAGES[reader]
    right = package.DecryptionParams.from_key(params.key)
    wrong = package.DecryptionParams.from_key(bytes(32))
    if params.salt is not None:
        right = package.DecryptionParams.from_string("phrase")
        wrong = package.DecryptionParams.from_string("Phrase")
    for verify in (False, True):
        with opened(reader, path, lazy_load=lazy, verify_hash=verify,
                    encryption=right) as tensors:
            compare(state, tensors.tree())
    for bad in (None, wrong):
        with pytest.raises(package.CryptographyError):
            with opened(reader, path, lazy_load=lazy, encryption=bad) as t:
                t.tree()
    with pytest.raises(package.CryptographyError):
        opened(reader, written(tmp_path / "y", state), lazy_load=lazy,
               encryption=right)


def test_keys_are_derived_alike():
    for package in PACKAGES.values():
        assert ENCRYPTIONS["fixed salt"](package).salt == SALT
    assert ENCRYPTIONS["fixed salt"](ours).key == (
        ENCRYPTIONS["fixed salt"](tensorizer).key)
    assert len({ours.EncryptionParams.random().key for _ in range(100)}) == 100


# 9: of the 3.0 branches


def test_segments_of_the_pull_request_have_room_for_so_many(tmp_path):
    state = {f"t{i}": torch.ones(1) for i in range(60)}
    for room in (0, 60):
        path = tmp_path / f"{room}"
        haulway.save(state, path, "tensorizer", layout="segments-pr170",
                     room_for=room)
        assert len(haulway.load(path)) == 60
    with pytest.raises(ValueError, match="no room for 60 tensors in segments "
                                         "for 1"):
        haulway.save(state, tmp_path / "x", "tensorizer",
                     layout="segments-pr170", room_for=1)
    with pytest.raises(haulway.Error, match="name"):
        haulway.save({"n" * 70000: torch.ones(1)}, tmp_path / "x",
                     "tensorizer")
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.parametrize("layout", ["interleaved", "segments"])
def test_a_model_by_single_writes(tmp_path, encrypted, layout):
    model = Model()
    path = tmp_path / "x"
    before = {n: t.clone() for n, t in model.state_dict().items()}
    with ours.TensorSerializer(
        path, layout=layout,
        encryption=ours.EncryptionParams(KEY) if encrypted else None,
    ) as serializer:
        for name, tensor in model.state_dict().items():
            serializer.write_tensor(0, name, ours.TensorType.PARAM, tensor)
    loaded = haulway.load(path, key=KEY if encrypted else None, verify=True)
    for name, tensor in before.items():
        same(loaded[name], tensor)
        same(model.state_dict()[name], tensor)


@pytest.mark.parametrize("at", [0, 1, 70_000, 262_300, 1_500_000])
def test_a_failed_write_leaves_tensors_alone(tmp_path, at):
    class Full(io.RawIOBase):
        left = at

        def writable(self):
            return True

        def write(self, data):
            if len(data) > self.left:
                raise OSError(28, "full")
            self.left -= len(data)
            return len(data)

    state = {"a": of(torch.float32, (1000, 1000)), "b": of(torch.int8)}
    before = {name: tensor.clone() for name, tensor in state.items()}
    serializer = ours.TensorSerializer(
        Full(), encryption=ours.EncryptionParams(KEY))
    serializer.write_state_dict(state)
    with pytest.raises(OSError):
        serializer.close()
    compare(before, state)


# 10: reading


@BOTH
def test_inference_with_what_was_loaded(tmp_path, reader):
    torch.manual_seed(0)
    model = torch.nn.TransformerEncoderLayer(16, 2, 32).eval()
    path = model_written(tmp_path / "x", ours, model)
    fresh = torch.nn.TransformerEncoderLayer(16, 2, 32).eval()
    with opened(reader, path) as tensors:
        tensors.load_into_module(fresh)
    x = torch.rand(3, 2, 16)
    with torch.no_grad():
        assert torch.equal(model(x), fresh(x))


@BOTH
@pytest.mark.parametrize("lazy", [False, True])
def test_four_readers_of_an_open_file(tmp_path, reader, lazy):
    state = {f"t{i}": of(torch.float32, (50, 3), seed=i) for i in range(20)}
    path = written(tmp_path / "x", state)
    with open(path, "rb") as file:
        with opened(reader, file, num_readers=4, lazy_load=lazy,
                    verify_hash=True) as tensors:
            compare(state, tensors.tree())


@BOTH
def test_dtype_casts_what_is_floating_point(tmp_path, reader):
    model = torch.nn.Linear(3, 4)
    path = model_written(tmp_path / "x", ours, model)
    with opened(reader, path, dtype=torch.float16) as tensors:
        assert tensors["weight" if "weight" in tensors else ".weight"
                       ].dtype == torch.float16
        half = torch.nn.Linear(3, 4).half()
        tensors.load_into_module(half)
    assert torch.equal(half.weight, model.weight.half())


def test_filters_choose_alike(tmp_path):
    path = model_written(tmp_path / "x", ours, Model())
    chosen = []
    pattern = re.compile(r".*\.(weight|kept)$")
    for reader in PACKAGES:
        for choose in (pattern.match, lambda name: "inner" in name,
                       lambda name: name.endswith("bias")):
            with opened(reader, path, filter_func=choose) as tensors:
                chosen.append(list(tensors))
            # After an eager load the reference returns nothing here.
            with opened(reader, path, lazy_load=True) as tensors:
                chosen.append([n for _, _, n, _ in
                               tensors.read_tensors(filter_func=choose)])
            with opened(reader, path) as tensors:
                chosen.append(tensors.load_into_module(Model(), choose))
    assert chosen[: len(chosen) // 2] == chosen[len(chosen) // 2:]


# 11: verifying


@BOTH
@pytest.mark.parametrize("readers", [1, 4])
def test_hashes_are_checked(tmp_path, reader, readers):
    state = {f"t{i}": of(torch.float32, seed=i) for i in range(8)}
    path = written(tmp_path / "x", state)
    data = bytearray(open(path, "rb").read())
    with opened(reader, path, num_readers=readers, verify_hash=True) as t:
        compare(state, t.tree())
    # Flip one bit of the last tensor's expected SHA-256.
    data[data.rindex(b"\x01\x20") + 5] ^= 1
    open(path, "wb").write(data)
    mismatch = (haulway.tensorizer.HashMismatchError if reader == "ours"
                else tensorizer.serialization.HashMismatchError)
    with pytest.raises(mismatch):
        opened(reader, path, num_readers=readers, verify_hash=True)


def test_exactly_the_layer_that_was_altered_is_told(tmp_path):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
    path = model_written(tmp_path / "x", ours, model)
    altered = copy.deepcopy(model)
    with torch.no_grad():
        altered[1].weight[0, 0] += 1
    results = []
    for reader in PACKAGES:
        for module in (model, altered):
            with opened(reader, path) as tensors:
                results.append(tensors.verify_module(module))
    assert results[0][0] and not results[1][0]
    assert results[:2] == results[2:]


# 12: local streams


@pytest.mark.parametrize("begin, end", [
    (None, None), (0, None), (7, None), (None, 5), (2, 9), (0, 200), (99, 100),
])
def test_streams_of_local_files(tmp_path, begin, end):
    path = tmp_path / "x"
    content = bytes(range(100))
    path.write_bytes(content)
    expected = content[begin or 0:end]
    with ours.stream_io.open_stream(path, begin=begin, end=end) as stream:
        assert stream.readable() and stream.seekable()
        buffer = bytearray(3)
        assert stream.readinto(buffer) == min(3, len(expected))
        assert bytes(buffer[:len(expected)]) == expected[:3]
        stream.seek(0)
        assert stream.read() == expected
        assert stream.read() == b""
        stream.seek(0)
        assert stream.read(0) == b""
        if begin is None and end is None:
            stream.seek(90)
            assert stream.read(5) == content[90:95]
            stream.seek(-10, io.SEEK_CUR)
            assert stream.read(2) == content[85:87]
    assert stream.closed


@pytest.mark.parametrize("begin, end", [(-1, None), (None, -1), (5, 2), (3, 3)])
def test_wrong_ranges_are_refused(tmp_path, begin, end):
    path = tmp_path / "x"
    path.write_bytes(bytes(10))
    with pytest.raises(ValueError):
        ours.stream_io.open_stream(path, begin=begin, end=end)


def test_a_stream_holds_a_file_for_the_deserializer(tmp_path):
    path = written(tmp_path / "x", {"w": of(torch.float32)})
    with ours.stream_io.open_stream(path) as stream:
        with ours.TensorDeserializer(stream, "cpu") as tensors:
            same(tensors["w"].data, of(torch.float32))
    with pytest.raises(NotImplementedError, match="gs:// streams"):
        ours.stream_io.open_stream("gs://bucket/x")


# 18: faults of the reference and Haulway's results; B18 and others that
# test_tensorizer.py does not test.


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_scalar_meta_tensor_is_zero(tmp_path, encrypted):
    state = {"m": torch.empty((), device="meta"), "w": torch.ones(3)}
    path = written(tmp_path / "x", state,
                   encryption=ours.EncryptionParams(KEY) if encrypted else None)
    for reader in PACKAGES:
        params = PACKAGES[reader].DecryptionParams.from_key(KEY)
        with opened(reader, path, verify_hash=True,
                    encryption=params if encrypted else None) as tensors:
            assert tensors["m"].shape == () and tensors["m"] == 0
            assert tensors["w"].tolist() == [1, 1, 1]


# 20: input that released readers also accept


def test_an_index_that_is_longer_than_the_references(tmp_path):
    state = {f"layers.{i}.weight": torch.full((1,), float(i)).bfloat16()
             for i in range(8_000)}
    path = written(tmp_path / "x", state)
    assert struct.unpack_from("<Q", open(path, "rb").read(80), 65)[0] > 262144
    with opened("theirs", path, verify_hash=True, num_readers=1) as tensors:
        assert list(tensors) == list(state)
        assert tensors["layers.4096.weight"] == 4096


@pytest.mark.parametrize("more", [b"\0" * 8, b"anything at all" * 999])
def test_bytes_behind_the_end_are_nobodys(tmp_path, more):
    path = written(tmp_path / "x", {"w": of(torch.float32)})
    with open(path, "ab") as file:
        file.write(more)
    for reader in PACKAGES:
        with opened(reader, path, verify_hash=True) as tensors:
            same(tensors["w"].data, of(torch.float32))
    assert haulway.verify(path).ok
