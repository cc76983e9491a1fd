"""torch; or, for a Python without it, a stand-in with which tests are collected.

scripts/test-pythons has such Pythons, scripts/test never. conftest.py skips the
tests that would use the stand-in.
"""


class Absent:
    """What everything of torch is where there is no torch."""

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
    torch = Absent()


def needs_torch(item):
    """Whether a test that was collected cannot do without."""
    if not isinstance(torch, Absent):
        return False
    parameters = getattr(item, "callspec", None)
    parameters = parameters.params if parameters else {}
    return (
        "torch" in item.function.__code__.co_names
        or parameters.get("is_torch", False)
        or any(isinstance(value, Absent) for value in parameters.values())
    )
