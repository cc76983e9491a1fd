"""haulway.load and similar calls, to a GPU."""

import concurrent.futures
import json
import multiprocessing
import os
import resource
import subprocess
import sys

import pytest
import torch

import haulway
from conftest import check


@pytest.mark.parametrize("device", ["cuda:0", "cuda", torch.device("cuda:0"), 0])
def test_every_way_to_name_the_device(path, state, device):
    check(haulway.load(path, device=device), state)


def test_tensors_are_usable_on_any_stream(path, state):
    found = haulway.load(path, device="cuda:0")
    with torch.cuda.stream(torch.cuda.Stream()):
        doubled = found["f32"] * 2
    torch.cuda.synchronize()
    assert torch.equal(doubled.cpu(), state["f32"] * 2)


def test_ties_and_views_stay(tmp_path):
    base = torch.arange(1000.0)
    state = {"all": base, "part": base[5:100:3], "t": base[:100].view(10, 10).t()}
    torch.save(state, tmp_path / "m.pt")
    found = haulway.load(tmp_path / "m.pt", device="cuda:0")
    check(found, state)
    found["all"][5] = -1
    assert found["part"][0].item() == found["t"][5, 0].item() == -1


def test_part_of_a_checkpoint(path, state):
    found = haulway.load(path, include="small.01*", device="cuda:0")
    check(found, {k: v for k, v in state.items() if k.startswith("small.01")})


def test_cast_on_the_way(path, state):
    found = haulway.load(path, include=["f32", "int64"], dtype="bf16",
                         device="cuda:0")
    check(found, {"f32": state["f32"].to(torch.bfloat16), "int64": state["int64"]})


def test_checksums_are_verified(path, state):
    check(haulway.load(path, device="cuda:0", verify=True), state)


def test_iterate(path, state):
    check(dict(haulway.iterate(path, device="cuda:0")),
          {k: state[k] for k, _ in haulway.iterate(path)})


def test_an_open_checkpoint(path, state):
    with haulway.open(path) as opened:
        tensor = opened["f32"].to("cuda:0")
    assert torch.equal(tensor.cpu(), state["f32"])


def test_load_into_tensors_that_are_there(path, state):
    target = {k: torch.zeros_like(v, device="cuda:0") for k, v in state.items()}
    kept = {k: v.data_ptr() for k, v in target.items()}
    keys = haulway.load_into(target, path)
    assert not keys.missing_keys and not keys.unexpected_keys
    check(target, state)
    assert kept == {k: v.data_ptr() for k, v in target.items()}


def test_load_into_a_module(path):
    module = torch.nn.Module()
    module.f32 = torch.nn.Parameter(torch.zeros(9 << 20, device="cuda:0"))
    haulway.load_into(module, path, strict=False)
    assert torch.equal(module.f32.detach().cpu(), haulway.load(path)["f32"])


def test_map_location(files, state):
    path = files / "model.pt"
    for where in ("cuda:0", "cuda", torch.device("cuda", 0),
                  {"cpu": "cuda:0"}, lambda storage, at: storage.cuda(0)):
        check(haulway.torch.load(path, map_location=where), state)


def test_what_was_saved_on_a_gpu_returns_to_it(tmp_path, state):
    there = {k: v.cuda() for k, v in state.items()}
    torch.save(there, tmp_path / "theirs.pt")
    haulway.torch.save(there, tmp_path / "ours.pt")
    for name in ("theirs.pt", "ours.pt"):
        check(haulway.torch.load(tmp_path / name), state)
        check(torch.load(tmp_path / name), state)
        check(haulway.torch.load(tmp_path / name, map_location="cpu"), state, "cpu")
        check(haulway.load(tmp_path / name), state, "cpu")


def test_torch_counts_the_memory_and_has_it_back(files):
    path = files / "model.safetensors"
    before = torch.cuda.memory_allocated()
    found = haulway.load(path, device="cuda:0")
    large = found["f32"].nbytes
    held = torch.cuda.memory_allocated()
    assert held - before >= sum(tensor.nbytes for tensor in found.values())
    one = found["small.0001"]
    del found["f32"]
    assert torch.cuda.memory_allocated() <= held - large
    del found
    assert torch.cuda.memory_allocated() <= before + 512
    assert one.tolist() == [1, 1, 1]


