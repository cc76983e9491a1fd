"""Tensorizer files: Haulway and the tensorizer package in turn, same files.

Input files are in the page cache. Output files get new names; the output of the
previous call is removed outside the measured time. The calls of a contender
follow each other in its own process; the first is not counted.

OPENSSL_ia32cap=:~0x20000000 in the environment hides the processor's SHA-256
instructions from OpenSSL, and so from the reference and from the parts of
Haulway that use OpenSSL.

    scripts/bench tensorizer [--rounds N] [--only CASE] [--gib N] [--json FILE]
                             [--plot FILE.svg] [--record]
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys

import libnacl
import tensorizer as theirs
import torch

import haulway
import haulway.tensorizer as ours
from load_ceilings import pread_fresh
from side_by_side import MIB, in_two_threads, main

KEY = bytes(range(32))
COUNT = 256


written = []  # Files that the next call writes again.


def clear():
    os.sync()
    for path in written:
        path.unlink(missing_ok=True)


def state(gibibytes):
    elements = int(gibibytes * 1024 * MIB) // COUNT // 4
    generator = torch.Generator().manual_seed(1)
    return {
        f"layer.{i}.weight": torch.rand(elements, generator=generator)
        for i in range(COUNT)
    }


def writer(package, path, tensors, encrypted=False):
    def write():
        params = package.EncryptionParams(KEY) if encrypted else None
        serializer = package.TensorSerializer(str(path), encryption=params)
        serializer.write_state_dict(tensors)
        serializer.close()

    return write


def reader(package, path, readers=None, verify=False, encrypted=False):
    def read():
        params = package.DecryptionParams.from_key(KEY) if encrypted else None
        with package.TensorDeserializer(
            str(path), device="cpu", num_readers=readers, verify_hash=verify,
            encryption=params,
        ) as tensors:
            assert len(dict(tensors.items())) == COUNT

    return read


def append(path, tensors):
    """Appends tensors under a new name; returns the number of bytes written."""
    edit = haulway.edit(
        path, append={os.urandom(8).hex(): tensors}, durability="none"
    )
    return edit["written_bytes"]


def write_many(path, count):
    """Writes very many tensors to a file that the reference can read."""
    one = torch.zeros(1)
    writer(ours, path, {
        f"model.layers.{i // 10}.block.{i % 10}.weight": one
        for i in range(count)
    })()


def list_ours(path, count):
    with haulway.open(path) as checkpoint:
        assert len(checkpoint.keys()) == count


def list_theirs(path, count):
    with theirs.TensorDeserializer(
        str(path), device="cpu", lazy_load=True
    ) as tensors:
        assert len(list(tensors.keys())) == count


def cases(directory, options):
    tensors = state(options.gib)
    plain, secret = directory / "plain", directory / "secret"
    writer(ours, plain, tensors)()
    writer(ours, secret, tensors, encrypted=True)()

    written[:] = [directory / "ours", directory / "theirs"]

    def digest():
        in_two_threads(
            lambda tensor: hashlib.sha256(tensor.numpy().data).digest(),
            list(tensors.values()),
        )

    def seal():
        def one(tensor):
            size = 2 * MIB
            mac, sealed = bytes(16), ctypes.create_string_buffer(size)
            begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
            for at in range(begin, end, size):
                libnacl.nacl.crypto_secretbox_detached(
                    sealed, mac, ctypes.c_void_p(at),
                    ctypes.c_ulonglong(min(size, end - at)), bytes(24), KEY,
                )

        in_two_threads(one, list(tensors.values()))

    def reads(path, target, **how):
        contenders = [("haulway", reader(ours, path, **how))]
        for readers in (None, 1, 2, 4):
            name = f"tensorizer, {readers or 'default'} readers"
            contenders.append((name, reader(theirs, path, readers, **how)))
        return contenders, {name: target for name, _ in contenders[1:]}

    yield "write", [
        ("haulway", writer(ours, directory / "ours", tensors)),
        ("tensorizer", writer(theirs, directory / "theirs", tensors)),
        ("ceiling: SHA-256, 2 threads", digest),
    ], {"tensorizer": 2}
    yield "write encrypted", [
        ("haulway", writer(ours, directory / "ours", tensors, True)),
        ("tensorizer", writer(theirs, directory / "theirs", tensors, True)),
        ("ceiling: libsodium, 2 threads", seal),
    ], {"tensorizer": 3}
    grown = directory / "grown.tensors"
    haulway.save(tensors, grown, durability="none", layout="segments")
    three = [torch.zeros(250_000) for _ in range(3)]
    bytes_written = append(grown, three)
    yield f"append 3 MB, writing {bytes_written:,} B, or write all anew", [
        ("haulway", lambda: append(grown, three)),
        ("haulway, anew", writer(ours, directory / "ours", tensors)),
        ("tensorizer, anew", writer(theirs, directory / "theirs", tensors)),
    ], {}
    grown.unlink()
    contenders, targets = reads(plain, 3)
    contenders.append(("ceiling: pread, 2 threads", lambda: pread_fresh(plain)))
    yield "load", contenders, targets
    contenders, targets = reads(plain, 3, verify=True)
    contenders.append(("ceiling: SHA-256, 2 threads", digest))
    yield "load and verify", contenders, targets
    contenders, targets = reads(secret, 3, encrypted=True)
    contenders.append(("ceiling: libsodium, 2 threads", seal))
    yield "load encrypted", contenders, targets
    many = directory / "many"
    write_many(many, 100_000)
    yield "list 100,000", [
        ("haulway", lambda: list_ours(many, 100_000)),
        ("tensorizer", lambda: list_theirs(many, 100_000)),
    ], {}


if __name__ == "__main__":
    sys.exit(main(__doc__.splitlines()[0], cases, fresh=lambda case: True,
                  before=clear, name="tensorizer"))
