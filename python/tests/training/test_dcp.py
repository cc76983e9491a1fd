"""Directories of torch.distributed.checkpoint, compared with torch."""

import os
import pathlib
import pickle
import shutil
import subprocess
import sys

import pytest
import torch
from torch.distributed.checkpoint.metadata import MetadataIndex

import haulway
from http_server import FaultServer

HELPER = pathlib.Path(__file__).parents[1] / "dcp_directories.py"
SHARDED = ["ranks2", "ranks4", "grid"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dcp")
    subprocess.run([sys.executable, str(HELPER), str(folder)], check=True, timeout=600)
    return folder


@pytest.fixture
def copy(written, tmp_path):
    """Returns a copy of a directory, for a test to damage."""

    def copy(name):
        return pathlib.Path(shutil.copytree(written / name, tmp_path / name))

    return copy


def edit(folder, change, name=".metadata"):
    """Rewrites the metadata after `change` has modified them."""
    path = folder / name
    metadata = pickle.loads(path.read_bytes())
    path.write_bytes(pickle.dumps(change(metadata) or metadata, protocol=4))


def item(metadata, name, offset=None):
    """Returns the storage info of an entry, which may be changed."""
    index = MetadataIndex(name, offset)
    return metadata.storage_data[index]


def same(ours, theirs):
    if isinstance(theirs, torch.Tensor):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert (
            ours.contiguous()
            .view(torch.uint8)
            .equal(theirs.contiguous().view(torch.uint8))
            if theirs.dim()
            else (ours.item() == theirs.item())
        )
        return
    assert type(ours) is type(theirs)
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key in theirs:
            same(ours[key], theirs[key])
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs):
            same(one, other)
    else:
        assert ours == theirs


@pytest.mark.parametrize("name", ["alone", *SHARDED])
@pytest.mark.parametrize("verify", [False, True])
def test_state_dict_is_what_torch_makes_of_it(written, name, verify):
    theirs = torch.load(written / f"{name}.pt", weights_only=False)
    same(haulway.load(written / name, verify=verify), theirs)


def test_open_names_format_and_tensors(written):
    with haulway.open(written / "ranks4") as checkpoint:
        assert checkpoint.format == "torch-dcp"
        assert set(checkpoint) == {"rows", "columns", "same"}


def test_ranks_that_saved_apart_are_one_checkpoint(written):
    state = haulway.load(written / "apart")
    rows = torch.arange(60, dtype=torch.float32).reshape(10, 6)
    assert state["rows"].equal(rows)
    assert state["columns"].equal(rows.to(torch.bfloat16))
    assert [state[f"only{rank}"].tolist() for rank in range(4)] == [
        [rank] * 2 for rank in range(4)
    ]
    assert state["opt"] == {"lr": 0.1, "steps": [1, 2]}


@pytest.mark.parametrize("name", [*SHARDED, "apart"])
def test_slices_are_those_of_the_whole_tensor(written, name):
    rows = torch.arange(60, dtype=torch.float32).reshape(10, 6)
    with haulway.open(written / name) as checkpoint:
        for tensor in set(checkpoint) & {"rows", "columns", "grid"}:
            part = checkpoint.get_slice(tensor)
            for cut in [
                (slice(2, 8),),
                (slice(None), slice(1, 5)),
                (slice(1, 9, 3), slice(3, 4)),
                (4,),
                (9, 5),
            ]:
                assert part[cut].float().equal(rows[cut]), (tensor, cut)


def test_slice_of_a_large_chunk(written):
    large = torch.arange(300000, dtype=torch.float32).reshape(300, 1000)
    with haulway.open(written / "alone") as checkpoint:
        assert checkpoint.get_slice("large")[:, 7:9].equal(large[:, 7:9])
        assert checkpoint.get_slice("large")[100:200].equal(large[100:200])


def test_extra_pickle_beside_is_meta(copy):
    folder = copy("ranks2")
    torch.save({"epoch": 7, "w": torch.ones(2)}, folder / "meta.pt")
    state = haulway.load(folder)
    assert state["meta"]["epoch"] == 7
    assert state["meta"]["w"].tolist() == [1, 1]
    assert state["rows"].shape == (10, 6)


