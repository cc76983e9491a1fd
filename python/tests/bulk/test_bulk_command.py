"""`haulway bulk`: the program starts a Python interpreter that does the
work."""

import io
import json
import os
import re
import resource
import signal
import subprocess
import sys

import numpy
import pytest
import safetensors.torch
import torch

import haulway
from bulk_files import add_faults, damage, make_files
from haulway._bulk.command import options_of
from haulway._bulk.progress import ProgressLine, line_of
from haulway._bulk.verbs import VERBS
from quantized_cases import CASES, ROOT, WEIGHT

BY_PYTHON = [sys.executable, "-c", "from haulway._command import main; main()"]


@pytest.fixture(autouse=True)
def this_python(monkeypatch):
    """Selects the interpreter that a standalone program starts."""
    monkeypatch.setenv("HAULWAY_PYTHON", sys.executable)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))


def objects(text):
    return [json.loads(line) for line in text.splitlines()]


def test_json_has_a_line_for_each_input_and_a_summary(run, tmp_path):
    paths = make_files(tmp_path / "in", 3)
    damage(paths[1])
    done = run("bulk", "verify", "in", "missing.pt", "--json", code=2)
    *lines, last = objects(done.stdout)
    assert {one["input"]: one.get("ok") for one in lines} == {
        "in/model-000.pt": True, "in/model-001.pt": False,
        "in/model-002.pt": True, "missing.pt": None}
    assert all(set(one) >= {"input", "error"} for one in lines)
    summary = last["summary"]
    assert set(summary) == {
        "inputs", "done", "skipped", "failed", "bytes", "seconds"}
    assert (summary["inputs"], summary["done"], summary["failed"]) == (4, 3, 1)


@pytest.mark.parametrize(("inputs", "code"), [
    (["good.pt"], 0), (["bad.pt", "good.pt"], 1),
    (["bad.pt", "gone.pt", "good.pt"], 2), (["@empty.txt"], 3),
])
def test_the_exit_code_is_the_worst(run, tmp_path, inputs, code):
    good, bad = make_files(tmp_path, 2)
    damage(bad)
    os.rename(good, tmp_path / "good.pt")
    os.rename(bad, tmp_path / "bad.pt")
    (tmp_path / "empty.txt").write_text("")
    run("bulk", "verify", *inputs, code=code)


def test_people_read_lines_and_a_table(run, tmp_path):
    paths = make_files(tmp_path, 3)
    damage(paths[1])
    said = run("bulk", "verify", tmp_path, "-q", code=1).stdout.splitlines()
    assert said[0].startswith(f"FAILED  {paths[1]}: ")
    assert "CRC-32" in said[1]
    assert said[2].split()[:2] == ["FAILED", "1"]
    assert said[3].split()[:2] == ["OK", "2"]
    assert said[4].split()[:3] == ["in", "all", "3"]
    assert len(run("bulk", "verify", tmp_path, code=1).stdout.splitlines()) == 7


def test_options_of_the_verb_reach_it(run, tmp_path):
    make_files(tmp_path / "in", 2)
    run("bulk", "convert", "in", "--to", "safetensors", "-o", "out", "--dtype",
        "bf16", "--rename", "^weight=w", "--no-sync", "--proof", "--shard", "1GB")
    (line, _) = objects(run("bulk", "manifest", "out/model-001.safetensors",
                            "--json", "--include", "w*").stdout)
    (tensor,) = line["tensors"]
    assert (tensor["name"], tensor["dtype"]) == ("w", "BF16")


def test_keys_come_from_files_and_the_environment(run, tmp_path, monkeypatch):
    import numpy

    import haulway

    key = bytes(range(32))
    haulway.save({"w": numpy.ones(4)}, tmp_path / "m.tensors", key=key)
    (tmp_path / "key").write_bytes(key)
    monkeypatch.setenv("THE_KEY", key.hex())
    for words in (["--keyfile", "key"], ["--key-env", "THE_KEY"]):
        (line, _) = objects(run("bulk", "verify", "m.tensors", "--json",
                                *words).stdout)
        assert line["ok"] and not line["unchecked"]
    run("bulk", "verify", "m.tensors", "--key-env", "NO_KEY", code=2)


@pytest.mark.parametrize(("words", "said"), [
    (["verify"], "INPUT is required"), (["load", "x"], "not in"),
    (["verify", "x", "--engine", "spark"], "not in"),
    (["verify", "x", "--jobs", "0"], "expected a number of 1 or more"),
    (["convert", "x", "--to", "safetensors"], "out: bulk convert needs"),
    (["info", "x", "--dtype", "bf16"], "bulk info has no option --dtype"),
])
def test_usage(run, words, said):
    done = run("bulk", *words, "--json", code=4)
    assert said in done.stderr
    (line,) = objects(done.stdout)
    assert line["error"]["code"] == "kInvalidArgument"


