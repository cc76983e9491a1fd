"""transformers, diffusers, accelerate, peft and huggingface_hub with
haulway.safetensors in the package's place."""

import json
import os
import socket
import subprocess
import sys
import threading

import accelerate
import diffusers
import huggingface_hub
import peft
import pytest
import torch
import transformers

import haulway
import haulway.safetensors
import haulway.torch


@pytest.fixture(autouse=True)
def installed():
    """Installs ours after everything was imported."""
    with haulway.safetensors.install() as done, haulway.torch.install() as loads:
        yield done, loads
    assert haulway.safetensors.installed() is False


def config(**more):
    return transformers.LlamaConfig(**{
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64,
        **more,
    })


def llama(seed=0, **more):
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(config(**more))


def same(one, other):
    a, b = one.state_dict(), other.state_dict()
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype and torch.equal(a[name], b[name]), name


def load(folder, **more):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **more)


def test_what_transformers_had_bound_is_ours(installed):
    patched = installed[0].patched
    assert "transformers.modeling_utils.safe_open" in patched
    assert transformers.modeling_utils.safe_open is haulway.safetensors.safe_open
    haulway.safetensors.uninstall()
    assert transformers.modeling_utils.safe_open is not haulway.safetensors.safe_open
    haulway.safetensors.install()


@pytest.mark.parametrize("case", ["single", "sharded", "tied", "bf16"])
def test_models_are_saved_and_loaded(tmp_path, case):
    more = {"tie_word_embeddings": case == "tied"}
    model = llama(**more)
    if case == "bf16":
        model = model.to(torch.bfloat16)
    shard = "40KB" if case == "sharded" else "5GB"
    ours, stock = tmp_path / "ours", tmp_path / "stock"
    model.save_pretrained(ours, max_shard_size=shard)
    haulway.safetensors.uninstall()
    model.save_pretrained(stock, max_shard_size=shard)
    haulway.safetensors.install()
    # The package's files are byte for byte the same.
    names = sorted(path.name for path in ours.iterdir())
    assert names == sorted(path.name for path in stock.iterdir())
    assert sum(name.endswith(".safetensors") for name in names) > (case == "sharded")
    for name in names:
        assert (ours / name).read_bytes() == (stock / name).read_bytes(), name
    for threads in ("0", "1"):  # HF_DEACTIVATE_ASYNC_LOAD
        os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = threads
        found = load(ours, dtype="auto")
        del os.environ["HF_DEACTIVATE_ASYNC_LOAD"]
        same(found, model)
    if case == "tied":
        assert found.lm_head.weight is found.model.embed_tokens.weight
    same(load(ours, dtype="auto", disable_mmap=True), model)