def test_tensors_within_objects(copy, tmp_path):
    import torch.distributed.checkpoint as dcp

    dcp.save(
        {"a": torch.arange(3), "pair": (torch.ones(2), 4)},
        checkpoint_id=tmp_path / "pair",
        no_dist=True,
    )
    state = haulway.load(tmp_path / "pair")
    assert state["pair"][0].tolist() == [1, 1]
    assert state["pair"][1] == 4
    assert state["a"].tolist() == [0, 1, 2]


def test_convert_to_safetensors_and_torch(written, tmp_path):
    haulway.convert(written / "ranks4", tmp_path / "model.safetensors")
    for name, tensor in haulway.load(tmp_path / "model.safetensors").items():
        assert tensor.equal(torch.load(written / "ranks4.pt", weights_only=False)[name])


def test_verify_says_what_is_fine(written):
    report = haulway.verify(written / "ranks4" / ".metadata")
    assert report.ok and report.format == "torch-dcp" and report.checked_bytes > 0


def test_flipped_bit_is_found(copy):
    folder = copy("ranks4")
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    place = item(metadata, "rows", torch.Size([3, 0]))
    path = folder / place.relative_path
    data = bytearray(path.read_bytes())
    at = data.find(
        torch.arange(18, 20, dtype=torch.float32).numpy().tobytes(), place.offset
    )
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(haulway.MismatchError, match="rows"):
        haulway.load(folder, verify=True)
    report = haulway.verify(folder / ".metadata")
    assert not report.ok
    assert any("chunk [3, 0]+[3, 6]" in finding.message for finding in report.findings)


class Exploit:
    def __reduce__(self):
        return os.system, ("true",)


def test_metadata_that_run_code_are_refused(copy):
    folder = copy("ranks2")

    def change(metadata):
        metadata.planner_data["x"] = Exploit()

    edit(folder, change)
    with pytest.raises(haulway.UnsafeError, match=r"system.*at byte \d+.*\.metadata"):
        haulway.open(folder)


def test_planner_data_keep_their_keys(copy):
    folder = copy("ranks2")
    added = {("a", 1): "tuple", (): [("b",)], None: 1, 2.5: {("c", ("d",)): 3}}

    def change(metadata):
        metadata.planner_data["x"] = added

    edit(folder, change)
    found = haulway.torch.dcp.Reader(folder).read_metadata()
    assert found.planner_data["x"] == added


def test_keys_that_cannot_be_hashed_are_refused(copy):
    folder = copy("ranks2")

    def change(metadata):
        metadata.planner_data["x"] = {("the place",): 1}

    edit(folder, change)
    path = folder / ".metadata"
    data = path.read_bytes()
    text = b"\x8c\x09the place"
    assert data.count(text) == 1
    # An empty list in place of the text; N0 pushes None and removes it.
    path.write_bytes(data.replace(text, 5 * b"N0" + b"]"))
    with pytest.raises(haulway.CorruptError, match="unhashable key"):
        haulway.torch.dcp.Reader(folder).read_metadata()


def test_names_that_are_data_elsewhere_are_refused(copy):
    import collections

    folder = copy("ranks2")

    def change(metadata):
        metadata.planner_data["x"] = collections.OrderedDict()

    edit(folder, change)
    with pytest.raises(haulway.UnsafeError, match="OrderedDict"):
        haulway.open(folder)


def test_objects_that_run_code_are_refused(tmp_path):
    import torch.distributed.checkpoint as dcp

    dcp.save(
        {"a": torch.arange(3), "bad": Exploit()},
        checkpoint_id=tmp_path / "bad",
        no_dist=True,
    )
    with pytest.raises(
        haulway.UnsafeError,
        match=r"system.*at byte \d+.*'bad'.*\.distcp|system.*at byte",
    ):
        haulway.load(tmp_path / "bad")
    with haulway.open(tmp_path / "bad") as checkpoint:  # Tensors are data.
        assert checkpoint["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "path", ["../__0_0.distcp", "/etc/passwd", "a//b", "./__0_0.distcp", ""]
)
def test_paths_that_lead_out_are_refused(copy, path):
    folder = copy("ranks2")

    def change(metadata):
        item(metadata, "rows", torch.Size([0, 0])).relative_path = path

    edit(folder, change)
    with pytest.raises(haulway.CorruptError, match="does not lie in the directory"):
        haulway.open(folder)


