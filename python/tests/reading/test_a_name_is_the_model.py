"""A name is the model, or it is refused: every call and every verb takes a folder
or a file for the whole checkpoint that other programs load from there, or names
the candidates."""

import json
import os
import pickle
import re
import shutil

import gguf
import numpy
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from test_cli_options import WAYS, has

import haulway

# The model of every layout, half of it, and what must never be taken for it.
MODEL = {f"layer.{i}.weight": torch.full((4, 32), float(i)) for i in range(4)}
HALVES = [dict(list(MODEL.items())[:2]), dict(list(MODEL.items())[2:])]
OTHER = {"intruder": torch.zeros(3)}
SIDE = {"state": {"intruder": torch.zeros(2)}, "lr": 0.1}
NAMES = sorted(MODEL)


def save(path, tensors):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(tensors, path, {"format": "pt"})
    elif path.suffix == ".gguf":
        writer = gguf.GGUFWriter(path, "llama")
        for name, tensor in tensors.items():
            writer.add_tensor(name, tensor.numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    else:
        torch.save(tensors, path)


def save_shards(folder, stem, ending, index=None):
    """Writes two shards and, with a name for it, their index."""
    names = [f"{stem}-0000{i}-of-00002{ending}" for i in (1, 2)]
    for name, half in zip(names, HALVES):
        save(folder / name, half)
    if index:
        (folder / index).write_text(json.dumps({
            "metadata": {"total_size": 2048},
            "weight_map": {tensor: name for name, half in zip(names, HALVES)
                           for tensor in half}}))
    return names


def save_parts(folder, stem="model", each=2):
    """Writes the parts of a GGUF model as gguf-split does."""
    folder.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(folder / f"{stem}.gguf", "llama",
                             split_max_tensors=each)
    for name, tensor in MODEL.items():
        writer.add_tensor(name, tensor.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob(f"{stem}-*.gguf"))


def save_sides(folder):
    """Writes what Trainer and accelerate leave beside a model."""
    folder.mkdir(exist_ok=True)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "rng_state_0.pth",
                 "scaler.pt", "training_args.bin", "optimizer.bin", "optimizer_1.bin",
                 "scheduler.bin", "sampler.bin", "dl_state_dict.bin",
                 "random_states_0.pkl", "custom_checkpoint_0.pkl"):
        torch.save(SIDE, folder / name)


def save_directory(folder):
    """Writes a directory of torch.distributed.checkpoint."""
    dcp.save(dict(MODEL), checkpoint_id=folder)


def only(name):
    return lambda folder: save(folder / name, MODEL)


def both(*writers):
    return lambda folder: [write(folder) for write in writers] and None


def other(name):
    return lambda folder: save(folder / name, OTHER)


def shards(stem, ending, index=None):
    return lambda folder: save_shards(folder, stem, ending, index) and None


# Folders that are the model, by the program that writes or reads them so.
MODELS = {
    "transformers": only("model.safetensors"),
    "transformers: bin": only("pytorch_model.bin"),
    "transformers: safetensors before bin": both(
        only("model.safetensors"), other("pytorch_model.bin")),
    "transformers: shards": shards(
        "model", ".safetensors", "model.safetensors.index.json"),
    "transformers: bin shards": shards(
        "pytorch_model", ".bin", "pytorch_model.bin.index.json"),
    "transformers: an index left by an older save": lambda folder: (
        save(folder / "model.safetensors", MODEL),
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"gone": "model-00001-of-00002.safetensors"}}))),
    "transformers: trainer": both(only("model.safetensors"), save_sides),
    "transformers: plain beside a variant": both(
        only("model.safetensors"), other("model.fp16.safetensors")),
    "transformers: only a variant": only("model.fp16.safetensors"),
    "transformers: index of a variant": shards(
        "model.bf16", ".safetensors", "model.safetensors.index.bf16.json"),
    "transformers: beside consolidated files": both(
        only("model.safetensors"), other("consolidated.safetensors")),
    "diffusers": only("diffusion_pytorch_model.safetensors"),
    "diffusers: variants": both(
        only("diffusion_pytorch_model.safetensors"),
        other("diffusion_pytorch_model.fp16.safetensors"),
        other("diffusion_pytorch_model.non_ema.safetensors"),
        other("diffusion_pytorch_model.bin")),
    "diffusers: shards": shards(
        "diffusion_pytorch_model", ".safetensors",
        "diffusion_pytorch_model.safetensors.index.json"),
    "peft: trainer": both(only("adapter_model.safetensors"), save_sides),
    "peft: bin": both(only("adapter_model.bin"), save_sides),
    "accelerate": both(only("model.safetensors"), save_sides),
    "accelerate: FSDP, full": both(only("pytorch_model_fsdp.bin"), save_sides),
    "llama.cpp": only("model-Q4_K_M.gguf"),
    "llama.cpp: parts": lambda folder: save_parts(folder) and None,
    "llama.cpp: projector": both(
        only("model-Q4_K_M.gguf"), other("mmproj-model-f16.gguf")),
    "torch.distributed.checkpoint": save_directory,
    "one file of any name": both(only("whatever.ckpt"), save_sides),
    "shards without an index": shards("model", ".safetensors"),
    "bin shards without an index": shards("pytorch_model", ".bin"),
}


