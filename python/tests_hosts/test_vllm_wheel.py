"""Compares the stub for vLLM with the source files of the real wheel.

HAULWAY_VLLM names the folder with the wheel's content; see scripts/test-hosts.
"""

import ast
import os
import pathlib

import pytest

STUB = pathlib.Path(__file__).parents[1] / "tests/vllm_stub"
REAL = pathlib.Path(os.environ["HAULWAY_VLLM"])
FOLDER = "vllm/model_executor/model_loader"


def parsed(root, module):
    return ast.parse((root / FOLDER / f"{module}.py").read_text())


def functions(tree):
    """Returns {"Class.name" or "name": names of arguments without self}."""
    found = {}
    for node in tree.body:
        parts = node.body if isinstance(node, ast.ClassDef) else [node]
        for part in parts:
            if isinstance(part, ast.FunctionDef):
                prefix = f"{node.name}." if part is not node else ""
                args = part.args
                found[prefix + part.name] = [
                    one.arg for one in (*args.args, *args.kwonlyargs)
                    if one.arg != "self"
                ]
    return found


@pytest.mark.parametrize("module", [
    "__init__", "base_loader", "default_loader", "ep_weight_filter", "weight_utils",
])
def test_signatures_are_those_of_the_wheel(module):
    real = functions(parsed(REAL, module))
    for name, arguments in functions(parsed(STUB, module)).items():
        assert arguments == real[name], name


def test_nothing_else_is_abstract():
    tree = parsed(REAL, "base_loader")
    (base,) = [one for one in tree.body if isinstance(one, ast.ClassDef)]
    abstract = {
        part.name for part in base.body if isinstance(part, ast.FunctionDef)
        and any(getattr(mark, "id", "") == "abstractmethod"
                for mark in part.decorator_list)
    }
    assert abstract == {"download_model", "load_weights"}


def test_what_is_used_is_there():
    tree = parsed(REAL, "default_loader")
    (loader,) = [one for one in tree.body if isinstance(one, ast.ClassDef)]
    text = ast.unparse(loader)
    for name in ("local_expert_ids", "_encoder_only_lm_prefixes",
                 "_encoder_only_weights_mapper", "enable_weights_track"):
        assert f"self.{name}" in text, name
    (source,) = [one for one in loader.body if isinstance(one, ast.ClassDef)]
    fields = [one.target.id for one in source.body
              if isinstance(one, ast.AnnAssign)]
    assert fields == [
        "model_or_path", "revision", "subfolder", "prefix", "fall_back_to_pt",
        "allow_patterns_overrides", "is_unused_weight",
    ]
    assert "_BAR_FORMAT" in (REAL / FOLDER / "weight_utils.py").read_text()
    text = (REAL / "vllm/plugins/__init__.py").read_text()
    assert '"vllm.general_plugins"' in text


def test_the_text_of_the_bar_is_the_wheels():
    ours = (pathlib.Path(__file__).parents[1] / "haulway/_vllm_loader.py").read_text()
    text = (REAL / FOLDER / "weight_utils.py").read_text()
    assert "Loading safetensors checkpoint shards" in text
    assert "Loading pt checkpoint shards" in text
    assert 'f"Loading {kind} checkpoint shards"' in ours


def of(root, path):
    return ast.parse((root / path).read_text())


def test_the_weight_transfer_of_the_stub_is_that_of_the_wheel():
    folder = "vllm/distributed/weight_transfer"
    for module in ("base", "factory"):
        real = functions(of(REAL, f"{folder}/{module}.py"))
        stub = functions(of(STUB, f"{folder}/{module}.py"))
        assert stub
        for name, arguments in stub.items():
            assert arguments == real[name], name
    (engine,) = [
        one for one in of(REAL, f"{folder}/base.py").body
        if isinstance(one, ast.ClassDef) and one.name == "WeightTransferEngine"
    ]
    abstract = {
        part.name for part in engine.body if isinstance(part, ast.FunctionDef)
        and any(getattr(mark, "id", "") == "abstractmethod"
                for mark in part.decorator_list)
    }
    assert abstract == {"init_transfer_engine", "start_weight_update",
                        "receive_weights", "finish_weight_update", "shutdown"}


def test_the_wheel_reloads_layer_by_layer():
    folder = REAL / FOLDER / "reload"
    exported = (folder / "__init__.py").read_text()
    real = functions(ast.parse((folder / "layerwise.py").read_text()))
    assert real["initialize_layerwise_reload"] == ["model"]
    for name in ("initialize_layerwise_reload", "finalize_layerwise_reload"):
        assert f'"{name}"' in exported
    # As its own engines call it.
    own = (REAL / "vllm/distributed/weight_transfer/ipc_engine.py").read_text()
    assert "finalize_layerwise_reload(self.model, self.model_config)" in own
    config = (REAL / "vllm/config/weight_transfer.py").read_text()
    assert "backend: " in config
