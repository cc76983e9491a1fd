"""Real PyTorch modules through all ways to write and read them."""

import io

import pytest
import tensorizer
import tensorizer.torch_compat
import torch
from test_tensorizer_differential import same

import haulway
import haulway.tensorizer
from haulway.tensorizer import torch_compat as compat

THEIRS = tensorizer.torch_compat
PACKAGES = {"ours": haulway.tensorizer, "theirs": tensorizer}
BOTH = pytest.mark.parametrize("reader", PACKAGES)


class Tied(torch.nn.Module):
    """The structure of a language model: tied ends, and buffers of both
    kinds."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(30, 16, padding_idx=0)
        layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.blocks = torch.nn.TransformerEncoder(
            layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(16, 30, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.ones(4, 4).tril().bool())
        self.register_buffer("scale", torch.tensor(16 ** -0.5),
                             persistent=False)

    def forward(self, ids):
        x = self.embedding(ids) * self.scale
        return self.head(self.blocks(x, ~self.mask))


class Vision(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8),
            torch.nn.ReLU(), torch.nn.MaxPool2d(2),
        ).to(memory_format=torch.channels_last)
        self.branches = torch.nn.ModuleDict({
            "wide": torch.nn.Conv2d(8, 8, 3, groups=8, padding=1),
            "point": torch.nn.Conv2d(8, 8, 1),
        })
        self.norm = torch.nn.GroupNorm(2, 8)
        self.head = torch.nn.utils.parametrizations.weight_norm(
            torch.nn.Linear(8, 5))

    def forward(self, x):
        x = self.stem(x)
        x = self.branches["wide"](x) + self.branches["point"](x)
        return self.head(self.norm(x).mean((2, 3)))


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = torch.nn.LSTM(6, 5, 2, bidirectional=True)
        self.cells = torch.nn.ModuleList(
            torch.nn.GRUCell(10, 4).double() for _ in range(2))
        self.start = torch.nn.ParameterDict({"h": torch.zeros(3, 4)})

    def forward(self, x):
        out, _ = self.rnn(x)
        return self.cells[0](out[-1].double(), self.start["h"].double())


def inputs(kind):
    generator = torch.Generator().manual_seed(7)
    if kind is Tied:
        return torch.randint(0, 30, (2, 4), generator=generator)
    if kind is Vision:
        return torch.rand(2, 3, 8, 8, generator=generator)
    return torch.rand(7, 3, 6, generator=generator)


def made(kind, seed=0):
    torch.manual_seed(seed)
    return kind().eval()


KINDS = pytest.mark.parametrize("kind", [Tied, Vision, Recurrent])


def write_module(path, package, model, **options):
    serializer = package.TensorSerializer(str(path), **options)
    serializer.write_module(model)
    serializer.close()
    return str(path)


@KINDS
def test_files_of_modules_are_the_references(tmp_path, kind):
    model = made(kind)
    files = [open(write_module(tmp_path / name, package, model), "rb").read()
             for name, package in PACKAGES.items()]
    assert files[0] == files[1]


@KINDS
@BOTH
@pytest.mark.parametrize("encrypted", [False, True])
def test_modules_compute_the_same(tmp_path, kind, reader, encrypted):
    model, fresh = made(kind), made(kind, seed=1)
    expected = model(inputs(kind))
    assert not torch.equal(fresh(inputs(kind)), expected)
    key = bytes(32)
    path = write_module(
        tmp_path / "x", haulway.tensorizer, model,
        encryption=haulway.tensorizer.EncryptionParams(key)
        if encrypted else None)
    package = PACKAGES[reader]
    with package.TensorDeserializer(
        path, "cpu", verify_hash=True,
        encryption=package.DecryptionParams.from_key(key)
        if encrypted else None,
    ) as tensors:
        # The reference does not report buffers of the root module or tensors
        # that are not contiguous.
        if reader == "ours":
            assert tensors.verify_module(model)[0]
        assert tensors.load_into_module(fresh) > 0
    # channels_last is lost, and with it the order of summation.
    with torch.no_grad():  # The reference turns buffers into parameters.
        torch.testing.assert_close(fresh(inputs(kind)), expected.detach())


@KINDS
@pytest.mark.parametrize("layout", ["interleaved", "segments",
                                    "segments-pr170"])
def test_state_dicts(tmp_path, kind, layout):
    model, fresh = made(kind), made(kind, seed=1)
    path = tmp_path / "x.tensors"
    haulway.save(model.state_dict(), path, layout=layout)
    fresh.load_state_dict(haulway.load(path, verify=True))
    assert torch.equal(fresh(inputs(kind)), model(inputs(kind)))
    other = made(kind, seed=2)
    haulway.load_into(other, path)
    assert torch.equal(other(inputs(kind)), model(inputs(kind)))


@KINDS
@pytest.mark.parametrize("writer, reader", [
    (compat, THEIRS), (THEIRS, compat), (compat, compat)])
def test_torch_save_and_load(tmp_path, kind, writer, reader):
    """Saves whole modules, with their training state, by torch's own calls."""
    model = made(kind).train()
    optimizer = torch.optim.AdamW(model.parameters())
    model(inputs(kind)).sum().backward()
    optimizer.step()
    model.eval()
    path = tmp_path / "x.pt"
    saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
             "step": 5}
    if kind is not Vision:  # torch itself cannot save parametrized modules.
        saved["module"] = model
    with writer.tensorizer_saving():
        torch.save(saved, path)
    assert (tmp_path / "x.pt.tensors").exists()
    with reader.tensorizer_loading(device="cpu", suppress_weights_only=True):
        found = torch.load(path, weights_only=False)
    assert found["step"] == 5
    for name, tensor in model.state_dict().items():
        same(tensor, found["model"][name])
    if "module" in saved:
        assert torch.equal(found["module"](inputs(kind)), model(inputs(kind)))
    fresh = made(kind, seed=1)
    restored = torch.optim.AdamW(fresh.parameters())
    fresh.load_state_dict(found["model"])
    restored.load_state_dict(found["optimizer"])
    for one, other in zip(optimizer.state.values(), restored.state.values()):
        same(one["exp_avg"], other["exp_avg"])
    if kind is Tied:
        head = found["module"].head.weight
        assert head is found["module"].embedding.weight
        assert (found["model"]["head.weight"].data_ptr()
                == found["model"]["embedding.weight"].data_ptr())
        # Tied weights are stored once.
        with tensorizer.TensorDeserializer(
            str(tmp_path / "x.pt.tensors"), "cpu") as tensors:
            # The two dicts and the module therefore share each storage.
            assert len(tensors) == len({
                t.untyped_storage().data_ptr()
                for t in [*model.state_dict().values(), model.scale,
                          *(v for s in optimizer.state.values()
                            for v in s.values())]
            })