def test_memory_that_torch_reuses_is_not_in_use(tmp_path):
    """A kernel that still reads freed memory must see its old content."""
    path = tmp_path / "m.safetensors"
    haulway.save({"w": torch.zeros(64 << 20)}, path)
    for _ in range(5):
        source = torch.ones(64 << 20, device="cuda:0")
        sums = [source.double().sum() for _ in range(20)]
        del source
        found = haulway.load(path, device="cuda:0")["w"]
        assert all(one.item() == 64 << 20 for one in sums)
        assert found.sum().item() == 0
        del found


def test_more_than_the_device_has(tmp_path):
    _, total = torch.cuda.mem_get_info()
    path = tmp_path / "large.safetensors"
    header = json.dumps({"w": {
        "dtype": "U8", "shape": [2 * total], "data_offsets": [0, 2 * total],
    }}).encode()
    with open(path, "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2 * total)
    with pytest.raises(haulway.LimitError, match="cuda:0: CUDA out of memory"):
        haulway.load(path, device="cuda:0")
    with pytest.raises(torch.OutOfMemoryError):
        haulway.load(path, device="cuda:0")
    assert torch.ones(3, device="cuda:0").sum().item() == 3


def test_a_gpu_that_is_not_there(path):
    number = torch.cuda.device_count()
    with pytest.raises(haulway.Error, match=f"{number}"):
        haulway.load(path, device=f"cuda:{number}")


def test_a_damaged_file(tmp_path, files):
    data = bytearray((files / "model.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "damaged.pt").write_bytes(data)
    with pytest.raises(haulway.MismatchError):
        haulway.load(tmp_path / "damaged.pt", device="cuda:0", verify=True)


def test_eight_threads_at_once(path, state):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for found in pool.map(
            lambda _: haulway.load(path, device="cuda:0"), range(16)
        ):
            check(found, state)


def test_in_a_spawned_process(path):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_sum_there, (str(path),)) == _sum_there(str(path))


def _sum_there(path):
    return haulway.load(path, device="cuda:0")["int64"].sum().item()


def test_a_forked_process_gets_an_error_and_no_crash(path):
    haulway.load(path, device="cuda:0")
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            haulway.load(path, device="cuda:0")
            said = "loaded"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writes, said.encode())
        os._exit(0)
    os.close(writes)
    with open(reads) as file:
        said = file.read()
    assert os.waitpid(child, 0)[1] == 0
    assert "Error" in said, said


def test_without_torch_first(path):
    """The engine creates the device context, and torch uses it."""
    code = (
        "import sys, haulway\n"
        "d = haulway.load(sys.argv[1], device='cuda:0')\n"
        "import torch\n"
        "one = torch.ones(1, dtype=torch.int64, device='cuda:0')\n"
        "print((d['int64'] + one).sum().item())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 100_000 * 99_999 // 2 + 100_000


def test_host_memory_is_bounded(tmp_path):
    """Loading 4 GiB takes less than 1 GiB of host memory."""
    path = tmp_path / "large.safetensors"
    haulway.save({f"w{i}": torch.full((1 << 28,), i, dtype=torch.uint8)
                  for i in range(16)}, path)
    code = (
        "import sys, torch, haulway\n"
        "torch.ones(1, device='cuda:0')\n"
        "def anonymous():\n"
        "    for line in open('/proc/self/status'):\n"
        "        if line.startswith('RssAnon'):\n"
        "            return int(line.split()[1])\n"
        "before = anonymous()\n"
        "most = 0\n"
        "def seen(*_):\n"
        "    global most\n"
        "    most = max(most, anonymous())\n"
        "d = haulway.load(sys.argv[1], device='cuda:0', progress=seen)\n"
        "seen()\n"
        "print(most - before, d['w7'][-1].item())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    grown, last = map(int, done.stdout.split())
    assert last == 7
    assert grown < 1 << 20
    path.unlink()


def test_statistics(path):
    stats = {}
    haulway.load(path, device="cuda:0", stats=stats)
    assert stats["tensor_bytes"] > 36 << 20


def test_many_small_loads_do_not_leak(files):
    path = files / "model.pt"
    haulway.load(path, include="small.0001", device="cuda:0")
    allocated = torch.cuda.memory_allocated()
    opened = len(os.listdir("/proc/self/fd"))
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(300):
        haulway.load(path, include="small.0001", device="cuda:0")
    assert torch.cuda.memory_allocated() == allocated
    assert len(os.listdir("/proc/self/fd")) <= opened + 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < resident + 300_000
