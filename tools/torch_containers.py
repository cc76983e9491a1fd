"""Writes the containers of torch checkpoints, field by field.

Makes forms that torch itself no longer writes (old layouts, tar files,
big-endian archives); docs/formats/torch.md describes the formats.
"""

import io
import pickle
import pickletools
import struct
import tarfile
import zipfile
import zlib

import torch

# torch's name of an element type: (bytes of an element, unit of a byte swap).
SWAP_UNITS = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2,
    "int64": 8, "int32": 4, "int16": 2,
    "uint64": 8, "uint32": 4, "uint16": 2, "bits16": 2,
    "complex32": 2, "complex64": 4, "complex128": 8, "qint32": 4,
}


def archive(folder, records, alignment=64):
    """Returns a zip laid out as by torch's writer; `records` are (name,
    bytes)."""
    out = bytearray()
    directory = bytearray()
    for name, data in records:
        full = f"{folder}/{name}".encode()
        header = len(out)
        padding = -(header + 34 + len(full)) % alignment
        flags = 0x0808 if data else 0x0800
        extra = b"FB" + struct.pack("<H", padding) + b"Z" * padding
        out += b"PK\3\4" + struct.pack(
            "<HHHIIIIHH", 0, flags, 0, 0, 0, 0, 0, len(full), len(extra)
        )
        out += full + extra + data
        crc = zlib.crc32(data)
        if data:
            out += b"PK\7\10" + struct.pack("<III", crc, len(data), len(data))
        directory += b"PK\1\2" + struct.pack(
            "<HHHHIIIIHHHHHII", 0, 0, flags, 0, 0, crc, len(data), len(data),
            len(full), 0, 0, 0, 0, 0, header,
        ) + full
    count, offset = len(records), len(out)
    out += directory
    end = len(out)
    out += b"PK\6\6" + struct.pack(
        "<QHHIIQQQQ", 44, 0x031E, 45, 0, 0, count, count, len(directory), offset
    )
    out += b"PK\6\7" + struct.pack("<IQI", 0, end, 1)
    out += b"PK\5\6" + struct.pack(
        "<HHHHIIH", 0, 0, count, count, len(directory), offset, 0
    )
    return bytes(out)


def records_of(data):
    """Yields (name, bytes) of each record of an archive, in file order."""
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        records = []
        for name in opened.namelist():
            with opened.open(name) as record:
                record._expected_crc = None  # Its CRC may be switched off.
                records.append((name.split("/", 1)[1], record.read()))
        return records


def saved(made, **settings):
    out = io.BytesIO()
    torch.save(made, out, **settings)
    return out.getvalue()


def replaced(data, changes, folder="archive", order=None):
    """Returns an archive with records changed, dropped (None) and reordered."""
    records = dict(records_of(data))
    records.update(changes)
    names = order(list(records)) if order else list(records)
    return archive(
        folder, [(name, records[name]) for name in names
                 if records[name] is not None]
    )


def swapped(data, unit):
    return b"".join(
        data[at:at + unit][::-1] for at in range(0, len(data), unit)
    )


def big_endian(data, dtypes):
    """Returns the archive as a big-endian machine writes it.

    dtypes: torch's name of the element type of each storage, by key.
    """
    changes = {"byteorder": b"big"}
    for name, payload in records_of(data):
        key = name.removeprefix("data/")
        if key != name:
            changes[name] = swapped(payload, SWAP_UNITS.get(dtypes[key], 1))
    return replaced(data, changes)


def python2_strings(pkl):
    """Returns a pickle with its ASCII strings as Python 2 wrote a str."""
    opcodes = list(pickletools.genops(pkl))
    ends = [at for _, _, at in opcodes[1:]] + [len(pkl)]
    out = bytearray()
    for (opcode, text, at), end in zip(opcodes, ends):
        if opcode.name == "BINUNICODE" and text.isascii():
            out += b"U" + bytes([len(text)]) + text.encode()
        else:
            out += pkl[at:end]
    return bytes(out)


class _TarPickler(pickle.Pickler):
    """Pickles an object with a number in place of every tensor."""

    def __init__(self, out, keys):
        super().__init__(out, 2)
        self._keys = keys

    def persistent_id(self, value):
        return self._keys.get(id(value))


def tar(made, storages, tensors, views=()):
    """Returns the container of torch up to 0.1.9.

    storages: (key, storage class, bytes, elements); tensors: (key, storage key,
    tensor class, tensor); views: (key, root key, offset, elements).
    """
    def member(*pickled_and_raw):
        return b"".join(
            part if isinstance(part, bytes) else pickle.dumps(part[0], 2)
            for part in pickled_and_raw
        )

    parts = [(len(storages),)]
    for key, kind, data, count in storages:
        parts += [((key, "cpu", kind),), struct.pack("<q", count) + data]
    parts.append((list(views),))
    lists = [(len(tensors),)]
    for key, storage_key, kind, tensor in tensors:
        rank = tensor.dim()
        lists += [
            ((key, storage_key, kind),),
            struct.pack(
                f"<i4x{rank}q{rank}qq", rank, *tensor.shape, *tensor.stride(),
                tensor.storage_offset(),
            ),
        ]
    pickled = io.BytesIO()
    keys = {id(tensor): key for key, _, _, tensor in tensors}
    _TarPickler(pickled, keys).dump(made)
    system = {
        "protocol_version": 1000, "little_endian": True,
        "type_sizes": {"short": 2, "int": 4, "long": 8},
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as to:
        for name, content in (
            ("sys_info", member((system,))),
            ("pickle", pickled.getvalue()),
            ("tensors", member(*lists)),
            ("storages", member(*parts)),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            to.addfile(info, io.BytesIO(content))
    return out.getvalue()