def test_without_the_package_it_says_where_that_is(program, tmp_path, monkeypatch):
    """Tests the program without the package; -S: an interpreter without
    packages."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
    bare.chmod(0o755)
    for python in (str(bare), "/nowhere/python"):
        monkeypatch.setenv("HAULWAY_PYTHON", python)
        done = subprocess.run([program, "bulk", "info", "x", "--json"],
                              capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert "expected the wheel of this release" in done.stderr
        assert json.loads(done.stdout)["error"]["code"] == "kUnsupported"


def test_modules_in_the_current_folder_are_not_imported(run, tmp_path):
    make_files(tmp_path / "in", 1)
    for name in ("haulway", "json", "socket", "numpy"):
        (tmp_path / f"{name}.py").write_text("open('imported', 'w')\n")
    run("bulk", "verify", "in")
    assert not (tmp_path / "imported").exists()


def test_the_command_of_the_package_uses_its_own_python(tmp_path, monkeypatch):
    (path,) = make_files(tmp_path, 1)
    monkeypatch.setenv("HAULWAY_PYTHON", "/nowhere/python")
    done = subprocess.run([*BY_PYTHON, "bulk", "info", path],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_killed_run_goes_on(command, run, tmp_path, monkeypatch):
    """A run killed within a batch neither repeats nor loses an input."""
    paths = make_files(tmp_path / "in", 100)
    paths.insert(70, str(tmp_path / "in/waits.pt"))
    os.link(paths[0], paths[70])
    (tmp_path / "list.txt").write_text("".join(f"{path}\n" for path in paths))
    words = ["bulk", "verify", "@list.txt", "--journal", "run.jsonl", "--json",
             "--jobs", "1"]
    with monkeypatch.context() as patch:
        add_faults(tmp_path / "faults", patch)
        with subprocess.Popen([command, *words], stdout=subprocess.PIPE,
                              cwd=tmp_path, text=True) as child:
            first = [json.loads(child.stdout.readline())["input"]
                     for _ in range(64)]
            child.send_signal(signal.SIGKILL)
        # Ends only when the last worker has closed the pipe, too.
    *lines, last = objects(run(*words).stdout)
    assert last["summary"]["skipped"] == 64
    assert last["summary"]["done"] == 37
    assert sorted(one["input"] for one in lines) == sorted(paths)
    recorded = [json.loads(line).get("input")
                for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert len(recorded) == len(set(recorded)) == 102
    assert set(first) <= set(recorded)


def test_an_interrupt_ends_it_with_130(command, tmp_path, monkeypatch):
    add_faults(tmp_path / "faults", monkeypatch)
    paths = make_files(tmp_path / "in", 32)
    os.link(paths[0], tmp_path / "in/waits.pt")
    (tmp_path / "list.txt").write_text(
        "".join(f"{path}\n" for path in [*paths, tmp_path / "in/waits.pt"]))
    with subprocess.Popen([command, "bulk", "verify", "@list.txt", "--json",
                           "--jobs", "1"], stdout=subprocess.PIPE,
                          cwd=tmp_path) as child:
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=120) == 130


def test_an_interrupt_while_python_starts_ends_it_with_130(
    run, tmp_path, monkeypatch
):
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import os, signal\n"
        "os.environ.get('INTERRUPTED') or (os.environ.update(INTERRUPTED='1'),\n"
        "    os.kill(os.getpid(), signal.SIGINT))\n")
    monkeypatch.setenv(
        "PYTHONPATH", f"{hook}{os.pathsep}{os.environ['PYTHONPATH']}")
    make_files(tmp_path / "in", 1)
    done = run("bulk", "verify", "in", code=130)
    assert done.stderr == ""


def test_what_the_system_refuses_is_named(run, tmp_path):
    make_files(tmp_path / "in", 1)
    done = run("bulk", "verify", "missing.pt", code=2)
    assert ("ERROR   missing.pt: cannot use 'missing.pt': No such file or "
            "directory (errno 2)\n") in done.stdout
    done = run("bulk", "verify", "in", "--journal", "none/j", code=2)
    assert done.stderr == ("haulway: cannot use journal 'none/j': No such file "
                           "or directory (errno 2)\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [
    "bulk verify in", "bulk info in --json", "bulk info none", "ls in/model-000.pt",
    "bulk info none --json", "scan in", "info in/model-000.pt --json", "--help",
])
def test_output_that_cannot_be_written_is_named(tmp_path, words, unbuffered):
    make_files(tmp_path / "in", 1)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        done = subprocess.run([*BY_PYTHON, *words.split()], cwd=tmp_path,
                              env=environment, stdout=full,
                              stderr=subprocess.PIPE, text=True)
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1
        assert done.stderr.startswith("haulway: cannot write to standard output")
        # Neither can the message be written.
        done = subprocess.run([*BY_PYTHON, *words.split()], cwd=tmp_path,
                              env=environment, stdout=full, stderr=full)
        assert done.returncode == 2


RAY = """
import concurrent.futures, os
__version__ = "2.60.0"

