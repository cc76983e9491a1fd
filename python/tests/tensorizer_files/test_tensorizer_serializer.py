"""TensorSerializer writes within each call."""

import gc
import os
import weakref

import pytest
import torch

import haulway
from haulway.tensorizer import TensorSerializer, TensorType


def values(path):
    with haulway.open(path, framework="numpy") as checkpoint:
        return {name: checkpoint[name].copy() for name in checkpoint.keys()}


@pytest.mark.parametrize("kind", ["array", "tensor", "data", "inference"])
def test_memory_may_be_filled_again_at_once(kind, tmp_path):
    path = tmp_path / "x.tensors"
    with TensorSerializer(path) as serializer:
        tensor = torch.zeros(4)
        if kind == "inference":
            with torch.inference_mode():
                tensor = torch.zeros(4)
        for i in range(3):
            if kind == "array":
                tensor.numpy().fill(i)
                given = tensor.numpy()
            elif kind == "data":
                tensor.data.fill_(i)
                given = tensor
            else:
                with torch.inference_mode():
                    tensor.fill_(i)
                given = tensor
            serializer.write_tensor(i, f"t{i}", TensorType.PARAM, given)
        assert os.listdir(tmp_path) != ["x.tensors"]
    assert [values(path)[f"t{i}"][0] for i in range(3)] == [0, 1, 2]
    assert haulway.verify(path).ok
    assert os.listdir(tmp_path) == ["x.tensors"]


def test_no_more_than_a_tensor_is_held(tmp_path):
    before = resident()
    with TensorSerializer(tmp_path / "x.tensors") as serializer:
        for i in range(20):
            serializer.write_tensor(
                i, f"t{i}", TensorType.PARAM, torch.full((4 << 20,), float(i))
            )
            gc.collect()
            assert resident() - before < 100 << 20
    assert os.path.getsize(tmp_path / "x.tensors") > 20 * (16 << 20)


class Made(dict):
    """Makes its tensors on access."""

    def items(self):
        for i in range(30):
            yield f"t{i}", torch.full((2 << 20,), float(i))


def test_temporaries_of_a_call_are_free_after_it(tmp_path):
    # malloc keeps freed memory of this size for the next tensor.
    before = resident()
    with TensorSerializer(tmp_path / "x.tensors") as serializer:
        serializer.write_state_dict(Made())
        gc.collect()
        assert resident() - before < 64 << 20  # The tensors take 240 MiB.
    found = values(tmp_path / "x.tensors")
    assert [found[f"t{i}"][7] for i in range(30)] == list(range(30))


def test_no_more_is_asked_for_than_is_written_together(tmp_path):
    made = []

    class Counted(Made):
        def items(self):
            for name, tensor in super().items():
                made.append(weakref.ref(tensor))
                alive = sum(one() is not None for one in made)
                assert alive <= 10  # 64 MiB, and those in progress.
                yield name, tensor
                del tensor

    with TensorSerializer(tmp_path / "x.tensors") as serializer:
        serializer.write_state_dict({"a": [Counted()]})
    assert len(made) == 30


def resident():
    with open("/proc/self/statm") as statm:
        pages = statm.read().split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")


def test_removed_tensors_are_free_within_the_call(tmp_path):
    # Larger than malloc ever keeps: 32 MiB.
    module = torch.nn.Sequential(
        *[torch.nn.Linear(1024, 9000, bias=False) for _ in range(6)]
    )
    before = resident()
    with TensorSerializer(tmp_path / "x.tensors") as serializer:
        serializer.write_module(module, remove_tensors=True)
        gc.collect()
        assert before - resident() > 150 << 20  # The tensors take 211 MiB.
    assert len(values(tmp_path / "x.tensors")) == 6


def sparse(module):
    module.register_buffer("z", torch.eye(3).to_sparse())
    return "only strided tensors"


def long_name(module):
    module.register_buffer("z" * 70_000, torch.ones(1))
    return "name"


def known_name(module):
    return "'last.weight'"


@pytest.mark.parametrize("refused", [sparse, long_name, known_name])
def test_nothing_is_removed_where_a_tensor_is_refused(tmp_path, refused):
    module = torch.nn.Sequential()
    # This parameter alone has as many bytes as are written at once.
    module.register_parameter("first", torch.nn.Parameter(torch.ones(17 << 20)))
    module.add_module("last", torch.nn.Linear(3, 3))
    message = refused(module.last)
    before = {name: t.data_ptr() for name, t in module.state_dict().items()
              if not t.is_sparse}
    path = tmp_path / "x.tensors"
    with TensorSerializer(path) as serializer:
        if refused is known_name:
            serializer.write_tensor(0, "last.weight", TensorType.PARAM,
                                    torch.ones(1))
        with pytest.raises((ValueError, haulway.Error), match=message):
            serializer.write_module(module, remove_tensors=True)
        after = {name: t.data_ptr() for name, t in module.state_dict().items()
                 if not t.is_sparse}
        assert after == before
        serializer.write_tensor(0, "more", TensorType.PARAM, torch.ones(1))
    assert "more" in values(path) and ".first" not in values(path)


def test_without_close_there_is_no_file(tmp_path):
    serializer = TensorSerializer(tmp_path / "x.tensors")
    serializer.write_tensor(0, "t", TensorType.PARAM, torch.ones(10))
    with pytest.warns(RuntimeWarning, match="not closed: .*x.tensors' is not written"):
        del serializer
        gc.collect()
    with pytest.raises(KeyError), TensorSerializer(tmp_path / "x") as other:
        other.write_tensor(0, "t", TensorType.PARAM, torch.ones(10))
        raise KeyError
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("layout", ["interleaved", "segments"])
def test_tensor_by_tensor_is_the_same_as_at_once(layout, tmp_path):
    tensors = {f"t{i}": torch.arange(float(i * 1000)) for i in range(30)}
    with TensorSerializer(tmp_path / "a", layout=layout) as serializer:
        serializer.write_state_dict(tensors)
    with TensorSerializer(tmp_path / "b", layout=layout) as serializer:
        for name, tensor in tensors.items():
            serializer.write_state_dict({name: tensor})
    with open(tmp_path / "c", "wb") as file:
        with TensorSerializer(file, layout=layout) as serializer:
            serializer.write_state_dict(tensors)
    expected = (tmp_path / "a").read_bytes()
    assert (tmp_path / "b").read_bytes() == expected
    assert (tmp_path / "c").read_bytes() == expected
