"""Values of every kind arrive from DataLoader's workers as from torch's."""

import array
import collections
import datetime
import enum
import pathlib

import numpy
import pytest
import torch
from torch import nn

import loader_data as data
from haulway.ipc import DataLoader
from loader_cases import BOTH, compare, failure, same


class Colour(enum.Enum):
    RED = 1


class Marked(torch.Tensor):
    """A class derived from torch's."""


def given(value, **options):
    """Returns the value, sent through the workers of both loaders as one
    batch."""
    return compare(data.Making(lambda i: value, 1), batch_size=None,
                   num_workers=1, collate_fn=data.as_they_are, **options)[0]


def kept(value):
    """Sends the value through our loader only, which keeps what torch's
    loses."""
    loader = DataLoader(data.Making(lambda i: value, 1), batch_size=None,
                        num_workers=1, collate_fn=data.as_they_are)
    same(next(iter(loader)), value)


DTYPES = [dtype for dtype in vars(torch).values()
          if isinstance(dtype, torch.dtype)]
STRIDED = []
for _dtype in dict.fromkeys(DTYPES):
    if str(_dtype).startswith(("torch.q", "torch.bits")):
        continue
    try:
        STRIDED.append(torch.arange(2048, dtype=torch.uint8)
                       .repeat(16).view(_dtype).clone())
    except (RuntimeError, TypeError):
        pass  # A quantized dtype, or one of less than a byte.


def test_every_dtype():
    assert len(STRIDED) >= 20
    kept(STRIDED)
    kept([tensor[:2].clone() for tensor in STRIDED])


def test_dtypes_of_arrays():
    kinds = ["?", "i1", "u2", "i4", "u8", "f2", "f4", "f8", "c8", "c16", "S5",
             "U3", "M8[s]", "m8[ms]", [("a", "i4"), ("b", "f8")]]
    given([numpy.zeros(1000, kind) for kind in kinds])
    given([numpy.zeros(2, kind) for kind in kinds])
    given(numpy.array([{"a": 1}, None, "text"], dtype=object).tolist())
    kept(numpy.array([None, None], dtype=object))
    kept(numpy.arange(3000).astype(">f8"))


@pytest.mark.parametrize("elements", [0, 1, 700, 5000])
def test_sizes_below_and_above_what_goes_into_an_arena(elements):
    given([torch.arange(elements), numpy.arange(elements), b"x" * elements,
           bytearray(elements), "y" * elements, array.array("d", [0.0] * elements)])


def test_zero_sizes():
    given([torch.empty(0), torch.empty(3, 0, 2), numpy.empty((0, 4)), [], {}, (),
           "", b"", torch.tensor(5.0), numpy.array(3)])


def test_strides():
    base = torch.arange(6000.0).view(2, 30, 100)
    given([base.transpose(0, 2), base[:, ::2], base[0].t(),
           base.expand(2, 30, 100), torch.ones(1).expand(4000),
           torch.zeros(2, 3, 20, 30).to(memory_format=torch.channels_last)])


def test_arrays_in_other_orders():
    base = numpy.arange(6000.0).reshape(2, 30, 100)
    given([numpy.asfortranarray(base), base[:, ::2], base[::-1], base.T])


def test_sharing_within_a_batch():
    def check(samples):
        whole, part, again, array_one, array_two = samples
        whole[10] = -7
        assert float(part[0]) == -7 and again is whole
        assert array_one is array_two

    tensor = torch.arange(3000.0)
    numbers = numpy.arange(3000)
    check(given([tensor, tensor[10:20], tensor, numbers, numbers]))


def test_gradients_and_parameters():
    given([torch.ones(2000, requires_grad=True), nn.Parameter(torch.ones(2000)),
           nn.Parameter(torch.ones(3), requires_grad=False)])


def test_conjugated_and_negated():
    complex_one = torch.view_as_complex(torch.arange(4000.0).view(-1, 2))
    kept([complex_one.conj(), complex_one.imag, complex_one.conj().imag])


def test_sparse_tensors():
    dense = torch.eye(80)
    tensors = [dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc(),
               dense.to_sparse_bsr((2, 2)), dense.to_sparse_bsc((2, 2)),
               torch.sparse_coo_tensor(torch.empty(1, 0, dtype=torch.int64),
                                       torch.empty(0), (4,))]
    kept(tensors)


def test_nested_tensors():
    for layout in torch.strided, torch.jagged:
        given(torch.nested.nested_tensor(
            [torch.ones(2, 700), torch.zeros(3, 700)], layout=layout))


