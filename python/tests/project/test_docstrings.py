"""help() of every public name states its parameters, their units, and its
exceptions.

Public names are those that the stubs declare. Each rule below is one that
readers can rely on: parameters are named, sizes and times have units, and the
exceptions and thread rules are stated by the callable, its class or its module.
"""

import ast
import enum
import importlib
import inspect
import pathlib
import re

import pytest

import haulway
from haulway._options import ENGINE
from haulway._reading.call import reads

STUBS = pathlib.Path(haulway.__file__).parent
# The unit of a parameter of this name.
UNITS = {
    **dict.fromkeys(("timeout", "acquire_timeout"), "second"),
    **dict.fromkeys((
        "nbytes", "max_bytes", "overflow_bytes", "segment_size", "capacity",
        "threshold", "chunk_size", "span", "data_len", "max_shared_bytes",
    ), "byte"),
}


def modules():
    """Yields (name of a public module, its stub)."""
    for stub in sorted(STUBS.rglob("*.pyi")):
        inside = stub.relative_to(STUBS.parent).with_suffix("").parts
        yield ".".join(part for part in inside if part != "__init__"), stub


def public():
    """Yields (module, owner or None, name) of functions, classes and
    methods."""
    for module, stub in modules():
        for node in ast.parse(stub.read_text()).body:
            if not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                continue
            hidden = "type_check_only" in map(ast.unparse, node.decorator_list)
            if hidden or node.name.startswith("_"):
                continue
            yield module, None, node.name
            for one in node.body if isinstance(node, ast.ClassDef) else ():
                if isinstance(one, ast.FunctionDef) and one.name[0] != "_":
                    yield module, node.name, one.name


PUBLIC = sorted(set(public()), key=str)


def found(module, owner, name):
    home = importlib.import_module(module)
    return getattr(home if owner is None else getattr(home, owner), name)


def own(thing):
    """Returns an object's own docstring, not that of a base class."""
    if isinstance(thing, type):
        return inspect.cleandoc(vars(thing).get("__doc__") or "")
    return inspect.getdoc(thing) or ""


def parameters(thing):
    """Returns the names of the parameters that a caller passes."""
    if isinstance(thing, property):
        return []
    if isinstance(thing, type):
        if issubclass(thing, (BaseException, enum.Enum)) or (
            "Made by " in " ".join(own(thing).split())
        ):
            return []
        if issubclass(thing, tuple):
            return thing._fields
        thing = vars(thing).get("__init__", vars(thing).get("__new__"))
        if thing is None:
            return []
    try:
        signature = inspect.signature(thing)
    # The extension's functions have no signature.
    except (TypeError, ValueError):
        return []
    kinds = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [
        name for name, one in signature.parameters.items()
        if name not in ("self", "cls") and one.kind not in kinds
        and not name.startswith("_")
    ]


def says(text, *words):
    return any(word in text.lower() for word in words)


@pytest.mark.parametrize(("module", "owner", "name"), PUBLIC)
def test_the_docstring_is_complete(module, owner, name):
    thing = found(module, owner, name)
    said = own(thing) if owner is None else inspect.getdoc(thing) or ""
    assert said, "has no docstring"
    if owner is None and name in ("DataLoader", "StatefulDataLoader"):
        return  # torch documents its parameters.
    names = parameters(thing)
    missing = [one for one in names if not re.search(rf"\b{one}\b", said)]
    assert not missing, f"does not name {missing}"
    for one in names:
        unit = UNITS.get(one)
        as_for = re.search(rf"\b{one}\b[\w, ]*: as ", said)
        assert not unit or as_for or says(said, unit), f"{one} has no unit"
    where = said if owner is None else said + own(found(module, None, owner))
    is_class = isinstance(thing, type)
    is_plain = is_class and issubclass(
        thing, (BaseException, enum.Enum, tuple)
    )
    if not is_plain and (not is_class or parameters(thing)):
        assert says(where, "raise"), "does not say what it raises"
    if is_class and not is_plain:
        assert says(said, "thread"), "does not say which threads may use it"


def test_modules_with_functions_say_which_threads_may_call_them():
    for module, stub in modules():
        if any(isinstance(node, ast.FunctionDef) and node.name[0] != "_"
               for node in ast.parse(stub.read_text()).body):
            said = importlib.import_module(module).__doc__
            assert says(said, "thread"), module


def test_nearly_everything_is_looked_at():
    assert len(PUBLIC) > 280


@pytest.mark.parametrize("margin", ["    ", ""])
def test_docstrings_are_completed_with_and_without_indentation(margin):
    """The compiler of Python 3.13 removes the indentation."""
    def load():
        pass

    load.__doc__ = f"Loads.\n\n{margin}OPTIONS\n{margin}"
    told = inspect.getdoc(reads(ENGINE)(load))
    assert told.startswith("Loads.\n\n") and "OPTIONS" not in told
    assert all(f"\n{name}: " in told for name in ENGINE)
