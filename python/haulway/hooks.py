"""Functions that other programs call, named by their import path.

    --custom-pull-weights-pre-read-hook haulway.hooks.before_pull      (SGLang)
    --custom-update-weight-post-write-path haulway.hooks.after_write   (slime)

Receivers of versions of weights apply whatever lies in a folder: a folder whose
index is missing counts as a model, and shards that nobody lists are applied, too.
These functions refuse such folders before a weight changes. docs/deltas.md has
the rest. Any thread may call them at any time.
"""

from __future__ import annotations

import json
import os

from ._errors import CorruptError, NotFoundError, TruncatedError
from .delta import versions

__all__ = ["after_write", "before_pull"]


def before_pull(source_dir, target_version):
    """Checks that a version, and every version that it needs, is whole.

    source_dir: the folder of the versions. target_version: its number.

    Raises NotFoundError if there is no such version, TruncatedError if a file
    of it is missing or cut, and CorruptError for a shard that its index does
    not list, and for a delta that does not build on an older number.
    """
    of = {version.number: version for version in versions(source_dir)}
    number = int(target_version)
    while number > 0:
        version = of.get(number)
        if version is None:
            raise NotFoundError(
                f"{source_dir}: version {number}, which version "
                f"{target_version} needs, is not there")
        _check(version)
        if version.kind == "full":
            return
        if not version.base.isdecimal() or int(version.base) >= number:
            raise CorruptError(
                f"{version.path}: version {version.id} builds on version "
                f"{version.base}: expected an older number, as SGLang needs")
        number = int(version.base)


def after_write(args, version_dir, rollout_engines):
    """Checks a version that was just written, before servers are told of it.

    version_dir: the folder of the version. args, rollout_engines: not used.

    Raises as before_pull() does, for this version alone.
    """
    folder = os.path.abspath(version_dir)
    for version in versions(os.path.dirname(folder)):
        if os.path.abspath(version.path) == folder:
            return _check(version)
    raise NotFoundError(f"{version_dir}: it is not a version of weights")


def _check(version):
    if not version.complete:
        raise TruncatedError(
            f"{version.path}: version {version.id} is not whole: "
            f"{', '.join(version.missing) or 'its index'} is missing or cut")
    strays = {name for name in os.listdir(version.path)
              if name.endswith(".safetensors")} - _listed(version.path)
    if strays:
        raise CorruptError(
            f"{version.path}: {', '.join(sorted(strays))} is not listed by the "
            "index, and receivers apply it all the same: remove it")


def _listed(folder):
    """Returns the names of the files that a version's index lists."""
    with open(os.path.join(folder, "model.safetensors.index.json"), "rb") as file:
        return set(json.load(file)["weight_map"].values())