def test_sixteen_threads_load_at_once(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    found = []
    threads = [threading.Thread(target=lambda: found.append(load(tmp_path)))
               for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for one in found:
        same(one, model)
    path = next(tmp_path.glob("*00001*.safetensors"))
    with haulway.safetensors.safe_open(path, "pt") as file:
        slices = [file.get_slice(name) for name in file.keys()]
        expected = [one[:] for one in slices]
    results = [None] * 16

    def read(number):
        results[number] = [one[:] for one in slices]

    threads = [threading.Thread(target=read, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in results:
        assert all(map(torch.equal, result, expected))


def test_bin_files_are_read_by_our_torch_load(tmp_path, installed):
    model = llama()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    model.config.save_pretrained(tmp_path)
    before = installed[1].counts["load"]
    same(load(tmp_path), model)
    assert installed[1].counts["load"] > before


def test_a_folder_that_haulway_opened_is_a_state_dict(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    haulway.safetensors.uninstall()  # It needs no patch.
    with haulway.open(tmp_path) as checkpoint:
        state = {name: checkpoint.get_slice(name) for name in checkpoint}
        found = transformers.LlamaForCausalLM.from_pretrained(
            None, config=model.config, state_dict=state)
        same(found, model)
        found = transformers.LlamaForCausalLM.from_pretrained(
            None, config=model.config, state_dict=checkpoint)
        same(found, model)
    haulway.safetensors.install()


def test_an_index_with_a_wrong_total_size_is_loaded(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    index = tmp_path / "model.safetensors.index.json"
    text = json.loads(index.read_text())
    text["metadata"]["total_size"] = 1
    index.write_text(json.dumps(text))
    same(load(tmp_path), model)


def test_links_of_the_hubs_cache_are_followed(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path / "blobs")
    (tmp_path / "snapshot").mkdir()
    for path in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / path.name).symlink_to(path)
    same(load(tmp_path / "snapshot"), model)


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, i):
        ids = torch.arange(8) + i
        return {"input_ids": ids, "labels": ids}


def test_a_trainer_saves_and_resumes(tmp_path, installed):
    def trainer(steps):
        return transformers.Trainer(
            llama(), transformers.TrainingArguments(
                tmp_path, max_steps=steps, save_steps=2, report_to=[], use_cpu=True,
                per_device_train_batch_size=2, disable_tqdm=True, seed=1),
            train_dataset=Numbers(),
        )

    whole = trainer(4)
    whole.train()
    assert (tmp_path / "checkpoint-2" / "model.safetensors").exists()
    resumed = trainer(4)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    same(resumed.model, whole.model)
    assert installed[1].counts["load"] > 0  # optimizer.pt and the like


def test_accelerate_saves_loads_and_dispatches(tmp_path):
    accelerator = accelerate.Accelerator(cpu=True)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    module = accelerator.prepare(module)
    before = {k: v.clone() for k, v in module.state_dict().items()}
    accelerator.save_state(tmp_path / "state")
    torch.nn.init.zeros_(module[0].weight)
    accelerator.load_state(tmp_path / "state")
    assert all(torch.equal(module.state_dict()[k], before[k]) for k in before)
    accelerator.save_model(module, tmp_path / "model", max_shard_size="0.1KB")
    assert (tmp_path / "model" / "model.safetensors.index.json").exists()

    def empty():
        with accelerate.init_empty_weights():
            return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))

    found = accelerate.load_checkpoint_and_dispatch(
        empty(), tmp_path / "model", device_map={"": "cpu"})
    assert all(torch.equal(found.state_dict()[k], before[k]) for k in before)
    offloaded = accelerate.load_checkpoint_and_dispatch(
        empty(), tmp_path / "model", device_map={"0": "cpu", "1": "disk"},
        offload_folder=tmp_path / "off")
    assert torch.equal(offloaded(torch.ones(1, 4)), found(torch.ones(1, 4)))
    # A file without metadata is taken for torch's, with a warning.
    path = str(tmp_path / "bare.safetensors")
    haulway.save(before, path)
    target = empty()
    accelerate.load_checkpoint_in_model(target, path, device_map={"": "cpu"})
    assert all(torch.equal(target.state_dict()[k], before[k]) for k in before)


def test_parts_of_a_model_stay_on_disk(tmp_path):
    """With little memory, device_map="auto" puts layers into the offload
    folder; an offloaded model computes the same numbers."""
    model = llama().eval()
    model.save_pretrained(tmp_path / "model", max_shard_size="40KB")
    tokens = torch.arange(8).view(1, 8)
    wanted = model(tokens).logits
    automatic = load(tmp_path / "model", device_map="auto")
    same(automatic, model)
    size = sum(one.nbytes for one in model.parameters())
    for more in (
        {"device_map": "auto", "max_memory": {"cpu": size // 2}},
        {"device_map": {"model.embed_tokens": "cpu", "model.layers.0": "disk",
                        "model.layers.1": "cpu", "model.norm": "cpu",
                        "model.rotary_emb": "cpu", "lm_head": "disk"}},
    ):
        found = load(tmp_path / "model", offload_folder=tmp_path / "off", **more)
        assert "disk" in found.hf_device_map.values()
        assert torch.equal(found.eval()(tokens).logits, wanted)


RANK = """
import sys
import torch
import transformers
import haulway.safetensors
from transformers import AutoModelForCausalLM

folder = sys.argv[1]
haulway.safetensors.install()
tokens = torch.arange(8).view(1, 8)
whole = AutoModelForCausalLM.from_pretrained(folder).eval()
part = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto").eval()
weight = part.model.layers[0].self_attn.q_proj.weight
local = weight.to_local() if hasattr(weight, "to_local") else weight
assert local.shape[0] * 2 == whole.model.layers[0].self_attn.q_proj.weight.shape[0]
rank = torch.distributed.get_rank()
rows = whole.model.layers[0].self_attn.q_proj.weight.chunk(2)[rank]
assert torch.equal(local, rows)
torch.testing.assert_close(part(tokens).logits, whole(tokens).logits)
torch.distributed.destroy_process_group()
print("done")
"""


def test_a_plan_of_tensor_parallelism_on_two_ranks(tmp_path):
    llama().save_pretrained(tmp_path, max_shard_size="40KB")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, tmp_path],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank),
                 "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                 "MASTER_PORT": str(port)},
        ) for rank in range(2)
    ]
    for rank in ranks:
        said, _ = rank.communicate(timeout=500)
        assert rank.returncode == 0 and said.endswith("done\n"), said


