"""Programs that people run, with Haulway and without, in alternation.

Each call is a new process, which reports how long its loading, or saving, took,
without imports. Files are in the page cache unless a case is "cold".

    scripts/bench hosts [--rounds N] [--only CASE] [--json FILE] [--gib N]
                        [--directory FOLDER] [--record]
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

from side_by_side import Measured, main

SHARDS = 20
INSTALLED = """
import haulway.safetensors, haulway.torch
haulway.safetensors.install(); haulway.torch.install()
"""


def seconds_of(setup, work):
    """Returns how long `work` takes in a new process, after `setup`."""
    program = (
        textwrap.dedent(setup) + "\nimport time\nstart = time.perf_counter()\n"
        + textwrap.dedent(work) + "\nprint('TOOK', time.perf_counter() - start)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True,
                          text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return Measured(float(done.stdout.split("TOOK")[1].split()[0]))


def evict(folder):
    """Takes the files of a folder out of the page cache."""
    for path in folder.iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def pair(setup, work, theirs):
    """Returns the same program with Haulway in the package's place, and
    without."""
    return [
        ("haulway", lambda: seconds_of(textwrap.dedent(setup) + INSTALLED, work)),
        (theirs, lambda: seconds_of(setup, work)),
    ]


def write_files(directory: Path, gib):
    """Writes a model's folder, one with .bin files, one with shards, and a
    checkpoint."""
    program = f"""
        import torch, transformers, huggingface_hub
        layers = max(1, round({gib} * 2**30 / 4 / (16 * 1024 * 1024)))
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            hidden_size=1024, intermediate_size=4096, num_hidden_layers=layers,
            num_attention_heads=8, num_key_value_heads=8, vocab_size=1000))
        model.save_pretrained("model")
        model.config.save_pretrained("bin")
        torch.save(model.state_dict(), "bin/pytorch_model.bin")
        size = sum(p.nbytes for p in model.parameters())
        model.save_pretrained("shards", max_shard_size=size // {SHARDS - 1})
        state = {{"state_dict": model.state_dict(), "epoch": 1, "loops": {{}}}}
        torch.save(state, "run.ckpt")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], cwd=directory,
                   check=True, capture_output=True)


def cases(directory: Path, options):
    """Yields (case, [(contender, function), ...], targets); Haulway first."""
    write_files(directory, options.gib)
    size = f"{options.gib:g} GiB"
    hugging = "import transformers, transformers.models.llama.modeling_llama\n"
    # A byte of every page of mapped tensors is read.
    touch = "\nfor p in model.parameters(): p.detach().view(-1)[::1024].sum()"
    for folder, target in (("model", 1), ("bin", 3)):
        yield (
            f"from_pretrained, {folder}, {size}",
            pair(hugging, "model = transformers.AutoModelForCausalLM.from_pretrained("
                 f"{str(directory / folder)!r})" + touch, "transformers"),
            {"transformers": target},
        )
    yield (
        f"from_pretrained, model, cold, {size}",
        [(name, lambda call=call: (evict(directory / "model"), call())[1])
         for name, call in pair(
             hugging, "model = transformers.AutoModelForCausalLM.from_pretrained("
             f"{str(directory / 'model')!r})" + touch, "transformers")],
        {"transformers": 1.5},
    )
    path = str(directory / "run.ckpt")
    lightning = textwrap.dedent("""
        import lightning
        from lightning.fabric.plugins import TorchCheckpointIO
        from haulway.lightning import HaulwayCheckpointIO
    """)
    yield (
        f"Lightning loads, .ckpt, {size}",
        [(name, lambda io=io: seconds_of(
            lightning, f"{io}.load_checkpoint({path!r})"))
         for name, io in (("haulway", "HaulwayCheckpointIO()"),
                          ("lightning", "TorchCheckpointIO()"))],
        {"lightning": 3},
    )
    state = lightning + f"state = TorchCheckpointIO().load_checkpoint({path!r})\n"
    out = str(directory / "out.ckpt")
    synced = f"""
        import os
        with open({out!r}, "rb+") as file: os.fsync(file.fileno())
    """
    yield (
        f"Lightning saves, durable, .ckpt, {size}",
        [
            ("haulway", lambda: seconds_of(
                state, f"HaulwayCheckpointIO().save_checkpoint(state, {out!r})")),
            ("lightning and fsync", lambda: seconds_of(
                state, f"TorchCheckpointIO().save_checkpoint(state, {out!r})\n"
                + textwrap.dedent(synced))),
        ],
        {"lightning and fsync": 2},
    )
    shards = str(directory / "shards")
    yield (
        f"accelerate, {SHARDS} shards, {size}",
        pair(f"""
            import accelerate, transformers
            config = transformers.AutoConfig.from_pretrained({shards!r})
            with accelerate.init_empty_weights():
                model = transformers.AutoModelForCausalLM.from_config(config)
        """, f"""
            accelerate.load_checkpoint_in_model(
                model, {shards!r}, device_map={{"": "cpu"}})
            for p in model.parameters(): p.detach().view(-1)[::1024].sum()
        """, "accelerate"),
        {"accelerate": 1.5},
    )
    file = str(directory / "model" / "model.safetensors")
    yield (
        f"16 threads, slices of one safe_open, {size}",
        [(name, lambda module=module: seconds_of(f"""
            import concurrent.futures, torch
            from {module} import safe_open
            file = safe_open({file!r}, "pt")
            slices = [file.get_slice(name) for name in file.keys()]
            def read(one):
                rows = one.get_shape()[0]
                for at in range(0, rows, 256):
                    one[at:at + 256].clone()
            pool = concurrent.futures.ThreadPoolExecutor(16)
        """, "list(pool.map(read, slices))"))
         for name, module in (("haulway", "haulway.safetensors"),
                              ("safetensors", "safetensors"))],
        {"safetensors": 1.5},
    )


if __name__ == "__main__":
    sys.exit(main("inside other programs", cases, name="hosts"))