@KINDS
def test_modules_without_weights_yet(tmp_path, kind):
    """Parameters on the meta device are written, and load as zeros."""
    model = haulway.tensorizer.utils.no_init_or_tensor(lambda: made(kind))
    metas = {n for n, t in model.state_dict().items() if t.is_meta}
    assert metas
    path = write_module(tmp_path / "x", haulway.tensorizer, model)
    with tensorizer.TensorDeserializer(path, "cpu") as tensors:
        for name, parameter in model.named_parameters(remove_duplicate=False):
            if name in tensors:
                assert tensors[name].shape == parameter.shape
                assert not tensors[name].any()
    with haulway.tensorizer.TensorDeserializer(
        path, "cpu", keep_meta=True) as tensors:
        kept = {name for name in tensors if tensors[name].is_meta}
    assert kept & metas


def test_state_of_channels_last_comes_row_major(tmp_path):
    weight = torch.rand(4, 3, 2, 2).to(memory_format=torch.channels_last)
    path = tmp_path / "x.tensors"
    haulway.save({"w": weight}, path)
    loaded = haulway.load(path)["w"]
    assert loaded.is_contiguous() and torch.equal(loaded, weight)
    # torch_compat stores storages, and keeps strides.
    stream = io.BytesIO()
    sidecar = tmp_path / "side.tensors"
    with compat.tensorizer_saving(sidecar):
        torch.save(weight, stream)
    stream.seek(0)
    with compat.tensorizer_loading(sidecar, device="cpu",
                                   suppress_weights_only=True):
        found = torch.load(stream, weights_only=False)
    assert found.stride() == weight.stride() and torch.equal(found, weight)
