"""Turns the wheel of the build into the one to distribute: with the platform
tag, the licences and the list of linked components, reproducibly."""

import base64
import hashlib
import pathlib
import re
import subprocess
import time
import zipfile

import sbom

# Other code that is compiled in: name, version, licence, purl, and the file
# with the licence on this system, or its place in the nanobind that the build
# uses.
RUNTIME = (("libstdc++", "12.2.0", "GPL-3.0-or-later WITH GCC-exception-3.1",
            "pkg:generic/gcc@12.2.0", "/usr/share/doc/gcc-12-base/copyright"),
           ("cli11", "2.1.2", "BSD-3-Clause", "pkg:generic/cli11@2.1.2",
            "/usr/share/doc/libcli11-dev/copyright"),
           ("nanobind", "3.1.0", "BSD-3-Clause", "pkg:pypi/nanobind@3.1.0", "LICENSE"),
           ("robin-map", "1.4.0", "MIT", "pkg:github/tessil/robin-map@v1.4.0",
            "robin_map.h"))
NANOBIND_FILES = """
import importlib.metadata as m
d = m.distribution("nanobind")
for one in d.files:
    print(one.name, d.locate_file(one))
"""


def runtime_licences(python):
    """Returns the licence files of RUNTIME by name; `python` builds the
    wheel."""
    said = subprocess.run([python, "-c", NANOBIND_FILES], check=True, text=True,
                          capture_output=True).stdout
    places = dict(line.split(" ", 1) for line in said.splitlines())
    return {row[0]: pathlib.Path(places.get(row[4], row[4])) for row in RUNTIME}


def text_of(path):
    """Returns the text of a licence; in a header it is the first comment."""
    data = path.read_bytes()
    if path.suffix != ".h":
        return data
    comment = data[data.index(b"/*"):data.index(b"*/")]
    return re.sub(rb"(?m)^ ?[/*]+ ?", b"", comment).strip() + b"\n"


def _metadata(text, names, libraries):
    """Returns the METADATA of the wheel: the licences of all components, and a
    readme whose links also work outside the repository."""
    head, body = text.split("\n\n", 1)
    licences = {"Apache-2.0", *(row[2] for row in RUNTIME),
                *(library.licence for library in libraries)}
    expression = " AND ".join(sorted(licences))
    lines = [line for line in head.splitlines()
             if not line.startswith(("License-Expression:", "License-File:"))]
    at = next(number for number, line in enumerate(lines)
              if line.startswith("Requires-Python"))
    lines[at:at] = [f"License-Expression: {expression}",
                    *(f"License-File: {name}" for name in names)]
    body = re.sub(r"!?\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", body)
    return "\n".join(lines) + "\n\n" + body


def _record(name, data):
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"{name},sha256={digest.decode()},{len(data)}\n"


def repack(wheel, out, platform, libraries, licences, epoch):
    """Writes the finished wheel into `out` and returns its path."""
    name, version, python, abi, _ = wheel.name.removesuffix(".whl").split("-")
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheel) as source:
        files = {one.filename: source.read(one) for one in source.infolist()
                 if not one.is_dir()}
    del files[f"{info}/RECORD"]
    for library, path in licences.items():
        files[f"{info}/licenses/{library}.txt"] = text_of(path)
    prefix = f"{info}/licenses/"
    names = sorted(one.removeprefix(prefix) for one in files
                   if one.startswith(prefix))
    files[f"{info}/METADATA"] = _metadata(
        files[f"{info}/METADATA"].decode(), names, libraries).encode()
    tag = f"{python}-{abi}-{platform}"
    files[f"{info}/WHEEL"] = re.sub(
        rb"(?m)^Tag: .*\n", b"", files[f"{info}/WHEEL"]).rstrip() + (
            f"\nTag: {tag}\n".encode())
    files[f"{info}/sboms/haulway.cdx.json"] = sbom.bill_of(
        version, libraries, RUNTIME).encode()
    # The descriptions come last, as the wheel specification recommends.
    order = sorted(files, key=lambda one: (one.startswith(info), one))
    record = "".join(_record(one, files[one]) for one in order)
    record += f"{info}/RECORD,,\n"
    files[f"{info}/RECORD"] = record.encode()
    # Zip timestamps begin in 1980.
    when = time.gmtime(max(epoch, 315532800))[:6]
    path = out / f"{name}-{version}-{tag}.whl"
    part = path.with_suffix(".part")  # A wheel appears only when complete.
    with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as target:
        for one in [*order, f"{info}/RECORD"]:
            entry = zipfile.ZipInfo(one, when)
            mode = 0o755 if one.endswith(".so") else 0o644
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            target.writestr(entry, files[one], compresslevel=9)
    return part.replace(path)
