"""The haulway command, called by users and scripts."""

import fcntl
import functools
import io
import json
import os
import pathlib
import pty
import signal
import struct
import subprocess
import sys
import termios
import zipfile

import numpy
import pytest
import safetensors.torch
import torch

import haulway
import haulway.delta
from needed_metadata import needed

MUST_FAIL = pathlib.Path(__file__).parents[3] / "testdata" / "must_fail"


@pytest.fixture
def run(run, small):
    return functools.partial(run, cwd=small.parent)


def test_ls_prints_a_table_that_lines_up(run):
    done = run("ls", "golden/tied.pt")
    assert done.stdout == (
        "name   dtype  shape   bytes  offset   storage\n"
        "embed  F32    [2, 3]   24 B     832  0 shared\n"
        "head   F32    [2, 3]   24 B     832  0 shared\n"
        "row    F32    [3]      12 B     844  0 shared\n"
        "n      F16    [2]       4 B     960         1\n"
        "4 tensors, 64 B; 2 storages, 28 B\n"
    )
    assert done.stderr == ""


def test_ls_json_says_where_the_bytes_are(run, small):
    listed = json.loads(run("ls", "small.pt", "--json").stdout)
    assert (listed["file"], listed["format"]) == ("small.pt", "torch")
    assert listed["total_bytes"] == sum(t["nbytes"] for t in listed["tensors"])
    data = small.read_bytes()
    saved = torch.load(small)["model"]
    by_name = {t["name"]: t for t in listed["tensors"]}
    for name, tensor in saved.items():
        entry = by_name[f"model.{name}"]
        assert entry["shape"] == list(tensor.shape)
        assert entry["strides"] == list(tensor.stride())
        raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
        at = entry["offset"]
        assert data[at : at + entry["nbytes"]] == raw
    tied = [by_name[f"model.{n}.weight"]["storage"] for n in ("head", "embedding")]
    assert tied[0] == tied[1]


def test_ls_of_several_files_prints_one_object_a_line(run):
    lines = run("ls", "small.pt", "golden/tied.pt", "--json").stdout.splitlines()
    assert [json.loads(line)["file"] for line in lines] == [
        "small.pt", "golden/tied.pt",
    ]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--include", "row"], ["row"]),
        (["--include", "?e*"], ["head"]),
        (["--include", "/^e/", "--include", "n"], ["embed", "n"]),
        (["--exclude", "*"], []),
        (["--include", "*", "--exclude", "head"], ["embed", "row", "n"]),
    ],
)
def test_filters(run, arguments, names):
    done = run("ls", "golden/tied.pt", "--json", *arguments, code=0 if names else 3)
    listed = json.loads(done.stdout) if done.stdout else {"tensors": []}
    assert [t["name"] for t in listed.get("tensors", [])] == names


def test_info(run):
    told = json.loads(run("info", "small.pt", "--json").stdout)
    assert told["format"] == "torch" and told["tensor_count"] == 26
    assert told["dtypes"] == {"BF16": 1, "BOOL": 1, "F32": 22, "F8_E4M3": 1, "I64": 1}
    assert told["container"]["version"] == 3
    assert told["container"]["byteorder"] == "little"
    assert "offsets computed" in run("info", "small.pt").stdout


def npy_of(array):
    out = io.BytesIO()
    numpy.save(out, array)
    return out.getvalue()


def test_cat_prints_slices_and_writes_files(run, tmp_path, small):
    assert run("cat", "golden/tied.pt", "row").stdout == "[3, 4, 5]\n"
    assert run("cat", "golden/tied.pt", "head", "--slice", ":,1").stdout == "[1, 4]\n"
    out = tmp_path / "x.npy"
    run("cat", "small.pt", "half.transposed", "--out", out)
    half = torch.load(small)["half"]
    assert numpy.array_equal(numpy.load(out), half["transposed"].numpy())
    assert out.read_bytes() == npy_of(half["transposed"].numpy().copy("C"))
    told = run("cat", "small.pt", "half.bf16", "--out", out).stderr
    assert "NumPy has no BF16: the bits are written as U16" in told
    assert numpy.array_equal(numpy.load(out), half["bf16"].view(torch.uint16).numpy())
    raw = run("cat", "small.pt", "half.bf16", "--raw", text=False).stdout
    assert raw == half["bf16"].view(torch.uint8).numpy().tobytes()
    assert "no tensor 'nope'" in run("cat", "small.pt", "nope", code=3).stderr


