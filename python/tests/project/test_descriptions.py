"""How public objects describe themselves: repr(), HTML, key completion."""

import ast
import html.parser
import importlib
import io
import pathlib
import pickle
import re

import numpy as np
import pytest

import haulway
import haulway.torch.dcp as dcp
from haulway import delta, ipc, lightning, tensorizer, transformers
from haulway.archive import PyTorchFileReader, PyTorchFileWriter
from haulway.fsspec import HaulwayFileSystem
from haulway.safetensors import TensorSpec, safe_open
from haulway.tensorizer import stream_io, utils
from haulway.torch.serialization import set_default_mmap_options

VERSIONS = (pathlib.Path(__file__).parents[3]
            / "testdata" / "delta" / "slime-xor-xxh3" / "run")

STUBS = pathlib.Path(haulway.__file__).parent
HOSTILE = "a\x1b[2J\u202e<script>alert(1)</script>" + "x" * 300


def public_classes():
    """Yields (module, name) of the stub classes that programs can get."""
    for stub in sorted(STUBS.rglob("*.pyi")):
        inside = stub.relative_to(STUBS.parent).with_suffix("").parts
        module = ".".join(part for part in inside if part != "__init__")
        for node in ast.parse(stub.read_text()).body:
            if not isinstance(node, ast.ClassDef):
                continue
            said = [ast.unparse(one) for one in
                    (*node.decorator_list, *node.bases)]
            hidden = {"type_check_only", "Protocol", "enum.IntEnum"}
            if not node.name.startswith("_") and not hidden & set(said):
                yield module, node.name


@pytest.fixture
def files(tmp_path, small):
    """Returns paths of a safetensors file and a Tensorizer file with hostile
    names."""
    state = {HOSTILE: np.zeros((2, 3), "float32")}
    haulway.save(state, tmp_path / "hostile.safetensors")
    haulway.save(state, tmp_path / "hostile.tensors")
    return tmp_path


def of_haulway(folder, small):
    checkpoint = haulway.open(folder / "hostile.safetensors", "numpy")
    shared = haulway.load(small, "numpy", destination="shm")
    plan = haulway.plan({"w": np.zeros(4)})
    writer = haulway.writer(folder / "new.safetensors")
    publication = haulway.publish("described", {"w": np.zeros(4)})
    run = haulway.Checkpoints(folder / "run")
    run.save({"w": np.zeros(4)}, 1, metadata={HOSTILE: HOSTILE})
    return [
        checkpoint,
        checkpoint.get_slice(HOSTILE),
        checkpoint.info(HOSTILE),
        haulway.GlobalName(HOSTILE, HOSTILE),
        haulway.PickledObject(HOSTILE, HOSTILE, (HOSTILE,) * 9),
        haulway.OpaqueObject(HOSTILE, HOSTILE, 3, ()),
        haulway.IncompatibleKeys([HOSTILE] * 99, [HOSTILE]),
        haulway.plan_reads(small),
        shared, shared.handle, plan, plan.records[0], writer,
        writer.add_part(HOSTILE, "f32", (2,)),
        publication, haulway.subscribe("described"),
        haulway.scan(folder / "hostile.safetensors"), haulway.formats()[0],
        haulway.bulk("info", folder / "hostile.safetensors", jobs=1),
        run, run.latest(),
    ]


