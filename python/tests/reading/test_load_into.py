"""load_into(): modules and dicts, filled in place."""

import pickle

import numpy as np
import pytest
import torch

import haulway


def make_model():
    return torch.nn.Sequential(
        torch.nn.Linear(64, 300),
        torch.nn.BatchNorm1d(300),
        torch.nn.Linear(300, 7),
        torch.nn.Conv2d(3, 4, 3),
    )


def write_torch(tensors, path):
    torch.save(tensors, path)


def write_safetensors(tensors, path):
    import safetensors.torch

    safetensors.torch.save_file(tensors, path)


def write_tensorizer(tensors, path):
    from haulway.tensorizer import TensorSerializer

    serializer = TensorSerializer(path)
    serializer.write_state_dict(tensors)
    serializer.close()


@pytest.fixture(
    scope="module", params=[write_torch, write_safetensors, write_tensorizer]
)
def saved(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("into") / "model"
    torch.manual_seed(1)
    state = make_model().state_dict()
    request.param(state, path)
    return path, state


def expect_state(module, state):
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, state[name].to(tensor.dtype)), name


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("io", ["auto", "mmap"])
def test_a_module_is_filled_in_place(saved, io, verify):
    path, state = saved
    model = make_model()
    addresses = [tensor.data_ptr() for tensor in model.state_dict().values()]
    version = model[0].weight._version
    stats = {}
    result = haulway.load_into(
        model, path, io=io, verify=verify, stats=stats
    )
    assert tuple(result) == ([], [])
    assert repr(result) == "<All keys matched successfully>"
    assert stats["tensor_bytes"] == sum(
        tensor.nbytes for tensor in state.values()
    )
    expect_state(model, state)
    assert addresses == [t.data_ptr() for t in model.state_dict().values()]
    assert model[0].weight._version > version
    assert model[0].weight.requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_elements_are_cast_to_what_the_module_has(saved, dtype):
    path, state = saved
    model = make_model().to(dtype)
    haulway.load_into(model, path)
    expect_state(model, state)


def test_memory_that_is_not_dense_is_filled_too(saved):
    path, state = saved
    model = make_model().to(memory_format=torch.channels_last)
    strides = model[3].weight.stride()
    haulway.load_into(model, path)
    expect_state(model, state)
    assert model[3].weight.stride() == strides


def test_missing_and_unexpected_keys_are_torchs(saved):
    path, state = saved
    model = torch.nn.Sequential(torch.nn.Linear(64, 300, bias=False))
    model.register_buffer("more", torch.zeros(2))
    before = model[0].weight.clone()
    with pytest.raises(RuntimeError) as torchs:
        model.load_state_dict(state)
    with torch.no_grad():
        model[0].weight.copy_(before)
    with pytest.raises(haulway.LoadIntoError) as ours:
        haulway.load_into(model, path)
    assert sorted(ours.value.unexpected_keys) == sorted(
        set(state) - {"0.weight"}
    )
    assert ours.value.missing_keys == ["more"]
    # Unexpected names are in the file's order.
    assert str(ours.value).split("\n")[:2] == str(torchs.value).split("\n")[:2]
    assert len(str(ours.value)) == len(str(torchs.value))
    assert isinstance(ours.value, (RuntimeError, ValueError))
    again = pickle.loads(pickle.dumps(ours.value))
    assert again.missing_keys == ["more"] and str(again) == str(ours.value)
    assert torch.equal(model[0].weight, before)

    theirs = model.load_state_dict(state, strict=False)
    mine = haulway.load_into(model, path, strict=False)
    assert mine.missing_keys == theirs.missing_keys
    assert sorted(mine.unexpected_keys) == sorted(theirs.unexpected_keys)
    assert torch.equal(model[0].weight, state["0.weight"])


@pytest.mark.parametrize("strict", [False, True])
def test_shapes_must_agree(saved, strict):
    path, state = saved
    model = make_model()
    model[0] = torch.nn.Linear(64, 299)
    with pytest.raises(RuntimeError) as torchs:
        model.load_state_dict(state, strict=strict)
    with pytest.raises(haulway.LoadIntoError) as ours:
        haulway.load_into(model, path, strict=strict)
    assert str(ours.value) == str(torchs.value)


