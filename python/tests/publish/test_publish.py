"""haulway.publish and haulway.subscribe: values, versions, memory, names."""

import collections
import dataclasses
import gc
import json
import os
import pickle
import threading

import numpy as np
import pytest
import torch

import haulway

MIB = 1 << 20
Pair = collections.namedtuple("Pair", "left right")


@dataclasses.dataclass
class Batch:
    rows: np.ndarray
    name: str


@pytest.fixture
def name(request):
    """Returns a name that no other test uses; closes the publication
    afterwards."""
    text = f"test-{os.getpid()}-{request.node.name}"
    text = "".join(c if c.isalnum() or c in "._-" else "_" for c in text)[:100]
    yield text
    for publication in list(haulway._sharing.publish._publications.values()):
        publication.close()


def taken(name, **options):
    return haulway.subscribe(name, timeout=60, **options)


# Values

NUMPY_DTYPES = ["f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2",
                "u1", "c8", "c16", "S3", "M8[s]", "m8[ms]", ">f4",
                [("a", "i4"), ("b", "f8")]]
TORCH_DTYPES = [
    getattr(torch, name) for name in (
        "float64 float32 float16 bfloat16 int64 int32 int16 int8 uint64 uint32 "
        "uint16 uint8 complex128 complex64 complex32 float8_e4m3fn float8_e5m2 "
        "float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu"
    ).split() if hasattr(torch, name)
]


def bits_of(tensor):
    return tensor.contiguous().view(torch.uint8)


def test_every_dtype_of_numpy(name):
    state = {str(dtype): np.frombuffer(bytes(range(1, 97)), dtype)
             for dtype in NUMPY_DTYPES}
    state["U2"] = np.array(["ab", "c"])
    state["?"] = np.array([True, False])
    haulway.publish(name, state)
    found = taken(name).state
    assert found.keys() == state.keys()
    for key, array in state.items():
        assert found[key].dtype == array.dtype
        assert found[key].tobytes() == array.tobytes()


@pytest.mark.filterwarnings("ignore:ComplexHalf")
def test_every_dtype_of_torch(name):
    raw = torch.arange(1, 33, dtype=torch.uint8)
    state = {str(dtype): raw.clone().view(dtype) for dtype in TORCH_DTYPES}
    state["torch.bool"] = torch.tensor([True, False])
    haulway.publish(name, state)
    found = taken(name).state
    for key, tensor in state.items():
        assert found[key].dtype == tensor.dtype
        assert torch.equal(bits_of(found[key]), bits_of(tensor)), key


def test_nested_objects(name):
    array = np.arange(6.0).reshape(2, 3)
    state = {
        "list": [1, 2.5, "text", None, True, b"bytes" * 2000],
        "tuple": (array, torch.ones(2)), "pair": Pair(array.T, {}),
        "batch": Batch(np.arange(5), "five"), 7: {"deep": [[[array]]]},
        "empty": np.empty((0, 3)), "no_dimensions": np.array(3.5),
        "none": torch.empty(0), "long": list(range(20_000)),
        "strided": np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1),
        "objects": np.array(["a", None], dtype=object),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "sparse": torch.eye(3).to_sparse(),
        "conjugate": torch.tensor([1 + 2j]).conj(),
    }
    haulway.publish(name, state)
    found = taken(name).state
    assert found["list"] == state["list"] and found["long"] == state["long"]
    assert type(found["list"][5]) is bytes
    assert np.array_equal(found["tuple"][0], array)
    assert type(found["pair"]) is Pair
    assert np.array_equal(found["pair"].left, array.T)
    assert found["batch"].name == "five"
    assert found["batch"].rows.tolist() == [0, 1, 2, 3, 4]
    assert np.array_equal(found[7]["deep"][0][0][0], array)
    assert found["empty"].shape == (0, 3) and found["none"].shape == (0,)
    assert found["no_dimensions"] == 3.5
    assert np.array_equal(found["strided"], state["strided"])
    assert found["objects"].tolist() == ["a", None]
    assert type(found["parameter"]) is torch.nn.Parameter
    assert torch.equal(found["sparse"].to_dense(), torch.eye(3))
    assert found["conjugate"].is_conj() and found["conjugate"][0] == 1 - 2j


