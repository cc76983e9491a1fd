"""Every public name and signature of the tensorizer package, compared with
ours."""

import enum
import importlib
import inspect
import operator
import threading

import pytest
import tensorizer
import tensorizer.serialization
import tensorizer.stream_io
import tensorizer.utils
import torch

import haulway.tensorizer
import haulway.tensorizer.serialization

# Names that Haulway lacks, and why.
UNRELATED = "a format of its own, unrelated to .tensors files"
MISSING = {
    "protobuf": UNRELATED,
    "tensors_pb2": UNRELATED,
}
# Additional parameters of ours, always keywords with a default.
ADDED = {
    "TensorSerializer": {"authenticate_metadata", "layout", "max_tensors"},
    "TensorDeserializer": {"keep_meta"},
}
MODULES = ["", "serialization", "stream_io", "torch_compat", "utils"]


def public(module):
    name = f"tensorizer.{module}".rstrip(".")
    theirs = importlib.import_module(name)
    ours = importlib.import_module(f"haulway.{name}")
    for attribute in theirs.__all__:
        place = f"{module}.{attribute}".lstrip(".")
        if place not in MISSING:
            yield place, getattr(theirs, attribute, None), getattr(
                ours, attribute, None
            )


def plain(function):
    """Returns the parameters without annotations, which do not matter for
    calls."""
    return [
        (name, parameter.kind, parameter.default)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind != parameter.VAR_KEYWORD
    ]


def same_call(theirs, ours, added=frozenset()):
    assert [p for p in plain(ours) if p[0] not in added] == plain(theirs)
    for name, kind, default in plain(ours):
        if name in added:
            assert kind == inspect.Parameter.KEYWORD_ONLY
            assert default is not inspect.Parameter.empty


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_there(module):
    assert [name for name, _, ours in public(module) if ours is None] == []


def test_what_is_missing_is_still_missing():
    for place in MISSING:
        target = haulway.tensorizer
        *parts, name = place.split(".")
        for part in parts:
            target = getattr(target, part)
        assert not hasattr(target, name)


@pytest.mark.parametrize("module", ["torch_compat", "stream_io", "utils"])
def test_functions_are_called_alike(module):
    count = 0
    for _, theirs, ours in public(module):
        if inspect.isfunction(theirs):
            same_call(theirs, ours)
            count += 1
    assert count > 0


CLASSES = [
    "TensorSerializer", "TensorDeserializer", "EncryptionParams",
    "DecryptionParams", "stream_io.CAInfo", "stream_io.CURLStreamFile",
    "stream_io.RedisStreamFile",
]


@pytest.mark.parametrize("name", CLASSES)
def test_classes_are_used_alike(name):
    theirs = operator.attrgetter(name)(tensorizer)
    ours = operator.attrgetter(name)(haulway.tensorizer)
    same_call(theirs.__init__, ours.__init__, ADDED.get(name, frozenset()))
    for attribute, value in vars(theirs).items():
        if attribute.startswith("_"):
            continue
        mine = inspect.getattr_static(ours, attribute)
        if isinstance(value, (staticmethod, classmethod)):
            assert type(mine) is type(value)
            same_call(getattr(theirs, attribute), getattr(ours, attribute))
        elif inspect.isfunction(value):
            same_call(value, mine)
        elif inspect.isclass(value) and issubclass(value, enum.Enum):
            assert {m.name: m.value for m in mine} == {
                m.name: m.value for m in value
            }
        else:  # A property or slot.
            assert inspect.isdatadescriptor(mine)
    for attribute in ("__getitem__", "__iter__", "__len__", "__contains__",
                      "__enter__", "__exit__", "keys", "values", "items",
                      "get"):
        assert not hasattr(theirs, attribute) or hasattr(ours, attribute)


