"""Memory and descriptors of DataLoader: which objects hold them, for how long,
and the behaviour on systems with little memory."""

import gc
import os
import subprocess
import sys
import textwrap
import time

import numpy
import pytest
import torch

import loader_data as data
from haulway.ipc import ArenaFull, DataLoader
from other_shm import KINDS, other_shm
from torch_versions import IS_OLD

HERE = os.path.dirname(os.path.dirname(__file__))
MIB = 1 << 20


def program(text, command=(), **variables):
    """Runs a program in its own process; it must print "ok" and nothing
    else."""
    text = textwrap.dedent("""
        import os, resource, sys
        import torch
        import loader_data as data
        from haulway.ipc import DataLoader

        def check(batches, count, size):
            assert len(batches) == count
            for i, batch in enumerate(batches):
                assert batch.shape[-1] == size
                assert int(batch.flatten()[-1]) == i % 251, i
    """) + textwrap.dedent(text) + '\nprint("ok")\n'
    path = os.pathsep.join([HERE, *sys.path])
    done = subprocess.run(
        [*command, sys.executable, "-c", text], capture_output=True, text=True,
        timeout=240, env={**os.environ, "PYTHONPATH": path, **variables},
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "ok\n", "")


def bytes_used(iterator):
    """Returns the bytes of all workers' shared memory that batches use."""
    return sum(worker.arena.stats()["used"]
               for worker in iterator._transport.workers)


def test_batches_outlive_the_iterator_and_the_loader():
    loader = DataLoader(data.Large(12, MIB), batch_size=2, num_workers=2)
    kept = list(loader)
    part = kept[3][1, 100:200]
    del loader
    gc.collect()
    for i, batch in enumerate(kept):
        assert batch[:, 77].tolist() == [2 * i, 2 * i + 1]
    del kept, batch
    gc.collect()
    assert part.tolist() == [7] * 100


def test_a_part_of_a_batch_keeps_what_it_needs():
    """Any part: a row, a NumPy view, a view of another dtype."""
    iterator = iter(DataLoader(data.Large(40, MIB), batch_size=1, num_workers=2))
    parts = []
    for i, batch in enumerate(iterator):
        parts.append([batch[0, 5], batch.numpy()[0, :3], batch.view(torch.int64),
                      memoryview(batch.numpy())][i % 4])
        del batch
    for i, part in enumerate(parts):
        flat = numpy.asarray(part).reshape(-1).view(numpy.uint8)
        assert (flat[:1] == i).all()


def test_memory_comes_back_when_batches_go():
    """Transfers many times the memory that is in use at any time."""
    iterator = iter(DataLoader(data.Large(60, MIB), batch_size=None,
                               num_workers=2))
    peak = 0
    for _ in iterator:
        peak = max(peak, bytes_used(iterator))
    # Four in transit, one held by the loop, and one being received.
    assert MIB <= peak <= 8 * MIB


def test_batches_of_different_sizes_take_what_they_need():
    sizes = [10, 5 * MIB, 3, 200_000, MIB, 0, 9 * MIB, 5000]
    loader = DataLoader(
        data.Making(lambda i: numpy.full(sizes[i % 8], i, numpy.uint8), 24),
        batch_size=None, num_workers=2, collate_fn=data.as_they_are)
    kept = list(loader)
    for i, each in enumerate(kept):
        assert each.shape == (sizes[i % 8],) and (each == i).all()


def test_epochs_do_not_grow():
    loader = DataLoader(data.Large(24, 1 << 18), batch_size=2, num_workers=2,
                        persistent_workers=True)
    before = None
    for epoch in range(20):
        assert [int(batch[0, -1]) for batch in loader] == list(range(0, 24, 2))
        if epoch == 2:
            before = len(os.listdir("/proc/self/fd"))
    assert len(os.listdir("/proc/self/fd")) == before
    for worker in loader._iterator._transport.workers:
        # Two in transit, one held, one being made; half a MiB each.
        assert worker.arena.stats()["high_water"] <= 3 * MIB


def test_loaders_leave_no_descriptor():
    def once():
        list(DataLoader(data.Numbers(4), num_workers=2))
        iterator = iter(DataLoader(data.Numbers(40), num_workers=2))
        next(iterator)

    once()
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        once()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_batches_take_no_descriptors():
    loader = DataLoader(
        data.Making(lambda i: [torch.full((3000,), i) for _ in range(20)], 40),
        batch_size=None, num_workers=2, collate_fn=data.as_they_are)
    iterator = iter(loader)
    kept = [next(iterator)]
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        kept.append(next(iterator))
    assert len(os.listdir("/proc/self/fd")) == before


def test_few_descriptors_suffice():
    program("""
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        made = data.Making(lambda i: [torch.full((3000,), i) for _ in range(30)], 50)
        kept = list(DataLoader(made, batch_size=None, num_workers=2,
                               collate_fn=data.as_they_are))
        assert len(kept) == 50 and int(kept[49][29][-1]) == 49
    """)


