"""Files that torch itself writes and reads are SAFE: TorchScript, and the part
of a model that one of several processes saves."""

import enum
import pickle
import subprocess
import sys
import warnings
from typing import NamedTuple

import pytest
import torch
from torch import nn

import haulway
import haulway.torch
from scan_cases import torch_zip

MODULES = {
    "conv1": lambda: nn.Conv1d(2, 3, 3),
    "conv2": lambda: nn.Conv2d(2, 3, 3, padding="same"),
    "conv3": lambda: nn.Conv3d(2, 3, 3),
    "transposed": lambda: nn.ConvTranspose2d(2, 3, 3),
    "reflect": lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
    "layer_norm": lambda: nn.LayerNorm(4),
    "batch_norm": lambda: nn.BatchNorm2d(3),
    "group_norm": lambda: nn.GroupNorm(1, 3),
    "zero_pad": lambda: nn.ZeroPad2d(1),
    "constant_pad": lambda: nn.ConstantPad2d(1, 3.5),
    "encoder_layer": lambda: nn.TransformerEncoderLayer(8, 2, 16),
    "encoder": lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16), 2),
    "decoder_layer": lambda: nn.TransformerDecoderLayer(8, 2, 16),
    "attention": lambda: nn.MultiheadAttention(8, 2),
    "lstm": lambda: nn.LSTM(4, 4, 2),
    "gru": lambda: nn.GRU(4, 4),
    "embedding_bag": lambda: nn.EmbeddingBag(4, 4),
    "sequence": lambda: nn.Sequential(
        nn.Conv2d(1, 1, 1), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d((1, 1)),
        nn.Flatten(), nn.Linear(1, 2), nn.Softmax(-1)),
    "upsample": lambda: nn.Upsample(size=(2, 3), mode="bilinear"),
    "unflatten": lambda: nn.Unflatten(1, (2, 2)),
    "fold": lambda: nn.Fold((4, 4), (2, 2)),
    "hardtanh": lambda: nn.Hardtanh(-1.0, 2.0),
    "cross_entropy": lambda: nn.CrossEntropyLoss(torch.ones(3)),
}


class Number(enum.Enum):
    ONE = 1
    TWO = 2


class Point(NamedTuple):
    x: int
    y: tuple[int, int] = (3, 4)


CPU = torch.device("cpu")


class Constants(nn.Module):
    __constants__ = list("abcdefghijkl")

    def __init__(self):
        super().__init__()
        self.a = (1, 2.5, "x(y", None, True)
        self.b = ((1,), ((2, 3),))
        self.c, self.d, self.e = float("inf"), float("nan"), -float("inf")
        self.f, self.g, self.h = 1e30, -0.0, -5
        self.i = torch.device("cuda:0")
        self.j = "a quote \" and ' and \\ and a \t, and üñ #("
        self.k, self.l = (), ("a",)
        self.table: dict[str, int] = {"a": 1}
        self.number = Number.ONE

    def forward(self, x, y: tuple[int, int] = (1, 2), z: float = float("inf"),
                w: list[int] | None = None, text: str = "a(b",
                d: torch.device = CPU, e: tuple[()] = ()):
        return x + self.a[0]


@torch.jit.script
def of_point(point: Point, size: tuple[int, int] = (1, 2)):
    return point.x


class Calls(nn.Module):
    def forward(self, point: Point):
        return of_point(point)


