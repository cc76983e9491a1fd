"""Runs one load in one of the processes of a group."""

# Design: every process opens the checkpoint and computes the same schedule:
# tensors are cut into pieces, and each process reads one stretch of the file.
# In each round the processes exchange what they have read while they read for
# the next. On one host they read into shared memory and copy the parts that
# they want (_host_memory.py). Otherwise one all_gather, or a broadcast by each
# process, sends the pieces that all ranks want, and one all_to_all sends parts
# of the other pieces, all as bytes, so that the backend need not support the
# dtypes. Received data are copied to their place in the tensors at once.
#
# Every process reads the index itself. Sending it would save a request, but
# would need a second way to open each format.

from __future__ import annotations

import concurrent.futures
import functools
import hashlib

import torch
import torch.distributed as dist

from .. import _haulway
from .._errors import MismatchError
from .._importing import importing
from .._making.objects import TensorRequest, dense_strides
from .._threads import in_background
from .._torch.factory import meta_tensor, tensor_over
from ._host_memory import share
from ._placements import Placements, overlap, within
from ._schedule import Wanted, schedule

# Default limit for memory in addition to the tensors, in bytes.
_MEMORY_BYTES = 256 << 20

# Larger gaps are not read: they are data that another process reads. Smaller
# gaps are headers of an archive.
_HOLE_BYTES = 4 << 10

# Whether processes on one host share memory.
_SHARES_MEMORY = True

# torch 2.13 renamed it.
_gather = getattr(dist, "all_gather_single", None) or getattr(
    dist, "all_gather_into_tensor", None
)


