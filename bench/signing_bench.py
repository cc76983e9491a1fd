"""Signed models: Haulway's load that compares the signature, against the
reference's verify and safetensors' load, and against the digest alone.

    scripts/bench signing [--rounds N] [--only CASE] [--json FILE] [--record]

The files are in the page cache. The reference, model-signing, is installed in a
folder of its own (scripts/bench); without it only the digest is compared.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy
from safetensors.numpy import load_file

import haulway
from side_by_side import MIB, main

REFERENCE = Path(__file__).resolve().parents[1] / "build/model-signing"
TOTAL = 256 * MIB


def reference():
    """Returns the reference's module of verifying, or None."""
    if REFERENCE.is_dir() and str(REFERENCE) not in sys.path:
        sys.path.append(str(REFERENCE))
    try:
        from model_signing import verifying
    except ImportError:
        return None
    return verifying


def make(folder: Path, count):
    """Makes a signed model of `count` files; returns the paths of its
    weights."""
    folder.mkdir()
    private, public = folder.parent / "key.pem", folder.parent / "key.pub"
    subprocess.run(["openssl", "ecparam", "-name", "prime256v1", "-genkey",
                    "-noout", "-out", private], check=True)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public],
                   check=True)
    random = numpy.random.default_rng(0)
    paths = []
    for number in range(count):
        paths.append(folder / f"model-{number + 1:05}-of-{count:05}.safetensors")
        haulway.save(
            {f"w{number}": random.integers(0, 256, TOTAL // count, numpy.uint8)},
            paths[-1], durability="none")
    haulway.sign(folder, folder.parent / "model.sig", private_key=private)
    return paths


def load_signed(folder):
    options = {"signature": folder.parent / "model.sig",
               "public_key": folder.parent / "key.pub"}
    return haulway.load(folder, "numpy", **options)


def verify_and_load(verifying, folder, paths):
    verifying.Config().use_elliptic_key_verifier(
        public_key=folder.parent / "key.pub").verify(
            folder, folder.parent / "model.sig")
    return [load_file(path) for path in paths]


def digest_alone(paths):
    for path in paths:
        with open(path, "rb") as file:
            hashlib.file_digest(file, "sha256")


def cases(directory: Path, options):
    """Yields (case, [(contender, function), ...], targets); Haulway first."""
    verifying = reference()
    for count in (8, 1):
        folder = directory / f"{count}" / "model"
        folder.parent.mkdir()
        paths = make(folder, count)
        name = f"{count} file{'s' * (count > 1)} of {TOTAL // count // MIB} MiB"
        contenders = [("haulway", lambda folder=folder: load_signed(folder)),
                      ("SHA-256 alone", lambda paths=paths: digest_alone(paths))]
        targets = {"SHA-256 alone": 0.8} if count == 1 else {}
        if verifying is not None:
            contenders.append(
                ("model-signing, then safetensors",
                 lambda folder=folder, paths=paths: verify_and_load(
                     verifying, folder, paths)))
            if count > 1:
                targets["model-signing, then safetensors"] = 1.8
        yield f"verify and load, {name}", contenders, targets
        checked = [("haulway", lambda folder=folder: haulway.verify(
            folder, signature=folder.parent / "model.sig",
            public_key=folder.parent / "key.pub"))]
        if verifying is not None:
            checked.append(("model-signing", lambda folder=folder: (
                verifying.Config().use_elliptic_key_verifier(
                    public_key=folder.parent / "key.pub").verify(
                        folder, folder.parent / "model.sig"))))
        yield f"verify, {name}", checked, {}


if __name__ == "__main__":
    raise SystemExit(main(__doc__.split("\n")[0], cases, name="signing"))
