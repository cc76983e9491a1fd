"""A file that every load refuses fails verify, and is refused by an Error."""

import collections
import io
import random
import zipfile

import numpy
import pytest
import torch

import haulway
import haulway.torch
from cases import quantized, sparse, with_attributes
from scan_cases import zipped

pytestmark = pytest.mark.filterwarnings("ignore")

OBJECTS = {
    "state": lambda: {"a": torch.ones(2, 3), "b": torch.arange(4)},
    "parameters": with_attributes,
    "quantized": lambda: quantized("tensor"),
    "by channel": lambda: quantized("channel"),
    "coo": lambda: sparse("coo"),
    "csr": lambda: sparse("csr"),
    "bsc": lambda: sparse("bsc"),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "meta": lambda: torch.empty(3, device="meta"),
    "parts": lambda: [torch.device("cuda:1"), torch.Size([1, 2]), torch.float16],
    "conjugate": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "storage": lambda: torch.ones(3).untyped_storage(),
    "strided": lambda: torch.ones(4, 6)[1:, ::2],
    "unsigned": lambda: torch.ones(3, dtype=torch.uint16),
    "data": lambda: [collections.Counter("ab"), {1, 2}, {"a": (1, 2.5)}],
}


def records(data):
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def mutated(data, chance):
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        at = chance.randrange(2, len(changed))
        kind = chance.randrange(4)
        if kind == 0:
            changed[at] = chance.randrange(256)
        elif kind == 1:
            changed[at] = (changed[at] + chance.choice((1, -1))) % 256
        elif kind == 2:
            del changed[at : at + chance.randrange(1, 4)]
        else:
            begin = chance.randrange(2, len(changed))
            changed[at:at] = changed[begin : begin + chance.randrange(1, 12)]
    return bytes(changed)


@pytest.mark.parametrize("name", OBJECTS)
def test_what_a_load_refuses_does_not_pass_verify(name):
    out = io.BytesIO()
    torch.save(OBJECTS[name](), out)
    members = records(out.getvalue())
    chance = random.Random(name)
    passed = 0
    for _ in range(150):
        made = mutated(members["archive/data.pkl"], chance)
        data = zipped({**members, "archive/data.pkl": made})
        if not haulway.verify(data):
            continue
        passed += 1
        for framework in ("torch", "numpy"):
            try:
                haulway.load(data, framework)
            except haulway.UnsafeError:
                pass  # Its tensors can be loaded, and scan reports it.
            except haulway.UnsupportedError:
                pass  # This torch or NumPy lacks the device or type.
            except haulway.CorruptError as error:
                assert "text that Python 2 wrote" in str(error), made
    assert passed


class Called:
    """Pickled as a call."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


def rebuilt(name, *args):
    return Called(getattr(torch._utils, name), args)


def storage(dtype=torch.float32):
    return torch.ones(4, dtype=dtype).storage()


V2 = "_rebuild_tensor_v2"
HOOKS = collections.OrderedDict()
REFUSED = {
    "too few arguments": rebuilt(V2, storage(), 0, (2,), (1,), False),
    "too many arguments": rebuilt(
        V2, storage(), 0, (2,), (1,), False, HOOKS, {}, 1),
    "gradients of integers": rebuilt(
        V2, storage(torch.int32), 0, (2,), (1,), True, HOOKS),
    "a parameter of integers": rebuilt(
        "_rebuild_parameter", torch.arange(3), True, HOOKS),
    "a parameter of two things": rebuilt(
        "_rebuild_parameter", torch.ones(3), True),
    "a shape that is a device": rebuilt(
        V2, storage(), 0, torch.device("cpu"), (1,), False, HOOKS),
    "a quantizer of nothing": rebuilt(
        "_rebuild_qtensor", storage(), 0, (2,), (1,),
        (torch.per_tensor_affine, 0.1, 0), False, HOOKS),
    "a device of bytes": Called(torch.device, (b"cpu",)),
    "a device twice over": Called(torch.device, ("cuda:1", 2)),
    "a size of text": Called(torch.Size, (("a",),)),
    "a size of a number": Called(torch.Size, (3,)),
    "a layout of no name": Called(
        torch.serialization._get_layout, ("torch.dense",)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_calls_that_torch_does_not_take(name):
    out = io.BytesIO()
    torch.save([REFUSED[name]], out)
    data = out.getvalue()
    found, = haulway.verify(data).findings
    assert found.code == "kCorrupt" and found.byte > 0
    for load in (haulway.load, haulway.torch.load, haulway.open):
        with pytest.raises(haulway.CorruptError, match="at byte"):
            load(io.BytesIO(data))


@pytest.mark.parametrize("change", [
    ((torch.per_channel_affine, torch.ones(2), torch.zeros(3), 0), "found 2"),
    ((torch.per_channel_affine, torch.ones(3), torch.zeros(2), 0), "found 2"),
    ((torch.per_channel_affine, torch.ones(3), torch.zeros(3), 2), "quantizer"),
    ((torch.per_channel_affine, torch.ones(3, 1), torch.zeros(3), 0), "row"),
    ((torch.per_channel_symmetric, torch.ones(3), torch.zeros(3), 0),
     "quantizer"),
    ((torch.per_tensor_affine, "a", 0), "quantizer"),
], ids=range(6))
def test_quantizers_that_do_not_fit(change):
    quantizer, words = change
    tensor = quantized("channel")
    made = rebuilt("_rebuild_qtensor", tensor._typed_storage(), 0, (3, 4),
                   (4, 1), quantizer, False, HOOKS)
    out = io.BytesIO()
    torch.save(made, out)
    found, = haulway.verify(out.getvalue()).findings
    assert words in found.message
    with pytest.raises(haulway.CorruptError):
        haulway.load(out.getvalue())


def test_a_device_that_this_torch_has_not():
    out = io.BytesIO()
    torch.save([Called(torch.device, ("xyz", 1)), torch.ones(2)], out)
    assert haulway.verify(out.getvalue())
    with pytest.raises(haulway.UnsupportedError, match="no such device: xyz:1"):
        haulway.load(out.getvalue())


def test_tensors_are_keys_in_torch_alone():
    out = io.BytesIO()
    torch.save({torch.ones(2): 1}, out)
    assert len(haulway.load(out.getvalue())) == 1
    with pytest.raises(haulway.UnsupportedError, match="only torch's can be"):
        haulway.load(out.getvalue(), "numpy")


def test_text_of_python_2_in_another_encoding():
    made = zipped({"archive/data.pkl": b"\x80\x02U\x02\xe9\xe8.",
                   "archive/version": b"3\n"})
    with pytest.raises(haulway.CorruptError, match="is not utf-8"):
        haulway.load(made)
    assert haulway.torch.load(io.BytesIO(made), encoding="latin1") == "\xe9\xe8"


def test_numbers_of_numpy_are_checked_when_they_are_made():
    # They describe no tensor, so verify reports nothing.
    scalar = numpy.float64(1).__reduce__()[0]
    out = io.BytesIO()
    torch.save([Called(scalar, (numpy.dtype("f8"), b"1234"))], out)
    assert haulway.verify(out.getvalue())
    with pytest.raises(haulway.CorruptError, match="expected 8 bytes"):
        haulway.load(out.getvalue())