class Run:
    def __init__(self, function):
        self.function = function
    def options(self, **options):
        return self
    def remote(self, task):
        os.write(1, b"\\x1b[36m(raylet)\\x1b[0m is here\\n")
        print("and Python", flush=True)
        self.result = concurrent.futures.Future()
        self.result.set_result(self.function(task))
        return self
    def future(self):
        return self.result

remote = Run
def is_initialized(): return True
def nodes(): return [{"Resources": {"CPU": 1}, "Alive": True}]
"""


def test_only_results_are_on_standard_output(run, tmp_path, monkeypatch):
    make_files(tmp_path / "in", 2)
    ray = tmp_path / "path" / "ray"
    ray.mkdir(parents=True)
    (ray / "__init__.py").write_text(RAY)
    (ray / "exceptions.py").write_text(
        "class WorkerCrashedError(Exception): pass\n"
        "OutOfMemoryError = NodeDiedError = WorkerCrashedError\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(
        [str(ray.parent), os.environ["PYTHONPATH"]]))
    done = run("bulk", "info", "in", "--engine", "ray", "--json")
    assert len(objects(done.stdout)) == 3
    assert "(raylet)" in done.stderr and "and Python" in done.stderr


def test_verbs_refuse_the_options_of_others_by_their_flags(run, tmp_path):
    groups = run("bulk", "--help").stdout.split("[Option Group: ")
    for group in groups[1:]:
        title = group.partition("]")[0]
        those = re.split(", | and ", title.removeprefix("For "))
        for flag in re.findall(r"^ .*--([a-z0-9-]+)", group, re.M):
            for verb in VERBS:
                request = {"verb": verb, "headers": [], "options": {flag: ["1"]}}
                try:
                    options_of(request)
                    is_taken = True
                except haulway.InvalidArgumentError as error:
                    is_taken = "has no option" not in error.message
                except (OSError, KeyError):
                    is_taken = True
                assert is_taken == (title == those[0] or verb in those), flag
    done = run("bulk", "scan", ".", "--exclude", "x", code=4)
    assert done.stderr == ("haulway: bulk scan has no option --exclude: expected it "
                           "for manifest or convert only\n")
    for verb, flag in (("scan", "--dequantize"), ("scan", "--split-layers"),
                       ("verify", "--dequantize"), ("info", "--raw")):
        assert f"bulk {verb} has no option {flag}" in run(
            "bulk", verb, ".", flag, code=4).stderr
    assert run("bulk", "scan", ".", "-o", "x", code=4).stderr.endswith(
        "no option --out: expected it for convert only\n")


def test_a_directory_is_a_format_to_convert_to(run, tmp_path):
    make_files(tmp_path / "in", 1)
    run("bulk", "convert", "in", "--to", "torch-dcp", "-o", "out")
    (out,) = (tmp_path / "out").iterdir()
    assert (out / ".metadata").exists()


def test_a_journal_that_cannot_be_written_is_named(command, tmp_path):
    make_files(tmp_path / "in", 200)

    def few_bytes():
        resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))

    words = [command, "bulk", "verify", "in", "--journal", "run.jsonl", "--json"]
    done = subprocess.run(words, cwd=tmp_path, preexec_fn=few_bytes,
                          capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        "haulway: cannot use journal 'run.jsonl': File too large (errno 27)\n")
    assert objects(done.stdout)[-1]["error"]["code"] == "kIoError"
    # Whatever was recorded is not done again.
    recorded = (tmp_path / "run.jsonl").read_bytes().count(b"\n") - 1
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert objects(done.stdout)[-1]["summary"]["skipped"] == recorded


def test_a_closed_pipe_ends_it(command, tmp_path):
    make_files(tmp_path, 3)
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([command, "bulk", "verify", tmp_path], stdout=writer,
                          stderr=subprocess.PIPE)
    os.close(writer)
    assert done.returncode == 2 and done.stderr == b""


def test_a_journal_of_another_run_is_a_usage_error(run, tmp_path):
    make_files(tmp_path / "in", 1)
    run("bulk", "verify", "in", "--journal", "run.jsonl")
    done = run("bulk", "scan", "in", "--journal", "run.jsonl", code=4)
    assert "is of a run with another verb" in done.stderr


def test_names_with_control_characters_are_shown_escaped(run, tmp_path):
    (path,) = make_files(tmp_path / "in", 1)
    os.rename(path, tmp_path / "in/\x1b[31m\xff.pt")
    said = run("bulk", "info", "in").stdout
    assert "\x1b" not in said and r"\x1b[31m" in said


@pytest.mark.parametrize(("done", "total", "seconds", "said"), [
    (0, None, 0, "0 B [0.0 s, 0 B/s]"),
    (0, 100, 1, "  0% | 0 B/100 B [1.0 s, 0 B/s]"),
    (1 << 20, 4 << 20, 2, " 25% | 1.0 MiB/4.0 MiB [2.0 s, 512.0 KiB/s, 6.0 s left]"),
    (1 << 30, 1 << 40, 60,
     "  0% | 1.0 GiB/1.0 TiB [1 min 0 s, 17.1 MiB/s, 17 h 3 min left]"),
    (200, 100, 1, "100% | 200 B/100 B [1.0 s, 200 B/s, 0.0 s left]"),
])
def test_the_progress_line(done, total, seconds, said):
    assert line_of(done, total, seconds) == said


def test_the_progress_line_is_drawn_ten_times_a_second():
    now = 0.0
    out = io.StringIO()
    line = ProgressLine(lambda: now, out)
    for i in range(100):
        now = i / 50
        line(i, 100)
    assert out.getvalue().count("\r") in range(18, 22)
    line.clear()
    assert out.getvalue().endswith("\r\x1b[K")


def test_info_has_the_fields_of_the_verb(run, tmp_path):
    haulway.save({"a": numpy.ones(2)}, tmp_path / "a.safetensors",
                 metadata={"k": "v"})
    tied = torch.ones(3)
    torch.save({"x": tied, "y": tied[1:], "steps": 7}, tmp_path / "b.pt")
    for name in "a.safetensors", "b.pt":
        alone = json.loads(run("info", name, "--json").stdout)
        result, _ = objects(run("bulk", "info", name, "--json").stdout)
        assert result == {"input": name, "error": None, **alone}


def test_json_is_utf8_whatever_the_names_are(run, tmp_path):
    # Half of a surrogate pair, as Python has it, is refused by many readers.
    path = os.fsencode(tmp_path / "in") + b"/\xff\xc3\xa4.pt"
    os.mkdir(tmp_path / "in")
    with open(path, "wb") as file:
        torch.save({"\U0001f4cf\\udc80": torch.ones(1)}, file)
    done = run("bulk", "manifest", "in", "--json")
    result, _ = objects(done.stdout)
    alone = json.loads(run("manifest", os.fsdecode(path), "--json").stdout)
    assert result["file"] == "in/\xff\xe4.pt" == result["input"]
    assert os.path.basename(alone["file"]) == "\xff\xe4.pt"
    assert result["tensors"] == alone["tensors"]


def test_what_a_cast_or_a_part_needs(run, tmp_path):
    """Flags are flags to Python, too, and an adapter keeps its weight."""
    case = next(one for one in CASES if one.name == "fp8")
    (tmp_path / "in").mkdir()
    model = case.write(tmp_path / "in" / "m")
    words = ["bulk", "convert", "in", "--to", "safetensors", "--include", WEIGHT,
             "--dtype", "f32"]
    failed = run(*words, "-o", "out", code=2)
    assert "the option dequantize" in failed.stdout + failed.stderr
    for flag, options in (("--dequantize", {"dequantize": True}),
                          ("--raw", {"raw": True})):
        run(*words, flag, "-o", flag[2:])
        found = haulway.load(tmp_path / flag[2:] / "m/model.safetensors")
        plain = haulway.load(model, dtype="f32", **options)[WEIGHT]
        assert torch.equal(found[WEIGHT].nan_to_num(), plain.nan_to_num())
    rank = torch.ones(1, 256)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": 1, "lora_alpha": 1,
         "target_modules": ["up_proj"]}))
    safetensors.torch.save_file(
        {f"base_model.model.{ROOT}.lora_A.weight": rank,
         f"base_model.model.{ROOT}.lora_B.weight": torch.ones(256, 1)},
        adapter / "adapter_model.safetensors")
    run(*words, "--dequantize", "--lora", "adapter:0.5", "-o", "merged")
    merged = haulway.load(tmp_path / "merged/m/model.safetensors")[WEIGHT]
    expected = haulway.load(model, dequantize=True, lora=[(adapter, 0.5)],
                            dtype="f32")
    assert torch.equal(merged.nan_to_num(), expected[WEIGHT].nan_to_num())
    assert "alone" not in run("bulk", "info", "in", "--alone").stderr