def test_verify(run):
    good = json.loads(run("verify", "small.pt", "--json").stdout)
    assert good["ok"] and not good["findings"] and good["checked_bytes"] > 70_000
    assert all(part["bytes"] > 0 for part in good["unchecked"])
    bad = json.loads(run("verify", "must_fail/crc.pt", "--json", code=1).stdout)
    assert [f["code"] for f in bad["findings"]] == ["kMismatch"]
    assert "FAILED must_fail/crc.pt" in run("verify", "must_fail/crc.pt", code=1).stdout
    assert run("verify", "-q", "small.pt").stdout == ""


@pytest.mark.parametrize("name", ["x.safetensors", "x.gguf", "x.npy"])
def test_verify_says_where_there_are_no_checksums(run, name, tmp_path):
    path = tmp_path / name
    array = numpy.arange(6.0, dtype=numpy.float32)
    haulway.save(array if name == "x.npy" else {"a": array}, path, **needed(name))
    said = run("verify", path).stdout
    assert said.startswith("OK ") and "structure only" in said
    assert "changed values would not be detected" in said
    assert json.loads(run("verify", "--json", path).stdout)["checked"] \
        == "structure"
    path.write_bytes(path.read_bytes()[:-12])
    assert "FAILED" in run("verify", path, code=1).stdout


@pytest.mark.parametrize("number", ["-1", "65536", "2000000000", "x", "1e3"])
def test_a_number_of_threads_that_none_can_be_is_usage(run, number):
    told = run("verify", "small.pt", "--threads", number, code=4).stderr
    assert f"expected a number from 0 to 65535: {number}" in told
    assert told.endswith("see haulway verify --help\n")
    assert run("verify", "small.pt", "--threads", "65535").returncode == 0


@pytest.mark.parametrize("words", [
    ["ls", "small.pt", "--tree", "--depth"], ["cat", "small.pt", "n", "--head"],
    ["load", "small.pt", "--repeat"],
])
@pytest.mark.parametrize("number", ["0", "-1", "x"])
def test_a_count_that_is_none_is_usage(run, words, number):
    told = run(*words, number, code=4).stderr
    assert f"{words[-1]}: expected a number of 1 or more: {number}; see" in told


FOREIGN = {
    b"version https://git-lfs.github.com/spec/v1\n": "Git LFS",
    b"<!DOCTYPE html><html>": "a web page",
    b"\x89HDF\r\n\x1a\n": "HDF5",
    b"\x1f\x8b\x08": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x80\x04]": "a pickle",
}


@pytest.mark.parametrize("content", FOREIGN)
def test_what_is_no_checkpoint_is_named(run, content, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(content + bytes(1000))
    assert f"it is {FOREIGN[content]}" in run("ls", path, code=2).stderr \
        or FOREIGN[content] in run("ls", path, code=2).stderr


def keras_model(path):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", '{"keras_version": "3.3.3"}')
        archive.writestr("config.json", "{}")
        archive.writestr("model.weights.h5", b"\x89HDF\r\n\x1a\n" + bytes(100))


@pytest.mark.parametrize("name, write, told, scanned", [
    ("m.h5", lambda path: path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100)),
     "it is HDF5: read it with h5py", "HDF5, which is not looked into; modelscan"),
    ("m.keras", keras_model,
     "it is a model of Keras: read it with keras.saving.load_model()",
     "HDF5, which is not looked into; modelscan"),
    ("m.onnx", lambda path: path.write_bytes(b"\x08\x07\x12\x07pytorch" + bytes(99)),
     "it is ONNX, by its name: read it with the onnx package",
     "ONNX by its name, and neither a text nor"),
])
def test_what_other_programs_read_is_named(run, name, write, told, scanned, tmp_path):
    write(tmp_path / name)
    for verb in "info", "ls", "verify", "load":
        assert told in run(verb, tmp_path / name, code=2).stderr
    assert scanned in run("scan", tmp_path / name, code=2).stdout