def test_what_shares_a_storage_shares_it_there(name):
    weight = torch.arange(100.0)
    array = np.arange(4)
    haulway.publish(name, {
        "tied": [weight, weight], "row": weight[10:20],
        "half": weight.view(10, 10).t(), "arrays": [array, array],
    })
    found = taken(name).state
    assert found["tied"][0] is found["tied"][1]
    assert found["arrays"][0] is found["arrays"][1]
    start = found["tied"][0].data_ptr()
    assert found["row"].data_ptr() == start + 40
    assert found["half"].data_ptr() == start
    assert found["half"].stride() == (1, 10)


def test_tensors_that_are_results_of_a_graph(name):
    leaf = torch.ones(3, requires_grad=True)
    haulway.publish(name, {"leaf": leaf, "result": leaf * 2})
    found = taken(name).state
    assert found["leaf"].requires_grad and found["result"].requires_grad
    assert found["result"].is_leaf and found["result"].tolist() == [2, 2, 2]


def test_any_object_is_a_state(name):
    for number, state in enumerate((None, 5, "text", [1, 2], 2.5), 1):
        assert haulway.publish(name, state).version == number
        assert taken(name).state == state


def test_a_subscription_in_a_state_subscribes_again(name):
    haulway.publish(name, {"w": np.ones(3)})
    inner = haulway.subscribe(name)
    haulway.publish(f"{name[:90]}-outer", [inner, torch.ones(4)])
    found, tensor = haulway.subscribe(f"{name[:90]}-outer").state
    assert found.state["w"].tolist() == [1, 1, 1]
    tensor += 1  # Writable here, as any other.
    assert tensor.tolist() == [2, 2, 2, 2]


def test_what_cannot_be_pickled_shows_no_version(name):
    haulway.publish(name, {"a": np.arange(3)})
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        haulway.publish(name, {"a": lambda: None})
    held = taken(name)
    assert held.version == 1
    assert haulway.publish(name, {"a": np.arange(4)}).version == 2


# Reading only

def test_arrays_refuse_to_be_written_to(name):
    haulway.publish(name, {"small": np.arange(3), "large": np.zeros(MIB),
                           "strided": np.arange(12).reshape(3, 4).T[::2]})
    for array in taken(name).state.values():
        assert not array.flags.writeable
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError):
            array.flags.writeable = True


def test_others_do_not_see_what_is_written_to_a_tensor(name):
    original = torch.zeros(MIB)
    haulway.publish(name, {"w": original})
    one, other = taken(name), taken(name)
    one.state["w"].fill_(7)
    assert one.state["w"].sum() == 7 * MIB
    assert other.state["w"].sum() == 0 and original.sum() == 0
    assert taken(name).state["w"].sum() == 0


def test_writable_copies_on_write(name):
    haulway.publish(name, {"a": np.zeros(5000), "w": torch.zeros(3)})
    one = taken(name, writable=True)
    one.state["a"][:] = 7
    one.state["w"][:] = 7
    assert one.state["a"].sum() == 35_000
    found = taken(name).state
    assert found["a"].sum() == 0 and found["w"].sum() == 0


# Versions

def test_versions_are_shown_one_after_another(name):
    publication = haulway.publish(name, {"a": np.full(10, 1)})
    assert (publication.name, publication.version) == (name, 1)
    held = taken(name)
    for number in range(2, 30):
        assert haulway.publish(name, {"a": np.full(10, number)}) is publication
        assert held.wait(timeout=60) == number == held.version
        assert held.state["a"].tolist() == [number] * 10
    assert publication.version == 29
    assert repr(publication) == f"<haulway.Publication {name!r}, version 29>"
    assert repr(held) == f"<haulway.Subscription {name!r}, version 29>"


def test_wait_skips_to_the_newest(name):
    haulway.publish(name, 1)
    held = taken(name)
    for number in range(2, 8):
        haulway.publish(name, number)
    assert held.wait(timeout=60) == 7 and held.state == 7
    assert held.wait(newer_than=3, timeout=0) == 7
    assert held.wait(newer_than=0, timeout=0) == 7


def test_wait_times_out_and_changes_nothing(name):
    haulway.publish(name, {"a": np.arange(3)})
    held = taken(name)
    state = held.state
    for options in ({}, {"newer_than": 1}, {"newer_than": 100}):
        for timeout in (0, 0.02, 0.3):
            with pytest.raises(haulway.TimedOutError,
                               match=r"is newer than \d+: waited"):
                held.wait(timeout=timeout, **options)
    assert held.version == 1 and held.state is state
    with pytest.raises(TimeoutError):
        held.wait(timeout=-1)


