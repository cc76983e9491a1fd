"""The drop-in modules on a GPU: safetensors, Tensorizer, vLLM, JAX, DCP."""

import importlib
import pathlib
import sys
import types

import pytest
import safetensors.torch
import torch

import haulway
import haulway.safetensors
import haulway.safetensors.torch
import haulway.tensorizer
import haulway.vllm
from conftest import check


@pytest.mark.parametrize("device", ["cuda:0", "cuda", 0])
def test_load_file(files, state, device):
    path = files / "model.safetensors"
    theirs = safetensors.torch.load_file(path, device=device)
    found = haulway.safetensors.torch.load_file(path, device=device)
    check({k: found[k] for k in state}, {k: theirs[k].cpu() for k in state})


def test_safe_open(files, state):
    path = files / "model.safetensors"
    with haulway.safetensors.safe_open(path, "pt", device="cuda:0") as opened:
        for name in ("f32", "bf16", "f8", "small.0007", "empty", "scalar"):
            check({name: opened.get_tensor(name)}, {name: state[name]})
        part = opened.get_slice("bf16")[10:20, ::7]
    assert part.device == torch.device("cuda:0")
    assert torch.equal(part.cpu(), state["bf16"][10:20, ::7])


def test_save_file_from_the_gpu(tmp_path, state):
    there = {k: v.cuda() for k, v in state.items()}
    safetensors.torch.save_file(there, tmp_path / "theirs.safetensors")
    haulway.safetensors.torch.save_file(there, tmp_path / "ours.safetensors")
    assert ((tmp_path / "ours.safetensors").read_bytes()
            == (tmp_path / "theirs.safetensors").read_bytes())


def test_torch_save_from_the_gpu(tmp_path, state):
    there = {k: v.cuda() for k, v in state.items()}
    torch.save(there, tmp_path / "model.pt")
    theirs = (tmp_path / "model.pt").read_bytes()
    haulway.torch.save(there, tmp_path / "model.pt")
    assert (tmp_path / "model.pt").read_bytes() == theirs


def test_every_format_is_saved_from_the_gpu(tmp_path, state):
    there = {k: v.cuda() for k, v in state.items()}
    for name in ("m.pt", "m.safetensors", "m.tensors"):
        haulway.save(there, tmp_path / name)
        check(haulway.load(tmp_path / name, device="cuda:0"), state)


def test_a_save_under_way_sees_no_later_change(tmp_path, state):
    there = {k: v.cuda() for k, v in state.items()}
    pending = haulway.save_async(there, tmp_path / "m.safetensors")
    for tensor in there.values():
        tensor.zero_()
    pending.result()
    check(haulway.load(tmp_path / "m.safetensors", device="cuda:0"), state)


def test_tensorizer(tmp_path, state):
    module = torch.nn.Sequential(torch.nn.Linear(300, 200))
    wanted = {k: v.clone() for k, v in module.state_dict().items()}
    serializer = haulway.tensorizer.TensorSerializer(str(tmp_path / "m.tensors"))
    serializer.write_module(module.cuda())
    serializer.close()
    target = torch.nn.Sequential(torch.nn.Linear(300, 200, device="cuda:0"))
    with haulway.tensorizer.TensorDeserializer(
        str(tmp_path / "m.tensors"), device="cuda"
    ) as found:
        found.load_into_module(target)
    check(dict(target.state_dict()), wanted)
    with haulway.tensorizer.TensorDeserializer(
        str(tmp_path / "m.tensors"), device="cuda:0", plaid_mode=True
    ) as found:
        check(dict(found.items()), wanted)


STUB = pathlib.Path(__file__).parents[1] / "tests" / "vllm_stub"


def test_vllm_yields_tensors_on_the_gpu(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(STUB))
    loaders = importlib.import_module("vllm.model_executor.model_loader")
    haulway.vllm.register()
    wanted = {f"layer.{i}.weight": torch.full((64, 8), float(i)) for i in range(3)}
    (tmp_path / "m").mkdir()
    haulway.save(wanted, tmp_path / "m" / "model.safetensors")

    class Model(torch.nn.Module):
        def named_parameters(self):
            return [(name, None) for name in wanted]

        def load_weights(self, weights):
            self.got = dict(weights)
            return set(self.got)

    loader = loaders.get_model_loader(types.SimpleNamespace(
        load_format="haulway", model_loader_extra_config={"device_direct": True},
        use_tqdm_on_load=False, safetensors_load_strategy=None,
    ))
    model = Model()
    loader.load_weights(model, types.SimpleNamespace(
        model=str(tmp_path / "m"), revision=None))
    check(model.got, wanted)
    for name in [*sys.modules]:
        if name.partition(".")[0] == "vllm" or name == "haulway._vllm_loader":
            del sys.modules[name]


def test_jax(tmp_path):
    import jax

    wanted = torch.randn(100, 10)
    haulway.save({"w": wanted}, tmp_path / "m.safetensors")
    array = haulway.load(tmp_path / "m.safetensors", "jax")["w"]
    there = jax.device_put(array, jax.devices("gpu")[0])
    assert torch.equal(torch.from_dlpack(there).cpu(), wanted)


def test_dcp_into_tensors_of_the_gpu(tmp_path, state):
    import torch.distributed.checkpoint as dcp

    import haulway.torch.dcp as ours

    there = {k: v.cuda() for k, v in state.items() if v.numel()}
    dcp.save(there, storage_writer=ours.Writer(tmp_path / "d"))
    target = {k: torch.zeros_like(v) for k, v in there.items()}
    dcp.load(target, storage_reader=ours.Reader(tmp_path / "d"))
    check(target, {k: state[k] for k in target})
    found = haulway.load(tmp_path / "d", device="cuda:0")
    check({k: found[k] for k in target}, {k: state[k] for k in target})


def test_together_on_nccl(tmp_path, state, files):
    import torch.distributed as dist

    import haulway.distributed

    dist.init_process_group(
        "nccl", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    try:
        found = haulway.distributed.load(
            files / "model.safetensors", device="cuda:0"
        )
        check({k: found[k] for k in state}, state)
    finally:
        dist.destroy_process_group()


def test_transformers(tmp_path):
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, vocab_size=128,
    )
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(tmp_path / "m")
    tokens = torch.arange(10, device="cuda:0")[None]
    stock = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path / "m", device_map="cuda:0")(tokens).logits
    with haulway.safetensors.install():
        ours = transformers.LlamaForCausalLM.from_pretrained(
            tmp_path / "m", device_map="cuda:0")(tokens).logits
    assert torch.equal(stock, ours)
