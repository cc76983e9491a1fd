"""torch, or a stand-in with which tests are collected in a Python without
torch.

scripts/test-pythons has such interpreters and sets HAULWAY_WITHOUT_TORCH;
elsewhere torch is required. conftest.py skips the tests that would use the
stand-in.
"""

import os
import types


class Absent:
    """Stands in for every attribute of torch if torch is missing."""

    class Tensor:
        pass

    def __getattr__(self, name):
        return self

    def __call__(self, *arguments, **options):
        return self

    def __getitem__(self, key):
        return self


try:
    import torch
except ImportError:
    if "HAULWAY_WITHOUT_TORCH" not in os.environ:
        raise
    torch = Absent()


def _names_torch(code):
    return "torch" in code.co_names or any(
        _names_torch(inner) for inner in code.co_consts
        if isinstance(inner, types.CodeType)
    )


def needs_torch(item):
    """Returns whether a collected test needs torch."""
    if not isinstance(torch, Absent):
        return False
    parameters = getattr(item, "callspec", None)
    parameters = parameters.params if parameters else {}
    return (
        _names_torch(item.function.__code__)
        or parameters.get("is_torch", False)
        or any(isinstance(value, Absent) for value in parameters.values())
    )