def test_attributes_that_are_set_are_there_too(tmp_path):
    for package in (tensorizer, haulway.tensorizer):
        path = str(tmp_path / "x.tensors")
        serializer = package.TensorSerializer(path)
        serializer.write_state_dict({"w": torch.ones(3)})
        assert serializer.total_tensor_bytes == 12
        serializer.close()
        with package.TensorDeserializer(path, "cpu") as tensors:
            assert tensors.total_tensor_bytes == 12
            assert tensors.total_file_bytes == 12
            assert tensors.total_bytes_read >= 12
            assert tensors.cache_status is None


def test_types_and_exceptions_are_told_apart_alike():
    theirs, ours = tensorizer.TensorType, haulway.tensorizer.TensorType
    assert {t.name: t.value for t in ours} == {t.name: t.value for t in theirs}
    assert issubclass(haulway.tensorizer.HashMismatchError, Exception)
    assert haulway.tensorizer.serialization.HashMismatchError is (
        haulway.tensorizer.HashMismatchError
    )


@pytest.mark.parametrize("decimal", [True, False])
@pytest.mark.parametrize(
    "count", [0, 1, 999, 1000, 1023, 1024, 1536, 10**9, 2**40, 10**17, 2**70]
)
def test_bytes_are_told_alike(count, decimal):
    assert haulway.tensorizer.utils.convert_bytes(
        count, decimal
    ) == tensorizer.utils.convert_bytes(count, decimal)


def test_memory_is_told_alike():
    theirs, ours = tensorizer.utils, haulway.tensorizer.utils
    assert ours.get_device() == theirs.get_device()
    assert ours.get_gpu_name() == theirs.get_gpu_name()
    mine, other = ours.MemoryUsage.now(), theirs.MemoryUsage.now()
    assert mine._fields == other._fields and mine.cpu._fields == other.cpu._fields
    assert mine.cpu.maxrss > 0
    assert abs(mine.cpu.free - other.cpu.free) < 4 << 30
    assert ours.get_mem_usage().startswith("CPU: (maxrss: ")
    for name, values in (("CPUMemoryUsage", (5 << 30, 7 << 20)),
                         ("GlobalGPUMemoryUsage", (9 << 30, 1 << 30, 8 << 30)),
                         ("TorchGPUMemoryUsage", (1 << 30, 2, 3 << 20, 4))):
        assert str(getattr(ours, name)(*values)) == str(
            getattr(theirs, name)(*values))


def test_modules_without_weights():
    def make():
        return torch.nn.TransformerEncoderLayer(16, 2, 32)

    for package in (tensorizer.utils, haulway.tensorizer.utils):
        with package.no_init_or_tensor():
            with package.no_init_or_tensor():
                model = make()
            other = torch.nn.Embedding(3, 4, padding_idx=0)
        assert all(p.is_meta for p in model.parameters())
        assert other.weight.is_meta
        assert not torch.empty(1).is_meta
        found = package.no_init_or_tensor(make)
        assert all(p.is_meta for p in found.parameters())
        with pytest.raises(TypeError):
            package.no_init_or_tensor(5)


def test_buffers_are_computed_and_other_threads_not_meddled_with():
    module = torch.nn.Module()
    with haulway.tensorizer.utils.no_init_or_tensor():
        module.register_buffer("inverse", 1.0 / torch.arange(1, 4))
        made = []
        thread = threading.Thread(target=lambda: made.append(torch.empty(2)))
        thread.start()
        thread.join()
    assert module.inverse[1] == 0.5
    assert not made[0].is_meta


def test_a_module_without_weights_is_filled(tmp_path):
    from haulway.tensorizer import TensorDeserializer, TensorSerializer, utils

    path = tmp_path / "x.tensors"
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    with TensorSerializer(path) as serializer:
        serializer.write_module(model)
    empty = utils.no_init_or_tensor(lambda: torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)))
    with TensorDeserializer(path, "cpu") as tensors:
        tensors.load_into_module(empty)
    empty.eval(), model.eval()
    x = torch.ones(2, 3)
    assert torch.equal(empty(x), model(x))
