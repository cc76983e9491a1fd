"""The loader of vLLM's load format "haulway". Imported by vLLM's processes.

How: vLLM's DefaultModelLoader finds the files of a model, filters weights that
this rank does not need, and reports missing weights; only the reading is
Haulway's. Files are searched as for vLLM's format "hf": safetensors before .bin
before .pt. A folder that holds a version of weights which is a delta is opened
as a whole, with its base.
"""

from __future__ import annotations

import copy
import os
import time

import torch
from tqdm.auto import tqdm
from vllm.model_executor.model_loader import weight_utils
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.ep_weight_filter import should_skip_weight

from ._making.assemble import maker
from ._options import READING
from ._reading.call import Reading
from ._reading.iterate import tensors
from ._reading.select import choose
from ._reading.source import is_delta

# Keys of --model-loader-extra-config that are reading options, by their option
# name. The other keys are handled below.
_KEYS = {"threads": "threads", "io": "io", "memory_limit": "memory_budget",
         "verify": "verify", "base": "base"}
_INDEX = "model.safetensors.index.json"
_OTHERS = ("device_direct", "enable_weights_track", "uri")


class HaulwayModelLoader(DefaultModelLoader):
    """Reads the weights of a model, one tensor after another.

    Keys of model_loader_extra_config: threads, io, memory_limit (bytes that
    are read ahead) and verify as in docs/loading.md, base (the checkpoint on
    which the first version of weights builds), device_direct (tensors come on
    the current GPU), uri (where the weights are, if the model's folder has
    none), and vLLM's enable_weights_track.

    Every tensor has memory of its own, which lives as long as the tensor.
    """

    def __init__(self, load_config):
        extra = load_config.model_loader_extra_config
        # The base class rejects a value that is not a dict, and does not know
        # our keys.
        theirs = {name: extra[name] for name in extra
                  if name == "enable_weights_track"} \
            if isinstance(extra, dict) else extra
        super().__init__(_changed(load_config, model_loader_extra_config=theirs))
        self.load_config = load_config
        self._options = _checked(load_config.load_format, extra)
        self._elsewhere = extra.get("uri")
        self._is_direct = extra.get("device_direct", False)

    def get_all_weights(self, model_config, model):
        """Yields (name, tensor) of the model that model_config names now."""
        self._elsewhere = (
            getattr(model_config, "model_weights", None)
            or self.load_config.model_loader_extra_config.get("uri")
        )
        yield from super().get_all_weights(model_config, model)

    def _prepare_weights(self, model_name_or_path, subfolder, revision,
                         fall_back_to_pt, allow_patterns_overrides):
        """Returns (folder, file names, whether they are safetensors, index
        file)."""
        folder = os.path.join(model_name_or_path, subfolder or "")
        if _is_version(folder):
            return folder, [folder], False, ""
        ours = self.load_config
        self.load_config = _changed(ours, load_format="hf")
        try:
            return super()._prepare_weights(
                model_name_or_path, subfolder, revision, fall_back_to_pt,
                allow_patterns_overrides,
            )
        except RuntimeError:  # The folder has no weights.
            if self._elsewhere is None or not os.path.isdir(model_name_or_path):
                raise
            return self._elsewhere, [self._elsewhere], False, ""
        finally:
            self.load_config = ours

    def _get_weights_iterator(self, source):
        if self.load_config.safetensors_load_strategy == "torchao":
            # For these models vLLM assembles the weights itself.
            return self._as_vllm_does(source)
        folder, files, is_safetensors, index = self._prepare_weights(
            source.model_or_path, source.subfolder, source.revision,
            source.fall_back_to_pt, source.allow_patterns_overrides,
        )
        if is_safetensors:
            files = self._wanted(source, folder, files, index)
        if self.counter_before_loading_weights == 0.0:
            self.counter_before_loading_weights = time.perf_counter()
        return (
            (source.prefix + name, tensor)
            for name, tensor in self._read(files, is_safetensors)
        )

    def _as_vllm_does(self, source):
        ours = self.load_config
        self.load_config = _changed(
            ours, load_format="safetensors", model_loader_extra_config={}
        )
        try:
            return super()._get_weights_iterator(source)
        finally:
            self.load_config = ours

    def _wanted(self, source, folder, files, index):
        """Returns the files that hold weights of the model."""
        prefixes = self._encoder_only_lm_prefixes
        if prefixes is not None and files:
            files = weight_utils.filter_mm_encoder_only_safetensors_files(
                files, folder, index, prefixes,
                weights_mapper=self._encoder_only_weights_mapper,
            )
            if not files:
                raise RuntimeError(
                    "mm-encoder-only leaves no weight file of "
                    f"{source.model_or_path}: the language model's prefixes are "
                    f"{prefixes}"
                )
        if source.is_unused_weight is not None:
            files = weight_utils.filter_safetensors_files_by_weight_name(
                files, source.is_unused_weight
            )
        return files

    def _read(self, files, is_safetensors):
        """Yields (name, tensor), file by file in numeric order, and within a
        file in its own order; of experts only those of this rank are read."""
        device = f"cuda:{torch.cuda.current_device()}" if self._is_direct else "cpu"
        make = maker("torch", device)
        kind = "safetensors" if is_safetensors else "pt"
        for file in tqdm(
            sorted(files, key=weight_utils._natural_sort_key),
            desc=f"Loading {kind} checkpoint shards",
            disable=not weight_utils.enable_tqdm(
                self.load_config.use_tqdm_on_load
            ),
            bar_format=weight_utils._BAR_FORMAT,
        ):
            reading = Reading("vllm", self._options)
            core = reading.open(file)
            chosen = [
                one for one in choose(core)
                if not should_skip_weight(one.name, self.local_expert_ids)
            ]
            yield from tensors(core, chosen, make, reading)


def _is_version(folder):
    """Returns whether a local folder holds a version that is a delta."""
    try:
        with open(os.path.join(folder, _INDEX), "rb") as file:
            return is_delta(file.read())
    except OSError:
        return False


def _checked(load_format, extra):
    """Returns the reading options for the keys; raises ValueError for an
    unknown key."""
    known = sorted((*_KEYS, *_OTHERS))
    unknown = sorted(map(str, set(extra) - set(known)))
    if unknown:
        raise ValueError(
            f"model_loader_extra_config of the load format {load_format} has "
            f"{', '.join(unknown)}: expected {', '.join(known)}"
        )
    for name, kind in (("device_direct", bool), ("uri", str)):
        if not isinstance(extra.get(name, kind()), kind):
            raise ValueError(
                f"{name} is {extra[name]!r}: expected a {kind.__name__}"
            )
    options = {}
    for key, name in _KEYS.items():
        if extra.get(key) is not None:
            options[name] = READING[name].check(key, extra[key])
    return options


def _changed(load_config, **fields):
    """Returns a copy of vLLM's LoadConfig with other values."""
    changed = copy.copy(load_config)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed
