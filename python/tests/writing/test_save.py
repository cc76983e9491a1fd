"""Files that Haulway saves: the bytes of torch.save, and all guarantees."""

import asyncio
import collections
import io
import os
import pathlib
import stat
import subprocess
import sys
import threading
import zipfile

import numpy as np
import pytest
import torch

import haulway
import haulway.torch
from cases import MORE_WAYS, OBJECTS, layouts, optimizer
from compare import Comparer
from torch_versions import IS_OLD, is_as_torch_saves, nested_allowed
from torch_versions import config as torch_config

SAVED = [*layouts(), *OBJECTS.items()]
# torch.load(weights_only=True) cannot load b"".
NOT_WEIGHTS_ONLY = {"data"}


def both(tmp_path, made, **torch_settings):
    """Writes files with torch.save and with Haulway, under one name in two
    folders."""
    paths = []
    for folder, save in (("torch", torch.save), ("ours", haulway.torch.save)):
        path = tmp_path / folder / "model.pt"
        path.parent.mkdir(exist_ok=True)
        with torch_config.patch(torch_settings):
            save(made, path)
        paths.append(path)
    return paths


@pytest.mark.parametrize("name, make", SAVED, ids=[name for name, _ in SAVED])
def test_the_file_is_torchs_byte_for_byte(name, make, tmp_path):
    made = make()
    try:
        theirs, ours = both(tmp_path, made)
    except (RuntimeError, NotImplementedError) as error:
        # Haulway does not save what torch cannot save.
        assert not (tmp_path / "ours" / "model.pt").exists(), error
        with pytest.raises((haulway.Error, RuntimeError, NotImplementedError)):
            haulway.torch.save(made, tmp_path / "x.pt")
        return
    assert is_as_torch_saves(ours.read_bytes(), theirs.read_bytes())
    stream, buffer = io.BytesIO(), io.BytesIO()
    torch.save(made, stream)
    haulway.torch.save(made, buffer)
    assert is_as_torch_saves(buffer.getvalue(), stream.getvalue())
    for mmap in (False, True):
        with (
            torch_config.patch({"load.calculate_storage_offsets": mmap}),
            nested_allowed(),
        ):
            loaded = torch.load(
                ours, mmap=mmap, weights_only=name not in NOT_WEIGHTS_ONLY
            )
        Comparer().same(haulway.torch.load(ours), loaded)
    assert haulway.verify(ours).ok


@pytest.mark.parametrize("settings", [
    {"save.compute_crc32": False},
    {"save.storage_alignment": 4096},
    {"save.storage_alignment": 1},
    {"save.storage_alignment": 32768},
])
@pytest.mark.parametrize("name", ["data", "transformer", "adamw", "many"])
def test_settings_of_torch_and_ours_give_the_same_file(
    name, settings, tmp_path
):
    made = OBJECTS[name]()
    theirs, ours = both(tmp_path, made, **settings)
    assert is_as_torch_saves(ours.read_bytes(), theirs.read_bytes())
    ((key, value),) = settings.items()
    with haulway.config(save={key.removeprefix("save."): value}):
        haulway.torch.save(made, ours)
    assert is_as_torch_saves(ours.read_bytes(), theirs.read_bytes())


def test_large_files_are_the_same_however_they_are_written(tmp_path):
    made = {f"w{i}": torch.randn(3_000_000 + i) for i in range(4)}
    theirs, ours = both(tmp_path, made)
    expected = theirs.read_bytes()
    for settings in (
        {"durability": "none"}, {"durability": "full"}, {"threads": 1},
        {"threads": 5},
    ):
        with haulway.config(**settings):
            haulway.torch.save(made, ours)
        assert is_as_torch_saves(ours.read_bytes(), expected), settings


@pytest.mark.parametrize("name", ["m\xe9.pt", "a.tar.gz", "plain"])
def test_names_of_archives(name, tmp_path):
    made = [torch.ones(2)]
    torch.save(made, tmp_path / name)
    expected = (tmp_path / name).read_bytes()
    haulway.torch.save(made, tmp_path / name)
    assert is_as_torch_saves((tmp_path / name).read_bytes(), expected)


def test_a_name_that_leaves_no_archive_name_is_refused(tmp_path):
    with pytest.raises(ValueError, match="invalid file name"):
        haulway.torch.save([1], tmp_path / ".pt")
    assert os.listdir(tmp_path) == []


