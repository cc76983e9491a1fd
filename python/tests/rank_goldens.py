"""Folders that the processes of a training wrote: testdata/ranks/."""

import functools
import hashlib
import json
import pathlib
import shutil
import tarfile
import tempfile

import numpy

import haulway

ARCHIVE = (pathlib.Path(__file__).resolve().parents[2]
           / "testdata/ranks/goldens.tar.xz")


@functools.cache
def _unpacked():
    folder = tempfile.TemporaryDirectory(prefix="haulway-ranks-")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder.name)
    return folder


def folder(name):
    """Returns the folder of a golden, which must not be changed."""
    return pathlib.Path(_unpacked().name) / name


def copy(name, to):
    """Copies a golden to change it; returns the copy."""
    return pathlib.Path(shutil.copytree(folder(name), to))


def expected(name, part="model"):
    """Returns name -> (dtype, shape, SHA-256 of the elements)."""
    every = json.loads(folder("expected.json").read_text())
    return {key: (dtype, tuple(shape), digest)
            for key, (dtype, shape, digest) in every[name][part].items()}


def found(path, **options):
    """Returns the same of a checkpoint."""
    return {name: (dtype, tuple(shape), digest) for name, (dtype, shape, digest)
            in haulway.manifest(path, **options).items()}


def digest(array):
    return hashlib.sha256(numpy.ascontiguousarray(array).tobytes()).hexdigest()
