"""hf:// names: the hub library's cache, and a server that acts as the hub."""

import functools
import os

import pytest
import safetensors.torch
import torch

import haulway
from compare import same_tensors
from http_server import FaultServer

COMMIT, OTHER = "a" * 40, "b" * 40
TENSORS = {"w": torch.arange(200_000.0), "b": torch.ones(3)}
same = functools.partial(same_tensors, expected=TENSORS)


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path):
    """Sets an empty home folder for the hub's library."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING")):
            monkeypatch.delenv(name)
    home = tmp_path / "hf"
    monkeypatch.setenv("HF_HOME", str(home))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return home


def keep(home, name, path, data, commit=COMMIT, revision="main"):
    """Stores a file as the hub's library does."""
    folder = home / "hub" / name
    blob = folder / "blobs" / f"{abs(hash((path, commit))):x}"
    link = folder / "snapshots" / commit / path
    for one in (blob, link, folder / "refs" / revision):
        one.parent.mkdir(parents=True, exist_ok=True)
    blob.write_bytes(data)
    link.symlink_to(os.path.relpath(blob, link.parent))
    (folder / "refs" / revision).write_text(commit)


class Hub:
    """Redirects to another server that needs no credentials; sends the commit's
    id."""

    def __init__(self, files, private=None):
        self.files = files
        self.private = private
        self.store = FaultServer(self._store)
        self.server = FaultServer(self._answer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.__exit__()
        self.store.__exit__()

    def _answer(self, request):
        if self.private and request.headers.get("authorization") != (
            f"Bearer {self.private}"
        ):
            return request.answer(401)
        path = request.target.removeprefix("/")
        if path not in self.files:
            return request.answer(404, b"Entry not found")
        size = str(len(self.files[path]))
        request.answer(
            302, X_Repo_Commit=COMMIT, X_Linked_Size=size, ETag='"pointer"',
            Location=self.store.url("/" + path + "?X-Amz-Signature=5ecret"))

    def _store(self, request):
        path = request.target.removeprefix("/").partition("?")[0]
        request.serve(self.files[path], ETag='"content"')

    def targets(self):
        return [request.target for request in self.server.requests]


def test_what_the_library_keeps_is_read_and_nothing_asked(home):
    data = safetensors.torch.save(TENSORS)
    keep(home, "models--org--name", "model.safetensors", data)
    keep(home, "models--org--name", "sub/m.safetensors", data, OTHER, "v1.0")
    keep(home, "datasets--org--name", "d.safetensors", data, OTHER, "refs/pr/1")
    for name in (
        "hf://org/name/model.safetensors", "hf://org/name", "hf://org/name/",
        f"hf://org/name@{COMMIT}/model.safetensors", "hf://org/name@main",
        "hf://models/org/name/model.safetensors",
        "hf://org/name@v1.0/sub/m.safetensors",
        f"hf://org/name@{OTHER}/sub/m.safetensors",
        "hf://datasets/org/name@refs%2Fpr%2F1/d.safetensors",
    ):
        same(haulway.load(name))
    before = sorted(home.rglob("*"))
    with pytest.raises(haulway.Error):  # No server answers.
        haulway.load("hf://org/name@v1.0/model.safetensors")
    assert sorted(home.rglob("*")) == before


def test_the_cache_is_where_the_variables_say(home, monkeypatch, tmp_path):
    data = safetensors.torch.save(TENSORS)
    keep(tmp_path / "x", "models--o--n", "model.safetensors", data)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match="HF_HUB_OFFLINE"):
        haulway.load("hf://o/n/model.safetensors")
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "x" / "hub"))
        same(haulway.load("hf://o/n/model.safetensors"))
        monkeypatch.delenv(name)
    monkeypatch.delenv("HF_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "x").rename(tmp_path / "cache" / "huggingface")
    same(haulway.load("hf://o/n"))
    monkeypatch.delenv("XDG_CACHE_HOME")
    (tmp_path / "cache").rename(tmp_path / ".cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    same(haulway.load("hf://o/n"))


def test_the_hub_is_asked_and_its_redirect_followed(monkeypatch, run):
    data = safetensors.torch.save(TENSORS)
    files = {"org/name/resolve/main/a%20b/m.safetensors": data,
             "datasets/o/d/resolve/v%2F1/m.safetensors": data}
    with Hub(files) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.server.url("/"))
        same(haulway.load("hf://org/name/a b/m.safetensors"))
        same(haulway.load("hf://datasets/o/d@v%2F1/m.safetensors"))
        assert set(hub.targets()) == {f"/{path}" for path in files}
        listed = run("ls", "hf://org/name/a b/m.safetensors",
                     env=dict(os.environ)).stdout
        assert "w" in listed and "5ecret" not in listed
        with pytest.raises(FileNotFoundError) as caught:
            haulway.load("hf://org/name/none.safetensors")
        assert "5ecret" not in str(caught.value)


def test_tokens_go_to_the_hub_and_no_further(home, monkeypatch, tmp_path):
    files = {"o/n/resolve/main/m.safetensors": safetensors.torch.save(TENSORS)}
    with Hub(files, private="hf_t0ken") as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.server.url(""))
        name = "hf://o/n/m.safetensors"
        with pytest.raises(haulway.PermissionDeniedError) as caught:
            haulway.load(name, retries=0)
        assert "hf_" not in str(caught.value)
        same(haulway.load(name, bearer_token="hf_t0ken"))
        monkeypatch.setenv("HF_TOKEN", "hf_t0ken")
        same(haulway.load(name))
        monkeypatch.delenv("HF_TOKEN")
        home.mkdir()
        (home / "token").write_text("hf_t0ken\n")
        same(haulway.load(name))
        (home / "token").rename(tmp_path / "elsewhere")
        monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "elsewhere"))
        same(haulway.load(name))
        assert len(hub.store.requests) >= 4
        for request in hub.store.requests:
            assert "authorization" not in request.headers
            assert "t0ken" not in request.target


