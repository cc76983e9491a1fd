"""Files in both directions between Haulway and the tensorizer package."""

import io

import numpy
import pytest
import tensorizer
import tensorizer.serialization
import torch

import haulway
import haulway.tensorizer as ours
from torch_versions import dtypes

KEY = bytes(range(32))
COST = {"opslimit": 1, "memlimit": 8192}
DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.float32,
    torch.float64, torch.bfloat16, torch.complex32, torch.complex64,
    torch.complex128, torch.float8_e5m2, torch.float8_e4m3fn,
    torch.float8_e5m2fnuz, torch.float8_e4m3fnuz, torch.bits8,
    torch.bits16, torch.uint1, torch.uint4, torch.uint7,
    *dtypes("float8_e8m0fnu", "float4_e2m1fn_x2", "int1", "int4", "int7"),
]
PLAIN = DTYPES[:6] + [torch.float16, torch.float32, torch.float64,
                      torch.complex64, torch.complex128]


def of(dtype, shape=(3, 4), seed=0):
    generator = torch.Generator().manual_seed(seed)
    count = torch.empty(shape, dtype=dtype).nbytes
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (count,),
                        dtype=torch.uint8, generator=generator)
    return raw.view(dtype).reshape(shape)


def bits(tensor):
    tensor = tensor.detach().contiguous()
    return tensor.reshape(-1).view(torch.uint8)


def same(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape
    assert torch.equal(bits(a), bits(b))


STRUCTURES = {
    "flat": lambda: {f"{d}": of(d, seed=i) for i, d in enumerate(DTYPES)},
    "scalars": lambda: {f"{d}": of(d, (1,)).reshape(()) for d in PLAIN},
    "empty": lambda: {"w": of(torch.float32), "z": torch.empty(0, 3)},
    "list": lambda: [of(torch.float32, seed=i) for i in range(12)],
    "nested": lambda: {
        "a": [of(torch.int8), {"b": of(torch.bfloat16), "0": of(torch.bool)}],
        "é": (of(torch.float64),),
        "deep": {"er": {"and": {"deeper": [[of(torch.int64)]]}}},
    },
    "digits": lambda: {"0": of(torch.float32), "1": of(torch.int32)},
    "views": lambda: {"t": of(torch.float32, (8, 9)).t(),
                      "s": of(torch.float32, (8, 9))[::2, 1:]},
    "large": lambda: {"w": of(torch.float32, (1500, 1001)),
                      "v": of(torch.uint8, (5_000_001,))},
    "meta": lambda: {"m": torch.empty(2, 3, device="meta"),
                     "w": of(torch.float32)},
}
SECRETS = ["plain", "key", "passphrase"]


def parameters(package, secret):
    if secret == "plain":
        return None, None
    if secret == "key":
        return (package.EncryptionParams(KEY),
                package.DecryptionParams.from_key(KEY))
    return (package.EncryptionParams.from_string("phrase", **COST),
            package.DecryptionParams.from_string("phrase"))


def compare(expected, found):
    if isinstance(expected, torch.Tensor):
        if expected.is_meta:
            expected = torch.zeros(expected.shape, dtype=expected.dtype)
        same(expected, found)
    elif isinstance(expected, dict):
        assert list(expected) == list(found)
        for key, value in expected.items():
            compare(value, found[key])
    else:
        assert isinstance(found, list) and len(expected) == len(found)
        for one, other in zip(expected, found):
            compare(one, other)


CASES = [
    pytest.param(structure, secret, id=f"{structure}-{secret}")
    for structure in STRUCTURES
    for secret in SECRETS
]


def theirs_write(path, state, secret):
    serializer = tensorizer.TensorSerializer(
        str(path), encryption=parameters(tensorizer, secret)[0])
    serializer.write_state_dict(state)
    serializer.close()


def ours_write(path, state, secret):
    serializer = ours.TensorSerializer(
        path, encryption=parameters(ours, secret)[0])
    serializer.write_state_dict(state)
    serializer.close()


@pytest.mark.parametrize("structure, secret", CASES)
def test_reads_what_the_reference_writes(tmp_path, structure, secret):
    state = STRUCTURES[structure]()
    if structure == "empty" and secret != "plain":
        # The reference cannot write an empty tensor encrypted.
        state.pop("z")
    path = tmp_path / "x.tensors"
    theirs_write(path, state, secret)
    options = {"key": {"key": KEY}, "passphrase": {"passphrase": "phrase"}}
    found = haulway.load(path, verify=True, **options.get(secret, {}))
    compare(state, found)
    assert haulway.verify(path, **options.get(secret, {})).ok
    with ours.TensorDeserializer(
        path, "cpu", verify_hash=True, encryption=parameters(ours, secret)[1]
    ) as tensors:
        compare(state, tensors.tree())


@pytest.mark.parametrize("structure, secret", CASES)
def test_the_reference_reads_what_we_write(tmp_path, structure, secret):
    state = STRUCTURES[structure]()
    path = tmp_path / "x.tensors"
    ours_write(path, state, secret)
    with tensorizer.TensorDeserializer(
        str(path), "cpu", verify_hash=True,
        encryption=parameters(tensorizer, secret)[1],
    ) as tensors:
        compare(state, tensors.tree())


@pytest.mark.parametrize("structure", STRUCTURES)
def test_unencrypted_files_are_the_same(tmp_path, structure):
    state = STRUCTURES[structure]()
    theirs_write(tmp_path / "theirs", state, "plain")
    ours_write(tmp_path / "ours", state, "plain")
    assert (tmp_path / "ours").read_bytes() == (
        tmp_path / "theirs").read_bytes()


def module():
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4),
        torch.nn.Embedding(5, 6), torch.nn.LSTM(4, 5),
    )