def of_others(folder, small):
    pool = ipc.SharedMemorySegmentPool(1 << 12, 4)
    broadcast = ipc.broadcast_from_subprocess(numbers, 1)
    lightning_io = object.__new__(lightning.HaulwayCheckpointIO)
    lightning_io._options = {"durability": "none", "bearer_token": "secret"}
    # Made without their hosts.
    saving = object.__new__(lightning.HaulwayCheckpoint)
    saving.__init__(folder / "run", every_n_train_steps=3)
    checking = object.__new__(transformers.CheckpointCallback)
    checking.__init__()
    tensors = str(folder / "hostile.tensors")
    memory = utils.CPUMemoryUsage(1 << 40, 1 << 40)
    gpu = utils.GlobalGPUMemoryUsage(1 << 40, 1 << 40, 0)
    of_torch = utils.TorchGPUMemoryUsage(1, 2, 3, 4)
    handle = safe_open(folder / "hostile.safetensors", "pt")
    return [
        PyTorchFileReader(small), PyTorchFileWriter(folder / "w.pt"),
        HaulwayFileSystem(), lightning_io, saving, checking, ipc.BytesHandler(),
        ipc.NumpyHandler(), ipc.TorchHandler(), ipc.SharedMemoryArena(1 << 20),
        pool, ipc.SharedMemoryRingBuffer(1 << 20), broadcast,
        broadcast.consumers[0],
        ipc.DataLoader(range(9), batch_size=3, max_shared_bytes=1 << 20),
        ipc.StatefulDataLoader(range(9)),
        TensorSpec(dtype="float32", shape=[2], data_ptr=0, data_len=8),
        handle, handle.get_slice(HOSTILE), handle.get_tensor_meta(HOSTILE),
        handle.prefetch(),
        tensorizer.EncryptionParams.random(), tensorizer.DecryptionParams(),
        tensorizer.TensorDeserializer(tensors),
        tensorizer.TensorSerializer(str(folder / "t.tensors")),
        stream_io.CAInfo(allow_untrusted=True),
        stream_io.CURLStreamFile(tensors), stream_io.RedisStreamFile(tensors),
        memory, gpu, of_torch, utils.MemoryUsage(memory, gpu, of_torch),
        *delta.versions(VERSIONS),
        delta.publisher(folder / "versions", {"w": np.zeros(4)}),
        dcp.LoadPlanner(), dcp.Reader("https://me:word@host/x?token=1"),
        dcp.Writer(folder / "dcp"), dcp.SafetensorsReader("x"),
        dcp.SafetensorsWriter("x"), set_default_mmap_options(2),
    ]


def numbers():
    return range(3)


def check_line(shown):
    assert 0 < len(shown) < 200, shown
    assert shown.isprintable(), shown
    assert not re.search(r"0x[0-9a-f]{6}", shown), shown


def test_every_public_object_says_what_it_is_in_one_short_line(files, small):
    with set_default_mmap_options(haulway.config.load.mmap_flags):
        objects = [*of_haulway(files, small), *of_others(files, small)]
    seen = set()
    for one in objects:
        shown = repr(one)
        check_line(shown)
        name = type(one).__name__
        assert name in shown or name in ("PickledObject", "OpaqueObject",
                                         "SharedHandle"), shown
        seen.add(name)
        for secret in "word@", "token=1", "secret":
            assert secret not in shown
    for module, name in public_classes():
        cls = getattr(importlib.import_module(module), name)
        if issubclass(cls, Exception):
            check_line(repr(cls("the file is short")))
        else:
            assert cls.__name__ in seen, f"no object of {module}.{name} is shown"
    for one in objects:
        getattr(one, "close", lambda: None)()


def test_what_is_closed_or_no_class_of_ours_is_described_too(files, small):
    with haulway.open(small, "numpy") as checkpoint:
        pass
    assert "closed" in repr(checkpoint)
    with PyTorchFileWriter(files / "w.pt") as writer:
        pass
    arena = ipc.SharedMemoryArena(1 << 20)
    arena.close()
    with ipc.iterate_in_subprocess(numbers) as source:
        check_line(repr(source))
    with ipc.iterate_in_subprocesses([numbers, numbers]) as sources:
        assert "2 workers" in repr(sources)
    for one in writer, arena, source:
        check_line(repr(one))
        assert "closed" in repr(one)


def test_reports_count_what_they_list(files, small):
    a = haulway.save({f"layer.{i}": np.zeros(1) for i in range(2000)},
                     files / "a.safetensors")
    haulway.save({f"layer.{i}": np.ones(1) for i in range(2000)},
                 files / "b.safetensors")
    assert a["tensor_bytes"]
    found = haulway.diff(files / "a.safetensors", files / "b.safetensors")
    check_line(repr(found))
    assert "changed=2,000 items" in repr(found)
    check_line(repr(found.changed[0]))
    check_line(repr(haulway.verify(files)))
    assert "verdict='SAFE'" in repr(haulway.scan(small))
    assert len(found.to_dict()["changed"]) == 2000


def test_the_configuration_is_short_and_its_table_is_text():
    with haulway.config(load={"threads": 3, "bearer_token": "word"}):
        check_line(repr(haulway.config))
        assert "load.threads=3" in repr(haulway.config)
        for shown in repr(haulway.config), str(haulway.config):
            assert "word" not in shown
        assert "context" in str(haulway.config)
        assert len(str(haulway.config).splitlines()) > 20