def fsdp_state(folder):
    """accelerate's save_state() of a sharded FSDP model."""
    save_sides(folder)
    for below in ("pytorch_model_fsdp_0", "optimizer_0"):
        save_directory(folder / below)


def trainer_run(folder):
    save_sides(folder)
    for step in (500, 1000):
        save(folder / f"checkpoint-{step}" / "model.safetensors", MODEL)


def pipeline(folder):
    for part, name in (("unet", "diffusion_pytorch_model.safetensors"),
                       ("text_encoder", "model.safetensors")):
        save(folder / part / name, OTHER)


def deepspeed(folder):
    folder.mkdir(exist_ok=True)
    for name in ("mp_rank_00_model_states.pt",
                 "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"):
        torch.save(SIDE, folder / name)


def hole(folder):
    folder.mkdir(exist_ok=True)
    names = save_shards(folder, "model", ".safetensors")
    (folder / names[0]).unlink()


def hole_in_parts(folder):
    save_parts(folder)[1].unlink()


def empty_part(folder):
    save_parts(folder)[1].write_bytes(b"")


def empty_first_part(folder):
    save_parts(folder)[0].write_bytes(b"")


def foreign_part(folder):
    part = save_parts(folder)[1]
    writer = gguf.GGUFWriter(folder.parent / "z.gguf", "llama", split_max_tensors=1)
    for name in ("a", "b"):
        writer.add_tensor(name, numpy.zeros((2, 32), "f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    shutil.move(folder.parent / "z-00002-of-00002.gguf", part)


def no_metadata(folder):
    save_directory(folder)
    (folder / ".metadata").unlink()


def metadata_under_its_first_name(folder):
    save_directory(folder)
    (folder / ".metadata").rename(folder / ".metadata.tmp")


def cut_metadata(size):
    def write(folder):
        save_directory(folder)
        path = folder / ".metadata"
        path.write_bytes(path.read_bytes()[:size])

    return write


ENDED = "save did not end"
# Folders that are refused, with what the message says.
REFUSED = {
    "transformers and peft": (
        both(only("model.safetensors"), other("adapter_model.safetensors")),
        "model.safetensors.*adapter_model.safetensors"),
    "two variants": (
        both(only("model.fp16.safetensors"), other("model.bf16.safetensors")),
        "bf16.safetensors.*fp16.safetensors.*variant"),
    "accelerate: two models": (
        both(only("model.safetensors"), other("model_1.safetensors")),
        "model.safetensors.*model_1.safetensors"),
    "accelerate: FSDP, sharded": (fsdp_state, "pytorch_model_fsdp_0"),
    "transformers: a run": (trainer_run, "checkpoint-1000.*checkpoint-500"),
    "diffusers: a pipeline": (pipeline, "text_encoder.*unet"),
    "only a trainer's": (save_sides, "trainer"),
    "DeepSpeed": (deepspeed, "states no stage of ZeRO"),
    "llama.cpp: two quantizations": (
        both(only("model-Q4_K_M.gguf"), other("model-Q8_0.gguf")),
        "Q4_K_M.*Q8_0.*variant"),
    "llama.cpp: two models": (
        lambda folder: save_parts(folder) and save_parts(folder, "other"),
        "model-00001-of.*other-00001-of"),
}
# Folders with a fault, which verify reports too.
DAMAGED = {
    "a hole in shards": (hole, "part 1 of 2 of the model is missing"),
    "a hole in parts": (hole_in_parts, "part 2 of 2 of the model is missing"),
    "an empty part": (empty_part, "empty"),
    "an empty first part": (empty_first_part, "empty"),
    "a part of another model": (foreign_part, "another model"),
    "no .metadata": (no_metadata, ENDED),
    ".metadata.tmp": (metadata_under_its_first_name, ENDED),
    "an empty .metadata": (cut_metadata(0), ENDED),
    "a short .metadata": (cut_metadata(7), ENDED),
}

# How calls are made that need more than a path. A new call is called with its
# path alone.
CALLS = {
    "publish_file": lambda path, **o: published(path, **o),
    "convert": lambda path, **o: haulway.open(
        haulway.convert(path, path.parent / "out.safetensors", **o).files[0]),
    "diff": lambda path, **o: haulway.diff(path, path, **o).same == len(NAMES),
    "load_into": lambda path, **o: haulway.load_into(
        {
name: torch.zeros(4, 32) for name in NAMES}, path, **o) or True,
    "shard": lambda path, **o: haulway.shard(path, 0, 1, **o),
    "iterate": lambda path, **o: dict(haulway.iterate(path, **o)),
}


def published(path, **options):
    name = f"a-name-{os.getpid()}"
    with haulway.publish_file(name, path, **options):
        with haulway.subscribe(name) as subscription:
            return dict.fromkeys(subscription.state)


def calls():
    """Returns the calls that take the option variant, as all do that open a
    model by its name."""
    return [name for name in haulway.__all__
            if "\n    variant:" in (getattr(haulway, name).__doc__ or "")
            and name not in ("edit", "repair")]  # Of files.


def names_of(found):
    if hasattr(found, "keys"):
        return sorted(found.keys())
    return NAMES if found else None


def write(layout, folder):
    folder.mkdir()
    layout(folder)
    return folder


@pytest.mark.parametrize("call", calls())
def test_calls_open_what_other_programs_open(call, tmp_path):
    run = CALLS.get(call, getattr(haulway, call))
    for i, (name, layout) in enumerate(MODELS.items()):
        folder = write(layout, tmp_path / str(i))
        if call == "verify":  # It checks every file of a folder.
            assert bool(run(folder)) == (name != STALE), name
            continue
        assert names_of(run(folder)) == NAMES, name


@pytest.mark.parametrize("call", calls())
def test_calls_refuse_what_is_not_one_model(call, tmp_path):
    run = CALLS.get(call, getattr(haulway, call))
    table = {**DAMAGED, **({} if call == "verify" else REFUSED)}
    for i, (name, (layout, said)) in enumerate(table.items()):
        folder = write(layout, tmp_path / str(i))
        if call == "verify":
            found = [one.message for one in run(folder).findings]
            assert any(re.search(said, one) for one in found), (name, found)
            continue
        with pytest.raises(haulway.Error) as error:
            run(folder)
        assert re.search(said, str(error.value)), (name, error.value)


# These list every file of a folder.
OF_EACH = ("ls", "verify")
# transformers opens the model; the index lacks its files.
STALE = "transformers: an index left by an older save"


def ways(command):
    """Returns the ways of the verbs that take the name of a model."""
    for way in has(command, "--variant"):
        # "map --json" is one, too; "delta" is about what changed.
        if way not in ("verify --manifest", "map", "delta"):
            yield way


def line(way, path):
    rest = re.sub(r"(FILE|plain)\.(pt|tensors)", str(path), WAYS[way])
    return [way.split()[0], *rest.replace(" a", f" {NAMES[0]}").split(), "--json"]


def check_names(output, name):
    """Checks that what a verb printed is about the whole model."""
    for text in output.splitlines():
        told = json.loads(text)
        assert "intruder" not in text, (name, text)
        tensors = told.get("tensors", told.get("tensor_count"))
        if isinstance(tensors, list):
            tensors = len(tensors)
        assert tensors in (None, len(NAMES)), (name, text)


def test_verbs_open_what_other_programs_open(command, run, tmp_path):
    for i, (name, layout) in enumerate(MODELS.items()):
        folder = write(layout, tmp_path / str(i))
        for way in ways(command):
            (tmp_path / "out.safetensors").unlink(missing_ok=True)
            is_each = way.split()[0] in OF_EACH
            done = run(*line(way, folder), code=None)
            assert (done.returncode == 0) == (name != STALE or not is_each), (
                name, way, done)
            if not is_each:
                check_names(done.stdout, (name, way))


def test_verbs_refuse_what_is_not_one_model(command, run, tmp_path):
    for i, (name, (layout, said)) in enumerate({**REFUSED, **DAMAGED}.items()):
        folder = write(layout, tmp_path / str(i))
        for way in ways(command):
            if way.split()[0] in OF_EACH and name in REFUSED:
                continue
            done = run(*line(way, folder), code=None)
            assert done.returncode in (1, 2, 3), (name, way, done)
            assert not (tmp_path / "out.safetensors").exists()
            assert re.search(said, done.stdout + done.stderr), (name, way, done)
            if name in DAMAGED:
                assert done.returncode == 1, (name, way, done)

# One part of a set.


@pytest.mark.parametrize("call", calls())
def test_calls_open_all_parts_by_any(call, tmp_path):
    run = CALLS.get(call, getattr(haulway, call))
    for part in save_parts(tmp_path / "model"):
        assert names_of(run(part)) == NAMES
    part = save_parts(tmp_path / "hole")[0]
    part.with_name("model-00002-of-00002.gguf").unlink()
    if call == "verify":
        report = run(part)
        assert not report and "'model-00002-of-00002.gguf'" in report.findings[
            0].message
        assert run(part, alone=True)
        return
    with pytest.raises(haulway.MismatchError,
                       match="part 2 of 2 of the model is missing.*alone"):
        run(part)
    if call != "load_into":
        found = run(part, alone=True)
        assert not hasattr(found, "keys") or sorted(found.keys()) == NAMES[:2]


def test_verbs_open_all_parts_by_any(command, run, tmp_path):
    parts = save_parts(tmp_path / "model")
    for way in ways(command):
        for part in parts:
            (tmp_path / "out.safetensors").unlink(missing_ok=True)
            check_names(run(*line(way, part)).stdout, way)
    parts[1].unlink()
    for way in ways(command):
        (tmp_path / "out.safetensors").unlink(missing_ok=True)
        done = run(*line(way, parts[0]), code=1)
        assert "part 2 of 2 of the model is missing" in done.stdout + done.stderr
        run(*line(way, parts[0]), "--alone")


def test_a_part_by_another_name_is_refused(tmp_path):
    part = save_parts(tmp_path / "model")[0]
    part.rename(tmp_path / "first.gguf")
    with pytest.raises(haulway.MismatchError, match="part 1 of 2 of a model.*NAME-"):
        haulway.open(tmp_path / "first.gguf")
    assert sorted(haulway.open(tmp_path / "first.gguf", alone=True)) == NAMES[:2]
    with open(tmp_path / "first.gguf", "rb") as file:
        with pytest.raises(haulway.MismatchError, match="part 1 of 2"):
            haulway.load(file)


def test_folders_list_a_set_once(run, tmp_path):
    save_parts(tmp_path / "parts")
    save_shards(tmp_path / "shards", "model", ".safetensors")
    for folder, shown in (("parts", "parts/model-00001-of-00002.gguf"),
                          ("shards", "shards/")):
        for verb in ("ls", "verify"):
            lines = run(verb, folder, "--json").stdout.splitlines()
            assert [json.loads(one)["file"] for one in lines] == [shown]


def test_a_shard_alone_is_opened_and_told(run, tmp_path):
    """Its file does not say that it is a part, and other programs open it."""
    names = save_shards(tmp_path, "model", ".safetensors",
                        "model.safetensors.index.json")
    assert sorted(haulway.load(tmp_path / names[0])) == NAMES[:2]
    done = run("convert", names[0], "out.gguf", "--set", "general.architecture=llama")
    assert "is one of several shards: name the index" in done.stderr
    assert "shards" not in run("verify", ".").stderr


def test_the_command_joins_files(command, run, tmp_path):
    names = save_shards(tmp_path, "model", ".safetensors")
    for way in ways(command):
        (tmp_path / "out.safetensors").unlink(missing_ok=True)
        done = run(*line(way, names[0]), "--join", names[1],
                   code=1 if way == "diff" else 0)
        # --join is about the first of the two that diff compares.
        assert done.stderr.count("one of several") == (way == "diff")
        if way != "diff":
            check_names(done.stdout, way)
    done = run("ls", *names, "--join", names[1], code=2)
    assert "--join adds to one FILE" in done.stderr

# Variants.


@pytest.mark.parametrize(("variant", "files"), [
    ("fp16", {"model.fp16.safetensors": MODEL, "model.safetensors": OTHER}),
    ("non_ema", {"diffusion_pytorch_model.safetensors": OTHER,
                 "diffusion_pytorch_model.non_ema.bin": MODEL}),
    ("q8_0", {"m-Q4_K_M.gguf": OTHER, "m-Q8_0.gguf": MODEL,
              "mmproj-m-Q8_0.gguf": OTHER}),
    ("bf16", {"a.bf16.safetensors": MODEL, "a.fp16.safetensors": OTHER}),
])
def test_a_variant_chooses(variant, files, run, tmp_path):
    folder = tmp_path / "model"
    for name, tensors in files.items():
        save(folder / name, tensors)
    assert sorted(haulway.load(folder, variant=variant)) == NAMES
    assert haulway.verify(folder, variant=variant)
    listed = json.loads(run("ls", folder, "--variant", variant, "--json").stdout)
    assert sorted(one["name"] for one in listed["tensors"]) == NAMES
    with pytest.raises(haulway.NotFoundError, match="no variant 'int8': found"):
        haulway.load(folder, variant="int8")


def test_a_variant_of_shards(tmp_path):
    folder = tmp_path / "model"
    save(folder / "model.safetensors", OTHER)
    save_shards(folder, "model.bf16", ".safetensors",
                "model.safetensors.index.bf16.json")
    assert sorted(haulway.load(folder, variant="bf16")) == NAMES
    assert list(haulway.load(folder)) == ["intruder"]


@pytest.mark.parametrize("given", [
    lambda path: path, lambda path: path.read_bytes(), lambda path: open(path, "rb")])
def test_a_file_has_no_variants(given, tmp_path):
    save(tmp_path / "model.safetensors", MODEL)
    with pytest.raises(haulway.InvalidArgumentError, match="variant is chosen in a"):
        haulway.load(given(tmp_path / "model.safetensors"), variant="fp16")

# Conversions without tensors.


def test_a_conversion_without_tensors_says_so(run, tmp_path):
    torch.save({"base_lrs": [0.1], "last_epoch": 3}, tmp_path / "scheduler.bin")
    done = run("convert", "scheduler.bin", "out.safetensors", code=3)
    assert "no tensor, only other content such as 'base_lrs" in done.stderr
    assert not (tmp_path / "out.safetensors").exists()
    with pytest.raises(haulway.NotFoundError, match="no tensor"):
        haulway.convert(tmp_path / "scheduler.bin", tmp_path / "out.safetensors")
    safetensors.torch.save_file({}, tmp_path / "none.safetensors")
    run("convert", "none.safetensors", "out.safetensors")

# Indexes.


def test_an_index_may_say_here(tmp_path):
    index = "model.safetensors.index.json"
    save_shards(tmp_path, "model", ".safetensors", index)
    text = (tmp_path / index).read_text().replace('"model-', '"./model-', 1)
    (tmp_path / index).write_text(text)
    assert sorted(haulway.load(tmp_path)) == NAMES
    assert haulway.verify(tmp_path)


def test_what_contradicts_the_index_names_lenient(tmp_path):
    names = save_shards(tmp_path, "model", ".safetensors",
                        "model.safetensors.index.json")
    save(tmp_path / names[0], {**HALVES[0], **OTHER})
    with pytest.raises(haulway.MismatchError, match="'intruder' is not in the index; "
                                                    "the option lenient, "):
        haulway.load(tmp_path)
    assert sorted(haulway.load(tmp_path, lenient=True)) == NAMES


def test_a_byte_order_mark_is_named(run, tmp_path):
    index = "model.safetensors.index.json"
    names = save_shards(tmp_path, "model", ".safetensors", index)
    (tmp_path / index).write_bytes(b"\xef\xbb\xbf" + (tmp_path / index).read_bytes())
    data = (tmp_path / names[0]).read_bytes()
    size = int.from_bytes(data[:8], "little") + 3
    marked = tmp_path / "marked.safetensors"
    marked.write_bytes(size.to_bytes(8, "little") + b"\xef\xbb\xbf" + data[8:])
    for path in (tmp_path / index, marked):
        for lenient in (False, True):
            with pytest.raises(haulway.CorruptError, match=r"byte order mark \(BOM\)"):
                haulway.load(path, lenient=lenient)
        assert "BOM" in run("verify", path, code=1).stdout

# Directories of torch.distributed.checkpoint.


def test_an_unknown_transform_is_not_damage(run, tmp_path):
    folder = tmp_path / "step-1"
    save_directory(folder)
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    for place in metadata.storage_data.values():
        place.transform_descriptors = ["stream.lzma/1"]
    path.write_bytes(pickle.dumps(metadata))
    with pytest.raises(haulway.UnsupportedError, match="stream.lzma/1"):
        haulway.open(folder)
    with pytest.raises(haulway.UnsupportedError, match="stream.lzma/1"):
        haulway.verify(path)
    done = run("verify", folder, code=2)
    assert "stream.lzma/1" in done.stderr and "FAILED" not in done.stdout
