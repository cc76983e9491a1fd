import dataclasses
import glob
import os

from .base_loader import BaseModelLoader


class DefaultModelLoader(BaseModelLoader):
    @dataclasses.dataclass
    class Source:
        model_or_path: str
        revision: str | None
        subfolder: str | None = None
        prefix: str = ""
        fall_back_to_pt: bool = True
        allow_patterns_overrides: list | None = None
        is_unused_weight: object = None

    counter_before_loading_weights = 0.0

    def __init__(self, load_config):
        super().__init__(load_config)
        self.local_expert_ids = None
        self._encoder_only_lm_prefixes = None
        self._encoder_only_weights_mapper = None
        extra = load_config.model_loader_extra_config
        if not isinstance(extra, dict):
            raise ValueError("model_loader_extra_config must be a dict")
        if set(extra) - {"enable_weights_track"}:
            raise ValueError("unexpected extra config keys")
        self.enable_weights_track = extra.get("enable_weights_track")

    def _prepare_weights(self, model_name_or_path, subfolder, revision,
                         fall_back_to_pt, allow_patterns_overrides):
        if self.load_config.load_format != "hf":
            raise ValueError(f"Unknown load_format: {self.load_config.load_format}")
        folder = os.path.join(model_name_or_path, subfolder or "")
        patterns = ["*.safetensors", "*.bin"] + ["*.pt"] * fall_back_to_pt
        for pattern in allow_patterns_overrides or patterns:
            files = glob.glob(os.path.join(folder, pattern))
            if files:
                return (folder, files, pattern.endswith(".safetensors"),
                        "model.safetensors.index.json")
        raise RuntimeError(f"Cannot find any model weights with `{folder}`")

    def _get_weights_iterator(self, source):
        assert self.load_config.load_format == "safetensors"
        return iter([("as vLLM does", source)])

    def get_all_weights(self, model_config, model):
        yield from self._get_weights_iterator(DefaultModelLoader.Source(
            model_config.model, model_config.revision,
            fall_back_to_pt=getattr(model, "fall_back_to_pt_during_load", True),
            allow_patterns_overrides=getattr(
                model, "allow_patterns_overrides", None),
            is_unused_weight=getattr(model, "is_unused_checkpoint_weight", None),
        ))
        for source in getattr(model, "secondary_weights", ()):
            yield from self._get_weights_iterator(source)

    def download_model(self, model_config):
        self._prepare_weights(
            model_name_or_path=model_config.model, subfolder=None,
            revision=model_config.revision, fall_back_to_pt=True,
            allow_patterns_overrides=None,
        )

    def load_weights(self, model, model_config):
        wanted = {name for name, _ in model.named_parameters()}
        missing = wanted - model.load_weights(
            self.get_all_weights(model_config, model))
        if missing:
            raise ValueError(
                f"Following weights were not initialized from checkpoint: {missing}")