def test_adapters_of_peft_are_saved_and_loaded(tmp_path):
    base = llama()
    model = peft.get_peft_model(base, peft.LoraConfig(
        target_modules=["q_proj"], r=2, init_lora_weights=False))
    model.save_pretrained(tmp_path)
    assert (tmp_path / "adapter_model.safetensors").exists()
    again = peft.PeftModel.from_pretrained(llama(), tmp_path)
    same(again, model)


def test_components_of_diffusers_are_saved_and_loaded(tmp_path):
    torch.manual_seed(0)
    model = diffusers.UNet2DModel(
        sample_size=8, block_out_channels=(32,), layers_per_block=1,
        down_block_types=("DownBlock2D",), up_block_types=("UpBlock2D",))
    model.save_pretrained(tmp_path)
    same(diffusers.UNet2DModel.from_pretrained(tmp_path), model)
    same(diffusers.UNet2DModel.from_pretrained(tmp_path, disable_mmap=True), model)


def test_the_hubs_shards_are_those_that_convert_writes(tmp_path):
    state = {f"layer.{i}.weight": torch.randn(64, 64) for i in range(8)}
    (tmp_path / "hub").mkdir()
    huggingface_hub.save_torch_state_dict(
        state, tmp_path / "hub", max_shard_size=50_000)
    (tmp_path / "ours").mkdir()
    haulway.save(state, tmp_path / "one.safetensors")
    haulway.convert(tmp_path / "one.safetensors",
                    tmp_path / "ours" / "model.safetensors", shard=50_000)
    names = [sorted(path.name for path in (tmp_path / one).iterdir())
             for one in ("hub", "ours")]
    assert names[0] == names[1] and len(names[0]) == 4
    index = [json.loads((tmp_path / one / "model.safetensors.index.json").read_text())
             for one in ("hub", "ours")]
    assert index[0]["weight_map"] == index[1]["weight_map"]
    assert index[0]["metadata"]["total_size"] == index[1]["metadata"]["total_size"]
    found = huggingface_hub.load_state_dict_from_file(
        tmp_path / "ours" / "model-00001-of-00003.safetensors")
    assert set(found) < set(state)


POINTER = (b"version https://git-lfs.github.com/spec/v1\n"
           b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e\n"
           b"size 12345\n")


def test_a_pointer_of_git_lfs_is_named(tmp_path):
    llama().save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(POINTER)
    with pytest.raises(haulway.safetensors.SafetensorError,
                       match="header too large: it is a pointer of Git LFS: fetch"):
        load(tmp_path)


def test_ours_before_the_imports(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    program = (
        "import haulway.safetensors as ours\n"
        "ours.install()\n"
        "import transformers, torch\n"
        "assert transformers.modeling_utils.safe_open is ours.safe_open\n"
        f"m = transformers.AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})\n"
        f"m.save_pretrained({str(tmp_path / 'again')!r}, max_shard_size='40KB')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True,
                          text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    same(load(tmp_path / "again"), model)
