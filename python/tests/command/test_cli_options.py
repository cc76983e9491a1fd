"""Every verb reads every option that its help names."""

import re
import secrets
import shutil
import subprocess

import numpy as np
import pytest
from test_tensorizer_corrupt import example, put

import haulway
from http_server import FaultServer
from signed_models import key
from source_calls import WAYS, words


def has(command, option):
    """Returns the ways of the verbs whose help names the option."""
    told = subprocess.run([command, "--help"], capture_output=True, text=True)
    listed = told.stdout.split("Subcommands:")[1]
    verbs = re.findall(r"^  ([a-z-]+)", listed, re.MULTILINE)
    assert {way.split()[0] for way in WAYS} == set(verbs)
    for verb in verbs:
        told = subprocess.run([command, verb, "--help"], capture_output=True,
                              text=True).stdout
        if re.search(rf"^ +{option}\b", told, re.MULTILINE):
            yield from (way for way in WAYS if way.split()[0] == verb)


@pytest.fixture
def files(tmp_path, run):
    """Makes file.ENDING of every kind, and the other files that WAYS names."""
    tensors = {"a": np.arange(1000), "b": np.ones(3000, "f4")}
    tensors.update((f"e{i}", np.ones(1)) for i in range(20))
    for name in ("plain.pt", "file.pt", "plain.safetensors", "file.tensors"):
        haulway.save(tensors, tmp_path / name)
    for name in ("plain.safetensors", "file.safetensors"):
        haulway.save({"c": np.ones(900), "d": np.ones(9)}, tmp_path / name)
    (tmp_path / "cut.pt").write_bytes((tmp_path / "plain.pt").read_bytes()[:9000])
    (tmp_path / "key").write_bytes(secrets.token_bytes(32))
    run("encrypt", "file.tensors", "file.secret", "--keyfile", "key",
        "--no-authenticate")
    run("manifest", "plain.pt", "-o", "file.json")
    shutil.copy(key("p256.pem"), tmp_path / "key.pem")
    return tmp_path


def outcome(run, folder, line):
    for left in folder.glob("out.*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()
    before = {p: p.read_bytes() for p in folder.iterdir()}
    done = run(*line, code=None)
    for path, data in before.items():
        path.write_bytes(data)
    return done


@pytest.fixture
def server(files):
    """Serves the files only to clients that send the right credentials."""
    def answer(request):
        if request.headers.get("x-pass") != "yes":
            return request.answer(403)
        request.serve((files / request.target.lstrip("/")).read_bytes())

    with FaultServer(answer) as server:
        yield server


def test_every_verb_reaches_urls_as_it_is_told(server, files, run, command):
    ways = list(has(command, "--header"))
    assert len(ways) > 20
    for way in ways:
        if way in ("edit", "latest", "prune"):
            # These take only local files, and what can be listed.
            continue
        line = words(way, lambda name: server.url(f"/{name}"))
        told = outcome(run, files, [*line, "--header", "X-Pass: yes"])
        # `repair` and `diff` exit with 1 if they found something.
        assert told.returncode in (0, 1), (way, told)
        assert "403" not in told.stderr, (way, told)
        refused = outcome(run, files, line)
        assert refused.returncode == (5 if way == "scan" else 2), (way, refused)
        assert "403" in refused.stderr + refused.stdout, (way, refused)


def test_every_verb_that_has_lenient_takes_more_with_it(files, run, command):
    with open(files / "file.pt", "ab") as file:
        file.write(bytes(10))  # Strict reading refuses it.
    odd = example()
    put((41, b"\x0d"))(odd)
    (files / "file.tensors").write_bytes(odd)
    secret = bytearray((files / "file.secret").read_bytes())
    put((41, b"\x0d"))(secret)
    (files / "file.secret").write_bytes(secret)
    for way in has(command, "--lenient"):
        if way in ("verify --manifest", "edit --replace", "repair",
                   "repair --from"):
            # There the option applies to another file, or to an index of shards.
            continue
        line = words(way, str)
        strict = outcome(run, files, line)
        lenient = outcome(run, files, [*line, "--lenient"])
        assert strict.returncode != lenient.returncode or (
            strict.stdout != lenient.stdout), (way, strict, lenient)


def test_every_verb_says_which_allowed_name_nothing_needs(files, run, command):
    """As `scan` does; bulk, whose workers are of Python, says nothing."""
    used = "torch._utils._rebuild_tensor_v2"
    ways = [way for way in has(command, "--allow NAME") if way != "bulk"]
    assert len(ways) > 18
    for way in ways:
        done = outcome(run, files, [*words(way, str), "--allow", "no.Name",
                                    "--allow", used])
        assert "no pickle contains the name --allow no.Name\n" in done.stderr, way
        has_pickle = ".pt" in WAYS[way].replace("out.pt", "")
        assert (used not in done.stderr) == has_pickle, (way, done.stderr)
    for name in ("-", "gone.pt"):  # Neither can be looked at again.
        with open(files / "file.pt", "rb") as file:
            done = run("ls", name, "--allow", "no.Name", code=None, stdin=file)
        assert "no pickle contains" not in done.stderr


def test_every_verb_that_has_bytes_prints_sizes_exactly(files, run, command):
    for way in has(command, "--bytes"):
        if way in ("arena", "delta", "map --json", "verify --manifest"):
            # This way shows nothing here; test_arena_cli.py and the tests of
            # versions cover these verbs.
            continue
        line = words(way, str)
        rounded = outcome(run, files, line).stdout
        exact = outcome(run, files, [*line, "--bytes"]).stdout
        assert re.search(r"\d ?[KM]iB", rounded), (way, rounded)
        assert not re.search(r"\d ?[KM]iB", exact), (way, exact)


def test_every_verb_that_has_json_prints_an_object(files, run, command):
    import json

    for way in has(command, "--json"):
        line = words(way, str)
        done = outcome(run, files, [*line, *["--json"] * ("--json" not in line)])
        for one in done.stdout.splitlines():
            assert isinstance(json.loads(one), dict), way
        assert done.stdout, way


def test_python_scans_and_compares_what_only_some_may_read(server, files):
    passed = {"headers": {"X-Pass": "yes"}}
    url, manifest = server.url("/file.pt"), server.url("/file.json")
    assert haulway.scan(url, **passed)
    assert haulway.scan([url, files / "cut.pt"], **passed).files[0].safe
    with pytest.raises(haulway.Error, match="403"):
        haulway.scan(url)
    report = haulway.verify(files / "file.pt", manifest=manifest, **passed)
    assert report.ok and report.checked == "manifest"
    with pytest.raises(haulway.Error, match="403"):
        haulway.verify(files / "file.pt", manifest=manifest)


def test_shards_of_an_index_at_a_url_are_scanned(server, files):
    (files / "m.index.json").write_text(
        '{"metadata": {}, "weight_map": {"a": "file.pt", "b": "cut.pt"}}')
    report = haulway.scan(server.url("/m.index.json"),
                          headers={"X-Pass": "yes"})
    assert [one.verdict for one in report.files] == ["SAFE", "UNKNOWN", "SAFE"]