@pytest.mark.parametrize("writer, reader", [(ours, tensorizer),
                                            (tensorizer, ours)])
@pytest.mark.parametrize("secret", SECRETS)
def test_modules(tmp_path, writer, reader, secret):
    model = module()
    path = str(tmp_path / "x.tensors")
    serializer = writer.TensorSerializer(
        path, encryption=parameters(writer, secret)[0])
    serializer.write_module(model)
    serializer.close()
    fresh = module()
    with torch.no_grad():
        for tensor in fresh.state_dict().values():
            tensor.zero_()
    with reader.TensorDeserializer(
        path, "cpu", encryption=parameters(reader, secret)[1]
    ) as tensors:
        assert tensors.verify_module(model)[0]
        assert not tensors.verify_module(fresh)[0]
        tensors.load_into_module(fresh)
    for name, tensor in model.state_dict().items():
        same(tensor, fresh.state_dict()[name])


def test_iteration_gives_the_same(tmp_path):
    path = str(tmp_path / "x.tensors")
    serializer = tensorizer.TensorSerializer(path)
    serializer.write_module(module())
    serializer.close()
    given = []
    for package in (tensorizer, ours):
        with package.TensorDeserializer(path, "cpu", lazy_load=True) as tensors:
            given.append([
                (index, int(kind), name, array.tobytes(), opaque, dtype)
                for index, kind, name, array, opaque, dtype
                in tensors.read_numpy_arrays()
            ])
    assert given[0] == given[1]


def test_keys_and_figures_are_the_same(tmp_path):
    path = str(tmp_path / "x.tensors")
    theirs_write(path, STRUCTURES["nested"](), "plain")
    with tensorizer.TensorDeserializer(path, "cpu") as a:
        with ours.TensorDeserializer(path, "cpu") as b:
            assert list(a.keys()) == list(b.keys())
            assert a.total_tensor_bytes == b.total_tensor_bytes
            assert a.total_file_bytes == b.total_file_bytes
            assert list(a["a"][1]) == list(b["a"][1])


def test_streams(tmp_path):
    stream = io.BytesIO()
    serializer = ours.TensorSerializer(stream)
    serializer.write_state_dict({"w": of(torch.float32)})
    serializer.close()
    data = stream.getvalue()
    with tensorizer.TensorDeserializer(io.BytesIO(data), "cpu") as tensors:
        same(tensors["w"].data, of(torch.float32))
    stream = io.BytesIO(data)
    with ours.TensorDeserializer(stream, "cpu") as tensors:
        same(tensors["w"].data, of(torch.float32))


def test_arrays(tmp_path):
    path = str(tmp_path / "x.tensors")
    array = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    for package in (tensorizer, ours):
        serializer = package.TensorSerializer(path)
        serializer.write_tensor(7, "w", package.TensorType.PARAM, array)
        serializer.close()
        data = open(path, "rb").read()
        if package is tensorizer:
            expected = data
    assert data == expected


def of_kind(call, *arguments, **named):
    """Returns the exceptions that a caller may name to catch a failure."""
    with pytest.raises(Exception) as caught:
        call(*arguments, **named)
    return {KeyError, RuntimeError, TypeError, ValueError} & {*caught.type.__mro__}


@pytest.mark.parametrize("wrong", [
    lambda package, path: package.TensorDeserializer(path, "cuda"),
    lambda package, path: package.TensorDeserializer(path, "cuda", lazy_load=True),
    lambda package, path: package.TensorDeserializer(path, "none", lazy_load=True),
    lambda package, path: package.TensorDeserializer(
        path, "cpu", encryption=package.DecryptionParams()),
    lambda package, path: list(package.TensorDeserializer(
        path, "cpu", lazy_load=True).read_tensors(num_tensors=-2)),
    lambda package, path: package.TensorDeserializer(
        path, "cpu").load_into_module(torch.nn.Identity()),
])
def test_wrong_use_is_refused_as_by_the_reference(tmp_path, wrong, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = str(tmp_path / "x.tensors")
    with ours.TensorSerializer(path) as serializer:
        serializer.write_module(torch.nn.Sequential(torch.nn.Linear(2, 2)))
    expected = of_kind(wrong, tensorizer, path)
    assert expected and expected <= of_kind(wrong, ours, path)


def test_opaque_arrays_have_the_reference_s_type(tmp_path):
    path = str(tmp_path / "x.tensors")
    state = {"b": of(torch.bfloat16), "f": of(torch.float8_e5m2),
             "c": of(torch.complex32)}
    ours_write(path, state, "plain")
    found, expected = (
        [(name, array.dtype, array.tolist(), *rest) for _, _, name, array, *rest
         in package.TensorDeserializer(path, "cpu", lazy_load=True)
         .read_numpy_arrays(allow_raw_data=True)]
        for package in (ours, tensorizer)
    )
    assert found == expected and len(found) == 3