def test_links_that_lead_out_are_refused(copy, tmp_path):
    folder = copy("ranks2")
    (folder / "__0_0.distcp").rename(tmp_path / "elsewhere")
    (folder / "__0_0.distcp").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(haulway.CorruptError, match="leads out of the directory"):
        haulway.open(folder)


def chunks(metadata, name="rows"):
    return metadata.state_dict_metadata[name].chunks


def drop_chunk(metadata):
    del chunks(metadata)[1]
    metadata.storage_data = {
        key: value
        for key, value in metadata.storage_data.items()
        if (key.fqn, key.offset) != ("rows", torch.Size([3, 0]))
    }


def overlap(metadata):
    chunks(metadata)[0].sizes = torch.Size([4, 6])


def outside(metadata):
    chunks(metadata)[3].sizes = torch.Size([2, 6])


def nowhere(metadata):
    del metadata.storage_data[MetadataIndex("rows", torch.Size([3, 0]))]


def past_the_end(metadata):
    item(metadata, "rows", torch.Size([3, 0])).offset += 1 << 40


def share_bytes(metadata):
    item(metadata, "rows", torch.Size([0, 0])).offset += 100


def other_dtype(metadata):
    metadata.state_dict_metadata["rows"].properties.dtype = torch.int32


def extension(metadata):
    item(metadata, "rows", torch.Size([3, 0])).transform_descriptors = ["stream.lz4/1"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (drop_chunk, haulway.CorruptError, r"leave a hole at \[3, 0\].*'rows'"),
        (
            overlap,
            haulway.CorruptError,
            r"chunk \[3, 0\]\+\[3, 6\] overlaps chunk \[0, 0\]\+\[4, 6\].*'rows'",
        ),
        (
            outside,
            haulway.CorruptError,
            r"chunk \[9, 0\]\+\[2, 6\] lies outside.*'rows'",
        ),
        (
            nowhere,
            haulway.CorruptError,
            r"chunk \[3, 0\]\+\[3, 6\] is stored nowhere.*'rows'",
        ),
        (
            past_the_end,
            haulway.TruncatedError,
            r"chunk \[3, 0\]\+\[3, 6\] ends past its file.*'rows'",
        ),
        (
            share_bytes,
            haulway.CorruptError,
            r"'columns' shares bytes with chunk \[0, 0\]\+\[3, 6\] of 'rows'",
        ),
        (extension, haulway.UnsupportedError, r"stream\.lz4/1.*'rows'"),
    ],
)
def test_layouts_that_do_not_add_up_are_refused(copy, change, error, message):
    folder = copy("ranks4")
    edit(folder, change)
    with pytest.raises(error, match=message):
        haulway.open(folder)


def test_chunk_that_is_another_tensor_is_refused(copy):
    folder = copy("ranks4")
    edit(folder, other_dtype)
    with pytest.raises(
        haulway.CorruptError,
        match=r"another tensor: expected I32 \[3, 6\], found F32.*'rows'",
    ):
        haulway.load(folder)


def test_missing_file_is_named(copy):
    folder = copy("ranks4")
    (folder / "__2_0.distcp").unlink()
    with pytest.raises(FileNotFoundError, match="__2_0.distcp"):
        haulway.open(folder)


def test_missing_rank_is_a_hole(copy):
    folder = copy("apart")
    (folder / "__3.metadata").unlink()
    with pytest.raises(haulway.CorruptError, match="leave a hole"):
        haulway.open(folder)


def test_lone_data_file_tells_of_the_directory(written):
    with pytest.raises(haulway.UnsupportedError, match="open the directory"):
        haulway.open(written / "ranks2" / "__0_0.distcp")