def test_quantized_tensors():
    plain = torch.linspace(-1, 1, 5000).view(50, 100)
    tensors = [
        torch.quantize_per_tensor(plain, 0.1, 10, torch.quint8),
        torch.quantize_per_tensor(plain, 0.1, 0, torch.qint32),
        torch.quantize_per_channel(plain, torch.full((50,), 0.1),
                                   torch.zeros(50, dtype=torch.long), 0,
                                   torch.qint8),
    ]
    kept(tensors)


def test_derived_tensors():
    got = given(torch.arange(3000.0).as_subclass(Marked))
    assert type(got) is Marked


def test_storages():
    typed = torch.arange(2000.0)._typed_storage()
    loader = DataLoader(data.Making(lambda i: typed, 1), batch_size=None,
                        num_workers=1, collate_fn=data.as_they_are)
    assert list(loader)[0].tolist() == typed.tolist()


def test_containers():
    tensor = torch.arange(3000.0)
    given({"a": [tensor, (1, 2.5, None)], "b": {"c": tensor + 1}, 3: {4, 5},
           "d": data.Pair(tensor, "x"), "e": data.Record("n", tensor),
           "f": collections.OrderedDict(z=tensor, y=1),
           "g": collections.deque([1, tensor]).copy().popleft()})


def test_objects_of_python():
    given([datetime.datetime(2020, 1, 2), pathlib.PurePosixPath("/a"), Colour.RED,
           frozenset([1]), range(5), 10**40, complex(1, 2), slice(1, 2), Ellipsis,
           len, collections.Counter("aab")])


def test_types_of_a_programs_own():
    compare(data.Chosen(*torch.arange(8000.0).view(4, 2000)), batch_size=2,
            collate_fn=data.to_batch)


@pytest.mark.parametrize("make", [
    lambda i: {"a": torch.ones(3) * i, "b": str(i), "c": {"d": i}},
    lambda i: data.Pair(torch.ones(3) * i, i),
    lambda i: [i, float(i), "s", b"t"],
    lambda i: (numpy.float32(i), numpy.arange(3) + i, i > 1),
    lambda i: collections.OrderedDict(x=i, y=[i, i]),
    lambda i: torch.full((200, 300), i),
    lambda i: torch.full((64, 64), i, dtype=torch.bfloat16),
    lambda i: numpy.full((100, 300), i),
    lambda i: range(i, i + 2),
    lambda i: data.Words(a=i, b=2 * i),
    lambda i: data.Numbered([i, i + 1, i + 2]),
], ids=["dict", "named", "list", "numpy", "ordered", "large", "bfloat16", "array",
        "range", "own-dict", "own-list"])
def test_collated_by_default(make):
    compare(data.Making(make), batch_size=2)
    compare(data.Making(make), batch_size=None)


@pytest.mark.parametrize("name", [
    "float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8"])
def test_scalars_of_numpy(name):
    scalar = getattr(numpy, name)
    compare(data.Making(lambda i: scalar(i)), batch_size=2)
    compare(data.Making(lambda i: scalar(i)), batch_size=None)


@pytest.mark.parametrize("make", [
    lambda i: numpy.array(["text"]),
    lambda i: numpy.array([None]),
    lambda i: [1] * (i + 1),
    lambda i: torch.ones(i + 1),
    lambda i: object(),
    lambda i: torch.eye(3).to_sparse(),
], ids=["texts", "objects", "lengths", "shapes", "unknown", "sparse"])
def test_what_cannot_be_collated(make):
    said = []
    for each in BOTH:
        _, error = failure(each, data.Making(make), batch_size=2, num_workers=1)
        said.append((type(error), str(error).splitlines()[-1]))
    assert said[0] == said[1]


def test_mixed_memory_maps(tmp_path):
    path = tmp_path / "numbers.npy"
    numpy.save(path, numpy.arange(20000.0).reshape(20, 1000))
    compare(numpy.load(path, mmap_mode="r"), batch_size=4)


def test_views_can_be_written_to():
    loader = DataLoader(data.Numbers(8, 5000), batch_size=2, num_workers=2)
    batches = list(loader)
    for values, _ in batches:
        values += 1
    assert float(batches[3][0][1, 7]) == 8


def test_a_small_part_of_a_large_storage_goes_alone():
    large = torch.zeros(4 << 20)
    loader = DataLoader(data.Making(lambda i: large[:10], 2), batch_size=None,
                        num_workers=1)
    assert all(b.untyped_storage().nbytes() < 1 << 20 for b in loader)