def test_scan(run):
    found = json.loads(run("scan", "must_fail/os_system.pt", "--json", code=1).stdout)
    assert found["safe"] is False
    named = [g for g in found["pickles"][0]["globals"] if not g["allowed"]]
    assert [(g["module"], g["name"]) for g in named] == [("posix", "system")]
    assert json.loads(run("scan", "small.pt", "--json").stdout)["safe"] is True


def test_load_says_how_fast(run):
    assert "GB/s" in run("load", "small.pt", "--io", "pread", "--verify").stdout
    assert "found fast" in run("load", "small.pt", "--io", "fast", code=4).stderr


def test_load_has_the_options_of_the_engines_table(run, tmp_path):
    path = tmp_path / "one.safetensors"
    haulway.save({"one": numpy.zeros(4 << 20, numpy.uint8)}, path)

    def requests(*options):
        told = run("load", path, "--io", "pread", "--json", *options).stdout
        return json.loads(told)["requests"]

    assert requests() == 4  # The command reads pieces of 1 MiB.
    assert requests("--chunk-bytes", "64KiB") == 64
    assert json.loads(
        run("load", path, "--threads", "1", "--json").stdout)["threads"] == 1
    told = run("load", "--help").stdout
    for name in ("io", "verify", "memory-budget", "drop-cache", "largest-hole"):
        assert f"--{name} " in told
    for wrong in ("--chunk-bytes", "0"), ("--threads", "-1"):
        run("load", path, *wrong, code=4)
    haulway.save({str(i): numpy.zeros(4096, numpy.uint8) for i in range(9)}, path)
    some = ("--exclude", "[1357]")
    assert requests(*some) < requests(*some, "--largest-hole", "0") == 5


def test_put_without_a_place_is_wrong_usage(run, small):
    for arguments in ([], [small]):
        done = run("put", *arguments, code=4)
        assert "expected FILE and URL, or --abort URL" in done.stderr


def test_load_takes_no_memory_of_the_size_of_the_file(command, tmp_path):
    path = tmp_path / "large.tensors"
    haulway.save({str(i): numpy.zeros(4 << 20, numpy.uint8) for i in range(50)}, path)
    # A child's peak memory starts at its parent's, so it gets a small parent.
    parent = ("import os, sys\n"
              "pid = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])\n"
              "_, status, used = os.wait4(pid, 0)\n"
              "print(status, used.ru_maxrss)")
    for options in (), ("--verify",), ("--io", "pread"), ("--io", "direct"):
        told = subprocess.run(
            [sys.executable, "-c", parent, command, "load", str(path), *options],
            check=True, capture_output=True, text=True)
        status, kibibytes = told.stdout.splitlines()[-1].split()
        assert int(status) == 0
        assert int(kibibytes) < 100 << 10  # The file has 200 MiB.


def test_load_of_a_mapped_file_says_that_nothing_was_copied(run):
    told = run("load", "small.pt", "--io", "mmap").stdout
    assert "nothing copied" in told and "GB/s" not in told
    told = run("load", "small.pt", "--io", "mmap", "--verify").stdout
    assert "every CRC-32 checked" in told and "GB/s" in told


def test_cat_says_what_it_cannot_do_and_of_which_file(run, tmp_path):
    path = tmp_path / "meta.pt"
    torch.save({"m": torch.empty(2, 2, device="meta"), "t": torch.ones(2)}, path)
    told = run("cat", path, "m", "--json", code=2)
    assert "tensor 'm' is on the meta device" in told.stderr
    assert str(path) in told.stderr
    assert json.loads(told.stdout)["error"]["code"] == "kInvalidArgument"
    for wrong in ("5", "x", "0:1:0", "0,0", "0:1:2:3"):
        told = run("cat", path, "t", "--slice", wrong, "--json", code=4)
        assert "slice" in told.stderr and "'t'" in told.stderr
        assert str(path) in told.stderr
        assert "error" in json.loads(told.stdout)