def test_wait_is_woken_by_another_thread(name):
    haulway.publish(name, 0)
    held = taken(name)
    seen = []

    def follow():
        while not seen or seen[-1] < 40:
            held.wait(timeout=60)
            seen.append(held.state)

    threads = [threading.Thread(target=follow) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(1, 41):
        haulway.publish(name, number)
    for thread in threads:
        thread.join()
    assert held.version == 41 and max(seen) == 40


def test_threads_publish_under_one_name(name):
    haulway.publish(name, -1)

    def work(number):
        for _ in range(20):
            haulway.publish(name, {"n": np.full(1000, number)})

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = taken(name)
    assert held.version == 81 and len(set(held.state["n"])) == 1


def test_a_reader_keeps_its_version(name):
    kept = []
    for number in range(1, 9):
        haulway.publish(name, {"a": np.full(1000, number),
                               "w": torch.full((500,), float(number))})
        kept.append(taken(name))
    arrays = [each.state["a"] for each in kept]
    for each in kept:
        each.close()
    for number in range(9, 20):
        haulway.publish(name, {"a": np.full(1000, number),
                               "w": torch.full((500,), float(number))})
    for number, array in enumerate(arrays, 1):
        assert array.tolist() == [number] * 1000


def test_older_versions_that_are_kept_by_number(name):
    for number in range(1, 8):
        haulway.publish(name, {"a": np.full(100, number)}, keep=3)
    for number in (5, 6, 7):
        assert taken(name, version=number).state["a"][0] == number
    for number in (0, 1, 4, 8, -1):
        with pytest.raises(haulway.NotFoundError, match="the newest is 7"):
            haulway.subscribe(name, version=number)
    haulway.publish(name, 8)
    with pytest.raises(haulway.NotFoundError):
        haulway.subscribe(name, version=7)


def test_a_closed_subscription(name):
    haulway.publish(name, {"a": np.arange(3)})
    with taken(name) as held:
        array = held.state["a"]
    for use in (lambda: held.state, lambda: held.version, held.wait,
                lambda: pickle.dumps(held)):
        with pytest.raises(ValueError, match="subscription is closed"):
            use()
    held.close()
    assert array.tolist() == [0, 1, 2] and "closed" in repr(held)


def test_close_ends_a_wait(name):
    haulway.publish(name, 1)
    held = taken(name)
    errors = []

    def wait():
        try:
            held.wait()
        except haulway.Error as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    held.close()
    thread.join(60)
    assert "subscription is closed" in str(errors[0])


def test_a_pickled_subscription_attaches_anew(name):
    haulway.publish(name, {"a": np.arange(3)})
    held = taken(name)
    haulway.publish(name, {"a": np.arange(4)})
    again = pickle.loads(pickle.dumps(held))
    assert (held.version, again.version) == (1, 2)
    assert again.state["a"].tolist() == [0, 1, 2, 3]


# Memory

def listed(run, name):
    done = run("arena", "ls", "--json")
    found = json.loads(done.stdout)["publications"]
    return [each for each in found if each["name"] == name]


def test_two_versions_are_written_to_in_turn(name, run):
    def shown():
        return taken(name).state["a"].sum()

    held = []
    for number in range(1, 12):
        haulway.publish(name, {"a": np.full(MIB, number, np.int8)})
        assert shown() == number * MIB
        held.append(listed(run, name)[0]["held_bytes"])
    assert held[1] >= 2 * MIB and len(set(held[1:])) == 1


def test_memory_goes_when_nobody_holds_it(name, run):
    readers = []
    for number in range(5):
        haulway.publish(name, {"a": np.full(4 * MIB, number, np.int8)})
        readers.append(taken(name))
    facts = listed(run, name)[0]
    assert facts["version"] == 5 and facts["readers"] == 5
    assert 4 * MIB <= facts["bytes"] < 5 * MIB
    assert facts["publisher"] == os.getpid()
    assert 20 * MIB <= facts["held_bytes"] < 22 * MIB
    for reader in readers[:4]:
        reader.close()
    gc.collect()
    facts = listed(run, name)[0]
    assert facts["readers"] == 1
    # The newest version and the next one's.
    assert facts["held_bytes"] < 10 * MIB
    haulway.publish(name, {"a": np.full(4 * MIB, 5, np.int8)})
    haulway.publish(name, {"a": np.full(4 * MIB, 6, np.int8)}).close()
    facts = listed(run, name)[0]
    assert facts["publisher"] == 0 and facts["version"] == 7
    assert 8 * MIB <= facts["held_bytes"] < 10 * MIB  # None for a next version.
    readers[4].close()
    assert listed(run, name) == []


def test_a_version_that_grows_or_shrinks(name, run):
    for nbytes in (100, 8 * MIB, 3, 70 * MIB, 80 * MIB, 10, 10, 10):
        haulway.publish(name, {"a": np.full(nbytes, 3, np.int8)})
        assert taken(name).state["a"].shape == (nbytes,)
    assert listed(run, name)[0]["held_bytes"] < 8 * MIB


def test_too_little_memory_is_said_before_anything_is_lost(name):
    haulway.publish(name, {"a": np.arange(3)})
    held = taken(name)
    vast = np.lib.stride_tricks.as_strided(
        np.zeros(1, np.int8), (1 << 44,), (0,)
    )
    with pytest.raises(haulway.LimitError, match=(
        r"no memory to share: 17592186044416 bytes wanted, \d+ available"
    )):
        haulway.publish_buffer(name, vast.size)
    assert held.state["a"].tolist() == [0, 1, 2]
    assert taken(name).version == 1
    assert haulway.publish(name, 2).version == 2


# In place

def test_a_buffer_is_published_where_it_is(name, run):
    for number in range(1, 6):
        buffer = haulway.publish_buffer(name, 4 * MIB)
        assert buffer.nbytes == 4 * MIB and not buffer.readonly
        flat = np.frombuffer(buffer, np.uint8)
        a, b = flat[: 2 * MIB], torch.frombuffer(buffer[2 * MIB:],
                                                 dtype=torch.float32)
        a[:] = number
        b.fill_(number)
        haulway.publish(name, {"a": a, "b": b, "beside": np.arange(number)})
        found = taken(name)
        assert found.version == number
        assert (found.state["a"] == number).all()
        assert (found.state["b"] == number).all()
        assert found.state["beside"].tolist() == list(range(number))
        del buffer, flat, a, b, found
    # No second copy of the buffer was made.
    assert listed(run, name)[0]["held_bytes"] < 9 * MIB


def test_a_buffer_in_use_is_left_alone(name):
    buffer = haulway.publish_buffer(name, 1000)
    with pytest.raises(ValueError, match="is in use already"):
        haulway.publish_buffer(name, 1000)
    array = np.frombuffer(buffer, np.uint8)
    array[:] = 5
    for number in range(1, 6):  # The publications do not use the buffer.
        haulway.publish(name, {"a": np.full(1000, number)})
        assert (array == 5).all()
    haulway.publish(name, {"a": array})
    for number in range(7, 12):
        haulway.publish(name, {"a": np.full(1000, number)})
        assert (array == 5).all(), "its maker still holds it"
    assert haulway.publish_buffer(name, 5).nbytes == 5
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="expected at least 1"):
            haulway.publish_buffer(name, wrong)


