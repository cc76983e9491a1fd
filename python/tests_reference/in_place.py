"""A pytest plugin with which the tensorizer package's tests run Haulway.
`import tensorizer` gives haulway.tensorizer. Network resources of the tests are
served by this machine: a page over http, a store with the model of the bucket
"tensorized", and a small model of random weights in place of the one that
transformers would download. scripts/test-tensorizer uses it."""

import contextlib
import http.server
import importlib
import io
import os
import ssl
import subprocess
import sys
import tempfile
import threading
import types

import boto3
import moto
import moto.server
import pytest
import redis
import torch
import werkzeug.serving

import haulway.tensorizer
from remote_servers import await_port, certificate

_PAGE = b"# GPT Neo\n\n[![DOI](https://example/doi.svg)](https://example/doi)\n"
_MODEL = "EleutherAI/gpt-neo-125M"
# The host from which those tests load the model.
_THEIRS = "object.ord1.coreweave.com"
_KEYS = {"aws_access_key_id": "AKID", "aws_secret_access_key": "s3cret"}
_HELLO = 1
_WORDS, _WIDTH = 5000, 1024


class Layer(torch.nn.Linear):
    def __init__(self):
        super().__init__(_WIDTH, _WIDTH)
        self.ln_2 = torch.nn.LayerNorm(_WIDTH)
        self.register_buffer("bias_mask", torch.ones(64, 64).tril(),
                             persistent=False)


class Model(torch.nn.Module):
    """Says hello if its weights are present: 51 MiB."""

    def __init__(self):
        super().__init__()
        self.transformer = torch.nn.Module()
        self.transformer.wte = torch.nn.Embedding(_WORDS, _WIDTH)
        self.transformer.h = torch.nn.ModuleList(Layer() for _ in range(3))
        self.lm_head = torch.nn.Linear(_WIDTH, _WORDS)

    def forward(self, ids):
        state = self.transformer.wte(ids)
        for layer in self.transformer.h:
            state = layer.ln_2(layer(state))
        return self.lm_head(state)

    def generate(self, ids, max_new_tokens, **_):
        word = self(ids[:, -1]).argmax(-1, keepdim=True)
        return torch.cat([ids, word.repeat(1, max_new_tokens)], dim=1)


def _trained(name):
    assert name == _MODEL
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Model().eval()
    with torch.no_grad():
        model.lm_head.bias[_HELLO] = 1000
    return model


class _Tokenizer:
    eos_token_id = 0

    def encode(self, text, return_tensors):
        assert return_tensors == "pt"
        return torch.full((1, text.count("hello")), _HELLO)

    def decode(self, ids, skip_special_tokens):
        words = [" hello" if i == _HELLO else " what" for i in ids.tolist()]
        return "".join(words)


def _transformers():
    module = types.ModuleType("transformers")
    module.__version__ = "5.0"
    module.AutoConfig = types.SimpleNamespace(from_pretrained=lambda name: name)
    module.AutoModelForCausalLM = types.SimpleNamespace(
        from_pretrained=_trained, from_config=lambda name: Model())
    module.AutoTokenizer = types.SimpleNamespace(
        from_pretrained=lambda name: _Tokenizer())
    return module


class _MockS3:
    """moto's class under the name that it had before version 5."""

    FAKE_KEYS = {"AWS_ACCESS_KEY_ID": "AKID", "AWS_SECRET_ACCESS_KEY": "s3cret"}

    def __call__(self):
        return self

    def start(self):
        self._mock = moto.mock_aws()
        self._mock.start()

    def stop(self):
        self._mock.stop()


@contextlib.contextmanager
def _serving(server):
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        begin, _, end = self.headers["Range"][len("bytes="):].partition("-")
        piece = _PAGE[int(begin):int(end) + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(piece)))
        self.send_header(
            "Content-Range",
            f"bytes {begin}-{int(begin) + len(piece) - 1}/{len(_PAGE)}")
        self.send_header("ETag", '"1"')
        self.end_headers()
        self.wfile.write(piece)

    def log_message(self, *_):
        pass


def _take_over(endpoint):
    """Installs the modules under the reference's names, with what its tests
    expect in them."""
    ours = haulway.tensorizer
    stream_io, access = ours.stream_io, ours._s3
    stream_io.default_s3_write_endpoint = endpoint
    stream_io.default_s3_read_endpoint = endpoint
    stream_io._s3_default_config_paths = ()
    stream_io._enforce_scheme = access.endpoint_of
    access.endpoint_of = lambda named, http: stream_io._enforce_scheme(
        endpoint if named == _THEIRS else named, http)
    sys.modules["tensorizer"] = ours
    for name in ("stream_io", "serialization", "utils", "torch_compat"):
        sys.modules[f"tensorizer.{name}"] = importlib.import_module(
            f"haulway.tensorizer.{name}")
    ours.serialization.TensorHash = None  # A type that other tests inspect.
    ciphers = types.ModuleType("tensorizer._crypt")
    ciphers.available = True
    sys.modules["tensorizer._crypt"] = ciphers


def _put_model(endpoint):
    client = boto3.client("s3", endpoint_url=f"https://{endpoint}",
                          region_name="us-east-1",
                          verify=os.environ["CURL_CA_BUNDLE"], **_KEYS)
    client.create_bucket(Bucket="tensorized")
    for name, kind in ((_MODEL, torch.float32), (_MODEL + "/fp16", torch.half)):
        file = io.BytesIO()
        serializer = haulway.tensorizer.TensorSerializer(file)
        serializer.write_module(_trained(_MODEL).to(kind))
        serializer.close()
        client.put_object(Bucket="tensorized", Key=f"{name}/model.tensors",
                          Body=file.getvalue(), ACL="public-read")


@pytest.fixture(scope="class", autouse=True)
def _model_in_store(request):
    if request.cls is not None and request.cls.__name__ == "TestDeserialization":
        _put_model(os.environ["AWS_ENDPOINT_URL_S3"].partition("://")[2])
    yield


def _start_redis(port=6381):
    """Replaces the reference's function, which waits for a line that may
    already have been read."""
    process = subprocess.Popen(
        ["redis-server", "--port", str(port), "--save", "", "--bind",
         "127.0.0.1"], stdout=subprocess.PIPE)
    await_port(port, process)
    return process, redis.Redis(host="localhost", port=port, db=0)


def pytest_collection_modifyitems(items):
    for module in {item.module for item in items}:
        module.start_redis = _start_redis
        module.NEO_URL = os.environ["HAULWAY_TEST_PAGE"]


def pytest_configure(config):
    stack = contextlib.ExitStack()
    config.add_cleanup(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    crt, key = certificate(folder)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(crt, key)
    store = moto.server.DomainDispatcherApplication(
        moto.server.create_backend_app)
    port = stack.enter_context(_serving(werkzeug.serving.make_server(
        "localhost", 0, store, threaded=True, ssl_context=context)))
    page = stack.enter_context(_serving(
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page)))
    endpoint = f"localhost:{port}"
    for name in list(os.environ):
        if name.startswith(("AWS_", "SSL_CERT_")):
            del os.environ[name]
    os.environ.update(
        HOME=folder, CURL_CA_BUNDLE=str(crt), AWS_EC2_METADATA_DISABLED="true",
        AWS_ENDPOINT_URL_S3=f"https://{endpoint}",
        HAULWAY_TEST_PAGE=f"http://127.0.0.1:{page}/README.md")
    moto.mock_s3 = _MockS3()
    sys.modules["transformers"] = _transformers()
    _take_over(endpoint)
