"""Private names of torch: used in one module only, each with a substitute."""

import ast
import collections
import io
import pathlib
import re
import types

import pytest
import torch

import haulway
import haulway.torch
from cases import sparse, with_attributes
from haulway._torch import factory, private

pytestmark = pytest.mark.filterwarnings("ignore")
PACKAGE = pathlib.Path(haulway.__file__).parent
BINDING = pathlib.Path(__file__).resolve().parents[3]


def private_names(path):
    """Returns the names of torch.* with one leading underscore that the file
    uses."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute):
            spelled = ast.unparse(node)
            parts = spelled.split(".")
            if parts[0] == "torch" and any(
                part.startswith("_") and not part.startswith("__")
                for part in parts[1:]
            ):
                yield spelled
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [getattr(node, "module", None) or "",
                     *(alias.name for alias in node.names)]
            yield from (name for name in names if name.startswith("torch._"))


def test_they_are_in_one_module():
    found = {
        (str(path.relative_to(PACKAGE)), name)
        for path in PACKAGE.rglob("*.py")
        if path.name != "private.py" for name in private_names(path)
    }
    found |= {
        (path.name, name)
        for path in BINDING.glob("*/*.cc")
        for name in re.findall(r'attr\([^"()]*"(_[a-z]\w*)"', path.read_text())
    }
    assert found == set()
    assert len(list(BINDING.glob("*/*.cc"))) > 20
    assert len(set(private_names(PACKAGE / "_torch" / "private.py"))) > 3


class Without:
    """Wraps a module, its submodules and some classes, without one name."""

    def __init__(self, module, hidden):
        self._module = module
        self._hidden = hidden

    def __getattr__(self, name):
        if name == self._hidden:
            raise AttributeError(name)
        found = getattr(self._module, name)
        is_wrapped = isinstance(found, types.ModuleType) or found in (
            torch.Tensor, torch.UntypedStorage)
        return Without(found, self._hidden) if is_wrapped else found


NAMES = [
    "_from_dlpack", "_guards", "_neg_view", "set_tensor_metadata",
    "_restore_device_fake_mode", "_get_restore_location",
    "_get_allowed_globals",
]


class Noted:
    __slots__ = ("__dict__", "slot")


def objects():
    noted = Noted()
    noted.note, noted.slot = torch.ones(1), 2
    neg = torch._neg_view(torch.arange(3.0))
    return {
        "conj": torch.tensor([1 + 2j]).conj(), "neg": neg, "noted": noted,
        "sparse": sparse("csr"), "attributes": with_attributes(),
        "storage": torch.arange(3.0).untyped_storage(),
        "size": torch.Size([1]), "type": torch.float16,
        "dict": collections.OrderedDict(a=1), "device": torch.device("cpu"),
    }


@pytest.mark.parametrize("name", NAMES)
def test_loads_without_it(name, monkeypatch):
    out = io.BytesIO()
    torch.save(objects(), out)
    monkeypatch.setattr(private, "torch", Without(torch, name))
    if name == "_get_allowed_globals":
        monkeypatch.delattr(torch._weights_only_unpickler, name)
    factory._allowed.cache_clear()
    monkeypatch.setattr(
        factory, "from_dlpack", private.from_dlpack())
    try:
        for location in (None, "cpu", torch.device("cpu"), {"cpu": "cpu"},
                         lambda storage, location: storage,
                         lambda storage, location: None):
            out.seek(0)
            made = haulway.torch.load(
                out, map_location=location, safe_globals=[Noted])
            assert made["conj"].tolist() == [1 - 2j]
            assert made["neg"].tolist() == [-0.0, -1, -2]
            assert made["noted"].note.item() == 1 and made["noted"].slot == 2
            assert made["sparse"].to_dense().tolist() == torch.eye(4).tolist()
            assert made["attributes"][0].note == {"made": "here"}
            assert made["storage"].nbytes() == 12
            assert (made["size"], made["type"], made["device"]) == (
                torch.Size([1]), torch.float16, torch.device("cpu"))
        out.seek(0)
        meta = haulway.torch.load(out, map_location="meta", safe_globals=[Noted])
        assert meta["conj"].is_meta
    finally:
        factory._allowed.cache_clear()


NAMES_OF_SAVING = [
    "_backward_hooks", "_cdata", "_dtype_to_storage_type_map", "_new_dtypes",
    "_package_registry", "_cpu_tag",
]


@pytest.mark.parametrize("name", NAMES_OF_SAVING)
def test_saves_the_same_without_it(name, monkeypatch):
    shared = torch.arange(6.0)
    saved = {
        **{str(dtype): torch.ones(3).to(dtype)
           for dtype in (torch.float64, torch.bfloat16, torch.uint16,
                         torch.float8_e5m2, torch.bool, torch.complex64)},
        "tied": [shared, shared[2:]], "empty": torch.ones(0),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "typed": torch.FloatStorage([1, 2]),
        "untyped": torch.arange(3).untyped_storage(),
        "meta": torch.ones(2, device="meta"), "sparse": sparse("csr"),
        "quantized": torch.quantize_per_tensor(
            torch.arange(4.0), 0.5, 1, torch.qint8),
    }
    expected, out = io.BytesIO(), io.BytesIO()
    haulway.torch.save(saved, expected)
    monkeypatch.setattr(private, "torch", Without(torch, name))
    haulway.torch.save(saved, out)
    assert out.getvalue() == expected.getvalue()


def test_substitutes_of_tables_are_as_torch_has_them(monkeypatch):
    names = private._storage_names()
    of_bytes = private._dtypes_of_bytes()
    monkeypatch.setattr(
        private, "torch", Without(torch, "_dtype_to_storage_type_map"))
    assert private._storage_names() == names
    monkeypatch.setattr(private, "torch", Without(torch, "_new_dtypes"))
    assert of_bytes <= private._dtypes_of_bytes()


def test_substitutes_of_what_is_no_function(monkeypatch):
    class Typed:
        """torch.storage.TypedStorage without its private names."""

        def __init__(self, wrap_storage, dtype, **words):
            if words:
                raise TypeError(f"unexpected keyword {next(iter(words))}")
            self.wrapped, self.dtype = wrap_storage, dtype

        def untyped(self):
            return self.wrapped

    monkeypatch.setattr(torch.storage, "TypedStorage", Typed)
    storage = torch.ones(2).untyped_storage()
    made = private.typed_storage(storage, torch.float32)
    assert private.untyped_storage(made) is storage
    monkeypatch.delattr(torch._utils, "_rebuild_nested_tensor")
    assert len(private.rebuilds_of_indices()) == 1
    assert not private.rebuilds_nested(len)