@pytest.mark.parametrize("shm", KINDS)
def test_dev_shm_is_not_used(shm, preloaded, tmp_path):
    command, variables = other_shm(shm, preloaded, tmp_path)
    program("""
        batches = list(DataLoader(data.Large(12, 4 << 20), batch_size=1,
                                  num_workers=2))
        check(batches, 12, 4 << 20)
    """, command=command, **variables)


def test_nothing_is_put_into_dev_shm():
    before = set(os.listdir("/dev/shm"))
    loader = DataLoader(data.Large(6, MIB), batch_size=2, num_workers=2)
    kept = list(loader)
    ours = {name for name in set(os.listdir("/dev/shm")) - before
            if str(os.getpid()) in name}
    assert not ours and len(kept) == 3


def test_batches_larger_than_an_arena(monkeypatch):
    from haulway.ipc import _loader_transport

    monkeypatch.setattr(_loader_transport, "ARENA_BYTES", MIB)
    loader = DataLoader(data.Large(10, 5 * MIB), batch_size=None, num_workers=2)
    kept = list(loader)
    for i, batch in enumerate(kept):
        assert batch.shape == (5 * MIB,) and int(batch[0]) == int(batch[-1]) == i


def test_a_program_that_keeps_all_batches_is_not_kept_waiting(monkeypatch):
    """Includes small batches, which are copied if the arena is full."""
    from haulway.ipc import _loader_transport

    monkeypatch.setattr(_loader_transport, "ARENA_BYTES", 256 << 10)
    kept = list(DataLoader(data.Large(60, 100_000), batch_size=None,
                           num_workers=2))
    for i, batch in enumerate(kept):
        assert int(batch[0]) == int(batch[-1]) == i
    kept[5].zero_()
    assert int(kept[4][0]) == 4 and int(kept[6][0]) == 6


def test_more_batches_than_an_arena_has_places():
    kept = list(DataLoader(data.Making(lambda i: numpy.full(600, i), 9000),
                           batch_size=None, num_workers=2,
                           collate_fn=data.as_they_are))
    assert [int(each[599]) for each in kept] == list(range(9000))


def test_a_limit_keeps_workers_waiting():
    loader = DataLoader(data.Large(40, MIB), batch_size=None, num_workers=2,
                        prefetch_factor=8, max_shared_bytes=6 * MIB)
    iterator = iter(loader)
    for i, batch in enumerate(iterator):
        assert int(batch[0]) == i
        assert bytes_used(iterator) <= 6 * MIB
        del batch


def test_a_limit_says_who_holds_what_and_goes_on():
    loader = DataLoader(data.Large(12, MIB), batch_size=None, num_workers=2,
                        max_shared_bytes=6 * MIB)
    iterator = iter(loader)
    kept = [next(iterator) for _ in range(6)]
    with pytest.raises(ArenaFull, match="max_shared_bytes is 6291456") as caught:
        next(iterator)
    assert "3145728 of 3145728 bytes of worker 0" in str(caught.value)
    kept.clear()
    got = []
    for batch in iterator:
        got.append(int(batch[-1]))
        del batch
    assert got == [6, 7, 8, 9, 10, 11]


def test_a_limit_waits_for_a_worker_that_takes_long():
    """The other worker's batches fill its share, which is not the program's
    fault."""
    class Slow(data.Large):
        def __getitem__(self, index):
            if index == 0:
                time.sleep(4.5)
            return super().__getitem__(index)

    iterator = iter(DataLoader(Slow(12, MIB), batch_size=None, num_workers=2,
                               prefetch_factor=5, max_shared_bytes=6 * MIB))
    got = []
    for batch in iterator:
        got.append(int(batch[-1]))
        del batch
    assert got == list(range(12))