class Tags(html.parser.HTMLParser):
    """Collects the tags and the text of a page."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.text = set(), []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        self.text.append(data)


PLAIN = {"table", "caption", "thead", "tbody", "tr", "th", "td"}


def test_html_escapes_what_comes_from_files(files):
    path = files / "<img src=x onerror=alert(1)>.safetensors"
    haulway.save({HOSTILE: np.zeros(3), "plain": np.zeros(2)}, path)
    for one in (
        haulway.open(path, "numpy"), haulway.scan(path), haulway.verify(files),
        haulway.diff(path, files / "hostile.safetensors"),
        haulway.Report(findings=[haulway.Report(message="<b>" + HOSTILE)],
                       opcodes={"<i>": 3}),
    ):
        page = Tags(one._repr_html_())
        assert page.tags <= PLAIN, page.tags
        assert "\x1b" not in "".join(page.text)
    text = "".join(Tags(haulway.open(path, "numpy")._repr_html_()).text)
    assert "plain" in text and "F64" in text


def test_a_report_shows_the_first_fault(tmp_path):
    path = tmp_path / "m.safetensors"
    haulway.save({"a": np.zeros(100)}, path)
    path.write_bytes(path.read_bytes()[:-10])
    report = haulway.verify(path)
    assert f"1 item: {report.findings[0].message[:40]!r}"[:-1] in repr(report)
    assert "\x1b" not in repr(haulway.Report(
        findings=[haulway.Report(message=HOSTILE)]))


def test_html_of_many_tensors_stays_small(tmp_path):
    path = tmp_path / "many.safetensors"
    haulway.save({f"layer.{i}": np.zeros(1) for i in range(100_000)}, path)
    checkpoint = haulway.open(path, "numpy")
    page = checkpoint._repr_html_()
    assert len(page) < 1 << 20
    assert "and 99,800 more" in page and "layer.0" in page


def test_notebooks_complete_the_names_of_tensors(files, small):
    with haulway.open(small, "numpy") as checkpoint:
        names = checkpoint._ipython_key_completions_()
        assert names == list(checkpoint)
    assert checkpoint._ipython_key_completions_() == []
    assert "closed" in checkpoint._repr_html_()
    with safe_open(files / "hostile.safetensors", "np") as file:
        assert file._ipython_key_completions_() == file.keys()
    with tensorizer.TensorDeserializer(str(files / "hostile.tensors")) as file:
        assert list(file._ipython_key_completions_()) == list(file)
    shared = haulway.load(small, "numpy", destination="shm")
    assert shared._ipython_key_completions_() == list(shared)


def test_long_reprs_are_not_made_of_whole_values():
    class Costly(dict):
        def items(self):
            raise AssertionError("asked for everything")

    huge = haulway.PickledObject("a", "b", (["x"] * 10**6, "y" * 10**7))
    check_line(repr(huge))
    check_line(repr(haulway.Report(numbers=list(range(10**6)), costly=Costly())))


def test_file_objects_and_bytes_are_named(small):
    data = small.read_bytes()
    assert "memory" in repr(haulway.open(data, "numpy"))
    check_line(repr(haulway.open(io.BytesIO(data), "numpy")))
    check_line(repr(haulway.open([small, io.BytesIO(data)][:1], "numpy")))


@pytest.mark.parametrize("package", [haulway, ipc])
def test_classes_are_called_what_programs_import_them_as(package):
    # The library's own class is left: its type cannot be found again.
    names = [name for name in dir(package) if not name.startswith("_")]
    classes = {name: getattr(package, name) for name in names}
    private = {
        f"{cls.__module__}.{name}" for name, cls in classes.items()
        if isinstance(cls, type) and cls.__module__ != package.__name__
    }
    assert private <= {"haulway._haulway.Format"}


def test_pickles_name_no_private_class(small):
    checkpoint = haulway.open(small, "numpy")
    for value in (checkpoint, checkpoint.info(next(iter(checkpoint))),
                  haulway.verify(small), haulway.plan_reads(small),
                  ipc.WorkerDied("x")):
        assert b"._" not in pickle.dumps(value)
        assert type(pickle.loads(pickle.dumps(value))) is type(value)
