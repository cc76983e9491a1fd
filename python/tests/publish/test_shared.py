"""Checkpoints in shared memory that many processes use."""

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys

import pytest
import torch

import haulway

MIB = 1 << 20

# Attaches, prints the time, touches every byte, prints the sum, and waits to be
# killed or told to end. With "hold" it does nothing else.
CHILD = """
import sys, time
import haulway, numpy
start = time.perf_counter()
state = haulway.attach(sys.argv[1], framework="numpy")
print(time.perf_counter() - start, flush=True)
print(sum(int(a.reshape(-1).view("u1")[::4096].sum()) for a in
          state.values()), flush=True)
sys.stdin.readline()
"""


def child(handle, code=CHILD, **options):
    return subprocess.Popen(
        [sys.executable, "-c", code, handle],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, **options,
    )


def end(process):
    process.stdin.close()
    process.wait()
    process.stdout.close()


def kill(process):
    process.send_signal(signal.SIGKILL)
    end(process)


def works(handle):
    try:
        haulway.attach(handle, framework="numpy")
    except haulway.Error as error:
        assert "holds the shared memory" in str(error)
        return False
    return True


def mapped(pid, what):
    """Returns a process's memory of shared checkpoints in bytes: "Pss" or
    "Rss"."""
    total = 0
    inside = False
    with open(f"/proc/{pid}/smaps") as file:
        for line in file:
            if line[0] in "0123456789abcdef" and "-" in line.split()[0]:
                inside = "/memfd:haulway-shm-" in line
            elif inside and line.startswith(what + ":"):
                total += 1024 * int(line.split()[1])
    return total


@pytest.fixture
def large(tmp_path):
    """A file of 64 MiB in four tensors."""
    path = tmp_path / "large.pt"
    state = {
        f"layer.{i}": torch.full((4 * MIB,), i + 1, dtype=torch.int32)
        for i in range(4)
    }
    haulway.save(state, path, durability="none")
    return path


@pytest.fixture
def nested(tmp_path):
    tied = torch.arange(100, dtype=torch.float32)
    path = tmp_path / "nested.pt"
    torch.save(
        {
            "model": {"a": tied, "b": tied, "row": tied[10:20],
                      "half": torch.ones(3, 4, dtype=torch.bfloat16).t()},
            "steps": [1, torch.tensor(2.5)],
            "empty": torch.empty(0, 3),
            "weight": torch.nn.Parameter(torch.ones(2)),
        },
        path,
    )
    return path


def test_the_object_is_the_one_that_was_saved(nested):
    loaded = haulway.load(nested, destination="shm")
    for state in (loaded.object, haulway.attach(loaded.handle)):
        model = state["model"]
        assert model["a"] is model["b"]
        assert model["row"].data_ptr() == model["a"].data_ptr() + 40
        assert torch.equal(model["a"], torch.arange(100.0))
        assert model["half"].stride() == (1, 4)
        assert state["steps"][0] == 1 and state["steps"][1] == 2.5
        assert state["empty"].shape == (0, 3)
        assert state["weight"].requires_grad
    assert loaded["steps"][0] == 1 and "model" in loaded and len(loaded) == 4
    assert list(loaded) == list(loaded.keys()) == ["model", "steps", "empty",
                                                   "weight"]
    assert loaded.stats["tensor_bytes"] >= 400


def test_arrays_refuse_to_be_written_to(nested):
    loaded = haulway.load(nested, framework="numpy", destination="shm")
    for state in (loaded, haulway.attach(loaded.handle, framework="numpy")):
        array = state["model"]["a"]
        assert not array.flags.writeable
        with pytest.raises(ValueError):
            array[0] = 1
        with pytest.raises(ValueError):
            array.flags.writeable = True


def test_writing_to_a_tensor_ends_the_process(nested):
    loaded = haulway.load(nested, destination="shm")
    ended = subprocess.run(
        [sys.executable, "-c", "import sys, haulway\n"
         "haulway.attach(sys.argv[1])['model']['a'][0] = 1", loaded.handle],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.DEVNULL,
    )
    assert ended.returncode == -signal.SIGSEGV
    assert loaded["model"]["a"][0] == 0


def test_include_loads_and_attaches_a_flat_dict(nested):
    loaded = haulway.load(nested, include="model.r*", destination="shm")
    assert list(loaded) == ["model.row"]
    for framework in ("torch", "numpy"):
        state = haulway.attach(loaded.handle, framework=framework)
        assert list(state) == ["model.row"]
        assert state["model.row"].tolist() == list(range(10, 20))


