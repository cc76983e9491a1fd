"""An arena transports everything that pickle can, without a difference."""

import array
import collections
import dataclasses
import datetime
import pickle

import numpy
import pytest

from haulway import ipc
from haulway.ipc import offload, restore
from optional_torch import torch

N = 3000  # Elements; exceeds the threshold for every dtype.
RANDOM = numpy.random.default_rng(0)


@pytest.fixture(params=["arena", "pool", "ring"])
def carry(request):
    """Sends an item through an arena; afterwards nothing may be held."""
    arena = {
        "arena": lambda: ipc.SharedMemoryArena(1 << 24),
        "pool": lambda: ipc.SharedMemorySegmentPool(1 << 22, 2),
        "ring": lambda: ipc.SharedMemoryRingBuffer(1 << 22),
    }[request.param]()
    writer, reader = arena.open_writer(), arena.open_reader()
    return lambda item: restore(offload(item, writer), reader)


@dataclasses.dataclass
class Sample:
    pixels: numpy.ndarray
    label: int


Point = collections.namedtuple("Point", "x y")


class Bytes(bytes):
    pass


class ByteArray(bytearray):
    pass


ARRAYS = {
    **{
        str(numpy.dtype(d)): RANDOM.integers(0, 2, N).astype(d)
        for d in ("f2", "f4", "f8", "i1", "i8", "u4", "?", "c8", "c16", "g",
                  ">f4", ">i8")
    },
    "str": numpy.array(["abc", "de"] * N),
    "bytes": numpy.array([b"abc", b"de"] * N, "S10"),
    "dates": numpy.arange(N).astype("M8[ns]"),
    "durations": numpy.arange(N).astype("m8[s]"),
    "objects": numpy.array([None, "x", 3] * N, dtype=object),
    "structured": numpy.array([(1, 2.5, "a")] * N, "i4,f8,U3"),
    "nested structure": numpy.zeros(N, [("a", "M8[s]"), ("b", "i4", (2, 2))]),
    "fortran": numpy.asfortranarray(RANDOM.random((50, 90))),
    "strided": RANDOM.random((90, 90))[::3, ::2],
    "reversed": RANDOM.random(N)[::-1],
    "broadcast": numpy.broadcast_to(RANDOM.random(100), (100, 100)),
    "no dimensions": numpy.array(3.5),
    "empty": numpy.zeros((0, 5)),
    "one row": RANDOM.random((1, 6000)),
    "matrix": numpy.matrix(RANDOM.random((90, 90))),
    "masked": numpy.ma.masked_less(RANDOM.random(N), 0.5),
    "recarray": numpy.rec.array([(1, 2.5)] * N, dtype="i4,f8"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(carry, name):
    item = ARRAYS[name]
    plain = pickle.loads(pickle.dumps(item, 5))
    back = carry(item)
    assert type(back) is type(plain)
    assert back.dtype == plain.dtype and back.shape == plain.shape
    assert back.flags.f_contiguous == plain.flags.f_contiguous
    assert back.flags.c_contiguous == plain.flags.c_contiguous
    assert back.flags.aligned
    numpy.testing.assert_array_equal(numpy.asarray(back), numpy.asarray(plain))


def test_read_only_arrays_stay_so(carry):
    item = numpy.ones(N)
    item.flags.writeable = False
    assert not carry(item).flags.writeable
    assert carry(numpy.ones(N)).flags.writeable


def test_the_same_object_twice_stays_one(carry):
    one, data, tensor = numpy.ones(N), bytes(100_000), torch.ones(N)
    a, b, c, d, e, f = carry([one, one, data, data, tensor, tensor])
    assert a is b and e is f
    assert bytes(c) == bytes(d)


TENSORS = {
    **{
        str(d): torch.ones(N * 2).to(d)
        for d in (torch.float64, torch.bfloat16, torch.float16, torch.int32,
                  torch.uint8, torch.bool, torch.complex64,
                  torch.float8_e4m3fn, torch.float8_e5m2)
    },
    "small": torch.arange(5),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 4),
    "transposed": torch.rand(50, 90).t(),
    "channels last": torch.rand(2, 3, 40, 40).to(
        memory_format=torch.channels_last
    ),
    "expanded": torch.rand(100, 1).expand(100, 100),
    "conjugated": torch.rand(N, dtype=torch.complex64).conj(),
    "negated": torch.rand(N, dtype=torch.complex64).conj().imag,
    "slice": torch.rand(100, 100)[10:50, 3:9],
    "row of much": torch.rand(1000, 1000)[7],
    "leaf": torch.rand(N, requires_grad=True),
    "parameter": torch.nn.Parameter(torch.rand(N)),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors(carry, name):
    item = TENSORS[name]
    back = carry(item)
    assert type(back) is type(item) and back.dtype == item.dtype
    assert back.stride() == item.stride()
    assert back.requires_grad == item.requires_grad
    assert back.is_conj() == item.is_conj() and back.is_neg() == item.is_neg()
    assert torch.equal(back.float() if "float8" in name else back,
                       item.float() if "float8" in name else item)


def test_sparse_tensors(carry):
    sparse = torch.eye(100).to_sparse()
    assert torch.equal(carry(sparse).to_dense(), torch.eye(100))


@pytest.mark.parametrize("elements", [0, 4, N])
def test_quantized_tensors_keep_their_quantizer(carry, elements):
    by_tensor = torch.quantize_per_tensor(
        torch.rand(elements), 0.1, 3, torch.qint8)
    by_channel = torch.quantize_per_channel(
        torch.rand(elements, 2), torch.tensor([0.1, 0.2]),
        torch.tensor([1, 2]), 1, torch.quint8)
    back, also, parameter, again = carry([
        by_tensor, by_channel,
        torch.nn.Parameter(by_tensor, requires_grad=False), by_tensor])
    for was, came in ((by_tensor, back), (by_channel, also),
                      (by_tensor, parameter)):
        assert torch.equal(came.int_repr(), was.int_repr())
        assert torch.equal(came.dequantize(), was.dequantize())
        assert came.qscheme() == was.qscheme()
    assert type(parameter) is torch.nn.Parameter and again is back


@pytest.mark.parametrize("elements", [4, N])
@pytest.mark.parametrize("layout", ["strided", "jagged"])
def test_nested_tensors(carry, layout, elements):
    parts = [torch.rand(elements, 3), torch.rand(2 * elements, 3)]
    nested = torch.nested.nested_tensor(
        parts, layout=getattr(torch, layout))
    back = carry(nested)
    assert back.is_nested and back.layout is nested.layout
    assert all(map(torch.equal, back.unbind(), parts))


def test_views_of_one_storage_still_share_it(carry):
    base = torch.zeros(N)
    a, b = carry([base[: N // 2], base])
    a[0] = 7
    assert b[0] == 7


def test_modules(carry):
    module = torch.nn.Linear(100, 50)
    back = carry(module)
    assert torch.equal(back.weight, module.weight)
    assert back.weight.requires_grad


@pytest.mark.parametrize("size", [10, 5000, 100_000])
def test_bytes_like(carry, size):
    data = bytes(range(256)) * (size // 256 + 1)
    for item in (data, bytearray(data), memoryview(data), memoryview(data)[::3]):
        back = carry(item)
        assert type(back) in (type(item), memoryview)
        assert bytes(back) == bytes(item)
    for item in (Bytes(data), ByteArray(data)):
        back = carry(item)
        assert type(back) is type(item) and back == item


def test_memoryviews_keep_shape_and_format(carry):
    source = numpy.arange(3000, dtype=numpy.int32).reshape(30, 100)
    back = carry(memoryview(source))
    assert back.shape == (30, 100) and back.format == "i"
    assert back.tolist() == source.tolist()
    assert carry(memoryview(bytes(9000))).readonly
    assert not carry(memoryview(numpy.zeros((0, 5)))).readonly


@pytest.mark.parametrize("dtype", ["f2", "g", ">i4", [("a", "i4"), ("O", "f8")]])
def test_memoryviews_of_any_elements_keep_their_bytes(carry, dtype):
    # Before Python 3.12, memoryview.cast() does not take half floats.
    source = memoryview(numpy.ones(9600, "u1").view(dtype))
    assert carry(source).tobytes() == source.tobytes()


@pytest.mark.parametrize("dtype", ["O", [("a", "O"), ("b", "i4")]])
def test_memoryviews_of_objects_are_refused(carry, dtype):
    with pytest.raises(TypeError, match="memoryview"):
        carry(memoryview(numpy.zeros(3000, dtype)))


def test_large_bytes_as_keys(carry):
    key = b"k" * 70_000
    assert carry({key: 1}) == {key: 1}
    assert carry({key, b"l" * 5000}) == {key, b"l" * 5000}


@pytest.mark.parametrize(
    "item",
    [
        None, True, 2**100, 1.5, 1j, "text", "t" * 100_000, "\ud800",
        datetime.date(2020, 1, 2), {1, 2}, frozenset({3}), Point(1, 2),
        collections.OrderedDict(a=1), array.array("d", range(N)),
        list(range(N)), [[]], Ellipsis, int, len, range(5),
        [b"a" * 65536, "b" * 65536, bytearray(b"c" * 65536), b"d" * 65535],
        ["u" * 70_000, b"v" * 70_000, "w" * 300_000, b"x" * 300_000],
    ],
    ids=lambda item: str(item)[:20],
)
def test_everything_else(carry, item):
    back = carry(item)
    assert type(back) is type(item)
    if isinstance(item, list) and item and isinstance(item[0], (bytes, str)):
        back = [bytes(b) if isinstance(b, memoryview) else b for b in back]
    assert back == item


def test_arrays_whatever_multiprocessing_registers(carry):
    # Its import makes pickle reduce array.array to bytes.
    import multiprocessing.managers

    assert multiprocessing.managers
    for typecode in "bBuhHiIlLqQfd":
        values = "\u1234x" * N if typecode == "u" else [1, 2, 100] * N
        item = array.array(typecode, values)
        back = carry(item)
        assert back == item and back.typecode == typecode
    assert carry(array.array("d")) == array.array("d")


def test_streams_that_look_like_announcements(carry):
    # The last bytes of a frame look like an opcode that announces a payload
    # with the length of what follows.
    for n in range(65500, 65560):
        item = [b"y" * n, 1.1, b"B" * 5, 65536, "B\0\0\1\0", b"z" * 70_000]
        back = carry(item)
        assert [bytes(b) if isinstance(b, memoryview) else b for b in back] == item


def test_dataclasses_and_nests(carry):
    item = {"samples": [Sample(numpy.full(N, i), i) for i in range(5)]}
    back = carry(item)
    for i, sample in enumerate(back["samples"]):
        assert sample.label == i and (sample.pixels == i).all()


def test_cycles(carry):
    item = [numpy.ones(N)]
    item.append(item)
    back = carry(item)
    assert back[1] is back


class Reduced:
    """Made from bytes by a function that requires the type bytes."""

    def __init__(self, data):
        self.data = data

    def __reduce__(self):
        return make_reduced, (self.data,)


def make_reduced(data):
    assert type(data) in (bytes, bytearray), type(data)
    return Reduced(data)


class Stateful:
    def __getstate__(self):
        return {"inner": [self.data, {"deep": (self.data,)}]}

    def __setstate__(self, state):
        self.data = state["inner"][0]
        assert state["inner"][1]["deep"][0] is self.data


class New:
    def __new__(cls, data):
        self = object.__new__(cls)
        self.data = data
        return self

    def __getnewargs__(self):
        return (self.data,)


class NewWithNames:
    def __new__(cls, *, data):
        self = object.__new__(cls)
        self.data = data
        return self

    def __getnewargs_ex__(self):
        return (), {"data": self.data}


class Listed(list):
    pass


class Slotted:
    __slots__ = ("data",)


@dataclasses.dataclass
class Labelled:
    data: bytes
    label: int = 0


def with_data(made, data):
    made.data = data
    return made


MADE_OF_BYTES = {
    "reduce": (Reduced, lambda o: o.data),
    "state": (lambda d: with_data(Stateful(), d), lambda o: o.data),
    "new": (New, lambda o: o.data),
    "new with names": (lambda d: NewWithNames(data=d), lambda o: o.data),
    "list of one's own": (lambda d: Listed([d]), lambda o: o[0]),
    "ordered dict": (lambda d: collections.OrderedDict(a=d), lambda o: o["a"]),
    "default dict": (
        lambda d: collections.defaultdict(list, a=d), lambda o: o["a"]),
    "deque": (lambda d: collections.deque([d]), lambda o: o[0]),
    "named tuple": (lambda d: Point(d, 1), lambda o: o.x),
    "slots": (lambda d: with_data(Slotted(), d), lambda o: o.data),
    "dataclass": (Labelled, lambda o: o.data),
    "exception": (lambda d: ValueError(d), lambda o: o.args[0]),
    "nested": (lambda d: {"a": [Labelled([d])]}, lambda o: o["a"][0].data[0]),
}


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("size", [5000, 70_000])
@pytest.mark.parametrize("cls", [bytes, bytearray])
@pytest.mark.parametrize("name", MADE_OF_BYTES)
def test_bytes_within_objects_stay_bytes(name, cls, size, views):
    make, part = MADE_OF_BYTES[name]
    data = cls(b"x" * size)
    bytes_as = "memoryview" if views else "bytes"
    arena = ipc.SharedMemoryArena(1 << 20, bytes_as=bytes_as)
    writer, reader = arena.open_writer(), arena.open_reader()
    # Bytes in plain containers still follow `bytes_as`.
    beside = cls(b"y" * size)
    back, others = restore(offload([make(data), {"k": (beside,)}], writer), reader)
    assert type(part(back)) is cls and part(back) == data
    assert type(others["k"][0]) is (memoryview if views else cls)
    assert others["k"][0] == beside


def test_bytes_in_sets_and_keys_stay_bytes():
    arena = ipc.SharedMemoryArena(1 << 20, bytes_as="memoryview")
    writer, reader = arena.open_writer(), arena.open_reader()
    key, member, value = b"k" * 70_000, b"m" * 5000, b"v" * 70_000
    item = [{key: value}, {member}, frozenset([member]), {(key,): 1}]
    back = restore(offload(item, writer), reader)
    assert back == item
    assert isinstance(back[0][key], memoryview)


def test_bytes_that_an_object_shares_stay_bytes():
    arena = ipc.SharedMemoryArena(1 << 20, bytes_as="memoryview")
    writer, reader = arena.open_writer(), arena.open_reader()
    shared = [b"x" * 70_000]
    plain, labelled = restore(
        offload([shared, Labelled(shared)], writer), reader
    )
    assert labelled.data is plain and type(plain[0]) is bytes
    cycle = [b"z" * 70_000]
    cycle.append(cycle)
    assert restore(offload(cycle, writer), reader)[0] == cycle[0]