def test_info_counts_what_is_no_tensor(run, tmp_path):
    path = tmp_path / "x.pt"
    shared = [1, 2]
    torch.save({
        "t": torch.ones(2), "p": torch.nn.Parameter(torch.ones(2)),
        "steps": 3, "rate": 0.5, "name": "x", "none": None, "on": True,
        "again": [shared, shared], "big": 2**70, "set": {"a"},
    }, path)
    told = json.loads(run("info", path, "--json").stdout)
    assert told["values"] == {
        "None": 1, "bool": 1, "float": 1, "int": 4, "str": 2,
    }
    table = run("info", path).stdout
    assert "other values" in table and "1 None, 1 bool, 1 float, 4 int" in table
    torch.save({"t": torch.ones(2)}, path)
    assert "other values" not in run("info", path).stdout


def test_errors_are_one_line_and_an_object(run):
    missing = run("ls", "missing.pt", code=2)
    assert missing.stderr.startswith("haulway: ") and missing.stderr.count("\n") == 1
    error = json.loads(run("ls", "must_fail/cut_in_half.pt", "--json", code=1).stdout)
    assert error["error"]["code"] == "kTruncated"
    assert error["error"]["byte"] == 400


@pytest.mark.parametrize(
    "arguments", [["frobnicate"], ["ls"], ["ls", "--nope", "x"]]
)
def test_usage_is_4(run, arguments):
    told = run(*arguments, code=4)
    assert told.stderr.startswith("haulway: ") and told.stdout == ""
    told = run(*arguments, "--json", code=4)
    error = json.loads(told.stdout)["error"]
    assert error["code"] == "kInvalidArgument" and error["byte"] is None
    assert told.stderr.startswith("haulway: ") and error["message"]


def test_a_slip_of_the_finger_gets_a_hint(run):
    assert "did you mean 'ls'?" in run("lss", "x", code=4).stderr
    assert "--help" in run("frobnicate", code=4).stderr


@pytest.mark.parametrize("words", [
    ["ls", "SMALL"], [], ["--help"], ["--version"], ["ls", "--help"],
    ["nonsense", "--json"],
])
def test_what_cannot_be_written_is_a_failure(command, small, words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [command, *(small if word == "SMALL" else word for word in words)],
            stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2 and "cannot write" in done.stderr


def test_help_goes_to_standard_output(run):
    assert "Exit codes" in run("--help").stdout
    assert "--include" in run("ls", "--help").stdout
    assert run("--version").stdout.startswith("haulway 0.1.0")


def test_standard_input(run, small):
    told = run("info", "-", "--json", input=small.read_bytes(), text=False)
    assert json.loads(told.stdout)["tensor_count"] == 26


def test_no_control_byte_from_a_file_reaches_the_terminal(run, tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"a\x1b[31m\nb": torch.ones(1)}, path)
    for verb in ("ls", "info", "verify", "scan"):
        output = run(verb, path).stdout
        assert "\x1b" not in output and "\\x1b[31m\\x0ab" in output or verb != "ls"
    name = json.loads(run("ls", path, "--json").stdout)["tensors"][0]["name"]
    assert run("cat", path, name).stdout == "[1]\n"


def test_every_bad_file_gives_a_finding_or_an_error(command):
    for line in (MUST_FAIL / "manifest.tsv").read_text().splitlines()[1:]:
        file, rule, code, _ = line.split("\t")
        expected = {"kOk": 0, "kUnsupported": 2}.get(code, 1)
        if rule == "P03" and file != "before_it_breaks.pt":
            expected = 0  # A disallowed global is not damage.
        done = subprocess.run(
            [command, "verify", "-q", MUST_FAIL / file],
            capture_output=True,
        )
        if expected == 2:
            assert done.returncode in (1, 2), file
        else:
            assert done.returncode == expected, (file, done.stdout, done.stderr)


