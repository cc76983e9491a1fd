"""Pickles that run code when Python reads them, and never when Haulway does."""

import io
import pathlib
import pickle
import subprocess
import sys
import zipfile

import pytest
import torch

import haulway
import haulway.torch
from scan_cases import tarred, torch_zip

FOLDER = (
    pathlib.Path(__file__).resolve().parents[3]
    / "testdata" / "dangerous_pickles"
)
MARK = "haulway-was-here"


# Pickles that loading refuses but no reader would run: they call only allowed
# names, with arguments that make them fail or do nothing.
HARMLESS = {
    "append_to_tensor.pkl", "call_of_a_dtype.pkl", "class_of_a_dict.pkl",
    "depth_bomb.pkl", "setitem_on_tensor.pkl", "setitems_on_tensor.pkl",
    "text_codec.pkl", "tuple_bomb.pkl",
}


def manifest():
    lines = (FOLDER / "manifest.tsv").read_text().splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")]


LIVE = [(file, message) for file, kind, _, message in manifest()
        if kind == "live"]
DEAD = [(file, code) for file, kind, code, _ in manifest() if kind == "dead"]
EMPTY = pickle.dumps([], 2)


def deflated(content):
    return torch_zip(content, method=zipfile.ZIP_DEFLATED)


def beside_good_data(content):
    out = io.BytesIO()
    torch.save({"w": torch.ones(2)}, out)
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr("archive/extra.pkl", content)
    return out.getvalue()


def stacked(position):
    """The legacy container with the pickle in one of its five positions."""
    def make(content):
        parts = [
            pickle.dumps(0x1950A86A20F9469CFC6C, 2),
            pickle.dumps(1001, 2),
            pickle.dumps({"little_endian": True}, 2),
            EMPTY,
            EMPTY,
        ]
        parts[position] = content
        return b"".join(parts)
    return make


def torch_tar(member):
    def make(content):
        members = {
            "sys_info": pickle.dumps({}, 2),
            "pickle": EMPTY,
            "tensors": pickle.dumps(0, 2),
            "storages": pickle.dumps(0, 2) + EMPTY,
        }
        members[member] = content
        return tarred(members)
    return make


CONTAINERS = {
    "zip": torch_zip,
    "deflated": deflated,
    "legacy-version": stacked(1),
    "legacy-system": stacked(2),
    "legacy-object": stacked(3),
    "legacy-keys": stacked(4),
    "tar-pickle": torch_tar("pickle"),
    "tar-tensors": torch_tar("tensors"),
    "tar-storages": torch_tar("storages"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Runs tests where the mark would be made, and checks that there is
    none."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not (tmp_path / MARK).exists(), "the pickle ran"


def test_there_are_many():
    assert len(LIVE) >= 40 and len(DEAD) >= 15


def test_pythons_unpickler_runs_the_live_ones(folder):
    # Otherwise the tests below would prove nothing.
    script = (
        "import os, pickle, sys\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        pickle.load(open(path, 'rb'))\n"
        "    except Exception:\n"
        "        pass\n"
        f"    if not os.path.exists({MARK!r}):\n"
        "        sys.exit(path + ' is not live')\n"
        f"    os.unlink({MARK!r})\n"
    )
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script,
         *(FOLDER / file for file, _ in LIVE)],
        check=True, stdout=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("file, message", LIVE, ids=[f for f, _ in LIVE])
def test_a_live_one_is_refused_and_named(file, message, container):
    data = CONTAINERS[container]((FOLDER / file).read_bytes())
    for load in (haulway.load, haulway.torch.load):
        given = io.BytesIO(data) if load is haulway.torch.load else data
        with pytest.raises(haulway.UnsafeError, match=message):
            load(given)
    try:  # A consistent pickle is described, and nothing of it is made.
        haulway.open(data).tree()
    except haulway.Error:
        pass
    report = haulway.scan(data)
    assert not report.safe
    unsafe = {
        f"{found.module}.{found.name}"
        for scanned in report.pickles
        for found in scanned.globals
        if not found.allowed
    }
    assert message in unsafe


@pytest.mark.parametrize("file, message", LIVE, ids=[f for f, _ in LIVE])
def test_a_live_one_beside_good_data_is_seen_by_scan(file, message):
    data = beside_good_data((FOLDER / file).read_bytes())
    report = haulway.scan(data)
    assert not report.safe
    assert any(
        f"{found.module}.{found.name}" == message and not found.allowed
        for scanned in report.pickles
        for found in scanned.globals
    )


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("file, code", DEAD, ids=[f for f, _ in DEAD])
def test_a_broken_one_is_refused(file, code, container):
    data = CONTAINERS[container]((FOLDER / file).read_bytes())
    with pytest.raises(haulway.Error):
        haulway.load(data)
    if file not in HARMLESS:
        assert not haulway.scan(data).safe


@pytest.mark.parametrize("file, message", LIVE, ids=[f for f, _ in LIVE])
def test_allowing_another_class_does_not_open_the_door(file, message):
    class Own:
        pass

    data = torch_zip((FOLDER / file).read_bytes())
    with haulway.torch.safe_globals([Own]):
        with pytest.raises(haulway.UnsafeError, match=message):
            haulway.torch.load(io.BytesIO(data))