def test_a_vector_of_one_fits_a_number(tmp_path):
    torch.save({"n": torch.tensor([7.0])}, tmp_path / "x.pt")
    target = {"n": torch.tensor(0.0)}
    haulway.load_into(target, tmp_path / "x.pt")
    assert target["n"] == 7


def test_tied_parameters_need_one_name(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    weight = torch.randn(4, 4)
    bias = torch.randn(4)
    tensors = {"0.weight": weight, "0.bias": bias, "1.bias": bias + 1}
    torch.save(tensors, tmp_path / "one.pt")
    result = haulway.load_into(model, tmp_path / "one.pt")
    assert result.missing_keys == []
    assert torch.equal(model[1].weight, weight)
    torch.save(dict(tensors, **{"1.weight": weight}), tmp_path / "both.pt")
    with torch.no_grad():
        model[0].weight.zero_()
    stats = {}
    haulway.load_into(model, tmp_path / "both.pt", stats=stats)
    assert torch.equal(model[1].weight, weight)
    assert stats["tensor_bytes"] == weight.nbytes + 2 * bias.nbytes


def test_a_part_of_a_training_checkpoint(tmp_path):
    model = torch.nn.Linear(3, 2)
    state = model.state_dict()
    torch.save({"model": state, "step": 3, "o": torch.ones(9)},
               tmp_path / "x.pt")
    other = torch.nn.Linear(3, 2)
    haulway.load_into(other, tmp_path / "x.pt", prefix="model.")
    assert torch.equal(other.weight, model.weight)


def test_arrays_are_filled(saved):
    path, state = saved
    wanted = {name: value.numpy() for name, value in state.items()}
    target = {
        "0.weight": np.zeros((300, 64), np.float32),
        "0.bias": np.zeros(300, np.float64),
        "1.bias": np.zeros(600, np.float32)[::2],
        "2.weight": np.zeros((7, 300), np.float16),
        "2.bias": np.zeros(7, ">f4"),
        "1.num_batches_tracked": np.zeros((), np.int64),
    }
    haulway.load_into(target, path, strict=False)
    for name, array in target.items():
        assert np.array_equal(array, wanted[name].astype(array.dtype)), name


@pytest.mark.parametrize(
    "target, why",
    [
        (3, "is int: expected"),
        ({"0.bias": [0.0] * 300}, "is list: expected"),
        ({"0.bias": torch.zeros(300, device="meta")}, "on the meta device"),
        ({"0.bias": np.zeros(300, np.int32)}, "casts no float32"),
        ({"0.bias": np.broadcast_to(np.zeros(1, "f4"), 300)}, "written to"),
        ({"0.bias": torch.zeros(1).expand(300)}, "'0.bias' has .* expanded"),
    ],
)
def test_targets_that_cannot_be_filled_are_refused(saved, target, why):
    with pytest.raises((haulway.Error, TypeError), match=why):
        haulway.load_into(target, saved[0], strict=False)


def test_flags_are_applied(tmp_path):
    z = torch.randn(3, dtype=torch.complex64)
    torch.save({"c": z.conj(), "n": z.clone().conj().imag}, tmp_path / "x.pt")
    target = {"c": torch.zeros(3, dtype=torch.complex64), "n": torch.zeros(3)}
    haulway.load_into(target, tmp_path / "x.pt")
    assert torch.equal(target["c"], z.conj())
    assert torch.equal(target["n"], z.conj().imag)


def test_progress_can_stop_it(saved):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        haulway.load_into(make_model(), saved[0], progress=stop)


def test_a_cut_file_is_an_error(saved, tmp_path):
    cut = tmp_path / "cut"
    cut.write_bytes(saved[0].read_bytes()[:-3000])
    with pytest.raises(haulway.Error):
        haulway.load_into(make_model(), cut)