def test_safetensors_are_listed_like_anything_else(run, tmp_path):
    path = tmp_path / "a.safetensors"
    tensors = {"w\n": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    listed = json.loads(run("ls", path, "--json").stdout)
    assert listed["format"] == "safetensors"
    data = path.read_bytes()
    for entry in listed["tensors"]:
        begin = entry["offset"]
        value = numpy.frombuffer(data[begin : begin + entry["nbytes"]], "f4")
        assert value.tolist() == tensors[entry["name"]].flatten().tolist()
    described = json.loads(run("info", path, "--json").stdout)
    assert described["metadata"] == {"format": "pt"}
    assert described["dtypes"] == {"F32": 2} and described["values"] == {}
    assert run("cat", path, "b").stdout.split() == ["[1,", "1]"]
    assert run("verify", path).stdout.startswith("OK")
    assert json.loads(run("load", path, "--json").stdout)["tensor_bytes"] == 32
    assert json.loads(run("scan", path, "--json").stdout)["safe"]
    path.write_bytes(data + b"x")
    run("ls", path, code=1)


def test_shards_are_listed_with_their_files(run, tmp_path):
    map_ = {}
    for i in (1, 2):
        name = f"model-0000{i}-of-00002.safetensors"
        part = {f"t{i}": torch.full((3,), float(i))}
        safetensors.torch.save_file(part, tmp_path / name)
        map_[f"t{i}"] = name
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": map_}))
    listed = json.loads(run("ls", index, "--json").stdout)
    for entry in listed["tensors"]:
        assert entry["file"] == map_[entry["name"]]
        data = (tmp_path / entry["file"]).read_bytes()[entry["offset"] :]
        assert data == numpy.full(3, float(entry["name"][1]), "f4").tobytes()


# repack


def test_repack_of_what_torch_wrote_changes_nothing(run, small, tmp_path):
    done = run("repack", "small.pt", tmp_path / "small.pt")
    assert done.stdout.startswith("31 records, 75.0 KiB in ")
    assert (tmp_path / "small.pt").read_bytes() == small.read_bytes()


def test_repack_aligns_and_leaves_checksums_out(run, tmp_path):
    out = tmp_path / "small.pt"
    done = run("repack", "small.pt", out, "--align", "4096", "--no-crc",
               "--json")
    said = json.loads(done.stdout)
    assert said["records"] == 31 and said["bytes"] == out.stat().st_size
    listed = json.loads(run("ls", out, "--json").stdout)
    starts = {}
    for tensor in listed["tensors"]:
        start = starts.setdefault(tensor["storage"], tensor["offset"])
        starts[tensor["storage"]] = min(start, tensor["offset"])
    assert all(start % 4096 == 0 for start in starts.values())
    assert run("verify", out, "--json").returncode == 0


def test_repack_drops_what_no_tensor_uses(run, tmp_path):
    big = torch.arange(100_000.0)
    torch.save({"head": big[:10], "tail": big[5:10]}, tmp_path / "x.pt")
    done = run("repack", tmp_path / "x.pt", tmp_path / "x.pt", "--compact",
               "--json")
    assert json.loads(done.stdout)["dropped_bytes"] == 400_000 - 40 - 0
    loaded = torch.load(tmp_path / "x.pt")
    assert torch.equal(loaded["head"], torch.arange(10.0))
    assert torch.equal(loaded["tail"], torch.arange(5.0, 10.0))
    assert (tmp_path / "x.pt").stat().st_size < 3000


def test_repack_turns_legacy_files_into_zips(run, tmp_path):
    made = {"w": torch.randn(20, 30), "n": [1, "x"]}
    torch.save(made, tmp_path / "old.pt",
               _use_new_zipfile_serialization=False)
    torch.save(made, tmp_path / "new.pt")
    expected = (tmp_path / "new.pt").read_bytes()
    run("repack", tmp_path / "old.pt", tmp_path / "new.pt")
    loaded = torch.load(tmp_path / "new.pt", mmap=True)
    assert torch.equal(loaded["w"], made["w"]) and loaded["n"] == made["n"]
    assert len(expected) == (tmp_path / "new.pt").stat().st_size


def test_repack_says_what_is_wrong(run, tmp_path):
    done = run("repack", "small.pt", tmp_path / "x.pt", "--align", "48", code=4)
    assert "power of two" in done.stderr
    done = run("repack", "small.pt", tmp_path / "none" / "x.pt", code=2)
    assert "cannot create" in done.stderr
    (tmp_path / "bad.pt").write_bytes(b"PK\3\4" + bytes(100))
    done = run("repack", tmp_path / "bad.pt", tmp_path / "x.pt", code=1)
    assert done.stdout == "" and "bad.pt" in done.stderr
    assert not (tmp_path / "x.pt").exists()


def test_cat_writes_a_record_as_it_is(run, tmp_path, small):
    assert run("cat", "small.pt", "version", "--raw").stdout == "3\n"
    # The output may also be the input file itself.
    path = tmp_path / "itself.pt"
    path.write_bytes(small.read_bytes())
    record = run("cat", path, "data.pkl", "--raw", text=False).stdout
    run("cat", path, "data.pkl", "--raw", "--out", path)
    assert path.read_bytes() == record != b""
    assert "--raw" in run("cat", path, "data.pkl", "--raw", "--json",
                          code=4).stderr
    done = run("cat", "small.pt", "no/such", "--raw", code=3)
    assert "no tensor 'no/such'" in done.stderr


def test_a_glob_may_be_a_class_of_characters(run, tmp_path):
    """The option parser would take it for a list."""
    path = tmp_path / "x.pt"
    haulway.save({str(i): numpy.ones(2) for i in range(6)}, path)

    def listed(*options):
        told = json.loads(run("ls", path, "--json", *options).stdout)
        return [tensor["name"] for tensor in told["tensors"]]

    assert listed("--include", "[135]") == ["1", "3", "5"]
    assert listed("--include", "[1-3]", "--include", "[5]") == list("1235")
    assert listed("--exclude", "[0-3]") == ["4", "5"]
    run("edit", path, "--drop", "[0-3]")
    assert listed() == ["4", "5"]


def test_no_report_overwrites_what_is_read(run, tmp_path):
    path = tmp_path / "m.safetensors"
    haulway.save({"a": torch.ones(4)}, path)
    before = path.read_bytes()
    new = tmp_path / "new.npz"
    for words in (["manifest", path, "-o", path], ["map", path, "-o", path],
                  ["convert", path, new, "--proof", path],
                  ["convert", path, new, "--proof", new],
                  ["convert", path, new, "--proof", f"{tmp_path}/./new.npz"]):
        assert "would" in run(*words, code=2).stderr
        assert path.read_bytes() == before and not new.exists()


@pytest.mark.parametrize("verb", [
    ["ls"], ["ls", "--stats"], ["load"], ["manifest"], ["plan"],
])
def test_json_of_nothing_chosen_is_an_object_too(run, verb):
    done = run(*verb, "small.pt", "--exclude", "*", "--json", code=3)
    found = json.loads(done.stdout)
    assert found["file"] == "small.pt" and "error" not in found
    assert "no tensor is chosen" in done.stderr
    assert set(found) == set(json.loads(
        run(*verb, "small.pt", "--json").stdout))


@pytest.mark.parametrize("out", ["part.npy", "part.bin"])
def test_json_of_a_part_that_is_written_says_where(run, small, tmp_path, out):
    name = "model.embedding.weight"
    done = run("cat", small, name, "--slice", "1:3", "--out", tmp_path / out,
               "--json")
    whole = torch.load(small)["model"]["embedding.weight"]
    assert json.loads(done.stdout) == {
        "file": str(small), "name": name, "dtype": "F32",
        "shape": [2, whole.shape[1]], "out": str(tmp_path / out),
        "bytes": 2 * whole.shape[1] * 4}
    written = (tmp_path / out).read_bytes()
    assert written.endswith(whole[1:3].numpy().tobytes())


@pytest.mark.parametrize("words", [
    ["cat", "small.pt", "model.embedding.weight", "--out", "-"],
    ["manifest", "small.pt", "--out", "-"],
])
def test_json_and_a_file_do_not_share_standard_output(run, words):
    told = run(*words, "--json", code=4)
    assert "standard output, too" in json.loads(told.stdout)["error"]["message"]
    assert run(*words, text=False).stdout


def test_signs_of_a_tensor_are_printed_as_torch_does(run, tmp_path):
    path = tmp_path / "x.pt"
    torch.save({"c": torch.tensor([1 + 2j, -3j]).conj(),
                "i": torch._neg_view(torch.tensor([1, -2])),
                "b": torch._neg_view(torch.tensor([True]))}, path)
    assert run("cat", path, "c").stdout == "[1-2j, -0+3j]\n"
    assert run("cat", path, "i").stdout == "[-1, 2]\n"
    assert "sign of dtype BOOL" in run("cat", path, "b", code=2).stderr


def drawn(command, columns, *words, to="stderr"):
    """Runs the command on a terminal of so many columns; returns the lines that
    it draws on it."""
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ,
                struct.pack("HHHH", 24, columns, 0, 0))
    with subprocess.Popen([command, *map(str, words)], **{
            "stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL,
            to: other}) as child:
        os.close(other)
        shown = b""
        while True:
            try:
                shown += os.read(main, 4096)
            except OSError:  # The other end is closed.
                break
        assert child.wait(60) == 0
    os.close(main)
    return shown.decode().replace("\r\x1b[K", "\n").splitlines()


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_a_progress_line_fits_into_the_terminal(command, tmp_path, columns):
    folder = tmp_path / ("long name of a folder, ä " * 4)
    folder.mkdir()
    path = folder / "model.safetensors"
    haulway.save({"a": numpy.zeros(1 << 20)}, path)
    lines = [line for line in drawn(command, columns, "load", path) if line]
    assert lines and all(len(line) < columns for line in lines)
    if columns == 200:
        assert lines[0].startswith("...") and "model.safetensors: 100%" in lines[-1]