def test_shards_are_of_the_commit_of_their_index(monkeypatch, tmp_path):
    haulway.save(TENSORS, tmp_path / "all.safetensors")
    haulway.convert(tmp_path / "all.safetensors",
                    tmp_path / "model.safetensors", shard=700_000)
    index = "model.safetensors.index.json"
    files = {f"o/n/resolve/main/{index}": (tmp_path / index).read_bytes()}
    for path in tmp_path.glob("model-*"):
        # The branch has moved since.
        files[f"o/n/resolve/{COMMIT}/{path.name}"] = path.read_bytes()
    with Hub(files) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.server.url(""))
        same(haulway.load("hf://o/n"))
        targets = hub.targets()
        shards = targets[targets.index(f"/o/n/resolve/main/{index}") + 1:]
        assert shards and all(COMMIT in target for target in shards)


@pytest.mark.parametrize("name", [
    "hf://o/n", "hf://o/n/model.safetensors.index.json"])
def test_an_index_without_its_shards_is_not_what_the_library_keeps(
    monkeypatch, tmp_path, home, name
):
    """A download of the library that was interrupted."""
    haulway.save(TENSORS, tmp_path / "all.safetensors")
    haulway.convert(tmp_path / "all.safetensors",
                    tmp_path / "model.safetensors", shard=700_000)
    paths = sorted(tmp_path.glob("model*"))
    files = {f"o/n/resolve/{revision}/{path.name}": path.read_bytes()
             for path in paths for revision in ("main", COMMIT)}
    missing, *others = paths
    assert others[-1].name == "model.safetensors.index.json"
    for path in others:
        keep(home, "models--o--n", path.name, path.read_bytes())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match=f"in shard '{missing.name}'"):
        haulway.load(name)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with Hub(files) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.server.url(""))
        same(haulway.load(name))
        asked = len(hub.targets())
        assert asked >= 2
        keep(home, "models--o--n", missing.name, missing.read_bytes())
        same(haulway.load(name))
        assert len(hub.targets()) == asked


def test_a_repository_is_its_checkpoint(monkeypatch):
    data = safetensors.torch.save(TENSORS)
    with Hub({"o/n/resolve/main/model.safetensors": data}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.server.url(""))
        same(haulway.load("hf://o/n"))
        with pytest.raises(FileNotFoundError, match="expected hf://o/x/PATH"):
            haulway.load("hf://o/x")


@pytest.mark.parametrize("name", [
    "hf://", "hf://name", "hf://org/", "hf:///name/x", "hf://org/name@/x",
    "hf://org/name/../x", "hf://org/name//x", "hf://org/name@../x",
    "hf://../name/x", "hf://org/..",
])
def test_names_that_are_none_are_refused(name):
    with pytest.raises(ValueError, match="expected hf://ORG/NAME"):
        haulway.load(name)


def test_the_hub_is_not_written_to():
    with pytest.raises(NotImplementedError, match="hf:// can be read"):
        haulway.save(TENSORS, "hf://o/n/m.pt")


@pytest.mark.parametrize("name", [
    "hf://org@main/name", "hf://@/x", "hf://@main/", "hf://a@b", "hf://org",
    "hf://", "hf:///", "hf://org/", "hf://org//x", "hf://models/org@main/x",
    "hf://org/name@", "hf://org/name@../x", "hf://../name/x", "hf://%2f@%2f/@",
])
def test_a_name_without_a_repository_is_refused(name):
    with pytest.raises(haulway.InvalidArgumentError, match="expected hf://ORG/NAME"):
        haulway.open(name)