@pytest.mark.parametrize("framework", ["torch", "numpy"])
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_file_is_loaded_into_the_published_memory(name, tmp_path, run,
                                                    framework, suffix):
    tensors = {f"w{i}": torch.full((MIB,), float(i)) for i in range(4)}
    path = tmp_path / f"model{suffix}"
    haulway.save(tensors, path, durability="none")
    stats = {}
    publication = haulway.publish_file(name, path, framework=framework,
                                       io="pread", stats=stats)
    assert publication.version == 1 and stats["tensor_bytes"] == 16 * MIB
    assert listed(run, name)[0]["held_bytes"] < 18 * MIB
    found = taken(name).state
    assert list(found) == list(tensors)
    for key, tensor in found.items():
        assert isinstance(tensor, torch.Tensor) == (framework == "torch")
        assert np.array_equal(np.asarray(tensor), tensors[key].numpy())
    if framework == "numpy":
        assert not found["w0"].flags.writeable
    for number in range(2, 6):
        assert haulway.publish_file(name, path).version == number
    del found, tensor
    assert listed(run, name)[0]["held_bytes"] < 35 * MIB


def test_threads_publish_files_and_objects_under_one_name(name, small):
    expected = haulway.load(small, framework="numpy")["model"]
    errors = []

    def publish_files():
        try:
            for _ in range(5):
                haulway.publish_file(name, small, framework="numpy")
                haulway.publish(name, {"model": expected})
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=publish_files) for _ in range(4)]
    for thread in threads:
        thread.start()
    held = taken(name)
    while held.version < 40 and not errors:
        for key, array in expected.items():
            assert np.array_equal(held.state["model"][key], array)
        held.wait(newer_than=held.version - 1, timeout=60)
    for thread in threads:
        thread.join()
    assert not errors and held.wait(newer_than=39, timeout=60) == 40


