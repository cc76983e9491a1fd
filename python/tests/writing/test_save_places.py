"""Where files are saved: files of others, folders that cannot be written or
read, open files, processes that fork, and threads that meet."""

import io
import os
import pathlib
import signal
import stat
import struct
import subprocess
import sys
import threading

import numpy
import pytest
import torch

import haulway
import haulway.fsspec

ACL = "system.posix_acl_access"
OWNER, USER, GROUP, MASK, OTHER = 1, 2, 4, 16, 32
NOBODY = 65534
ANYBODY = 0xFFFFFFFF


def access_list(*entries):
    """Returns an access control list as the kernel stores it."""
    return struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", *entry) for entry in entries)


def child_of(function):
    """Runs the function in a forked child, and returns its exit status."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            function()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def as_another(function, user=NOBODY, groups=()):
    """Runs the function in a child that is not root."""
    def run():
        if os.geteuid() == 0:
            os.setgroups(groups)
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        function()

    return child_of(run)


@pytest.fixture
def opened(tmp_path):
    """A folder that other users reach."""
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        folder.chmod(folder.stat().st_mode | 0o711)
    return tmp_path


# Permissions of a file that is replaced


def test_an_access_control_list_is_kept(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"old")
    listed = access_list((OWNER, 6, ANYBODY), (USER, 6, NOBODY),
                         (GROUP, 0, ANYBODY), (MASK, 6, ANYBODY),
                         (OTHER, 0, ANYBODY))
    os.setxattr(path, ACL, listed)
    haulway.save({"a": torch.ones(3)}, path)
    assert os.getxattr(path, ACL) == listed
    assert stat.S_IMODE(path.stat().st_mode) == 0o660  # The mask, not the group.


def test_a_list_of_the_folder_gives_a_replaced_file_no_access(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"old")
    path.chmod(0o640)
    os.setxattr(tmp_path, "system.posix_acl_default", access_list(
        (OWNER, 7, ANYBODY), (USER, 7, NOBODY), (GROUP, 5, ANYBODY),
        (MASK, 7, ANYBODY), (OTHER, 0, ANYBODY)))
    haulway.save({"a": torch.ones(3)}, path)
    assert ACL not in os.listxattr(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(("groups", "kept", "mode"), [
    ([5678], 5678, 0o640),
    ([], NOBODY, 0o600),
])
def test_the_group_is_kept_or_loses_its_rights(opened, groups, kept, mode):
    if os.geteuid() != 0:
        return  # Only root can make a file of another group.
    opened.chmod(0o777)
    path = opened / "x.safetensors"
    path.write_bytes(b"old")
    os.chown(path, 1234, 5678)
    path.chmod(0o640)
    assert as_another(lambda: haulway.save({"a": torch.ones(3)}, path),
                      groups=groups) == 0
    facts = path.stat()
    assert (facts.st_uid, facts.st_gid) == (NOBODY, kept)
    assert stat.S_IMODE(facts.st_mode) == mode


# Folders


def test_a_folder_that_cannot_be_read(opened):
    folder = opened / "in"
    folder.mkdir()
    folder.chmod(0o333)
    assert as_another(
        lambda: haulway.save({"a": torch.ones(3)}, folder / "x.safetensors"),
    ) == 0
    folder.chmod(0o755)
    assert os.listdir(folder) == ["x.safetensors"]


ELEMENTS = 1_500_011  # Several chunks, so that order matters.
EDITABLE = {
    "m.safetensors": {},
    "m.gguf": {"metadata": {"general.architecture": "llama"}},
    "m.npz": {},
    "m.pt": {},
    "m.tensors": {},
}


@pytest.mark.parametrize("name", EDITABLE)
def test_an_edit_never_overwrites_what_it_reads(opened, name):
    folder = opened / "shut"
    folder.mkdir()
    path = folder / name
    made = {f"t{i}": torch.full((ELEMENTS,), float(i)) for i in range(4)}
    haulway.save(made, path, **EDITABLE[name])
    before = path.read_bytes()
    path.chmod(0o666)
    folder.chmod(0o555)
    edits = ({"drop": ["t0"]}, {"rename": {"t0": "t0" + "x" * 40}})

    def edit():
        for change in edits:
            with pytest.raises(haulway.PermissionDeniedError, match="beside"):
                haulway.edit(path, **change)

    status = as_another(edit)
    folder.chmod(0o755)
    assert status == 0
    assert path.read_bytes() == before


# Open files


def test_open_files_without_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = {"a": torch.arange(100_000)}
    expected = haulway.save(made, tmp_path / "x.safetensors")["bytes"]
    whole = (tmp_path / "x.safetensors").read_bytes()
    (tmp_path / "x.safetensors").unlink()
    with open("gone", "wb+") as file:
        os.unlink("gone")
        file.write(b"x" * (expected + 5))
        file.flush()
        haulway.save(made, f"/dev/fd/{file.fileno()}", "safetensors")
        file.seek(0)
        assert file.read() == whole
    memory = os.memfd_create("haulway-test")
    haulway.save(made, f"/proc/self/fd/{memory}", "safetensors")
    assert os.pread(memory, expected + 1, 0) == whole
    os.close(memory)
    assert os.listdir(tmp_path) == []


def test_pipes_behind_links(tmp_path):
    made = {"a": torch.arange(100_000)}
    source = tmp_path / "x.safetensors"
    haulway.save(made, source)
    for name in ("/dev/stdout", "/proc/self/fd/1", "/dev/fd/1"):
        done = subprocess.run(
            [sys.executable, "-c",
             "import sys, haulway\n"
             "haulway.convert(sys.argv[1], sys.argv[2], to='safetensors')",
             source, name], stdout=subprocess.PIPE, check=True)
        assert done.stdout == source.read_bytes()


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


@pytest.mark.parametrize("save", [haulway.save, haulway.torch.save])
def test_an_interrupt_ends_waiting_for_the_reader_of_a_pipe(
        pipe, interrupt, save):
    interrupt()
    with pytest.raises(KeyboardInterrupt):  # Nobody opens it.
        save({"a": torch.ones(5)}, pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    interrupt()
    with pytest.raises(KeyboardInterrupt):  # Nobody reads.
        save({"a": torch.ones(1_000_000)}, pipe)
    os.close(reader)


def test_other_threads_run_while_a_save_waits_for_the_reader_of_a_pipe(pipe):
    made = {"a": torch.arange(100_000)}
    future = haulway.save_async(made, pipe, "safetensors")
    assert not future.done()
    whole = pipe.read_bytes()
    assert len(whole) == future.result()["bytes"]
    assert haulway.load(io.BytesIO(whole))["a"].equal(made["a"])


def test_a_raw_file_that_does_not_block_loses_nothing():
    read, write = os.pipe()
    os.set_blocking(write, False)
    with io.FileIO(write, "wb") as file, io.FileIO(read) as other:
        for save in (haulway.save, haulway.torch.save):
            with pytest.raises(BlockingIOError):
                save({"a": torch.arange(100_000)}, file)
        with pytest.raises(BlockingIOError):
            haulway.archive.PyTorchFileWriter(file).write_record(
                "a", bytes(100_000))
        assert other.read(1)


# Processes that fork


def test_a_child_can_save_while_its_parent_saves(tmp_path):
    future = haulway.save_async(
        {"a": torch.zeros(20_000_000)}, tmp_path / "parent.pt")

    def save():
        haulway.save_async({"b": torch.ones(3)}, tmp_path / "child.pt").result()

    status = child_of(save)
    future.result()
    assert status == 0
    assert haulway.load(tmp_path / "child.pt")["b"].tolist() == [1, 1, 1]


def test_a_planned_file_outlives_the_children_of_its_process(tmp_path):
    made = {"a": torch.arange(1000.0)}
    plan = haulway.plan(made).create(tmp_path / "x.pt")

    def end():
        nonlocal plan
        plan = None

    assert child_of(end) == 0
    plan.fill("data/0", made["a"])
    plan.commit()
    assert torch.equal(haulway.load(tmp_path / "x.pt")["a"], made["a"])


def test_a_child_does_not_finish_the_file_of_its_parent(tmp_path):
    path = tmp_path / "x.bin"
    files = haulway.fsspec.HaulwayFileSystem()
    file = files.open(str(path), "wb")
    file.write(b"half")
    assert child_of(file.close) == 0
    assert not path.exists()
    file.write(b" and half")
    file.close()
    assert path.read_bytes() == b"half and half"


# Several writers of one name


def test_a_temporary_file_is_of_one_writer(tmp_path):
    lost = []

    def run():
        for _ in range(1000):
            plan = haulway.plan({"a": torch.arange(10)})
            plan.create(tmp_path / "x.pt")
            if not os.path.exists(plan._file.temporary_path):
                lost.append(plan._file.temporary_path)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == []
    assert os.listdir(tmp_path) == []


def test_a_new_file_of_fsspec_replaces_no_file_of_others(tmp_path):
    path = tmp_path / "x.bin"
    files = haulway.fsspec.HaulwayFileSystem()
    with pytest.raises(haulway.Error, match="is there already"):
        with files.open(str(path), "xb") as file:
            file.write(b"mine")
            path.write_bytes(b"theirs")
    assert path.read_bytes() == b"theirs"


# Other


def test_a_limit_of_the_size_of_files_is_an_error(tmp_path, command):
    haulway.save({"a": numpy.zeros(100_000)}, tmp_path / "x.npz")
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 10; exec "$@"', "sh", command, "convert",
         tmp_path / "x.npz", tmp_path / "y.npz"],
        capture_output=True, text=True)
    assert done.returncode == 2
    assert "File too large" in done.stderr
    assert os.listdir(tmp_path) == ["x.npz"]


def test_tensors_that_wait_are_private(tmp_path, monkeypatch):
    from haulway.tensorizer import TensorSerializer

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    serializer = TensorSerializer(io.BytesIO())
    serializer.write_tensor(0, "a", 2, torch.ones(10))
    (waiting,) = pathlib.Path(tmp_path).iterdir()
    assert stat.S_IMODE(waiting.stat().st_mode) == 0o600
    serializer.close()


def test_no_write_to_a_mapped_tensor_is_lost_when_its_file_is_overwritten(
        opened):
    folder = opened / "shut"
    folder.mkdir()
    path = folder / "x.safetensors"
    made = {"w": torch.zeros(2_000_000, dtype=torch.int32)}
    haulway.save(made, path)
    path.chmod(0o666)
    folder.chmod(0o555)

    def add(tensor, ends, counts):
        count = 0
        while not ends.is_set():
            tensor.add_(1)
            count += 1
        counts.append(count)

    def save():
        torch.set_num_threads(1)
        for _ in range(5):
            tensor = haulway.load(path, io="mmap")["w"]
            ends, counts = threading.Event(), []
            thread = threading.Thread(target=add, args=(tensor, ends, counts))
            thread.start()
            haulway.save(made, path, durability="none")
            ends.set()
            thread.join()
            assert tensor.unique().tolist() == counts

    status = as_another(save)
    folder.chmod(0o755)
    assert status == 0


@pytest.mark.parametrize("links", [{}, {"x.data": "x.tensors"},
                                   {"x.tensors": "real/x.data"}])
def test_a_data_file_is_another_file(tmp_path, links):
    (tmp_path / "real").mkdir()
    for name, text in links.items():
        (tmp_path / name).symlink_to(text)
    name = "x.data" if links else "x.tensors"
    path = tmp_path / "x.tensors"
    if "real/x.data" in links.values():
        path = tmp_path / "real" / "y.tensors"
        path.symlink_to("x.data")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(haulway.InvalidArgumentError, match="data file"):
        haulway.save({"a": torch.ones(5000)}, path, layout="segments",
                     data_file=name)
    assert sorted(tmp_path.rglob("*")) == before