def test_a_long_name_does_not_widen_every_row(command, run, tmp_path):
    names = ["n" * 3000, "ä" * 300, "short"]
    path = tmp_path / "long.safetensors"
    haulway.save({name: numpy.zeros(2) for name in names}, path)
    rows = run("ls", path).stdout.splitlines()
    assert max(map(len, (row for row in rows if "nn" not in row and
                         "ää" not in row))) < 300
    # Whole where a program reads it.
    assert names[0] in "".join(rows) and names[1] in "".join(rows)
    listed = json.loads(run("ls", path, "--json").stdout)
    assert {one["name"] for one in listed["tensors"]} == set(names)
    for columns in (60, 120):
        lines = drawn(command, columns, "ls", path, to="stdout")
        assert max(map(len, lines)) < 2 * columns
        assert "n" * (columns // 2 - 1) + "…" in "".join(lines)


def test_whole_paths_are_in_messages(run, tmp_path):
    path = tmp_path / ("folder " * 12) / ("model" * 20) / "a.safetensors"
    assert f"cannot open '{path}'" in run("ls", path, code=2).stderr
    with pytest.raises(haulway.NotFoundError) as raised:
        haulway.load(path)
    assert f"cannot open '{path}'" in str(raised.value)


def test_a_home_that_no_shell_expanded(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    haulway.save({"a": numpy.zeros(2)}, "a.safetensors")
    for words in (("ls", "~/a.safetensors"), ("verify", "a.safetensors", "--base=~/b"),
                  ("convert", "a.safetensors", "~/out.safetensors")):
        said = run(*words, code=4, cwd=tmp_path).stderr
        assert "'~/" in said and "did not expand" in said
    for call in (haulway.load, haulway.open, haulway.verify,
                 haulway.delta.versions,
                 lambda path: haulway.save({"a": numpy.zeros(2)}, path),
                 lambda path: haulway.load("a.safetensors", base=path),
                 lambda path: haulway.delta.publisher(path, "a.safetensors"),
                 lambda path: haulway.delta.apply(path, "run"),
                 lambda path: haulway.convert("a.safetensors", path)):
        with pytest.raises(haulway.NotFoundError, match=r"expanduser\('~/x'\)"):
            call("~/x")
    assert os.listdir() == ["a.safetensors"]
    # A folder of that name is one, and so is a file whose name begins so.
    os.mkdir("~")
    haulway.save({"a": numpy.zeros(2)}, "~/x.safetensors")
    haulway.save({"a": numpy.zeros(2)}, "~x.safetensors")
    assert run("ls", "~/x.safetensors", cwd=tmp_path)
    assert haulway.load("~x.safetensors")


def test_an_interrupt_counts_more_than_files_that_are_done(run, command, tmp_path):
    # A named pipe, which `ls` reads to its end, keeps the second file waiting.
    haulway.save({"a": torch.ones(1)}, tmp_path / "a.pt")
    reader, writer = os.pipe()
    with subprocess.Popen([command, "ls", tmp_path / "a.pt", "-"], stdin=reader,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        os.close(reader)
        # More than a pipe holds: it reads standard input by now.
        os.write(writer, bytes(1 << 17))
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
        os.close(writer)