def test_without_the_byteorder_record(tmp_path):
    torch.save([torch.ones(2)], tmp_path / "x.pt", _disable_byteorder_record=True)
    expected = (tmp_path / "x.pt").read_bytes()
    haulway.torch.save(
        [torch.ones(2)], tmp_path / "x.pt", _disable_byteorder_record=True
    )
    assert is_as_torch_saves((tmp_path / "x.pt").read_bytes(), expected)


def test_skip_data_leaves_the_space_free(tmp_path):
    made = {"w": torch.arange(5000.0)}
    with torch.serialization.skip_data():
        theirs, ours = both(tmp_path, made)
    sizes = [
        {info.filename: info.file_size for info in zipfile.ZipFile(path).infolist()}
        for path in (theirs, ours)
    ]
    assert sizes[0].items() <= sizes[1].items()
    assert IS_OLD or ours.read_bytes() == theirs.read_bytes()


class Custom:
    pass


def test_what_is_not_data_is_refused_with_its_path_and_no_file(tmp_path):
    made = {"model": [torch.ones(2)], "hooks": {"after": [1, Custom()]}}
    with pytest.raises(haulway.UnsafeError, match="Custom") as error:
        haulway.torch.save(made, tmp_path / "x.pt")
    assert "hooks" in str(error.value) and "after" in str(error.value)
    assert os.listdir(tmp_path) == []


def test_an_allowed_class_is_saved(tmp_path):
    with haulway.torch.safe_globals([Custom]):
        theirs, ours = both(tmp_path, {"x": Custom()})
    assert is_as_torch_saves(ours.read_bytes(), theirs.read_bytes())


def test_arguments_that_have_no_meaning_are_refused(tmp_path):
    with pytest.raises(NotImplementedError):
        haulway.torch.save([], tmp_path / "x.pt", pickle_module=io)
    with pytest.raises(AttributeError):
        haulway.torch.save([], 3)


# File objects


class ShortWrites(io.RawIOBase):
    def __init__(self):
        self.got = bytearray()

    def write(self, data):
        piece = bytes(data[:1000])
        self.got += piece
        return len(piece)


def test_a_raw_file_that_takes_little_at_a_time_gets_all():
    made = {"w": torch.arange(100_000)}
    raw, whole = ShortWrites(), io.BytesIO()
    haulway.torch.save(made, raw)
    torch.save(made, whole)
    assert is_as_torch_saves(bytes(raw.got), whole.getvalue())


def test_what_a_file_object_raises_reaches_the_caller():
    class Full(io.BytesIO):
        def write(self, data):
            if self.tell() > 2000:
                raise KeyError("mine")
            return super().write(data)

    with pytest.raises(KeyError, match="mine"):
        haulway.torch.save({"w": torch.arange(1_000_000)}, Full())


def test_progress_may_stop_the_save(tmp_path):
    class Stop(Exception):
        pass

    def progress(done, total):
        assert 0 < done <= total
        raise Stop

    (tmp_path / "x.pt").write_text("old")
    with pytest.raises(Stop):
        haulway.save({"w": torch.zeros(10_000_000)}, tmp_path / "x.pt",
                     progress=progress)
    assert (tmp_path / "x.pt").read_text() == "old"
    assert os.listdir(tmp_path) == ["x.pt"]


# Files


def test_saving_over_a_mapped_file_leaves_the_mapping(tmp_path):
    path = tmp_path / "x.pt"
    haulway.save({"w": torch.arange(100_000)}, path)
    ours = haulway.torch.load(path, mmap=True)
    theirs = torch.load(path, mmap=True)
    haulway.save({"w": torch.zeros(100_000)}, path)
    for old in (ours, theirs):
        assert torch.equal(old["w"], torch.arange(100_000))


def test_mode_link_and_folder(tmp_path):
    (tmp_path / "real").mkdir()
    path = tmp_path / "x.pt"
    path.symlink_to("real/y.pt")
    haulway.save([torch.ones(1)], path)
    real = tmp_path / "real" / "y.pt"
    os.chmod(real, 0o640)
    haulway.save([torch.ones(2)], path)
    assert path.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert haulway.load(path)[0].numel() == 2
    with pytest.raises(FileNotFoundError):
        haulway.save([], tmp_path / "none" / "x.pt")