def test_the_handle_alone_keeps_the_memory(nested):
    handle = haulway.load(nested, destination="shm").handle
    text = str(handle).strip()
    assert works(handle) and works(text)
    again = pickle.loads(pickle.dumps(handle))
    assert type(again) is str and again == handle
    text = "".join(text)
    del handle
    assert not works(text)


def test_a_tensor_alone_keeps_the_memory(nested):
    loaded = haulway.load(nested, destination="shm")
    text = "".join(list(loaded.handle))
    row = loaded["model"]["row"]
    del loaded
    assert works(text)
    assert row.tolist() == list(range(10, 20))
    del row
    assert not works(text)


def _sum_of(shared):
    return shared["model"]["a"].sum().item()


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_what_was_loaded_goes_to_workers(nested, method):
    loaded = haulway.load(nested, framework="numpy", destination="shm")
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(_sum_of, [loaded] * 4) == [4950.0] * 4


def test_formats_other_than_torch(tmp_path):
    state = {"w": torch.arange(12.0).reshape(3, 4), "e": torch.empty(0)}
    path = tmp_path / "model.safetensors"
    haulway.save(state, path, durability="none")
    loaded = haulway.load(path, destination="shm")
    attached = haulway.attach(loaded.handle)
    assert list(attached) == list(loaded)
    assert torch.equal(attached["w"], state["w"])


def test_sharded_model(tmp_path):
    for i in range(2):
        haulway.save({f"w{i}": torch.full((3,), float(i))},
                     tmp_path / f"part{i}.safetensors", durability="none")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        '{"metadata":{"total_size":24},"weight_map":'
        '{"w0":"part0.safetensors","w1":"part1.safetensors"}}'
    )
    loaded = haulway.load(index, destination="shm")
    for path in tmp_path.iterdir():
        path.unlink()
    attached = haulway.attach(loaded.handle)
    assert attached["w1"].tolist() == [1, 1, 1]


def test_wrong_arguments(nested):
    with pytest.raises(haulway.Error, match="expected 'shm' or None"):
        haulway.load(nested, destination="disk")
    with pytest.raises(haulway.Error, match="expected 'cpu'"):
        haulway.load(nested, destination="shm", device="cuda")
    with pytest.raises(ValueError, match="not a handle of shared memory"):
        haulway.attach("model.pt")


def test_progress_and_what_it_raises(large):
    seen = []
    haulway.load(large, destination="shm",
                 progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] >= 64 * MIB

    def stop(done, total):
        raise KeyError("stop")

    with pytest.raises(KeyError):
        haulway.load(large, destination="shm", progress=stop)


def test_eight_processes_use_the_bytes_once(large):
    handle = haulway.load(large, framework="numpy", destination="shm").handle
    children = [child(handle) for _ in range(8)]
    try:
        seconds = [float(process.stdout.readline()) for process in children]
        sums = {int(process.stdout.readline()) for process in children}
        assert sums == {4096 * (1 + 2 + 3 + 4)}
        pss = [mapped(process.pid, "Pss") for process in children]
        rss = [mapped(process.pid, "Rss") for process in children]
        print(f"attached in {1000 * min(seconds):.1f} to "
              f"{1000 * max(seconds):.1f} ms; "
              f"PSS of all {sum(pss) / MIB:.1f} MiB, "
              f"RSS of each {max(rss) / MIB:.1f} MiB")
        assert min(rss) >= 64 * MIB
        assert sum(pss) <= 66 * MIB
    finally:
        for process in children:
            end(process)


def test_killing_its_holders_one_by_one(large):
    loader = child(
        str(large),
        "import sys, haulway\n"
        "loaded = haulway.load(sys.argv[1], framework='numpy',"
        " destination='shm')\n"
        "print(loaded.handle, flush=True)\n"
        "sys.stdin.readline()\n",
    )
    handle = loader.stdout.readline().strip()
    assert works(handle)
    first = child(handle)
    first.stdout.readline()
    kill(loader)
    assert works(handle), "one that attached still holds it"
    second = child(handle)
    second.stdout.readline()
    kill(first)
    assert works(handle)
    kill(second)
    assert not works(handle), "the kernel freed it"


def test_another_user_is_refused(nested):
    if os.geteuid() != 0:
        return  # Only root can change the user.
    handle = haulway.load(nested, destination="shm").handle
    # Import the extension first: other users may not have access to its file.
    code = (
        "import os, sys, haulway, haulway._sharing.shared\n"
        "os.setgroups([]); os.setresgid(65534, 65534, 65534)\n"
        "os.setresuid(65534, 65534, 65534)\n"
        "try:\n"
        "    haulway.attach(sys.argv[1], framework='numpy')\n"
        "except FileNotFoundError as error:\n"
        "    print('refused:', error)\n"
    )
    other = child(handle, code)
    assert other.stdout.read().startswith("refused: no process")
    end(other)
