"""Open checkpoints in other processes: pickled as path and options."""

import copy
import io
import multiprocessing
import pickle

import numpy as np
import pytest

import haulway


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.safetensors"
    haulway.save({"w": np.arange(12, dtype="float32").reshape(3, 4),
                  "b": np.zeros(2)}, path)
    return path


def total(checkpoint, part):
    """Runs in a worker; returns what it sees."""
    return float(checkpoint["w"].sum()), part[1].tolist(), checkpoint.framework


def test_a_spawned_worker_opens_it_again(path):
    with haulway.open(path, "numpy") as checkpoint:
        arguments = checkpoint, checkpoint.get_slice("w")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(total, arguments) == (
                66, [4, 5, 6, 7], "numpy"
            )


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_options_of_call_thread_and_process_go_along(path, protocol, monkeypatch):
    monkeypatch.setenv("HAULWAY_LOAD_THREADS", "7")
    with haulway.config(load={"lenient": True}):
        was = haulway.open(
            path, "numpy", io="pread", keep_meta=True, endianness="little",
            safe_globals=["a.B", (dict, "a.C")], stats={}, progress=print,
        )
    came = pickle.loads(pickle.dumps(was, protocol))._reading
    assert came.lenient and came.keep_meta and came.io == "pread"
    assert came.safe_globals == ("a.B", (dict, "a.C"))
    assert came.endianness == "little"
    # This process's own values are not sent; the environment is the same.
    assert came.stats is None and came.progress is None
    assert came.origins["threads"] == "environment"


def test_a_key_goes_along(tmp_path):
    path = tmp_path / "secret.tensors"
    haulway.save({"w": np.ones(3)}, path, passphrase="word")
    was = haulway.open(path, "numpy", passphrase="word")
    assert pickle.loads(pickle.dumps(was))["w"].sum() == 3


def test_a_relative_path_is_that_of_when_it_was_opened(path, tmp_path,
                                                       monkeypatch):
    monkeypatch.chdir(tmp_path)
    was = haulway.open(path.name, "numpy")
    several = haulway.open([path.name], "numpy")
    monkeypatch.chdir("/")
    for one in was, several:
        assert list(pickle.loads(pickle.dumps(one))) == list(was)


def test_copies_are_open_beside_each_other(path):
    was = haulway.open(path, "numpy")
    for made in copy.copy(was), copy.deepcopy(was):
        made.close()
    part = copy.copy(was.get_slice("w"))
    assert was["w"].sum() == part[...].sum() == 66


def test_what_has_no_name_is_refused_in_words(path):
    data = path.read_bytes()
    with open(path, "rb") as file:
        for source, found in (
            (data, "bytes"), (bytearray(data), "bytearray"),
            (io.BytesIO(data), "BytesIO"), (file, "BufferedReader"),
            ([path, data][1:], "bytes"), (f"/dev/fd/{file.fileno()}", "/dev/fd"),
        ):
            checkpoint = haulway.open(source, "numpy")
            for one in checkpoint, checkpoint.get_slice("w"):
                with pytest.raises(
                    haulway.ArgumentTypeError,
                    match=f"cannot pickle a Checkpoint of .*{found}",
                ):
                    pickle.dumps(one)
            assert checkpoint["w"].sum() == 66


def test_a_closed_one_says_that(path):
    checkpoint = haulway.open(path, "numpy")
    checkpoint.close()
    for use in pickle.dumps, list, len:
        with pytest.raises(haulway.InvalidArgumentError, match="is closed"):
            use(checkpoint)


def test_closing_lets_go_of_the_bytes(path):
    data = bytearray(path.read_bytes())
    checkpoint = haulway.open(data, "numpy")
    checkpoint.close()
    data.clear()  # Raises BufferError while a view of it exists.


def test_a_file_that_is_gone_is_not_found(path):
    pickled = pickle.dumps(haulway.open(path, "numpy"))
    path.unlink()
    with pytest.raises(haulway.NotFoundError, match="No such file"):
        pickle.loads(pickled)


def test_equal_is_only_the_same_checkpoint(path):
    checkpoint, other = haulway.open(path), haulway.open(path)
    assert checkpoint == checkpoint and checkpoint != other
    assert {checkpoint: 1, other: 2}[other] == 2
