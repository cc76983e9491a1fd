"""Parts as every version of torch pickles them, put together."""

import numpy
import pytest

import haulway
from rank_files import (
    PLACES,
    Call,
    Name,
    Storage,
    dtensor,
    mesh,
    new,
    plain,
    replicate,
    shard,
    strided,
    write_all,
)


def runs(size, places, sizes, at):
    """The indices of one dimension that the process at `at` holds."""
    left = numpy.arange(size)

    def cut(indices, count, number):
        step = -(-len(indices) // count)
        return indices[number * step:][:step] if step else indices[:0]

    for place, count, number in zip(places, sizes, at):
        if isinstance(place, int):  # Of this dimension.
            left = numpy.concatenate([
                cut(one, count, number) for one in
                (cut(left, place, i) for i in range(place))])
    return left


def random_case(random):
    """Returns (whole, mesh shape, placements by mesh dimension)."""
    whole = random.integers(0, 99, random.integers(1, 8, random.integers(1, 4)))
    grid = tuple(random.integers(1, 4, random.integers(1, 3)))
    placements = []
    for _ in grid:
        kind = random.integers(4)
        dim = int(random.integers(whole.ndim))
        placements.append(None if kind == 0 else
                          (dim, int(random.integers(2, 4))) if kind == 1
                          else (dim, 1))
    return whole.astype("f4"), grid, placements


def part_of(whole, grid, placements, at):
    index = [runs(size, [p[1] if p and p[0] == d else None
                         for p in placements], grid, at)
             for d, size in enumerate(whole.shape)]
    return whole[numpy.ix_(*index)]


def pickled(placements, module=PLACES):
    return [replicate(module) if p is None else
            shard(p[0], module) if p[1] == 1 else strided(*p)
            for p in placements]


@pytest.mark.parametrize("seed", range(60))
def test_random_placements(seed, tmp_path):
    random = numpy.random.default_rng(seed)
    whole, grid, placements = random_case(random)
    ranks = random.permutation(int(numpy.prod(grid))).reshape(grid)

    def state(rank):
        at = tuple(int(i[0]) for i in numpy.where(ranks == rank))
        local = part_of(whole, grid, placements, at)
        return {"w": dtensor(local, whole.shape, pickled(placements),
                             mesh(ranks, rank))}

    write_all(tmp_path / "run", ranks.size, state)
    with haulway.open(tmp_path / "run", "numpy") as opened:
        assert (opened["w"] == whole).all()
        for row in range(len(whole)):
            assert (opened.get_slice("w")[row] == whole[row]).all()


@pytest.mark.parametrize("version", ["2.3", "2.5", "2.10", "2.13"])
def test_states_of_other_versions(version, tmp_path):
    whole = numpy.arange(66, dtype="f4").reshape(11, 6)
    ranks = numpy.array([[0, 2], [1, 3]])
    module = ("torch.distributed._tensor.placement_types"
              if version == "2.3" else PLACES)

    def state(rank):
        x, y = (int(i[0]) for i in numpy.where(ranks == rank))
        local = whole[x * 6:][:6][:, y * 3:][:, :3]
        return {"w": dtensor(numpy.ascontiguousarray(local), whole.shape,
                             [shard(0, module), shard(1, module)],
                             mesh(ranks, rank, version), version)}

    write_all(tmp_path / "run", 4, state)
    assert (haulway.load(tmp_path / "run", "numpy")["w"] == whole).all()
    metadata = haulway.open(tmp_path / "run").metadata
    assert metadata["mesh"] == {"shape": [2, 2], "names": ["x", "y"]}
    assert metadata["placements"] == {"w": ["S(0)", "S(1)"]}


def test_a_mesh_that_is_a_part_of_the_world(tmp_path):
    """Ranks {0, 2} and {1, 3} each hold one copy; _rank_map lists all."""
    whole = numpy.arange(5, dtype="f4")

    def state(rank):
        where = mesh(numpy.arange(4), rank)
        where.state["_layout"] = new(
            "torch.distributed._mesh_layout", "_MeshLayout",
            {"axes": (new("torch.distributed._mesh_layout", "_FlatLayout",
                          {"shape": (2,), "stride": (2,)}),)})
        return {"w": dtensor(whole[rank // 2 * 3:][:3].copy(), (5,), [shard(0)],
                             where)}

    write_all(tmp_path / "run", 4, state)
    assert (haulway.load(tmp_path / "run", "numpy")["w"] == whole).all()
    # Until 2.6 such a mesh has only its own processes.
    write_all(tmp_path / "old", 4, lambda rank: {"w": dtensor(
        whole[rank // 2 * 3:][:3].copy(), (5,), [shard(0)],
        mesh(numpy.array([0, 2]) + rank % 2, rank, "2.5"), "2.5")})
    assert (haulway.load(tmp_path / "old", "numpy")["w"] == whole).all()


def test_padding_and_strides(tmp_path):
    """The local tensor counts, not its storage, nor the outer strides."""
    whole = numpy.arange(24, dtype="f4").reshape(6, 4)

    def state(rank):
        local = whole[:, rank * 2:][:, :2]
        padded = numpy.concatenate([[-1, -1], local.T.ravel(), [-1] * 9])
        turned = plain(None, shape=(6, 2), strides=(1, 6), offset=2,
                       storage=Storage(padded.astype("f4")))
        return {"w": dtensor(turned, (6, 4), [shard(1)],
                             mesh(numpy.arange(2), rank))}

    write_all(tmp_path / "run", 2, state)
    with haulway.open(tmp_path / "run", "numpy") as opened:
        assert (opened["w"] == whole).all()
        assert (opened.get_slice("w")[2:4, 1:3] == whole[2:4, 1:3]).all()


def test_plain_tensors_are_replicas(tmp_path):
    def state(rank):
        return {"same": plain(numpy.arange(4, dtype="f4")),
                "count": plain(numpy.array([3]), "LongStorage", shape=()),
                "mean": plain(numpy.array([rank], "f4"))}

    run = write_all(tmp_path / "run", 3, state)
    with pytest.raises(haulway.MismatchError,
                       match="ranks 0 and 1 saved different .*'mean'"):
        haulway.load(run)
    with haulway.open(run, "numpy") as opened:
        assert opened["count"] == 3 and opened["count"].dtype == "i8"
    assert not haulway.verify(run)
    assert haulway.load(run, "numpy", replicas="first")["mean"] == 0
    assert haulway.verify(run, replicas="first")


def test_replicas_of_a_mesh_are_compared(tmp_path):
    whole = numpy.arange(6, dtype="f4")

    def state(rank):
        local = whole[rank % 2 * 3:][:3] + (1 if rank == 3 else 0)
        return {"w": dtensor(local, (6,), [replicate(), shard(0)],
                             mesh(numpy.arange(4).reshape(2, 2), rank))}

    run = write_all(tmp_path / "run", 4, state)
    with pytest.raises(haulway.MismatchError,
                       match="ranks 1 and 3 saved different values.*'w'"):
        haulway.load(run)
    # The half that only one process holds otherwise is not in doubt.
    with haulway.open(run, "numpy") as opened:
        assert (opened.get_slice("w")[:3] == whole[:3]).all()
    assert (haulway.load(run, "numpy", replicas="first")["w"] == whole).all()


def test_ties_and_values_beside_tensors(tmp_path):
    where = [mesh(numpy.arange(2), rank) for rank in range(2)]

    def state(rank):
        storage = Storage(numpy.full(2, rank, "f4"))
        tied = [dtensor(plain(None, shape=(2,), storage=storage), (4,),
                        [shard(0)], where[rank]) for _ in range(2)]
        return {"a": tied[0], "b": tied[1], "step": 7, "name": "x",
                "inner": [plain(numpy.zeros(1, "f4")), {"deep": (1, None)}]}

    run = write_all(tmp_path / "run", 2, state)
    tree = haulway.load(run, "numpy")
    assert tree["step"] == 7 and tree["inner"][1] == {"deep": (1, None)}
    assert tree["a"].tolist() == [0, 0, 1, 1]
    tree["a"][0] = 9
    assert tree["b"][0] == 9
    assert haulway.open(run).keys() == ["a", "b", "inner.0"]


def test_parameters_and_none_of_the_internals(tmp_path):
    def state(rank):
        part = dtensor(numpy.full(1, rank, "f4"), (2,), [shard(0)],
                       mesh(numpy.arange(2), rank))
        return {"p": Call(Name("torch._utils", "_rebuild_parameter"),
                          (part, True, Call(Name("collections",
                                                 "OrderedDict"), ())))}

    run = write_all(tmp_path / "run", 2, state)
    assert haulway.load(run, "numpy")["p"].tolist() == [0, 1]