def scripted(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated.
        return torch.jit.script(make())


@pytest.mark.parametrize("name", MODULES)
def test_scripted_modules_are_safe_and_give_their_weights(name, tmp_path):
    path = tmp_path / "script.pt"
    module = scripted(MODULES[name])
    module.save(str(path))
    report = haulway.scan(path)
    assert report.safe, report.reason
    weights = module.state_dict()
    loaded = haulway.load(path)
    assert loaded.keys() >= weights.keys()
    for key, tensor in weights.items():
        assert torch.equal(loaded[key], tensor)
    assert haulway.load(path, "numpy").keys() == loaded.keys()


@pytest.mark.parametrize("make", [Constants, Calls])
def test_constants_and_defaults_of_scripts_are_safe(make, tmp_path):
    scripted(make).save(str(tmp_path / "script.pt"))
    report = haulway.scan(tmp_path / "script.pt")
    assert report.safe, report.reason


def test_traced_and_frozen_modules_are_safe(tmp_path):
    module = nn.Sequential(nn.Conv2d(1, 1, 1), nn.LayerNorm(4)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(module, torch.ones(1, 1, 4, 4)).save(
            str(tmp_path / "traced.pt"))
        torch.jit.freeze(scripted(lambda: module)).save(
            str(tmp_path / "frozen.pt"))
    for name in ("traced.pt", "frozen.pt"):
        report = haulway.scan(tmp_path / name)
        assert report.safe, report.reason
    assert haulway.load(tmp_path / "traced.pt").keys() == (
        module.state_dict().keys())


RANK = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
torch.save({
    "w": DTensor.from_local(torch.arange(6.0).view(3, 2), mesh,
                            [Shard(0), Replicate()], run_check=False),
    "step": torch.tensor(3),
}, sys.argv[1])
"""
READ = "import sys, torch; torch.load(sys.argv[1], weights_only=True)"


@pytest.fixture(scope="module")
def rank_file(tmp_path_factory):
    """What process 1 of four saves of a distributed model."""
    path = tmp_path_factory.mktemp("rank") / "model_world_size_4_rank_1.pt"
    done = subprocess.run([sys.executable, "-c", RANK, path],
                          capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this torch writes none: {done.stderr[-200:]}")
    return path


def test_the_file_of_a_rank_is_as_safe_as_torch_says(rank_file):
    def read(before=""):
        return subprocess.run([sys.executable, "-W", "ignore", "-c",
                               before + READ, rank_file], capture_output=True)

    report = haulway.scan(rank_file)
    assert report.safe, report.reason
    needed = report.reason.partition("after `")[2].rstrip("`")
    assert needed == "import torch.distributed.tensor"
    assert haulway.open(rank_file).keys() == ["w", "step"]
    assert read().returncode != 0 and read(f"{needed}\n").returncode == 0
    load = "import haulway, sys; haulway.load(sys.argv[1])"
    told = subprocess.run([sys.executable, "-c", load, rank_file],
                          capture_output=True, text=True)
    assert f"is not allowed before `{needed}`" in told.stderr
    subprocess.run([sys.executable, "-W", "ignore", "-c", f"{needed}\n{load}",
                    rank_file], check=True)


def test_the_part_of_a_rank_is_no_tensor_without_a_word(rank_file, run, tmp_path):
    for verb in ("ls", "info", "manifest", "cat"):
        told = run(verb, rank_file, *(["step"] if verb == "cat" else [])).stderr
        assert ("; 'w' is the part of a tensor that one process of several saved: "
                "open the folder with the files of all; haulway scan tells "
                "more") in told
    assert "one process of several" in run("verify", rank_file).stdout
    out = tmp_path / "out.safetensors"
    refused = run("convert", rank_file, out, code=2).stderr.splitlines()[-1]
    assert refused.startswith(
        "haulway: a torch.distributed.tensor.DTensor, of which this file has the "
        "part of the process that saved it: convert the folder with the files ")
    assert refused.endswith(f"; in 'w'; of {rank_file}")
    assert not out.exists()
    run("convert", rank_file, out, "--exclude", "w")
    assert haulway.open(out).keys() == ["step"]


def test_what_a_rank_names_is_only_made_for_a_state():
    mesh = b"ctorch.distributed.device_mesh\nDeviceMesh\n"
    cpu = b"X\3\0\0\0cpu"
    made = b"\x80\2" + mesh + b")\x81}b."
    assert haulway.scan(torch_zip(made)).safe
    for called in (
        mesh + cpu + b"\x85R", b"(" + mesh + cpu + b"o",
        b"(" + cpu + b"i" + mesh[1:], mesh + cpu + b"\x85}\x92",
        b"ccopyreg\n_reconstructor\n" + mesh + mesh + cpu + b"\x87R",
        mesh + b"}b",
    ):
        report = haulway.scan(torch_zip(b"\x80\2" + called + b"."))
        assert report.verdict == "UNSAFE", called


class WithState:
    """A parameter with a state, as torch writes it."""

    def __init__(self, state):
        self.state = state

    def __reduce__(self):
        return torch._utils._rebuild_parameter_with_state, (
            torch.ones(2), True, {}, self.state)


@pytest.mark.parametrize("state", [
    {"__class__": torch.Tensor}, (None, {"__class__": torch.Tensor}),
])
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_state_that_sets_the_class_is_not_safe(state, protocol, tmp_path):
    path = tmp_path / "p.pt"
    torch.save({"p": WithState(state)}, path, pickle_protocol=protocol)
    report = haulway.scan(path)
    assert report.verdict == "UNKNOWN" and "__class__" in report.reason
    torch.save({"p": WithState({"name": "a"}), "class": 1}, path,
               pickle_protocol=protocol)
    assert haulway.scan(path).safe
    # A text alone sets nothing.
    assert haulway.scan(pickle.dumps({"__class__": "a"}, protocol)).safe