def test_metadata_cut_anywhere_are_refused(copy):
    folder = copy("ranks2")
    whole = (folder / ".metadata").read_bytes()
    for end in range(0, len(whole), 3):
        (folder / ".metadata").write_bytes(whole[:end])
        with pytest.raises(haulway.Error):
            haulway.open(folder)


def test_metadata_with_flipped_bits_open_or_fail_in_a_typed_way(copy):
    folder = copy("ranks2")
    whole = (folder / ".metadata").read_bytes()
    for at in range(0, len(whole), 2):
        changed = bytearray(whole)
        changed[at] ^= 1 << at % 8
        (folder / ".metadata").write_bytes(changed)
        try:
            haulway.load(folder)
        except haulway.Error:
            pass


def test_data_cut_anywhere_are_refused(copy):
    folder = copy("ranks2")
    path = folder / "__0_0.distcp"
    whole = path.read_bytes()
    for end in range(0, len(whole), 97):
        path.write_bytes(whole[:end])
        with pytest.raises(haulway.Error):
            haulway.load(folder)


def test_every_way_of_loading_takes_the_directory(written, tmp_path):
    folder = written / "ranks4"
    theirs = torch.load(written / "ranks4.pt", weights_only=False)
    pieces = dict(haulway.iterate(folder))
    assert all(pieces[name].equal(theirs[name]) for name in ("rows", "columns"))
    assert haulway.shard(folder, 1, 2)["rows"].equal(theirs["rows"][5:])
    target = {"rows": torch.zeros(10, 6)}
    haulway.load_into(target, folder, strict=False)
    assert target["rows"].equal(theirs["rows"])
    planned = haulway.plan_reads(folder, include=["rows"])
    assert planned.tensor_bytes == theirs["rows"].nbytes


def test_compared_with_other_directories_and_files(written, tmp_path):
    assert haulway.diff(written / "ranks2", written / "ranks4").equal
    haulway.convert(written / "ranks4", tmp_path / "model.safetensors")
    ours = haulway.manifest(written / "ranks4")
    assert ours == haulway.manifest(tmp_path / "model.safetensors")


def test_scan_finds_nothing_and_the_exploit(written, copy):
    assert haulway.scan(written / "ranks2").safe
    folder = copy("ranks2")

    def change(metadata):
        metadata.planner_data["x"] = Exploit()

    edit(folder, change)
    assert not haulway.scan(folder).safe


def test_chunks_say_where_their_elements_lie(written):
    folder = written / "ranks4"
    columns = torch.load(written / "ranks4.pt", weights_only=False)["columns"]
    with haulway.open(folder) as checkpoint:
        chunks = haulway._haulway.dcp_chunks(checkpoint._core)
    found = [chunk for chunk in chunks if chunk[0] == "columns"]
    assert [chunk[1] for chunk in found] == [(0, 0), (0, 2), (0, 4)]
    for _, (_, first), sizes, file, offset, nbytes in found:
        data = (folder / file).read_bytes()[offset : offset + nbytes]
        part = torch.frombuffer(bytearray(data), dtype=torch.bfloat16).view(sizes)
        assert part.equal(columns[:, first : first + sizes[1]])


def test_server_is_asked_for_no_list(written):
    folder = written / "ranks4"
    asked = []

    def answer(request):
        asked.append(request.target)
        request.serve(
            (folder / request.target.rsplit("/")[-1]).read_bytes(), ETag='"1"'
        )

    with FaultServer(answer) as server:
        with haulway.open(server.url("/step/.metadata")) as checkpoint:
            opened = len(asked)
            rows = checkpoint["rows"]
    assert asked[0] == "/step/.metadata"
    assert opened < len(asked)  # Files of objects come first, others on demand.
    files = [f"/step/__{rank}_0.distcp" for rank in range(4)]
    assert sorted(asked[1:]) == files  # Each file once.
    assert rows.equal(torch.arange(60, dtype=torch.float32).reshape(10, 6))
