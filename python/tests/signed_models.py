"""Signatures by the reference, and its own vectors: testdata/signing/."""

import base64
import functools
import hashlib
import json
import pathlib
import shutil
import tarfile
import tempfile

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

ARCHIVE = (pathlib.Path(__file__).resolve().parents[2]
           / "testdata/signing/goldens.tar.xz")
VERIFIERS = ("public_key", "certificate_chain", "identity", "issuer",
             "trusted_root")


@functools.cache
def _unpacked():
    folder = tempfile.TemporaryDirectory(prefix="haulway-signing-")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder.name)
    return folder


def golden(name=""):
    """Returns a file or folder of the goldens, which must not be changed."""
    return pathlib.Path(_unpacked().name) / "signing" / name


def model_of(row):
    """Returns the model of a golden."""
    name = row["model"]
    return golden(name if name.startswith("vectors/") else f"models/{name}")


def key(name):
    return golden("keys") / name


def expected():
    """Returns name -> model, sig, verifier, and what the statement says."""
    return json.loads(golden("expected.json").read_text())


def verifier(row):
    """Returns the options that verify a golden."""
    options = {}
    for name in VERIFIERS:
        value = row.get(name)
        if value is None:
            continue
        if name == "certificate_chain":
            value = [str(key(one)) for one in value]
        elif name in ("public_key", "trusted_root"):
            value = str(key(value))
        options[name] = value
    return options


def flags(options):
    """Returns options of Python as those of the command line."""
    words = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        for one in value if isinstance(value, (list, tuple)) else [value]:
            words += [flag] if one is True else [flag, str(one)]
    return words


def copy(model, to):
    """Copies a model to change it; returns the copy."""
    source = golden(model)
    if source.is_dir():
        return pathlib.Path(shutil.copytree(source, to, symlinks=True))
    return pathlib.Path(shutil.copy(source, to))


# Making signatures of any content, with the keys of the goldens.

TYPE = "application/vnd.in-toto+json"
BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"


def base64_of(data):
    return base64.b64encode(data).decode()


def signed(payload, name="p256.pem", payload_type=TYPE):
    """Returns the signature of a payload by a key of the goldens."""
    private = load_pem_private_key(key(name).read_bytes(), None)
    hashes_ = {256: hashes.SHA256, 384: hashes.SHA384, 521: hashes.SHA512}
    bytes_ = b"DSSEv1 %d %s %d %s" % (
        len(payload_type), payload_type.encode(), len(payload), payload)
    return private.sign(bytes_, ec.ECDSA(hashes_[private.curve.key_size]()))


def bundle_of(payload, name="p256.pem", **changes):
    """Returns the bundle of a payload, as a dict. `changes` go to its
    envelope."""
    return {
        "mediaType": BUNDLE,
        "verificationMaterial": {"publicKey": {}, "tlogEntries": []},
        "dsseEnvelope": {
            "payload": base64_of(payload), "payloadType": TYPE,
            "signatures": [
                {"sig": base64_of(signed(payload, name)), "keyid": ""}],
            **changes,
        },
    }


def resource(name, data, algorithm="sha256"):
    return {"name": name, "algorithm": algorithm,
            "digest": hashlib.new("sha256", data).hexdigest()}


def statement_of(resources, method="files", **serialization):
    """Returns a statement of resources, as a dict."""
    root = hashlib.sha256(
        b"".join(bytes.fromhex(one["digest"]) for one in resources))
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": "m", "digest": {"sha256": root.hexdigest()}}],
        "predicateType": "https://model_signing/signature/v1.0",
        "predicate": {
            "serialization": {"method": method, "hash_type": "sha256",
                              "allow_symlinks": False, **serialization},
            "resources": resources,
        },
    }


def write(path, bundle):
    """Writes a bundle, or text in its place; returns its path as a str."""
    data = bundle if isinstance(bundle, (bytes, str)) else json.dumps(bundle)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return str(path)


def sign(path, statement, name="p256.pem"):
    """Writes the signature of a statement, which may be text."""
    data = statement if isinstance(statement, bytes) else json.dumps(
        statement).encode()
    return write(path, bundle_of(data, name))