class Together:
    """One load, in one of the processes."""

    def __init__(self, core, reading, group, mesh, placements, device, watch):
        self.core = core
        self.stats = {"read_bytes": 0, "received_bytes": 0, "requests": 0}
        self._reading = reading
        self._group = group
        self._rank = dist.get_rank(group)
        self._world = dist.get_world_size(group)
        self._mesh = mesh
        self._placements = Placements(
            placements, dist.get_process_group_ranks(group), mesh
        )
        self._device = device
        self._watch = watch
        # The device type of the tensors that the backend sends.
        config = str(dist.get_backend_config(group))
        self._wire = "cpu" if "cpu:" in config else "cuda"

    def plan(self, chosen):
        """Makes the schedule, and memory for this process's tensors."""
        self._named = []  # (name, number of a tensor)
        self._infos, self._listed, self._tensors = [], [], []
        numbers = {}
        for one in chosen:
            listed, boxes = self._placements.of(one.name, one.info.shape)
            key = one.row, tuple(boxes)
            if key not in numbers:
                numbers[key] = len(self._tensors)
                self._tensors.append(self._wanted(one, boxes))
                self._infos.append(one.info)
                self._listed.append(listed)
            self._named.append((one.name, numbers[key]))
        self._rounds = schedule(
            self._tensors, self._world,
            self._reading.memory_budget or _MEMORY_BYTES,
        )
        self._locals = [
            None if info.storage is None else torch.empty(
                (*wanted.boxes[self._rank].extent, wanted.item_bytes),
                dtype=torch.uint8, device=self._device,
            )
            for wanted, info in zip(self._tensors, self._infos)
        ]

    def _wanted(self, one, boxes):
        info = one.info
        if info.storage is None:  # The tensor has no data to read.
            return Wanted(one.row, (0,), 1, 0, False, boxes)
        place = self.core.storage(info.storage).offset
        count = torch.Size(info.shape).numel()
        item_bytes = info.nbytes // count if count else 1
        return Wanted(
            one.row, info.shape, item_bytes,
            (place or 0) + info.offset * item_bytes,
            place is None or self._reading.verify, boxes,
        )

    def agree(self):
        """Raises unless all processes have the same schedule."""
        said = repr((self._named, self._tensors, [
            (info.dtype, info.shape, info.storage is None)
            for info in self._infos
        ]))
        digests = self._tell_all(hashlib.sha256(said.encode()).digest())
        for rank, digest in enumerate(digests):
            if digest != digests[0]:
                raise MismatchError(
                    f"rank {rank} of the group found other tensors, or wants "
                    "other parts, than rank 0: expected one checkpoint and "
                    "the same arguments",
                    "kMismatch",
                )

    def _tell_all(self, message):
        """Sends a message of equal length from every rank; returns all ranks'
        messages."""
        mine = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        every = torch.empty(
            self._world * len(message), dtype=torch.uint8, device=self._wire
        )
        self._watch.wait(_gather(
            every, mine.to(self._wire), group=self._group, async_op=True
        ))
        said = bytes(every.tolist())
        return [said[at:at + len(message)]
                for at in range(0, len(said), len(message))]

    def run(self):
        """Reads and exchanges; returns the tensors by name."""
        mine = [self._in_order(ranks[self._rank]) for ranks in self._rounds]
        # Use the maximum over all ranks, so that their memories have equal
        # sizes.
        room = max(
            (sum(one.nbytes for one in pieces)
             for ranks in self._rounds for pieces in ranks), default=0,
        )
        host = None
        if _SHARES_MEMORY and self._world > 1 and self._wire == "cpu" and room:
            host = share(2 * room, self._rank, self._tell_all)
        if host is None:
            memory = torch.empty(2 * room, dtype=torch.uint8)
            exchange = functools.partial(self._exchange, self._room())
        else:
            memory = host[self._rank]
            exchange = functools.partial(self._copy, host)
        buffers = memory[:room], memory[room:]

        def read(number):
            return in_background(functools.partial(
                self._read, mine[number], buffers[number % 2]
            ), "haulway-read")

        ahead = read(0) if mine else None
        for number in range(len(mine)):
            self._await(ahead)
            if host is not None:
                # Wait until all ranks have read for this round and have copied
                # the data of the previous round, whose memory is reused next.
                self._tell_all(b"1")
            if number + 1 < len(mine):
                ahead = read(number + 1)
            exchange(self._rounds[number], buffers[number % 2])
        # No process leaves, and perhaps ends, while others still need it.
        self._tell_all(b"1")
        return self._made()

    def _await(self, future):
        while not concurrent.futures.wait([future], 0.1).done:
            self._watch.check()
        stats = future.result()
        for name in ("read_bytes", "requests"):
            self.stats[name] += stats[name]

    @staticmethod
    def _in_order(pieces):
        """Sorts the pieces as in a round's memory: first the pieces that all
        ranks want."""
        return sorted(pieces, key=lambda one: not one.for_all)

    @staticmethod
    def _common_bytes(ranks):
        return [sum(one.nbytes for one in pieces if one.for_all)
                for pieces in ranks]

    def _read(self, pieces, memory):
        """Reads pieces back to back into memory; returns statistics."""
        requests, at = [], memory.data_ptr()
        for one in pieces:
            tensor = self._tensors[one.tensor]
            slices = None
            if one.box.extent != tensor.shape:
                slices = [
                    (begin, begin + length, 1)
                    for begin, length in zip(one.box.begin, one.box.extent)
                ]
            requests.append(
                TensorRequest(tensor.row, slices, None, None, at, one.nbytes)
            )
            at += one.nbytes
        if not requests:
            return {"read_bytes": 0, "requests": 0}
        engine = {**self._reading.engine, "largest_hole": _HOLE_BYTES}
        return _haulway.load_tensors(self.core, requests, engine, None)[1]

    def _copy(self, memories, ranks, memory):
        """Copies the parts that this process wants from the memories of all
        ranks.

        memory: the part of this process's memory that holds the round.
        """
        begin = memory.data_ptr() - memories[self._rank].data_ptr()
        for sender, pieces in enumerate(ranks):
            at = begin
            for one in self._in_order(pieces):
                data = self._shaped(
                    one.tensor, memories[sender][at:at + one.nbytes], one.box
                )
                at += one.nbytes
                tensor = self._tensors[one.tensor]
                box = overlap(one.box, tensor.boxes[self._rank])
                if box is None:
                    continue
                self._put(one.tensor, box, data[within(box, one.box)])
                if sender != self._rank:
                    self.stats["received_bytes"] += (
                        box.count * tensor.item_bytes
                    )

    def _room(self):
        """Returns memory for what is gathered, sent and received in any round:
        memory of one round that is freed would not be that of the next."""
        most = [0, 0, 0]
        for ranks in self._rounds:
            blocks = self._blocks(ranks)
            sizes = (
                self._world * max(self._common_bytes(ranks)),
                sum(nbytes for row in blocks[self._rank] for *_, nbytes in row),
                sum(nbytes for rows in blocks
                    for *_, nbytes in rows[self._rank]),
            )
            most = list(map(max, most, sizes))
        return [torch.empty(size, dtype=torch.uint8, device=where)
                for size, where in zip(most, (self._wire, "cpu", self._wire))]

    def _exchange(self, room, ranks, memory):
        """Sends the pieces of a round to the ranks that want them.

        room: what _room() returned.
        """
        sizes = self._common_bytes(ranks)
        gathered, works = None, []
        if any(sizes):
            most = max(sizes)
            gathered = room[0][:self._world * most]
            works += self._gather(gathered, sizes, memory[:most])
        blocks = self._blocks(ranks)
        received = None
        if any(blocks[a][b] for a in range(self._world)
               for b in range(self._world)):
            received, work = self._scatter(room, ranks, blocks, memory)
            works.append(work)
        for work in works:
            self._watch.wait(work)
        if gathered is not None:
            self._take_common(ranks, gathered)
            self.stats["received_bytes"] += sum(sizes) - sizes[self._rank]
        if received is not None:
            at = 0
            for sender in range(self._world):
                for piece, box, nbytes in blocks[sender][self._rank]:
                    self._put(piece.tensor, box, received[at:at + nbytes])
                    at += nbytes
                    if sender != self._rank:
                        self.stats["received_bytes"] += nbytes

    def _gather(self, gathered, sizes, mine):
        """Starts sending what all ranks want; returns the Works."""
        if self._wire != "cpu":
            return [_gather(gathered, mine.to(self._wire), group=self._group,
                            async_op=True)]
        # gloo gathers in memory of its own; broadcasts need none.
        most, works = len(mine), []
        gathered[self._rank * most:][:most].copy_(mine)
        ranks = dist.get_process_group_ranks(self._group)
        for sender, nbytes in enumerate(sizes):
            if nbytes:
                works.append(dist.broadcast(
                    gathered[sender * most:][:nbytes], ranks[sender],
                    group=self._group, async_op=True,
                ))
        return works

    def _blocks(self, ranks):
        """Returns [sender][receiver]: (piece, the box of it that is sent,
        bytes)."""
        blocks = [[[] for _ in range(self._world)] for _ in range(self._world)]
        for sender, pieces in enumerate(ranks):
            for piece in pieces:
                if piece.for_all:
                    continue
                tensor = self._tensors[piece.tensor]
                for receiver, wanted in enumerate(tensor.boxes):
                    box = overlap(piece.box, wanted)
                    if box is not None:
                        blocks[sender][receiver].append(
                            (piece, box, box.count * tensor.item_bytes)
                        )
        return blocks

    def _scatter(self, room, ranks, blocks, memory):
        """Starts sending parts; returns the memory to be filled, and the
        Work."""
        places, at = {}, 0
        for one in self._in_order(ranks[self._rank]):
            places[one] = self._shaped(
                one.tensor, memory[at:at + one.nbytes], one.box
            )
            at += one.nbytes
        sent = [
            sum(nbytes for *_, nbytes in row) for row in blocks[self._rank]
        ]
        out = room[1][:sum(sent)]
        at = 0
        for row in blocks[self._rank]:
            for piece, box, nbytes in row:
                self._shaped(piece.tensor, out[at:at + nbytes], box).copy_(
                    places[piece][within(box, piece.box)]
                )
                at += nbytes
        takes = [
            sum(nbytes for *_, nbytes in blocks[sender][self._rank])
            for sender in range(self._world)
        ]
        received = room[2][:sum(takes)]
        work = dist.all_to_all_single(
            received, out.to(self._wire), takes, sent, group=self._group,
            async_op=True,
        )
        return received, work

    def _take_common(self, ranks, gathered):
        each = gathered.numel() // self._world
        for sender, pieces in enumerate(ranks):
            at = sender * each
            for one in self._in_order(pieces):
                if not one.for_all:
                    break
                self._put(one.tensor, one.box, gathered[at:at + one.nbytes])
                at += one.nbytes

    def _shaped(self, number, data, box):
        """Views bytes as the elements of a box; the last dimension is an
        element's bytes."""
        return data.reshape(*box.extent, self._tensors[number].item_bytes)

    def _put(self, number, box, data):
        """Copies the elements of a box to their place."""
        mine = self._tensors[number].boxes[self._rank]
        self._locals[number][within(box, mine)].copy_(
            self._shaped(number, data, box)
        )

    def _made(self):
        made = [self._tensor(number) for number in range(len(self._tensors))]
        return {name: made[number] for name, number in self._named}

    def _tensor(self, number):
        info = self._infos[number]
        extent = self._tensors[number].boxes[self._rank].extent
        part = info._replace(
            offset=0, shape=extent, strides=dense_strides(extent),
            requires_grad=info.requires_grad and self._mesh is None,
        )
        if info.storage is None:
            local = meta_tensor(part)
        else:
            local = tensor_over(self._locals[number].untyped_storage(), part)
        if self._mesh is None:
            return local
        with importing:
            from torch.distributed.tensor import DTensor

        whole = DTensor.from_local(
            local, self._mesh, self._listed[number], run_check=False,
            shape=torch.Size(info.shape), stride=dense_strides(info.shape),
        )
        return whole.requires_grad_() if info.requires_grad else whole
