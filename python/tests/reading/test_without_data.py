"""Loading under skip_data, in a FakeTensorMode and on the device "meta"."""

import io

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.serialization import skip_data

import haulway
import haulway.torch
from torch_versions import IS_OLD, loads_sparse_without_data

pytestmark = pytest.mark.filterwarnings("ignore")


def made():
    whole = torch.arange(6.0)
    return {
        "whole": whole,
        "tied": whole[2:],
        "half": torch.ones(3, 4, dtype=torch.float16).t(),
        "fp8": torch.ones(5).to(torch.float8_e4m3fn),
        "grad": torch.ones(2, requires_grad=True),
        "parameter": nn.Parameter(torch.ones(2, 2)),
        "sparse": torch.eye(3).to_sparse(),
        "csr": torch.eye(3).to_sparse_csr(),
        "empty": torch.empty(0, 2),
        "other": [1, "two"],
    }


def fakes_have_their_size():
    """Returns whether fake storages count bytes; torch up to 2.10 counts
    elements of four bytes."""
    out = io.BytesIO()
    torch.save(torch.ones(6), out)
    out.seek(0)
    with FakeTensorMode():
        return torch.load(out).untyped_storage().nbytes() == 24


FAKES_HAVE_THEIR_SIZE = fakes_have_their_size()


def facts(value):
    if not isinstance(value, torch.Tensor):
        return value
    told = [
        type(value), value.dtype, value.device, value.layout,
        value.shape, value.requires_grad, value.is_leaf,
    ]
    if value.layout is torch.strided:
        storage = value.untyped_storage()
        told += [
            value.stride(), value.storage_offset(), storage.device,
        ]
        if FAKES_HAVE_THEIR_SIZE:
            told.append(storage.nbytes())
        told.append(getattr(storage, "_checkpoint_offset", None))
    return told


def outcome(load, path, context, options):
    try:
        with context():
            loaded = load(path, **options)
    except RuntimeError as error:
        return str(error)
    return {name: facts(value) for name, value in loaded.items()}


OPTIONS = {
    "plain": {},
    "cpu": {"map_location": "cpu"},
    "meta": {"map_location": "meta"},
    "dict": {"map_location": {"cpu": "cpu"}},
    "function": {"map_location": lambda storage, location: storage},
    "mmap": {"mmap": True},
}


@pytest.mark.parametrize("container", ["zip", "legacy"])
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("context", [skip_data, FakeTensorMode])
def test_what_is_made_is_what_torch_makes(container, options, context, tmp_path):
    path = tmp_path / "model.pt"
    saved = made()
    if context is FakeTensorMode:
        del saved["csr"]  # PyTorch has no fake tensors of this layout.
    if not loads_sparse_without_data(context):
        for name in {"sparse", "csr"} & saved.keys():
            del saved[name]
    if container == "legacy":
        del saved["fp8"]
        if options == "mmap":
            return
    torch.save(
        saved, path, _use_new_zipfile_serialization=container == "zip"
    )
    arguments = OPTIONS[options]
    theirs = outcome(torch.load, path, context, arguments)
    ours = outcome(haulway.torch.load, path, context, arguments)
    if isinstance(theirs, str) and "called within a torch.serialization" in theirs:
        # Torch 2.6 does not load in this mode.
        assert ours.keys() == saved.keys()
        return
    if not isinstance(theirs, str):
        for name, told in theirs.items():
            # Releases before 2.13 do not always record where data are.
            if isinstance(saved[name], torch.Tensor) and told[-1] is None:
                ours[name][-1] = None
    assert ours == theirs
    is_refused = (
        context is FakeTensorMode and options == "function" and not IS_OLD)
    assert isinstance(ours, str) == (is_refused and container == "zip")


@pytest.mark.parametrize("context", [skip_data, FakeTensorMode])
def test_no_data_is_read(context, tmp_path):
    path = tmp_path / "model.pt"
    torch.save({"w": torch.full((1000,), 7.0)}, path)
    # With damaged bytes the file would fail as soon as they were read and
    # checked; its index is intact.
    data = bytearray(path.read_bytes())
    at = data.find(torch.full((4,), 7.0).numpy().tobytes())
    data[at + 80 : at + 84] = b"\1\2\3\4"
    path.write_bytes(data)
    with pytest.raises(haulway.MismatchError):
        haulway.load(path, framework="torch", verify=True)
    with context():
        loaded = haulway.load(path, framework="torch", verify=True)
    assert loaded["w"].shape == (1000,)


def test_tensors_that_share_a_storage_share_it_on_meta(tmp_path):
    path = tmp_path / "model.pt"
    saved = made()
    del saved["csr"]
    torch.save(saved, path)
    loaded = haulway.torch.load(path, map_location="meta")
    assert (
        loaded["whole"].untyped_storage()._cdata
        == loaded["tied"].untyped_storage()._cdata
    )
    with FakeTensorMode():
        fake = haulway.torch.load(path)
    plain = haulway.torch.load(path)
    at = fake["whole"].untyped_storage()._checkpoint_offset
    raw = path.read_bytes()[at : at + 24]
    assert raw == plain["whole"].numpy().tobytes()
