"""Rules make the tensors that torch's functions of the same names make, in
every call that reads them.
"""

import hashlib
import json
import pathlib
import signal
import subprocess
import sys
import tarfile
import threading
import traceback

import pytest
import torch
from safetensors.torch import load_file, save_file

import haulway
from quantized_cases import CASES, WEIGHT, same

GOLDEN = (pathlib.Path(__file__).resolve().parents[3]
          / "testdata/quantized/rules.tar.xz")
CONFIG = {"model_type": "llama", "dtype": "float32", "num_heads": 4,
          "text_config": {"head_dim": 6}}


def numbers(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def write(folder, tensors, **config):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config}))
    save_file({name: tensor.clone() for name, tensor in tensors.items()},
              folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def rule(source, target, *ops, **more):
    return {"source": source, "target": target, "ops": list(ops), **more}


def equal(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert found[name].shape == tensor.shape, name
        assert torch.equal(found[name], tensor), name


def permuted(tensor, heads):
    split = tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, -1)
    return split.transpose(1, 2).reshape(tensor.shape)


A, B, C = numbers(24, 10), numbers(24, 7, seed=1), numbers(24, 10, seed=2)
EXPERTS = [numbers(5, 3, seed=i, dtype=torch.bfloat16) for i in range(12)]
CUBE = numbers(4, 6, 8, dtype=torch.float16)
LARGE = numbers(3000, 1025)

# The tensors, the rules, and the tensors that they become.
CASES_OF_RULES = {
    "stack by number": (
        {f"a.experts.{i}.w": one for i, one in enumerate(EXPERTS)},
        [rule("experts.*.w", "experts.w", {"stack": {"dim": 0}})],
        {"a.experts.w": torch.stack(EXPERTS)}),
    "stack along another dimension": (
        {f"a.{i}.w": one for i, one in enumerate(EXPERTS)},
        [rule("*.w", "w", {"stack": {"dim": -1}})],
        {"a.w": torch.stack(EXPERTS, -1)}),
    "stack sources": (
        {"x.a": A, "x.c": C, "y.a": C, "y.c": A},
        [rule(["a", "c"], "ac", {"stack": {"dim": 1}})],
        {"x.ac": torch.stack([A, C], 1), "y.ac": torch.stack([C, A], 1)}),
    "stack and concat": (
        {**{f"{i}.up": one for i, one in enumerate(EXPERTS)},
         **{f"{i}.gate": one + 1 for i, one in enumerate(EXPERTS)}},
        [rule(["*.gate", "*.up"], "gate_up", {"stack": {}}, {"concat": {"dim": 1}})],
        {"gate_up": torch.cat([torch.stack(EXPERTS) + 1, torch.stack(EXPERTS)],
                              1)}),
    "concat": (
        {"m.a": A, "m.b": B, "m.c": C},
        [rule(["m.c", "m.b", "m.a"], ["m.all"], {"concat": {"dim": 1}})],
        {"m.all": torch.cat([C, B, A], 1)}),
    "concat of each number": (
        {"h.3.a": A, "h.3.c": C, "h.7.a": C, "h.7.c": A},
        [rule(["h.*.a", "h.*.c"], "layers.*.ac", {"concat": {}})],
        {"layers.3.ac": torch.cat([A, C]), "layers.7.ac": torch.cat([C, A])}),
    "unstack": (
        {"e.w": torch.stack(EXPERTS)},
        [rule("w", "*.w", {"unstack": {"dim": 0}})],
        {f"e.{i}.w": one for i, one in enumerate(EXPERTS)}),
    "unstack along the last dimension": (
        {"w": CUBE}, [rule("w", "*.w", {"unstack": {"dim": 2}})],
        {f"{i}.w": CUBE[..., i].contiguous() for i in range(8)}),
    "chunk": (
        {"w": A}, [rule("w", ["x", "y"], {"chunk": {"dim": 1}})],
        dict(zip("xy", A.chunk(2, 1)))),
    "chunk and unstack": (
        {"w": CUBE},
        [rule("w", ["*.x", "*.y", "*.z"], {"chunk": {"dim": 1}}, {"unstack": {}})],
        {f"{i}.{name}": part[i] for name, part in zip("xyz", CUBE.chunk(3, 1))
         for i in range(4)}),
    "split by numbers of config.json": (
        {"w": torch.cat([A, C])},
        [rule("w", ["q", "k", "v"], {"split": {"sizes": [
            "num_heads*head_dim", "(num_heads - 2) * text_config.head_dim", 12,
        ]}})],
        dict(zip("qkv", torch.cat([A, C]).split([24, 12, 12])))),
    "transpose": (
        {"w": A}, [rule("w", "t", {"transpose": {"dims": [0, 1]}})], {"t": A.T}),
    "transpose two of three": (
        {"w": CUBE}, [rule("w", "t", {"transpose": {"dims": [-1, 1]}})],
        {"t": CUBE.transpose(1, 2)}),
    "transpose three": (
        {"w": CUBE}, [rule("w", "t", {"transpose": {"dims": [2, 0, 1]}})],
        {"t": CUBE.permute(2, 0, 1)}),
    "transpose panels": (
        {"w": LARGE}, [rule("w", "t", {"transpose": {"dims": [1, 0]}})],
        {"t": LARGE.T}),
    "transpose panels of matrices": (
        {"w": LARGE.reshape(3, 1000, 1025)},
        [rule("w", "t", {"transpose": {"dims": [1, 2]}})],
        {"t": LARGE.reshape(3, 1000, 1025).transpose(1, 2)}),
    "permute_rope": (
        {"q.weight": A, "q.bias": A[:, 0].contiguous()},
        [rule("q.weight", "q.weight", {"permute_rope": {"heads": "num_heads"}}),
         rule("q.bias", "q.bias", {"permute_rope": {"heads": 2}})],
        {"q.weight": permuted(A, 4), "q.bias": permuted(A[:, 0], 2)}),
    "add and scale": (
        {"w": CUBE},
        [rule("w", "w", {"add": {"value": -1}}, {"scale": {"value": 0.3}})],
        {"w": ((CUBE.float() - 1).half().float() * torch.tensor(0.3)).half()}),
    "reshape": (
        {"w": CUBE}, [rule("w", "w", {"reshape": {"shape": [2, -1, "4*3"]}})],
        {"w": CUBE.reshape(2, 8, 12)}),
    "cast": (
        {"w": A, "n": torch.arange(5).int()},
        [rule("w", "w", {"cast": {"dtype": "bf16"}}),
         rule("n", "n", {"cast": {"dtype": "F64"}})],
        {"w": A.bfloat16(), "n": torch.arange(5).double()}),
    "everything at once": (
        {f"{i}.w": one for i, one in enumerate(EXPERTS)},
        [rule("*.w", "w", {"cast": {"dtype": "float32"}}, {"stack": {}},
              {"transpose": {"dims": [0, 2]}}, {"scale": {"value": 2}},
              {"reshape": {"shape": [9, 20]}}, {"transpose": {"dims": [0, 1]}})],
        {"w": (torch.stack(EXPERTS).float().transpose(0, 2) * 2).reshape(
            9, 20).T}),
    "a rule sees the results of those before": (
        {"model.a": A, "model.c": C, "model.b": B},
        [{"rename": ["^model\\.", "m."]}, rule(["a", "c"], "ac", {"concat": {}}),
         rule("m.ac", ["m.c", "m.a"], {"chunk": {}})],
        {"m.b": B, "m.c": A, "m.a": C}),
    "names only": (
        {"h.0.a": A, "h.1.a": C, "b": B},
        [rule("h.*.a", "layers.*.attn.a"), {"rename": ["^(b)$", "\\1\\1"]}],
        {"layers.0.attn.a": A, "layers.1.attn.a": C, "bb": B}),
    "tensors that are dropped": (
        {"x.inv_freq": A, "b": B}, [rule("inv_freq", [])], {"b": B}),
    "no elements": (
        {"a": torch.empty(0, 4), "b": torch.empty(0, 3), "c": C},
        [rule(["a", "b"], "ab", {"concat": {"dim": 1}},
              {"transpose": {"dims": [0, 1]}}, {"scale": {"value": 2}})],
        {"ab": torch.empty(7, 0), "c": C}),
    "one number": (
        {"a": torch.tensor(2.0), "b": torch.tensor(3.0)},
        [rule(["a", "b"], "ab", {"stack": {}}, {"reshape": {"shape": [2, 1]}})],
        {"ab": torch.tensor([[2.0], [3.0]])}),
}


@pytest.fixture(params=CASES_OF_RULES)
def case(request, tmp_path):
    tensors, rules, expected = CASES_OF_RULES[request.param]
    return write(tmp_path / "model", tensors), rules, {
        name: tensor.contiguous() for name, tensor in expected.items()}


def test_load_open_and_iterate(case, tmp_path):
    model, rules, expected = case
    (tmp_path / "rules.json").write_text(json.dumps({"rules": rules}))
    equal(haulway.load(model, rules=rules), expected)
    equal(haulway.load(model, rules=tmp_path / "rules.json", threads=1,
                       io="pread"), expected)
    equal(haulway.load(model, rules=rules, threads=3, io="mmap"), expected)
    equal(dict(haulway.iterate(model, rules=rules)), expected)
    with haulway.open(model, rules=rules) as opened:
        equal(opened, expected)
        for name, tensor in expected.items():
            if tensor.dim() == 0:
                continue
            part, middle = opened.get_slice(name), tensor.shape[0] // 2
            assert torch.equal(part[middle:], tensor[middle:])
            assert torch.equal(part[..., 1:6], tensor[..., 1:6])


def test_convert(case, tmp_path, command):
    model, rules, expected = case
    before = (model / "model.safetensors").read_bytes()
    (tmp_path / "rules.json").write_text(json.dumps({"rules": rules}))
    for threads, budget in ((1, "1MiB"), (3, "64MiB")):
        done = haulway.convert(
            model, f"{tmp_path}/{threads}/", "safetensors", rules=rules,
            threads=threads, memory_budget=budget, proof=True)
        equal(load_file(tmp_path / f"{threads}/model.safetensors"), expected)
        assert (tmp_path / f"{threads}/config.json").exists()
    run = subprocess.run(
        [command, "convert", model, f"{tmp_path}/command/", "--to",
         "safetensors", "--json", "--rules", tmp_path / "rules.json"],
        capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["ruled"] == done.ruled
    assert ((tmp_path / "command/model.safetensors").read_bytes()
            == (tmp_path / "1/model.safetensors").read_bytes())
    assert (model / "model.safetensors").read_bytes() == before


def test_golden(tmp_path):
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(tmp_path)
    folder, = tmp_path.iterdir()
    facts = json.loads((folder / "expected.json").read_text())
    haulway.convert(folder, tmp_path / "out.safetensors", rules=facts["rules"])
    found = load_file(tmp_path / "out.safetensors")
    assert {
        name: {"dtype": str(tensor.dtype).removeprefix("torch."),
               "shape": list(tensor.shape), "sha256": digest(tensor)}
        for name, tensor in found.items()} == facts["tensors"]
    assert not set(facts["gone"]) & set(found)


def digest(tensor):
    """SHA-256 of the elements, zeros without a sign, each NaN as ones."""
    tensor = torch.where(tensor == 0, torch.zeros_like(tensor), tensor)
    bits = tensor.view(torch.int16)
    bits = torch.where(torch.isnan(tensor), torch.full_like(bits, -1), bits)
    return hashlib.sha256(bits.numpy().tobytes()).hexdigest()


def test_ruled_counts_results(tmp_path):
    model = write(tmp_path / "model", {"x.a": A, "x.b": B, "y": C})
    done = haulway.convert(
        model, tmp_path / "m.safetensors", dtype="bf16",
        rules=[{"rename": ["x", "z"]}, rule("z.a", ["p", "q"], {"chunk": {}})])
    assert done.ruled == 3
    equal(load_file(tmp_path / "m.safetensors"), {
        "p": A[:12].bfloat16(), "q": A[12:].bfloat16(), "z.b": B.bfloat16(),
        "y": C.bfloat16()})


def test_include_chooses_results(tmp_path):
    model = write(tmp_path / "model", {"a": A, "c": C, "b": B})
    rules = [rule(["a", "c"], "ac", {"concat": {}})]
    equal(haulway.load(model, rules=rules, include="ac"),
          {"ac": torch.cat([A, C])})


def test_sources_in_several_files(tmp_path):
    model = tmp_path / "model"
    tensors = {f"e.{i}.w": one for i, one in enumerate(EXPERTS)}
    haulway.save(tensors, tmp_path / "m.safetensors")
    haulway.convert(tmp_path / "m.safetensors", f"{model}/", "safetensors",
                    shard=100)
    assert len(list(model.glob("*.safetensors"))) > 3
    equal(haulway.load(model, rules=[rule("e.*.w", "w", {"stack": {}})]),
          {"w": torch.stack(EXPERTS)})


@pytest.mark.parametrize("ending", [".pt", ".npz", ".tensors"])
def test_other_formats(ending, tmp_path):
    haulway.save({"a": A, "c": C}, tmp_path / f"m{ending}")
    rules = [rule(["a", "c"], "ac", {"concat": {"dim": 1}},
                  {"transpose": {"dims": [0, 1]}})]
    equal(haulway.load(tmp_path / f"m{ending}", rules=rules),
          {"ac": torch.cat([A, C], 1).T.contiguous()})


@pytest.mark.parametrize(
    "case", [case for case in CASES if list(case.expected)[1:] == [WEIGHT]],
    ids=repr)
def test_rules_after_dequantizing(case, tmp_path):
    model = case.write(tmp_path / "model")
    rules = [rule("mlp.up_proj.weight", "mlp.up",
                  {"transpose": {"dims": [0, 1]}}, {"scale": {"value": -1}})]
    found = haulway.load(model, dequantize=True, rules=rules)
    assert same(found[WEIGHT.replace("up_proj.weight", "up")],
                -case.expected[WEIGHT].transpose(0, 1))


class TestFunctions:
    """Functions in place of operations."""

    RULES = [{"source": ["a", "c"], "target": ["sum", "both"],
              "apply": lambda tensors: [tensors[0] + tensors[1],
                                        torch.cat(tensors).T]}]

    @pytest.fixture
    def model(self, tmp_path):
        return write(tmp_path / "model", {
            "x.a": A, "x.c": C, "y.a": C * 2, "y.c": A, "b": B})

    EXPECTED = {"x.sum": A + C, "x.both": torch.cat([A, C]).T.contiguous(),
                "y.sum": C * 2 + A,
                "y.both": torch.cat([C * 2, A]).T.contiguous(), "b": B}

    def test_all_calls(self, model, tmp_path):
        equal(haulway.load(model, rules=self.RULES), self.EXPECTED)
        equal(dict(haulway.iterate(model, rules=self.RULES)), self.EXPECTED)
        with haulway.open(model, rules=self.RULES) as opened:
            equal(opened, self.EXPECTED)
        for threads in (1, 4):
            done = haulway.convert(model, tmp_path / f"{threads}.safetensors",
                                   rules=self.RULES, threads=threads)
            assert done.ruled == 4
            equal(load_file(tmp_path / f"{threads}.safetensors"), self.EXPECTED)

    def test_after_operations_and_with_other_dtypes(self, model):
        def function(tensors):
            stacked, = tensors
            assert stacked.shape == (2, 24, 10)
            return [stacked[0].to(torch.bfloat16), torch.tensor(True),
                    torch.empty(0, 3, dtype=torch.int8)]

        found = haulway.load(model, rules=[
            rule(["x.a", "x.c"], ["1", "2", "3"], {"stack": {}}, apply=function)])
        equal({name: found[name] for name in "123"}, {
            "1": A.bfloat16(), "2": torch.tensor(True),
            "3": torch.empty(0, 3, dtype=torch.int8)})

    def test_arrays(self, model):
        found = haulway.load(model, rules=[{
            "source": "b", "target": "b",
            "apply": lambda tensors: [tensors[0].numpy()[:, ::-1]]}])
        assert torch.equal(found["b"], B.flip(1))

    @pytest.mark.parametrize("function, words", [
        (lambda tensors: tensors[:1], "1 tensors: expected one for each of 2"),
        (lambda tensors: tensors[0], "expected a list of tensors"),
        (lambda tensors: [1, 2], "expected a tensor or an array"),
        (lambda tensors: 1 / 0, "ZeroDivisionError: division by zero"),
    ])
    def test_functions_that_fail(self, function, words, model):
        with pytest.raises(haulway.Error, match=words) as raised:
            haulway.load(model, rules=[{
                "source": ["a", "c"], "target": ["s", "t"], "apply": function}])
        assert "rule 1" in str(raised.value)

    CALLS = {
        "load": lambda model, new, rules: haulway.load(model, rules=rules),
        "open": lambda model, new, rules: haulway.open(model, rules=rules),
        "iterate": lambda model, new, rules: [
            *haulway.iterate(model, rules=rules)],
        "convert": lambda model, new, rules: haulway.convert(
            model, new, rules=rules, threads=2),
    }

    @staticmethod
    def rules_that_raise(error, calls):
        """Returns rules whose function raises at a call, which has a number."""
        left = [calls]

        def function(tensors):
            left[0] -= 1
            if left[0] <= 0:
                raise error  # This line is in the message.
            return [tensors[0] + 1]

        return [{"source": ["a"], "target": ["s"], "apply": function}]

    # Opening calls it for x and y, and reading x again.
    @pytest.mark.parametrize("calls", [1, 3])
    @pytest.mark.parametrize("error", [ValueError("no"), OSError(5, "no")])
    @pytest.mark.parametrize("call", CALLS)
    def test_what_it_raised_is_the_cause(self, call, error, calls, model,
                                         tmp_path):
        if call == "open" and calls != 1:
            return
        with pytest.raises(haulway.Error) as raised:
            self.CALLS[call](model, tmp_path / "new.safetensors",
                             self.rules_that_raise(error, calls))
        assert raised.value.__cause__ is error
        last = traceback.extract_tb(error.__traceback__)[-1]
        assert last.line.endswith("# This line is in the message.")
        assert f"; in line {last.lineno} of {__file__}" in str(raised.value)

    @pytest.mark.parametrize("calls", [1, 3])
    @pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3),
                                       GeneratorExit()])
    @pytest.mark.parametrize("is_main", [True, False])
    @pytest.mark.parametrize("call", CALLS)
    def test_what_ends_a_program_is_no_error(self, call, is_main, error, calls,
                                             model, tmp_path):
        if call == "open" and calls != 1:
            return
        seen = []

        def run():
            try:
                self.CALLS[call](model, tmp_path / "new.safetensors",
                                 self.rules_that_raise(error, calls))
            except BaseException as raised:
                seen.append(raised)

        if is_main:
            run()
        else:
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
        assert seen == [error]
        # None is left behind for later calls.
        assert len(haulway.load(model)) == 5

    def test_an_interrupt_within_it(self, model):
        program = f"""
import time, haulway

def function(tensors):
    print("go", flush=True)
    time.sleep(60)

try:
    haulway.open({str(model)!r}, rules=[
        {{"source": "b", "target": "c", "apply": function}}])
except KeyboardInterrupt as interrupt:
    trace = interrupt.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    print(trace.tb_frame.f_code.co_name, flush=True)
print("on", flush=True)
"""
        with subprocess.Popen([sys.executable, "-c", program], text=True,
                              stdout=subprocess.PIPE) as child:
            assert child.stdout.readline() == "go\n"
            child.send_signal(signal.SIGINT)
            assert child.communicate()[0] == "function\non\n"


@pytest.mark.parametrize("steps, expected", [
    (([0, 1], [0, 1]), LARGE), (([0, 1],) * 3, LARGE.T)])
def test_transposed_again_it_is_read_once(tmp_path, steps, expected):
    folder = write(tmp_path / "model", {"a": LARGE})
    rules = [rule(["a"], ["a"], *({"transpose": {"dims": one}} for one in steps))]

    def read_so_far():
        with open("/proc/self/io") as file:
            return int(file.readline().split()[1])

    haulway.load(folder, io="pread")
    before = read_so_far()
    found = haulway.load(folder, rules=rules, io="pread")
    assert read_so_far() - before < 4 * LARGE.nbytes
    equal(found, {"a": expected})
