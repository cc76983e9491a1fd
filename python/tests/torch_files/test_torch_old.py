"""Files that torch rarely writes, or no longer writes, compared with
torch.load."""

import io
import pickle
import zipfile

import pytest
import torch

import haulway
import haulway.torch
from compare import Comparer
from torch_versions import config


@pytest.mark.parametrize("alignment", [3, 48, 100, 1000, 4095, 65535])
def test_alignments_that_are_no_power_of_two(alignment, tmp_path):
    path = tmp_path / "odd.pt"
    state = {f"t{i}": torch.arange(float(i)) for i in range(40)}
    with config.patch({"save.storage_alignment": alignment}):
        torch.save(state, path)
    theirs = torch.load(path)
    Comparer().same(haulway.torch.load(path), theirs)
    Comparer().same(haulway.torch.load(path, mmap=True), theirs)
    Comparer().same(haulway.load(path, framework="torch"), theirs)
    assert haulway.verify(path).ok
    with haulway.open(path) as checkpoint:
        assert checkpoint.container["alignment"] == alignment
        assert torch.equal(checkpoint["t39"], theirs["t39"])


def test_an_alignment_of_nothing_is_refused(tmp_path):
    path = tmp_path / "none.pt"
    haulway.torch.save({"w": torch.ones(3)}, path)
    data = path.read_bytes()
    at = data.index(b"64", data.index(b".storage_alignment"))
    for wrong in (b"00", b"-1", b"6x"):
        broken = data[:at] + wrong + data[at + 2:]
        with pytest.raises(haulway.Error):
            haulway.load(broken)


class _Stored(pickle.Pickler):
    """Pickles strings that begin with @ as storages, through persistent ids."""

    def __init__(self, file, ids):
        super().__init__(file, 2)
        self.ids = ids

    def persistent_id(self, value):
        return self.ids.get(value) if isinstance(value, str) else None


def old_file_of_views():
    """Writes storages that are parts of another one, as torch 0.3 did."""
    def view(key, offset, size):
        return ("storage", torch.FloatStorage, "1", "cpu", 12,
                (key, offset, size))

    out = io.BytesIO()
    for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}):
        pickle.dump(part, out, 2)
    ids = {"@a": view("10", 1, 4), "@b": view("11", 5, 4),
           "@c": ("storage", torch.FloatStorage, "1", "cpu", 12, None)}
    _Stored(out, ids).dump(["@a", "@b", "@a", "@c"])
    pickle.dump(["1"], out, 2)
    out.write((12).to_bytes(8, "little"))
    out.write(torch.arange(12.0).numpy().tobytes())
    return out.getvalue()


def test_storages_that_view_another_are_parts_of_it(tmp_path):
    path = tmp_path / "old.pt"
    path.write_bytes(old_file_of_views())

    def facts(load, **options):
        made = load(path, **options)
        places = [one.data_ptr() for one in made]
        return [(one.tolist(), one.dtype, place - places[3])
                for one, place in zip(made, places)]

    ours = facts(haulway.torch.load)
    assert ours == facts(torch.load, weights_only=False)
    assert [len(values) for values, _, _ in ours] == [4, 4, 4, 12]
    assert [place for _, _, place in ours] == [4, 20, 4, 0]
    sizes = [one.size() for one in haulway.torch.load(path, map_location="meta")]
    assert sizes == [4, 4, 4, 12]


def test_parts_that_make_no_object_are_told_with_their_byte(tmp_path):
    path = tmp_path / "x.pt"
    data = b"\x80\x02](ccollections\ndefaultdict\n(K\x01K\x02tRe."
    torch.save({}, path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, data if name.endswith("data.pkl") else part)
    with pytest.raises(haulway.CorruptError, match="at byte 35") as caught:
        haulway.torch.load(path)
    assert caught.value.byte == 35
