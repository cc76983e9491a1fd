"""Whatever is made of a damaged file, the message names that file, and not the
one that was to be made."""

import os

import numpy
import pytest

import haulway

STATE = {"model.a": numpy.arange(40_000.0), "model.b": numpy.ones(9)}
ENDINGS = ["pt", "npz", "tensors", "safetensors", "gguf"]
WITH_DIGESTS = [one.suffixes[0][1:] for one in haulway.formats()
                if one.digests and one.suffixes]


def flip(path):
    """Changes an element, which only a checksum tells."""
    data = bytearray(path.read_bytes())
    data[data.index(STATE["model.a"].tobytes()) + 8000] ^= 1
    path.write_bytes(data)


def cut(path):
    os.truncate(path, path.stat().st_size - 200_000)


DAMAGED = ([(flip, ending) for ending in WITH_DIGESTS]
           + [(cut, ending) for ending in ENDINGS])
CALLS = {
    "load": lambda path, out: haulway.load(path, "numpy", verify=True),
    "convert": lambda path, out: haulway.convert(path, out),
    "convert with proof": lambda path, out: haulway.convert(
        path, out, proof=True),
    "edit": lambda path, out: haulway.edit(
        path, dtype="f32", out=out.with_suffix(path.suffix)),
    "manifest": lambda path, out: haulway.manifest(path, verify=True),
    "diff": lambda path, out: haulway.diff(path, sound(path), verify=True),
    "tensor_stats": lambda path, out: haulway.tensor_stats(path),
}
VERBS = {
    "load": ("--verify",),
    "convert": ("out.safetensors",),
    "manifest": (),
    "diff": ("sound.npz",),
    "ls": ("--stats",),
}


def sound(path):
    haulway.save(STATE, path.with_name("sound.npz"))
    return path.with_name("sound.npz")


@pytest.fixture(params=DAMAGED, ids=lambda case: f"{case[0].__name__}-{case[1]}")
def path(request, tmp_path):
    damage, ending = request.param
    path = tmp_path / f"damaged.{ending}"
    gguf = {"metadata": {"general.architecture": "x"}}
    haulway.save(STATE, path, **gguf if ending == "gguf" else {})
    damage(path)
    return path


# These compare no checksum unless they are told to.
UNCHECKED = {"tensor_stats"}
UNCHECKED_VERBS = {"ls", "manifest", "diff"}


def is_told(request, unchecked):
    """Returns whether the call of a test notices the damage."""
    damage, _ = request.node.callspec.params["path"]
    return damage is cut or request.node.callspec.params["call"] not in unchecked


@pytest.mark.parametrize("call", CALLS)
def test_a_call_names_the_damaged_file(request, path, call):
    out = path.with_name("out.safetensors")
    if not is_told(request, UNCHECKED):
        CALLS[call](path, out)
        return
    with pytest.raises(haulway.Error) as caught:
        CALLS[call](path, out)
    said = str(caught.value)
    assert path.name in said and "out." not in said and "sound" not in said
    assert not out.exists()


@pytest.mark.parametrize("call", VERBS)
def test_a_verb_names_the_damaged_file(request, path, run, call):
    sound(path)
    done = run(call, path, *VERBS[call], code=None)
    if not is_told(request, UNCHECKED_VERBS):
        assert done.returncode in (0, 1) and not done.stderr
        return
    (line,) = done.stderr.splitlines()
    assert path.name in line and "out." not in line and "sound" not in line
