"""A pytest plugin that puts Haulway in the place of safetensors and
torch.load."""

import sys

import haulway.safetensors
import haulway.torch

haulway.safetensors.install()
_loads = haulway.torch.install(save=True)


def pytest_terminal_summary(terminalreporter):
    """Prints that it was active to the end; tools/host_suites.py looks for the
    line."""
    package = sys.modules["safetensors"]
    if package is haulway.safetensors or package.__name__.startswith("haulway"):
        terminalreporter.write_line(f"haulway in place: {_loads.counts}")