def test_a_file_in_whatever_way_it_is_read(name, small, tmp_path):
    expected = haulway.load(small)
    for options in ({}, {"mmap": True}, {"io": "direct"}, {"verify": True},
                    {"include": "model.*"}):
        haulway.publish_file(name, small, **options)
        found = taken(name).state
        if "include" in options:
            expected = haulway.load(small, include="model.*")
            assert list(found) == list(expected)
        else:
            found, expected = found["model"], expected["model"]
        for key, tensor in expected.items():
            assert torch.equal(found[key], tensor)
        expected = haulway.load(small)


def test_a_file_that_cannot_be_loaded_shows_no_version(name, tmp_path, small):
    haulway.publish_file(name, small)
    (tmp_path / "bad.pt").write_bytes(small.read_bytes()[:-50])
    with pytest.raises(haulway.Error):
        haulway.publish_file(name, tmp_path / "bad.pt")
    with pytest.raises(FileNotFoundError):
        haulway.publish_file(name, tmp_path / "none.pt")
    with pytest.raises(TypeError, match="unexpected keyword argument 'wrong'"):
        haulway.publish_file(name, small, wrong=1)
    assert taken(name).version == 1


# Names and arguments

@pytest.mark.parametrize("wrong", ["", ".", "..", "a/b", "../x", "a b", "\xe9",
                                   "a\0b", "x" * 101, "a\n"])
def test_names_are_checked(wrong):
    for call in (lambda: haulway.publish(wrong, 1),
                 lambda: haulway.subscribe(wrong, timeout=0)):
        with pytest.raises(ValueError, match="expected 1 to 100 of A-Z"):
            call()


def test_wrong_arguments(name):
    for call in (lambda: haulway.publish(5, 1), lambda: haulway.subscribe(5)):
        with pytest.raises(TypeError, match="name is int: expected str"):
            call()
    for keep in (0, -1):
        with pytest.raises(ValueError, match="expected at least 1"):
            haulway.publish(name, 1, keep=keep)
    with pytest.raises(TypeError):
        haulway.publish(name, 1, keep="two")
    for timeout in ("1", float("nan")):
        with pytest.raises(TypeError, match="expected seconds or None"):
            haulway.subscribe(name, timeout=timeout)


@pytest.mark.parametrize("keep", [2**63, 2**64 - 1, 2**64, 2**100])
def test_more_versions_kept_than_there_can_be(name, keep):
    for number in range(1, 5):
        haulway.publish(name, number, keep=keep)
    assert [haulway.subscribe(name, version=number).state
            for number in range(1, 5)] == [1, 2, 3, 4]


def test_numbers_larger_than_any(name):
    subscription = haulway.publish(name, 1) and haulway.subscribe(name)
    with pytest.raises(haulway.NotFoundError):
        haulway.subscribe(name, version=2**70)
    with pytest.raises(haulway.TimedOutError):
        subscription.wait(newer_than=2**70, timeout=0)
    with pytest.raises(haulway.LimitError, match="no memory to share"):
        haulway.publish_buffer(name, 2**70)


def test_nothing_is_published_under_the_name(name):
    for timeout in (0, 0.05):
        with pytest.raises(haulway.TimedOutError,
                           match="nothing is published as"):
            haulway.subscribe(name, timeout=timeout)


def test_subscribe_waits_for_the_first_version(name):
    found = []
    thread = threading.Thread(
        target=lambda: found.append(haulway.subscribe(name).state))
    thread.start()
    haulway.publish(name, "here")
    thread.join(60)
    assert found == ["here"]


def test_a_closed_publication_begins_anew(name):
    with haulway.publish(name, 1) as publication:
        pass
    with pytest.raises(haulway.TimedOutError):
        haulway.subscribe(name, timeout=0)
    assert publication.version == 1
    publication.close()
    assert haulway.publish(name, 1) is not publication
    held = taken(name)
    haulway.publish(name, 2).close()
    assert taken(name).version == 2, "one that reads it keeps it"
    assert haulway.publish(name, 3).version == 3, "who comes next goes on"
    assert held.wait(timeout=60) == 3