def test_concurrent_savers_of_one_path_leave_a_whole_file(tmp_path):
    path = tmp_path / "x.pt"

    def save(value):
        for _ in range(20):
            haulway.save(
                {"w": torch.full((50_000,), value)}, path, durability="none"
            )

    threads = [threading.Thread(target=save, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.listdir(tmp_path) == ["x.pt"]
    loaded = haulway.load(path, verify=True)["w"]
    assert loaded.unique().numel() == 1


# haulway.save


def test_numpy_arrays_are_saved_as_the_tensors_they_are(tmp_path):
    base = np.arange(12, dtype=np.float32)
    made = {"a": base.reshape(3, 4), "b": base[2:5], "c": [np.int64(3)]}
    haulway.save(made, tmp_path / "x.pt")
    loaded = torch.load(tmp_path / "x.pt", weights_only=True)
    assert torch.equal(loaded["a"], torch.arange(12.0).view(3, 4))
    assert loaded["b"].untyped_storage().data_ptr() == (
        loaded["a"].untyped_storage().data_ptr()
    )
    arrays = haulway.load(tmp_path / "x.pt", framework="numpy")
    assert np.array_equal(arrays["a"], made["a"])
    assert np.shares_memory(arrays["a"], arrays["b"])


def test_compact_leaves_out_what_no_tensor_uses(tmp_path):
    big = torch.arange(1_000_000.0)
    made = {"head": big[:10], "again": big[5:10]}
    haulway.save(made, tmp_path / "whole.pt")
    haulway.save(made, tmp_path / "small.pt", compact=True)
    assert (tmp_path / "whole.pt").stat().st_size > 4_000_000
    assert (tmp_path / "small.pt").stat().st_size < 4_000
    loaded = torch.load(tmp_path / "small.pt")
    for name in made:
        assert torch.equal(loaded[name], made[name])
    assert loaded["head"].untyped_storage().data_ptr() == (
        loaded["again"].untyped_storage().data_ptr()
    )


def test_save_says_what_it_did(tmp_path):
    path = tmp_path / "x.pt"
    calls = []
    stats = haulway.save(
        {"w": torch.zeros(5_000_000)}, path, threads=2, durability="none",
        progress=lambda *call: calls.append(call),
    )
    assert stats["bytes"] == path.stat().st_size == calls[-1][0]
    assert stats["threads"] == 2 and stats["seconds"] > 0
    assert [done for done, _ in calls] == sorted(done for done, _ in calls)


def test_formats_that_are_not_written(tmp_path):
    with pytest.raises(NotImplementedError, match="expected 'torch' or"):
        haulway.save({}, tmp_path / "x", format="torch-tar")
    with pytest.raises(ValueError, match="encryption"):
        haulway.save({}, tmp_path / "x.pt", key=b"0" * 32)
    with pytest.raises(ValueError, match="power of two"):
        haulway.save({}, tmp_path / "x.pt", storage_alignment=48)


# save_async


def test_async_saves_what_was_there_when_it_was_called(tmp_path):
    tensors = {f"w{i}": torch.full((300_000,), float(i)) for i in range(10)}
    expected = {name: tensor.clone() for name, tensor in tensors.items()}
    future = haulway.save_async(tensors, tmp_path / "x.pt")
    for tensor in tensors.values():
        tensor.fill_(-1)
    assert future.result()["bytes"] > 12_000_000
    assert future.done()
    loaded = haulway.load(tmp_path / "x.pt", verify=True)
    for name, tensor in expected.items():
        assert torch.equal(loaded[name], tensor)


def test_async_writes_one_at_a_time_and_in_order(tmp_path):
    futures = [
        haulway.save_async({"i": torch.full((10_000,), i)}, tmp_path / "x.pt",
                           durability="none")
        for i in range(10)
    ]
    assert all(future.done() for future in futures[:-1])
    futures[-1].result()
    assert haulway.load(tmp_path / "x.pt")["i"][0] == 9


def test_async_errors_surface(tmp_path):
    future = haulway.save_async([torch.ones(1)], tmp_path / "none" / "x.pt")
    with pytest.raises(FileNotFoundError):
        future.result()
    with pytest.raises(haulway.UnsafeError):
        haulway.save_async([Custom()], tmp_path / "x.pt")
    with pytest.raises(ValueError, match="path"):
        haulway.save_async([], io.BytesIO())


def resident_bytes():
    statm = pathlib.Path("/proc/self/statm").read_text()
    return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("ending", ["pt", "safetensors", "tensors", "npz"])
def test_a_failed_async_save_holds_no_copy(tmp_path, ending):
    tensors = {"w": np.ones(16_000_000)}
    before = resident_bytes()
    future = haulway.save_async(tensors, tmp_path / "none" / f"x.{ending}")
    with pytest.raises(FileNotFoundError):
        future.result()
    assert resident_bytes() - before < tensors["w"].nbytes // 2


def test_the_interpreter_waits_for_an_async_save(tmp_path):
    path = tmp_path / "x.pt"
    subprocess.run(
        [sys.executable, "-c",
         "import sys, torch, haulway\n"
         "haulway.save_async([torch.zeros(20_000_000)], sys.argv[1])", path],
        check=True,
    )
    assert haulway.load(path, verify=True)[0].numel() == 20_000_000


def test_a_daemon_thread_saves_as_any_other(tmp_path):
    """The interpreter does not wait for daemon threads, and a thread inherits
    to be one."""
    writers = []

    def save():
        haulway.save_async(
            [torch.zeros(1000)], tmp_path / "x.pt",
            progress=lambda *_: writers.append(threading.current_thread()),
        ).result()

    thread = threading.Thread(target=save, daemon=True)
    thread.start()
    thread.join()
    assert writers and not any(writer.daemon for writer in writers)


# haulway.config


def test_config_says_where_values_come_from(monkeypatch):
    save = haulway.config.save
    assert save.threads == 0 and save.origin("threads") == "default"
    monkeypatch.setenv("HAULWAY_SAVE_THREADS", "3")
    assert save.threads == 3 and save.origin("threads") == "environment"
    save.threads = 4
    try:
        assert save.threads == 4 and save.origin("threads") == "process"
        with haulway.config(threads=5):
            assert save.threads == 5 == haulway.config.load.threads
            assert save.origin("threads") == "context"
            with haulway.config(save={"threads": 6}):
                assert (save.threads, haulway.config.load.threads) == (6, 5)
        assert save.threads == 4
    finally:
        del save.threads
    assert save.threads == 3
    assert "save.threads" in repr(haulway.config)
    assert "environment" in str(haulway.config)


def test_config_is_of_a_thread_and_of_a_task():
    seen = {}
    with haulway.config(durability="none"):
        thread = threading.Thread(
            target=lambda: seen.update(thread=haulway.config.save.durability)
        )
        thread.start()
        thread.join()
    assert seen == {"thread": "full"}

    async def task(value):
        with haulway.config(save={"threads": value}):
            await asyncio.sleep(0)
            return haulway.config.save.threads

    async def all_tasks():
        return await asyncio.gather(*(task(i) for i in range(5)))

    assert asyncio.run(all_tasks()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("options", [
    {"durability": "half"}, {"storage_alignment": 3}, {"threads": -1},
    {"compute_crc32": 2}, {"load": {"mmap_flags": 16}},
    {"load": {"endianness": "middle"}},
])
def test_config_refuses_wrong_values(options):
    with pytest.raises(ValueError, match="expected"):
        haulway.config(**options)


def test_config_refuses_unknown_names(monkeypatch):
    with pytest.raises(TypeError, match="no option"):
        haulway.config(thread=1)
    with pytest.raises(TypeError, match="save.mmap"):
        haulway.config(save={"mmap": True})
    with pytest.raises(AttributeError):
        haulway.config.save.thread = 1
    with pytest.raises(AttributeError):
        haulway.config.save = {}
    monkeypatch.setenv("HAULWAY_SAVE_DURABILITY", "maybe")
    with pytest.raises(ValueError, match="HAULWAY_SAVE_DURABILITY"):
        _ = haulway.config.save.durability


def test_torch_serialization_names_map_onto_config(tmp_path):
    from haulway.torch import serialization

    assert serialization.get_crc32_options() is True
    assert serialization.get_default_load_endianness() is None
    serialization.set_crc32_options(False)
    try:
        assert haulway.config.save.compute_crc32 is False
    finally:
        del haulway.config.save.compute_crc32
    serialization.set_default_load_endianness(serialization.LoadEndianness.BIG)
    try:
        assert haulway.config.load.endianness == "big"
    finally:
        del haulway.config.load.endianness
    with serialization.set_default_mmap_options(1):
        assert serialization.get_default_mmap_options() == 1
    assert serialization.get_default_mmap_options() == 2
    del haulway.config.load.mmap_flags


def test_load_follows_config(tmp_path):
    path = tmp_path / "x.pt"
    haulway.torch.save([torch.arange(50_000)], path)
    data = bytearray(path.read_bytes())
    data[20_000] ^= 1
    path.write_bytes(data)
    haulway.torch.load(path)
    with haulway.config(load={"verify": True}):
        with pytest.raises(haulway.MismatchError):
            haulway.torch.load(path)


def test_this_file_saves_optimizers_as_torch_does(tmp_path):
    made = optimizer(torch.optim.Adam)
    made["order"] = collections.OrderedDict(a=1)
    theirs, ours = both(tmp_path, made)
    assert is_as_torch_saves(ours.read_bytes(), theirs.read_bytes())
    assert MORE_WAYS and pathlib.Path(ours).exists()
