"""Builds the object of a checkpoint."""


def build_over(core, factory, from_dlpack=None, bases=None, encoding="utf-8"):
    """Builds the whole object over existing storages, or without storages."""
    built, _ = core.build(factory, from_dlpack, bases, encoding, {}, None)
    return built