def test_a_limit_with_workers_that_have_ended():
    class Uneven(data.Split):
        def __iter__(self):
            for number in super().__iter__():
                yield number.repeat(MIB // 8)

    iterator = iter(DataLoader(Uneven(1, 10), batch_size=None, num_workers=2,
                               persistent_workers=True,
                               max_shared_bytes=6 * MIB))
    kept = [next(iterator) for _ in range(4)]
    with pytest.raises(ArenaFull):
        kept += iterator
    del kept
    assert len([None for _ in iterator]) > 0


def test_an_epoch_that_finds_no_room_can_be_begun_again():
    """Workers that persist must hand over what they were asked for before."""
    loader = DataLoader(data.Large(12, MIB), batch_size=None, num_workers=2,
                        persistent_workers=True, max_shared_bytes=6 * MIB)
    iterator = iter(loader)
    kept = [next(iterator) for _ in range(6)]
    for _ in range(2):
        with pytest.raises(ArenaFull):
            iter(loader)
    kept.clear()
    for _ in range(2):
        got = []
        for batch in loader:
            got.append(int(batch[-1]))
            del batch
        assert got == list(range(12))


def test_a_batch_larger_than_the_limit_is_told_of():
    loader = DataLoader(data.Large(4, 5 * MIB), batch_size=None, num_workers=2,
                        max_shared_bytes=8 * MIB)
    with pytest.raises(Exception, match="larger than its arena of 4194304"):
        next(iter(loader))


def test_a_batch_whose_tensors_are_together_larger_than_the_limit():
    """Each fits alone, so that one is made where nothing is left for the
    other."""
    class Both(data.Large):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            return {"one": sample, "other": sample if index == 1 else sample[:9]}

    loader = DataLoader(Both(4, 5 * MIB // 2), batch_size=1, num_workers=2,
                        max_shared_bytes=8 * MIB)
    iterator = iter(loader)
    assert int(next(iterator)["one"][0, -1]) == 0
    with pytest.raises(Exception, match="too large for its arena of 4194304"):
        next(iterator)
    assert [int(batch["other"][0, -1]) for batch in iterator] == [2, 3]


@pytest.mark.parametrize("value, error", [
    (0, ValueError), (-5, ValueError), ("1 GiB", TypeError), (1.5, TypeError)])
def test_limits_that_are_refused(value, error):
    with pytest.raises(error):
        DataLoader(data.Numbers(), max_shared_bytes=value)


def test_a_dataset_that_keeps_its_batches_shares_them():
    """As with torch's loader: memory stacked in a worker is passed on, not
    copied."""
    class Keeping(data.Large):
        kept = []

        def __getitem__(self, index):
            if self.kept:
                return torch.full((self.size,), int(self.kept[0].sum() == 0))
            return super().__getitem__(index)

    loader = DataLoader(Keeping(4, 200_000), batch_size=2, num_workers=1)
    assert len(list(loader)) == 2


def test_collated_batches_are_not_copied_again():
    """They are stacked in the arena, each in its own loan."""
    iterator = iter(DataLoader(data.Large(4, MIB), batch_size=2, num_workers=1))
    batch = next(iterator)
    stats = iterator._transport.workers[0].arena.stats()
    assert stats["units"] >= 1 and stats["fallbacks"] == 0
    assert batch.untyped_storage().nbytes() == 2 * MIB


def test_the_list_of_arenas_shows_those_of_loaders(run):
    iterator = iter(DataLoader(data.Large(4, MIB), batch_size=2, num_workers=1))
    batch = next(iterator)
    deadline = time.monotonic() + 20
    while str(os.getpid()) not in (told := run("arena", "ls").stdout):
        assert time.monotonic() < deadline, told
    assert batch.shape == (2, MIB)


def test_pinned_memory_without_an_accelerator_is_warned_of():
    from loader_cases import compare

    if torch.accelerator.is_available():
        pytest.fail("this test is for machines without an accelerator")
    compare(data.Numbers(6), pin_memory=True, batch_size=2)
    if IS_OLD:
        return  # Torch 2.6 initializes CUDA if a device is named.
    compare(data.Numbers(6), pin_memory=True, pin_memory_device="cuda")
    compare(data.Numbers(6), pin_memory_device="cuda")


@pytest.fixture
def pretended(monkeypatch):
    """An accelerator whose pinned memory is an ordinary copy."""
    if IS_OLD:
        pytest.skip("torch 2.6 asks torch.cuda, not torch.accelerator")
    pinned = []

    def pin(tensor, device=None):
        pinned.append(tensor)
        return tensor.clone()

    accelerator = torch.accelerator
    monkeypatch.setattr(accelerator, "is_available", lambda: True)
    monkeypatch.setattr(accelerator, "current_accelerator",
                        lambda *a, **k: torch.device("cuda"))
    monkeypatch.setattr(accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    return pinned


@pytest.mark.parametrize("persistent", [False, True])
def test_batches_are_pinned_in_torchs_thread(pretended, persistent):
    from loader_cases import compare

    def read(loader):
        return list(loader), list(loader)

    compare(data.Numbers(8), read, pin_memory=True, batch_size=2,
            persistent_workers=persistent)
    assert len(pretended) == 2 * 2 * 4 * 2
    pretended.clear()


def test_types_of_a_programs_own_pin_themselves(pretended):
    loader = DataLoader(data.Chosen(*torch.arange(8.0).view(4, 2)), batch_size=2,
                        collate_fn=data.to_batch, pin_memory=True, num_workers=1)
    assert all(batch.pinned for batch in loader)


def test_a_worker_that_dies_while_a_thread_pins(pretended):
    from loader_cases import failure

    got, error = failure(DataLoader, data.Failing("exit"), pin_memory=True)
    assert type(error) is RuntimeError and "exited unexpectedly" in str(error)


def test_an_iterator_that_pins_is_dropped_at_once(pretended):
    iterator = iter(DataLoader(data.Numbers(100), num_workers=2, pin_memory=True))
    next(iterator)
    thread = iterator._pin_memory_thread
    began = time.monotonic()
    del iterator
    assert not thread.is_alive() and time.monotonic() - began < 4
