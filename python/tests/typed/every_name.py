"""Uses every public name of the package as a program would.

Type checkers must accept each line; test_typing.py compares its names with
those that the stubs declare. The program is never run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    SavePlanner,
)
from torch.distributed.checkpoint.state_dict_loader import load as torch_load
from torch.distributed.checkpoint.state_dict_saver import save as torch_save
from torch.utils.data import TensorDataset

import haulway
import haulway.delta
import haulway.distributed
import haulway.fsspec
import haulway.hooks
import haulway.lightning
import haulway.safetensors.numpy
import haulway.safetensors.torch
import haulway.torch
import haulway.torch.dcp
import haulway.transformers
import haulway.vllm
from haulway import archive, ipc, safetensors, tensorizer
from haulway.tensorizer import stream_io, torch_compat, utils
from haulway.torch import serialization

Arrays = dict[str, np.ndarray]
Tensors = dict[str, torch.Tensor]


# Errors


def explain(error: haulway.Error) -> str:
    for kind in (
        haulway.ArgumentTypeError, haulway.Cancelled, haulway.CertificateError,
        haulway.CorruptError, haulway.DecryptError, haulway.InternalError,
        haulway.InvalidArgumentError, haulway.IoError, haulway.LimitError,
        haulway.MismatchError, haulway.NotFoundError, haulway.OptionError,
        haulway.PermissionDeniedError, haulway.TimedOutError,
        haulway.TruncatedError, haulway.UnavailableError,
        haulway.SignatureError, haulway.UnknownNameError,
        haulway.UnsafeError,
        haulway.UnsupportedError, ipc.ArenaFull, ipc.WorkerError,
        ipc.WorkerTimeout, safetensors.SafetensorError,
        tensorizer.CryptographyError, tensorizer.HashMismatchError,
        tensorizer.InvalidFileError,
    ):
        if isinstance(error, kind):
            return kind.__name__
    if isinstance(error, haulway.LoadIntoError):
        return ", ".join([*error.missing_keys, *error.unexpected_keys])
    if isinstance(error, ipc.WorkerDied):
        return f"exit code {error.exitcode}"
    return f"{error.code} at {error.byte}: {error.message}, {error.errno}"


# Reading


def look(path: str) -> list[str]:
    checkpoint: haulway.Checkpoint[np.ndarray]
    with haulway.open(path, "numpy", io="pread", verify=True) as checkpoint:
        info: haulway.TensorInfo = checkpoint.info("w")
        part: haulway.TensorSlice[np.ndarray] = checkpoint.get_slice("w")
        rows: np.ndarray = part[0:2, ..., None]
        print(part.shape, part.dtype, part.get_shape(), part.get_dtype(), rows)
        print(checkpoint.format, checkpoint.metadata, checkpoint.container)
        print(checkpoint.framework, checkpoint.tree(), checkpoint.stats())
        print(info.kind, info.dtype, info.shape, info.strides, info.offset,
              info.storage, info.nbytes, info.requires_grad, info.conjugate,
              info.negative)
        names: list[str] = checkpoint.keys()
    tensors: haulway.Checkpoint[torch.Tensor] = haulway.open(path, "torch", True)
    print(tensors["w"].requires_grad, "w" in tensors, len(tensors))
    tensors.close()
    return names


def pickled(value: object) -> str:
    if isinstance(value, haulway.GlobalName):
        return f"{value.module}.{value.name}"
    if isinstance(value, haulway.OpaqueObject):
        return f"{value.name} at {value.byte}"
    if isinstance(value, haulway.PickledObject):
        print(value.args, value.kwargs, value.state, value.appended, value.items)
        return f"{value.module}.{value.name}"
    return ""


def read(path: str) -> tuple[Arrays, Tensors]:
    arrays: Arrays = haulway.load(path, "numpy", include="layer.*")
    tensors: Tensors = haulway.load(path, "torch", exclude=["head.*"],
                                    device="cuda:0", dtype=torch.bfloat16)
    everything = haulway.load(path, memory_budget="64MiB", connections=4)
    for name, tensor in haulway.iterate(path, "torch", order="completion"):
        print(name, tensor.shape, everything)
    some: Arrays = haulway.shard(path, 0, 2, 1, framework="numpy")
    module = torch.nn.Linear(2, 2)
    keys: haulway.IncompatibleKeys = haulway.load_into(module, path, prefix="a.")
    print(keys.missing_keys, keys.unexpected_keys, some)
    planned: haulway.PlannedReads = haulway.plan_reads(path, slices={"w": 0})
    print(planned.reads, planned.tensor_bytes, planned.read_bytes)
    together = haulway.distributed.load(
        [path], placements={"*": 0, "head.*": "replicate"}, timeout=60.0,
        verify=True, stats={},
    )
    print(together["w"].shape)
    return arrays, tensors


def check(path: str) -> bool:
    found: haulway.Report = haulway.scan([path], allow=["my.Class"])
    intact = haulway.verify(path, manifest="sums.json", threads=2)
    changes = haulway.diff(path, "other", atol=1e-3, rtol=1e-3)
    done: haulway.BulkReport = haulway.bulk("scan", [path], jobs=2)
    print(next(done.results())["input"])
    print(done.verb, done.inputs, done.done, done.skipped, done.failed, done.bytes,
          done.seconds, done.outcomes, done.exit, done.summary())
    print(found.to_dict(), intact.ok, changes.changed)
    for name, (dtype, shape, sha256) in haulway.manifest(path).items():
        print(name, dtype, shape, sha256)
    for name, numbers in haulway.tensor_stats(path, include="w").items():
        print(name, numbers and numbers.mean)
    signed = haulway.sign(path, private_key="key.pem", shard_size="1GB")
    print(signed.subject.name, haulway.verify(
        path, signature="model.sig", public_key=b"-----BEGIN PUBLIC KEY-----"))
    mended = haulway.repair(path, "new.pt", ["copy.pt"], "torch")
    for format in haulway.formats():
        known: haulway.Format = format
        print(known.name, known.suffixes, known.encrypts, known.digests,
              known.nested, known.no_data, known.views, known.values)
    return bool(found) and bool(intact) and bool(mended)


# Writing


def write(state: Tensors, path: str) -> None:
    haulway.save(state, path, "torch", compute_crc32=False, storage_alignment=64)
    haulway.save(state, path, "safetensors", metadata={"format": "pt"})
    haulway.save(state["w"], path, "npy")
    haulway.save(state, path, "tensorizer", passphrase="word", room_for=3)
    haulway.save({"step": 3, "model": state}, path, durability="none")
    print(haulway.save_async(state, path, "gguf", alignment=64).result()["bytes"])
    done = haulway.convert(path, "x.gguf", "gguf", shard="5GB", proof=True,
                           rename=[(re.compile("^a"), "b"), ("c$", "d")])
    print(done.tensors, done.files)
    writer: haulway.Writer
    with haulway.writer("x.safetensors", shard="5GB") as writer:
        writer.add("w", state["w"])
        part: haulway.Part = writer.add_part("b", "bf16", (2, 3))
        part.write(np.zeros(3), offset=0)
        print(part.name, writer.commit()["files"])
    haulway.edit(path, rename={"a": "b"}, drop=["c"], set={"k": "v"},
                 dtype={"w": "f16"}, replace={"w": "w.npy"}, dry_run=True)
    plan: haulway.Plan = haulway.plan(state, compute_crc32=True)
    record: haulway.PlannedRecord = plan.records[0]
    plan.create(path, durability="none").fill(record.name, b"...", record.offset)
    print(plan.commit(threads=2), plan.size, record.size)
    print(haulway.get("https://host/x", path, verify=True, retries=3),
          haulway.put(path, "s3://bucket/x", overwrite=True))


def configure() -> None:
    haulway.config.load.verify = True
    haulway.config.save.durability = "none"
    print(haulway.config.load.origin("verify"), haulway.config.save.threads)
    with haulway.config(threads=3, load={"io": "mmap"}, save={"threads": 2}):
        print(haulway.__version__)


# Sharing


def share(state: Tensors, path: str) -> None:
    shared: haulway.Shared = haulway.load(path, "numpy", destination="shm")
    handle: haulway.SharedHandle = shared.handle
    print(haulway.attach(handle, "numpy"), shared.nbytes, shared.stats,
          shared.object, shared.keys(), shared.values(), shared.items())
    publication: haulway.Publication = haulway.publish("a", state, keep=2)
    haulway.publish_file("a", path, framework="torch", include="layer.*")
    haulway.publish_buffer("a", 1 << 20)[:3] = b"abc"
    print(publication.name, publication.version)
    subscription: haulway.Subscription
    with haulway.subscribe("a", timeout=3, version=1) as subscription:
        print(subscription.name, subscription.version, subscription.state,
              subscription.wait(newer_than=1, timeout=0.5))
    subscription.close()
    publication.close()


def batches() -> Iterator[np.ndarray]:
    yield np.zeros(3)


def work() -> None:
    arena = ipc.SharedMemoryArena(1 << 30, max_units=8, bytes_as="memoryview")
    print(arena.max_bytes, arena.empty((2, 3), "f4"), arena.stats(), arena.name,
          arena.closed, arena.consumers, arena.acquire_timeout)
    pool = ipc.SharedMemorySegmentPool(1 << 20, 4)
    print(pool.segment_size, pool.count, pool.published, pool.reclaimed)
    ring = ipc.SharedMemoryRingBuffer(1 << 20)
    print(ring.capacity, ring.head, ring.tail)
    ring.shutdown_arena()
    with ipc.iterate_in_subprocess(batches, arena=arena, timeout=60) as source:
        for array in source:
            print(array.sum())
    for array in ipc.run_in_subprocess(batches, buffer=pool, buffer_size=2):
        print(array.sum())
    several = ipc.iterate_in_subprocesses(
        [batches, batches], ordered=False, daemon=True,
        arenas=lambda: ipc.SharedMemoryArena(1 << 20),
    )
    several.close()
    for item in ipc.iterate_in_program(["program", "--fast"], env={"A": "B"}):
        print(item)
    ipc.serve_program(batches, "channel=3,parent=4")
    broadcast: ipc.Broadcast = ipc.broadcast_from_subprocess(batches, 2)
    consumer: ipc.BroadcastConsumer
    for consumer in broadcast.consumers:
        print(consumer.index, list(consumer))
        consumer.close()
    broadcast.close()
    print(ipc.as_iterable_dataset(source))
    ipc.install()
    loader = ipc.DataLoader(TensorDataset(torch.zeros(3)), batch_size=3,
                            num_workers=2, max_shared_bytes=1 << 30)
    print(loader.max_shared_bytes, list(loader))
    stateful = ipc.StatefulDataLoader(TensorDataset(torch.zeros(3)))
    stateful.load_state_dict(stateful.state_dict())
    ipc.uninstall()


class OwnHandler:
    kind = "own"

    def matches(self, obj: Any, threshold: int) -> bool:
        return False

    def get_buffer(self, obj: Any) -> tuple[Any, tuple[Any, ...]]:
        return b"", ()

    def from_buffer(
        self, buf: Any, meta: tuple[Any, ...], zero_copy: bool
    ) -> tuple[Any, Any]:
        return None, None


def by_hand(arena: ipc.ArenaProtocol) -> None:
    handler: ipc.HandlerProtocol = ipc.register_handler(OwnHandler())
    print(handler.matches(b"", 3), handler.get_buffer(b""),
          handler.from_buffer(b"", (), True))
    for known in ipc.BytesHandler(), ipc.NumpyHandler(), ipc.TorchHandler():
        print(known.kind, ipc.register_handler(known))
    writer: ipc.ArenaWriterProtocol = arena.open_writer()
    reader: ipc.ArenaReaderProtocol = arena.open_reader()
    writer.reset()
    writer.begin_unit()
    offset, nbytes = writer.write_binary(b"...")
    writer.commit_unit()
    writer.abort_unit()
    reader.reset()
    print(reader.read_binary(offset, nbytes), reader.zero_copy)
    reader.end_unit(nbytes, [])
    envelope = ipc.offload({"a": np.zeros(3)}, writer, threshold=1)
    print(ipc.restore(envelope, reader))
    arena.close()
    arena.unlink()


# torch


def like_torch(state: Tensors, path: str) -> None:
    haulway.torch.add_safe_globals([OwnHandler, (OwnHandler, "own.Handler")])
    print(haulway.torch.get_safe_globals())
    haulway.torch.clear_safe_globals()
    with haulway.torch.safe_globals([OwnHandler]):
        print(haulway.torch.load(path, {"cuda:0": "cpu"}, encoding="bytes"))
    haulway.torch.save(state, path, pickle_protocol=4, stats={})
    print(haulway.torch.configured("load", "mmap"))
    with haulway.torch.install(save=True) as done:
        print(done.patched, done.counts, haulway.torch.installed())
    print(haulway.torch.uninstall())
    serialization.set_crc32_options(serialization.get_crc32_options())
    serialization.set_default_load_endianness(
        serialization.get_default_load_endianness())
    with serialization.set_default_mmap_options(
        serialization.get_default_mmap_options()
    ):
        print(serialization.LoadEndianness.LITTLE, serialization.skip_data)


def records(path: str) -> None:
    reader = archive.PyTorchFileReader(path, strict=False)
    reader.set_additional_reader_size_threshold(1 << 20)
    reader.set_should_load_debug_symbol(False)
    name = reader.get_all_records()[0]
    start = reader.get_record_header_offset(name)
    print(reader.get_record(name, [path]), reader.has_record(name),
          reader.get_storage_from_record(name, 3, torch.float32).shape,
          list(reader.get_chunks(name, 1 << 20)), reader.get_record_size(name),
          reader.get_record_offset(name), reader.serialization_id(),
          reader.get_record_offset_no_read(start, name, 3, 64),
          reader.archive_name(), reader.version())
    with archive.PyTorchFileWriter(path, True, 64, durability="none") as writer:
        writer.set_min_version(3)
        writer.write_record("a", b"...", 3)
        writer.write_record_metadata("b", 3)
        print(writer.get_all_written_records(), writer.archive_name())
        writer.write_end_of_file()
        print(writer.serialization_id())


def distributed(state: Tensors) -> None:
    writer = haulway.torch.dcp.Writer("step", overwrite=True, thread_count=2)
    reader = haulway.torch.dcp.Reader("step", strict_dtype=True, verify=True)
    planner = haulway.torch.dcp.LoadPlanner()
    torch_save(state, storage_writer=writer)
    torch_load(state, storage_reader=reader, planner=planner)
    print(reader.stats, reader.checkpoint_id, writer.checkpoint_id,
          reader.validate_checkpoint_id("step"))
    haulway.torch.dcp.SafetensorsReader("step").reset("other")
    haulway.torch.dcp.SafetensorsWriter("step", save_distributed=True).reset()


def as_torch_calls_it(
    reader: haulway.torch.dcp.Reader, writer: haulway.torch.dcp.Writer,
    planner: haulway.torch.dcp.LoadPlanner, saver: SavePlanner,
    plan: LoadPlan, saved: SavePlan, item: ReadItem,
) -> None:
    metadata: Metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, True)
    reader.prepare_global_plan([reader.prepare_local_plan(plan)])
    reader.read_data(plan, planner).wait()
    print(planner.load_bytes, item)
    writer.set_up_storage_writer(True)
    writer.prepare_global_plan([writer.prepare_local_plan(saved)])
    writer.finish(metadata, [writer.write_data(saved, saver).value()])
    print(writer.storage_meta())


# Other packages


def hosts(checkpoint: dict[str, Any], path: str) -> None:
    io = haulway.lightning.HaulwayCheckpointIO(durability="none", threads=2)
    io.save_checkpoint(checkpoint, path)
    print(io.load_checkpoint(path)["state_dict"])
    io.remove_checkpoint(path)
    io.teardown()
    saving = haulway.lightning.HaulwayCheckpoint(
        path, keep=2, every_n_train_steps=10, durability="none")
    saving.setup(None, None, "fit")
    saving.on_train_batch_end(None, None, None, None, 0)
    saving.on_train_end(None, None)
    print(saving.run.latest())
    checking = haulway.transformers.CheckpointCallback(durability="full")
    checking.on_save(None, None, None)
    haulway.vllm.register()
    haulway.hooks.before_pull("run", 1)
    haulway.hooks.after_write(None, "run/weight_v000001", [])
    system = haulway.fsspec.HaulwayFileSystem(fo="bucket/x", target_protocol="s3")
    print(system.protocol)


def like_safetensors(state: Tensors, arrays: Arrays) -> None:
    spec = safetensors.TensorSpec(dtype="float32", shape=[3], data_ptr=1,
                                  data_len=12)
    print(spec.dtype, spec.shape, spec.data_ptr, spec.data_len)
    data = safetensors.serialize({"w": spec}, {"a": "b"})
    safetensors.serialize_file({"w": spec}, "x.safetensors")
    print(safetensors.deserialize(data)[0][0])
    with safetensors.safe_open("x", "pt", device="cpu", backend="auto") as file:
        file.read_ahead({"w": slice(0, 2)})
        meta: safetensors.TensorMeta = file.get_tensor_meta("w")
        print(meta.dtype, meta.shape, meta.data_offsets)
        loader: safetensors.PrefetchLoader = file.prefetch(
            {"w": None}, device="cpu", threads=2)
        with loader:
            print(loader.names(), len(loader), loader.take("w"), dict(loader))
        loader.close()
        print(file.keys(), file.offset_keys(), file.metadata(),
              file.get_tensor("w"), file.get_tensors())
        part: safetensors.PySafeSlice = file.get_slice("w")
        print(part.get_shape(), part.get_dtype(), part[0])
    with safetensors.install() as done:
        print(done.patched, safetensors.installed())
    print(safetensors.uninstall())
    of_torch = haulway.safetensors.torch
    print(of_torch.load(of_torch.save(state)), of_torch.load_file("x", 0))
    of_torch.save_file(state, "x", {"a": "b"})
    module = torch.nn.Linear(2, 2)
    of_torch.save_model(module, "x", force_contiguous=False)
    print(of_torch.load_model(module, "x", strict=False),
          of_torch.storage_ptr(state["w"]), of_torch.storage_size(state["w"]),
          of_torch.deserialize(data))
    of_numpy = haulway.safetensors.numpy
    print(of_numpy.load(of_numpy.save(arrays)), of_numpy.load_file("x"))
    of_numpy.save_file(arrays, "x")


def like_tensorizer(state: Tensors, path: str, names: Iterable[str]) -> None:
    key = tensorizer.EncryptionParams.random()
    word = tensorizer.EncryptionParams.from_string(
        "word", opslimit=tensorizer.EncryptionParams.OpsLimit.MIN,
        memlimit=tensorizer.EncryptionParams.MemLimit.MIN,
    )
    print(key.key, word.salt)
    with tensorizer.TensorSerializer(path, encryption=key) as serializer:
        serializer.write_tensor(0, "w", tensorizer.TensorType.PARAM, state["w"])
        serializer.write_state_dict(state)
        serializer.write_module(torch.nn.Linear(2, 2), remove_tensors=True)
        print(serializer.total_tensor_bytes)
        serializer.close()
    readable = tensorizer.DecryptionParams.from_key(key.key)
    print(tensorizer.DecryptionParams.from_string("word"))
    with tensorizer.TensorDeserializer(
        path, "cpu", lazy_load=True, encryption=readable
    ) as tensors:
        print(tensors.tree(), list(tensors.read_tensors(num_tensors=2)),
              list(tensors.read_numpy_arrays(allow_raw_data=True)),
              tensors.load_into_module(torch.nn.Linear(2, 2)),
              tensors.verify_module(torch.nn.Linear(2, 2)),
              tensors.total_tensor_bytes, tensors.total_file_bytes,
              tensors.total_bytes_read, tensors.cache_status, list(names))
        tensors.to_redis(None, "prefix:", force=True)
        tensors.close()
    with torch_compat.tensorizer_saving(path):
        torch.save(state, path)
    with torch_compat.tensorizer_loading(path, suppress_weights_only=True):
        print(torch.load(path))


def runs(path: str) -> None:
    found: haulway.RunEntry | None = haulway.latest(
        path, verified="sizes", layout="trainer", threads=2, timeout=3)
    if found is not None:
        print(found.path, found.step, found.layout, found.good, found.reason,
              found.bytes, found.metadata, found.skipped)
    report: haulway.Report = haulway.prune(path, 3, dry_run=True)
    run: haulway.Checkpoints
    with haulway.Checkpoints(path, keep=2, every=10, format="torch-dcp",
                             verify=False, durability="none") as run:
        if run.due(10):
            made: haulway.RunEntry = run.save({}, 10, metadata={"loss": 1.0})
            made = run.save_async({}, 20).result()
            with run.writing(30) as folder:
                print(folder.upper(), made.step)
        found = run.latest()
        print([entry.step for entry in run.list()], run.load(10))
        report = run.prune(1)
        run.wait()
    run.close()
    print(report.to_dict())


def deltas(path: str) -> None:
    made: haulway.delta.Version = haulway.delta.write(
        "old", "new", path, version=1, base_version="000000",
        encoding="overwrite", checksum="blake3", shard="1GB", durability="none")
    for version in [made, *haulway.delta.versions("run", timeout=3)]:
        print(version.id, version.number, version.kind, version.base,
              version.encoding, version.checksum, version.tensors,
              version.bytes, version.complete, version.missing, version.path)
    publisher: haulway.delta.Publisher
    with haulway.delta.publisher("run", "model", encoding="xor", shard="1GB",
                                 full_every=10, keep=2, layout="weight_v",
                                 group=None, durability="none",
                                 threads=2) as publisher:
        made = publisher.publish({}, full=True)
        number: int = publisher.version + made.number
    publisher.close()
    for version in haulway.delta.follow("run", newer_than=number, timeout=1,
                                        poll=0.1, connections=2):
        print(version.path)
    removed: haulway.Report = haulway.delta.prune("run", keep=2, dry_run=True)
    print(removed)
    report: haulway.Report = haulway.delta.verify("run", base="model", threads=2)
    report = haulway.delta.apply(
        path, "run", to=4, start="000001", base="model", durability="none",
        threads=2, timeout=3)
    made = haulway.delta.fold("run", "one", start=1, to="4", threads=2)
    made = haulway.delta.compact(
        "run", "full", version=4, shard="5GB", base="model")
    print(report.to_dict())


def streams(path: str) -> None:
    trust = stream_io.CAInfo(cacert="ca.pem")
    stream = stream_io.CURLStreamFile("https://host/x", 0, 10,
                                      certificate_handling=trust)
    stream.register_error_context("while loading")
    print(stream.readline(), stream.popen_latencies, stream.response_headers,
          stream.http_response_latencies, stream.bytes_read, stream.name,
          stream.bytes_skipped, stream.read_operations, trust.curl_flags)
    redis = stream_io.RedisStreamFile("redis://host/prefix", begin=3)
    print(redis.setup_latency, redis.response_latencies)
    stream_io.s3_upload(path, "s3://bucket/x", "id", "secret")
    print(stream_io.s3_download("s3://bucket/x", "id", "secret").read(3),
          stream_io.open_stream("s3://bucket/x", "rb", s3_endpoint="host").read())
    print(utils.convert_bytes(3e9), utils.get_device(), utils.get_gpu_name(),
          utils.get_mem_usage())
    with utils.no_init_or_tensor():
        pass
    usage: utils.MemoryUsage = utils.MemoryUsage.now()
    memory: utils.CPUMemoryUsage = usage.cpu
    gpu: utils.GlobalGPUMemoryUsage | None = usage.gpu
    of_torch: utils.TorchGPUMemoryUsage | None = usage.torch
    print(memory.maxrss, memory.free)
    if gpu is not None:
        print(gpu.total, gpu.free, gpu.used, gpu.now())
    if of_torch is not None:
        print(of_torch.reserved, of_torch.reserved_max, of_torch.used,
              of_torch.used_max)
