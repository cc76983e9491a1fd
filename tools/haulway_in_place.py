"""A plug-in of pytest: Haulway in the place of safetensors and torch.load."""

import sys

import haulway.safetensors
import haulway.torch

haulway.safetensors.install()
_loads = haulway.torch.install(save=True)


def pytest_terminal_summary(terminalreporter):
    """Says that it was there to the end, which tools/host_suites.py looks for."""
    package = sys.modules["safetensors"]
    if package is haulway.safetensors or package.__name__.startswith("haulway"):
        terminalreporter.write_line(f"haulway in place: {_loads.counts}")
