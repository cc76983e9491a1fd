"""scan's guarantee: a file that runs code in some reader is not SAFE."""

import gzip
import io
import json
import os
import pathlib
import pickle
import random
import struct
import subprocess
import sys
import zipfile

import joblib
import numpy
import pytest
import torch

import haulway
import scan_bypasses
import scan_cases
import scan_foreign
import scan_harmless
import scan_readers
import scan_tricks
from chance import cases

WAYS = (*scan_bypasses.ROWS, *scan_tricks.ROWS)


@pytest.fixture(scope="module")
def ground():
    ground = scan_readers.Ground()
    yield ground
    ground.close()


def written(report):
    """Returns the names of the first pickle as written in the file."""
    return [found.written for found in report.pickles[0].globals] \
        if report.pickles else []


def is_part_in_order(part, whole):
    rest = iter(whole)
    return all(any(name == other for other in rest) for name in part)


def disagreement(data):
    """Returns the lookups of Python's unpicklers that scan does not list."""
    report = haulway.scan(data)
    ours = written(report)
    for unpickler in (scan_readers.LoggingC, scan_readers.LoggingPython):
        theirs = [f"{module}.{name}"
                  for module, name in scan_readers.names_of(unpickler, data)]
        straddles = any("unpicklers read" in found.message
                        for found in report.findings)
        if not is_part_in_order(theirs, ours) and not straddles:
            return unpickler.__name__, theirs, ours, report.reason
        if theirs and report.safe and set(theirs) - set(ours):
            return unpickler.__name__, theirs, ours, report.reason
    return None


def test_scan_lists_what_both_unpicklers_of_python_look_up():
    for seed in range(cases(1500)):
        data = scan_cases.odd_pickle(seed)
        assert disagreement(data) is None, (seed, data, disagreement(data))


@pytest.mark.parametrize("data", [
    # A frame longer than the stream, followed by an empty name.
    b"\x80\x05\x95\x1f\0\0\0\0\0\0\0(iQueue\n",
    b"\x80\x04\x95\x1f\0\0\0\0\0\0\0cQueue\n",
    b"\x80\x04\x95\x1f\0\0\0\0\0\0\0cQueue\nname",
])
def test_streams_of_which_scan_once_listed_too_little(data):
    assert disagreement(data) is None
    assert not haulway.scan(data)


@pytest.fixture(scope="module")
def evil_files(ground):
    return dict(scan_cases.evil_files())


def test_whatever_runs_code_is_not_safe(evil_files):
    assert len(evil_files) > 200
    safe = [name for name, data in evil_files.items() if haulway.scan(data)]
    assert safe == []


# One of each kind; scripts/scan-campaign tries all.
LIVE = ("plain-p0", "plain-p4", "then-broken-p2", "zip-p2", "zip-case-p2",
        "zip-in-zip-p4", "npy-p3", "npz-p2", "tar-torch-p2", "legacy-1-p2",
        "legacy-4-p0", "zlib-p2", "inst", "memo", "import-only",
        "tar-odd-signed", "tar-odd-base256", "tar-odd-plus",
        "joblib-array-gzip", "program")


@pytest.mark.parametrize("name", LIVE)
def test_the_cases_run_code_for_real(name, ground, evil_files, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(evil_files[name])
    readers = ("torch.export.load",) if name == "program" else (
        "pickle", "pickle in Python", "torch.load", "numpy", "joblib",
        "members")
    assert ground.ran(path, readers), name


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_of_data_are_safe(protocol):
    data = {"bytes": b"\xff" * 70_000, "text": "\xe9" * 70_000,
            "list": [b"a" * 65_535, b"b" * 65_536, b"c" * 65_537, 1, 2.5],
            "big": 10**30, "many": list(range(3000)), "none": None,
            "array": bytearray(b"x" * 100_000)}
    for value in (data, [data, data], "x", ()):
        report = haulway.scan(pickle.dumps(value, protocol))
        assert report.safe, (protocol, report.reason)
        python = io.BytesIO()
        pickle._Pickler(python, protocol).dump(value)
        assert haulway.scan(python.getvalue()), protocol
    several = b"".join(pickle.dumps(i, protocol) for i in range(5))
    assert len(haulway.scan(several).pickles) == 5


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("is_zip", (True, False))
def test_checkpoints_of_torch_are_safe(protocol, is_zip):
    model = torch.nn.Linear(300, 300)
    state = {"model": model.state_dict(), "step": 7, "raw": b"\x00" * 70_000,
             "notes": "y" * 70_000, "lr": numpy.float64(1.5),
             "optimizer": torch.optim.Adam(model.parameters()).state_dict(),
             "bits": torch.frombuffer(bytearray(scan_cases.evil(4) * 9)[:8],
                                      dtype=torch.uint8)}
    out = io.BytesIO()
    torch.save(state, out, pickle_protocol=protocol,
               _use_new_zipfile_serialization=is_zip)
    report = haulway.scan(out.getvalue())
    assert report.safe, report.reason
    if not is_zip:
        torch.save(state, out, pickle_protocol=protocol,
                   _use_new_zipfile_serialization=False)
        report = haulway.scan(out.getvalue())
        assert report.safe, report.reason
        assert len(report.pickles) == 10


def test_numbers_are_not_taken_for_pickles():
    chance = numpy.random.default_rng(3)
    for _ in range(300):
        noise = chance.bytes(60)
        for first in (0x28, 0x63, 0x80, 0x82, 0x83, 0x84, 0x93, 0x95):
            data = bytes([first]) + noise
            out = io.BytesIO()
            torch.save(torch.frombuffer(bytearray(data), dtype=torch.uint8), out)
            report = haulway.scan(out.getvalue())
            assert report.safe, report.reason
            # FRAME: the following opcodes may leave the frame.
            if first != 0x95:
                assert haulway.scan(data).verdict != "UNSAFE", data


def numpy_files():
    out = io.BytesIO()
    numpy.save(out, numpy.arange(10.0))
    yield "npy", out.getvalue()
    for save in (numpy.savez, numpy.savez_compressed):
        out = io.BytesIO()
        save(out, a=numpy.arange(10.0), b=numpy.zeros((1000, 1000)),
             c=numpy.array(["x", "y"]))
        yield save.__name__, out.getvalue()
    out = io.BytesIO()
    numpy.save(out, numpy.array([{"a": 1}, "b"], dtype=object))
    yield "objects", out.getvalue()


def joblib_files():
    value = {"a": numpy.arange(1000.0), "b": [numpy.arange(9, dtype="i2")] * 3,
             "c": numpy.ones((30, 40), order="F"), "d": "text",
             "f": numpy.array([True]), "g": numpy.datetime64("2020-01-01", "D")}
    for compress in (0, ("zlib", 3), ("gzip", 1)):
        for protocol in (2, 3, 4, 5):
            out = io.BytesIO()
            joblib.dump(value, out, compress=compress, protocol=protocol)
            yield f"joblib-{compress}-{protocol}", out.getvalue()


@pytest.mark.parametrize(
    "name, data", [*numpy_files(), *joblib_files()],
    ids=lambda value: value if isinstance(value, str) else "")
def test_arrays_are_safe(name, data):
    report = haulway.scan(data)
    assert report.safe, (name, report.reason)


def test_objects_in_an_array_of_joblib_are_not_looked_into():
    out = io.BytesIO()
    joblib.dump(numpy.array([1, "x"], dtype=object), out)
    report = haulway.scan(out.getvalue())
    assert report.verdict == "UNKNOWN"
    assert "joblib and pickle.load() read differently" in report.reason


def test_what_stands_behind_an_array_of_joblib_is_followed(ground):
    out = io.BytesIO()
    joblib.dump([numpy.arange(9.0), scan_cases.Ran()], out)
    report = haulway.scan(out.getvalue())
    assert report.verdict == "UNSAFE" and "canary.ran" in report.reason
    assert written(report)[0] == "joblib.numpy_pickle.NumpyArrayWrapper"


def test_many_arrays_of_joblib_end_soon():
    # Once, each array was followed as a pickle to the end of the file.
    report = haulway.scan(scan_tricks.many_arrays_of_joblib(8000))
    assert report.verdict == "UNKNOWN" and "too many arrays" in report.reason


def test_a_distributed_checkpoint_is_safe(tmp_path):
    import torch.distributed.checkpoint as dcp

    dcp.save({"a": torch.arange(100.0), "b": {"c": torch.ones(3)}, "n": 3},
             checkpoint_id=tmp_path / "model")
    report = haulway.scan(tmp_path / "model")
    assert report.safe, report.reason
    names = [os.path.basename(one.file) for one in report.files]
    assert ".metadata" in names and len(names) == 2


class Watched:
    """Replaces builtins.getattr and records uses other than those of Python
    3.11.0 to 3.11.3 for enumerations."""

    def __init__(self):
        self.misused = False

    def __call__(self, *arguments):
        value = getattr(*arguments)
        enumeration = scan_readers.ENUMERATION
        if type(value) is not enumeration or arguments[0] is not enumeration:
            self.misused = True
        return value

    def __setstate__(self, state):
        self.misused = True


def contains(value, wanted, depth=0):
    return value is wanted or depth < 5 and (
        isinstance(value, (list, tuple, set, frozenset))
        and any(contains(one, wanted, depth + 1) for one in value)
        or isinstance(value, dict)
        and contains([*value, *value.values()], wanted, depth + 1))


def test_getattr_reaches_nothing_but_members_of_enumerations():
    safe = used = misused = 0
    for seed in range(cases(6000)):
        data = scan_cases.odd_getattr(seed)
        watched = Watched()
        names = set()
        try:
            value = scan_readers.loads_with(watched, data, names)
        except Exception:
            value = None
        report = haulway.scan(data)
        wrong = watched.misused or contains(value, watched)
        assert not (wrong and report.safe), (seed, data)
        safe += report.safe and watched in names
        misused += wrong
        used += watched in names
    assert safe > cases(500) and misused > cases(50) and used > cases(1000), (
        safe, misused, used)


def test_random_bytes_are_no_false_alarm():
    chance = random.Random(15)
    for first in (b"", b"\x95", b"\x95" + b"\0" * 5):
        for _ in range(cases(3000)):
            data = first + chance.randbytes(chance.choice((30, 300, 3000)))
            report = haulway.scan(data)
            assert report.verdict != "UNSAFE", (report.reason, data)
            if report.safe:
                assert not scan_readers.names_of(
                    scan_readers.LoggingPython, data), data


def test_torchscript_without_a_state_of_its_own_is_safe(tmp_path):
    module = torch.jit.script(torch.nn.Sequential(torch.nn.Linear(3, 2),
                                                  torch.nn.ReLU()))
    module.save(str(tmp_path / "script.pt"))
    report = haulway.scan(tmp_path / "script.pt")
    assert report.safe, report.reason


def test_setstate_of_torchscript_is_not_known_to_be_safe(evil_files):
    report = haulway.scan(evil_files["script"])
    assert report.verdict == "UNKNOWN" and "__setstate__" in report.reason
    assert report.byte is not None


def test_programs_are_not_known_to_be_safe():
    assert haulway.scan(scan_cases.program("s0 + 1")).verdict == "UNKNOWN"
    report = haulway.scan(scan_cases.program("__import__('os').getpid()"))
    assert report.verdict == "UNSAFE" and "expression" in report.reason


# Names that evaded other scanners, from the advisories and tests of picklescan
# and fickling.
BYPASSES = (
    ("builtins", "getattr"), ("builtins", "eval"), ("builtins", "exec"),
    ("builtins", "__import__"), ("builtins", "breakpoint"),
    ("builtins", "compile"), ("builtins", "open"), ("builtins", "type"),
    ("operator", "methodcaller"), ("operator", "attrgetter"),
    ("operator", "itemgetter"), ("functools", "partial"),
    ("functools", "reduce"), ("os", "system"), ("posix", "system"),
    ("nt", "system"), ("subprocess", "Popen"), ("subprocess", "run"),
    ("pip", "main"), ("pip._internal", "main"), ("runpy", "_run_code"),
    ("runpy", "run_path"), ("pydoc", "locate"), ("pydoc", "pipepager"),
    ("importlib", "import_module"), ("imp", "load_source"),
    ("pkgutil", "resolve_name"), ("ctypes", "CDLL"), ("code", "interact"),
    ("codeop", "compile_command"), ("cProfile", "run"), ("cProfile", "runctx"),
    ("profile", "Profile.run"), ("pdb", "run"), ("bdb", "Bdb"),
    ("doctest", "debug_script"), ("timeit", "timeit"), ("trace", "Trace.run"),
    ("asyncio.unix_events", "_UnixSubprocessTransport._start"),
    ("asyncio", "create_subprocess_shell"),
    ("idlelib.pyshell", "ModifiedInterpreter"),
    ("idlelib.autocomplete", "AutoComplete.fetch_completions"),
    ("idlelib.calltip", "get_entity"), ("idlelib.run", "Executive.runcode"),
    ("lib2to3.pgen2.grammar", "Grammar.loads"),
    ("lib2to3.pgen2.pgen", "ParserGenerator"),
    ("numpy.testing._private.utils", "runstring"), ("numpy", "load"),
    ("numpy.f2py.crackfortran", "getlincoef"),
    ("numpy.f2py.crackfortran", "_eval_length"), ("torch", "load"),
    ("torch.hub", "load"), ("torch.jit", "load"),
    ("torch.jit.unsupported_tensor_ops", "execWrapper"),
    ("torch._dynamo.guards", "GuardBuilder.get"),
    ("torch._inductor.codecache", "PyCodeCache.load"),
    ("torch.utils.bottleneck.__main__", "run_cprofile"),
    ("torch.utils.collect_env", "run"),
    ("torch.utils._config_module", "ConfigModule.load_config"),
    ("torch.utils.data.datapipes.utils.decoder", "basichandlers"),
    ("torch.fx.experimental.symbolic_shapes", "ShapeEnv.evaluate_guards_expression"),
    ("torch.distributed.checkpoint.filesystem", "FileSystemReader"),
    ("torch.storage", "UntypedStorage.from_file"),
    ("torch", "storage._load_from_bytes"),
    ("torch.storage", "_load_from_bytes"), ("joblib.numpy_pickle", "load"),
    ("joblib", "load"), ("pickle", "loads"), ("_pickle", "loads"),
    ("cloudpickle", "loads"), ("dill", "loads"), ("marshal", "loads"),
    ("shelve", "open"), ("dbm", "open"), ("sqlite3", "connect"),
    ("shutil", "rmtree"), ("pathlib", "Path.write_text"),
    ("socket", "create_connection"), ("urllib.request", "urlopen"),
    ("requests", "get"), ("requests.api", "get"),
    ("http.client", "HTTPSConnection"), ("aiohttp", "ClientSession"),
    ("webbrowser", "open"), ("smtplib", "SMTP"),
    ("ssl", "get_server_certificate"), ("signal", "raise_signal"),
    ("logging.config", "listen"), ("distutils.file_util", "write_file"),
    ("ensurepip", "_run_pip"), ("venv", "create"),
    ("multiprocessing.util", "spawnv_passfds"), ("uuid", "_popen"),
    ("_osx_support", "_read_output"), ("_aix_support", "_read_cmd_output"),
    ("_pyrepl.pager", "pipe_pager"), ("linecache", "getlines"),
    ("gc", "get_objects"), ("sys", "exit"), ("sys", "modules"),
    ("commands", "getoutput"), ("collections", "OrderedDict.update"),
    ("collections.abc", "os"), ("bottle", "run"), (".os", "system"),
    ("copyreg", "add_extension"), ("copyreg", "pickle"),
    ("types", "FunctionType"), ("types", "CodeType"), ("site", "main"),
    ("test.support.script_helper", "assert_python_ok"),
    ("xmlrpc.client", "ServerProxy"), ("zipimport", "zipimporter"),
)


@pytest.mark.parametrize("module, name", BYPASSES)
def test_what_led_other_scanners_astray_is_unsafe(module, name):
    stacked = (b"\x80\x04\x8c" + bytes([len(module)]) + module.encode()
               + b"\x8c" + bytes([len(name)]) + name.encode() + b"\x93)R.")
    lines = f"c{module}\n{name}\n)R.".encode()
    for data in (stacked, lines, lines[:-2]):
        assert haulway.scan(data).verdict == "UNSAFE"
        for inside in ("data.pkl", "x.PKL", "config.json", "a.jpg"):
            made = io.BytesIO()
            with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(inside, data)
            assert haulway.scan(made.getvalue()).verdict == "UNSAFE"


@pytest.mark.parametrize("name, source, data, readers", WAYS,
                         ids=[row[0] for row in WAYS])
def test_ways_past_scanners_are_seen(name, source, data, readers, ground,
                                     tmp_path):
    path = tmp_path / "file"
    path.write_bytes(data)
    assert ground.ran(path, readers) == list(readers)
    assert not haulway.scan(path).safe
    inside = haulway.scan(scan_cases.zipped({"a": data}))
    assert not inside.safe, inside.reason


def test_odd_files_that_run_code_are_not_safe(ground):
    path = ground.path / "odd"
    hidden = []
    for seed in range(cases(150)):
        data = scan_tricks.odd_file(seed)
        if haulway.scan(data).safe:
            path.write_bytes(data)
            hidden += [(seed, ground.ran(path, scan_readers.QUICK))]
    assert len(hidden) < cases(1000) / 10
    assert [one for one in hidden if one[1]] == []


def test_what_follows_the_last_pickle_or_array_is_not_passed_over():
    array = scan_tricks.saved(numpy.arange(3.0))
    objects = scan_tricks.saved(numpy.array([None, "x"]))
    whole = pickle.dumps({"a": 1})
    for rows in ([array, array], [array, objects, array], [whole, array],
                 [array, whole, whole], [objects, whole, array]):
        assert haulway.scan(b"".join(rows)).safe
        for more in (b"\0", b"words", whole[:-1], array[:-1]):
            report = haulway.scan(b"".join(rows) + more)
            assert report.verdict == "UNKNOWN", (rows, more)


def test_an_unpickler_that_is_used_again_keeps_its_memo():
    out = io.BytesIO()
    pickler = pickle.Pickler(out, 4)
    shared = ["x", {"a": 1}]
    for i in range(50):
        pickler.dump([shared, i, f"text {i}", numpy.float64(i)])
    assert haulway.scan(out.getvalue()).verdict != "UNSAFE"
    rows = b"".join(pickle.dumps([i, "x", numpy.arange(i)]) for i in range(50))
    report = haulway.scan(rows)
    assert report.safe, report.reason


# NumPy objects, as every version and protocol writes them.
@pytest.mark.parametrize("protocol", range(6))
def test_arrays_of_numpy_in_a_pickle_are_safe(protocol):
    kinds = ("?", "i1", "u2", "<i4", ">f8", "f2", "c16", "S5", "U7", "S0", "U0",
             "V3", "M8[ns]", "m8", "M8[25s]", "g", "O")
    arrays = [numpy.zeros(3, kind) for kind in kinds]
    nested = numpy.empty(2, object)
    nested[:] = [numpy.ones(2), {"a": numpy.arange(3)}]
    arrays += [nested, numpy.ones((2, 3), order="F"), numpy.zeros(0),
               numpy.zeros((2, 0)), numpy.array(1.5), numpy.ones(4)[::2]]
    scalars = [numpy.float64(1), numpy.int8(2), numpy.bool_(True),
               numpy.str_("x"), numpy.bytes_(b"y"), numpy.datetime64("2020"),
               numpy.complex64(1j)]
    for value in ([*arrays, *scalars], [arrays] * 2, numpy.dtype("f4"),
                  [numpy.dtype(kind) for kind in kinds],
                  {"random": numpy.random.get_state()}):
        report = haulway.scan(pickle.dumps(value, protocol))
        assert report.safe, (value, report.reason)


FOREIGN = scan_foreign.rows()


@pytest.mark.parametrize("label, name, data, readers", FOREIGN,
                         ids=[row[0] for row in FOREIGN])
def test_files_that_run_code_by_what_they_are_called_are_seen(
        label, name, data, readers, ground, tmp_path):
    path = tmp_path / name
    path.write_bytes(data)
    assert ground.ran(path, readers) == list(readers)
    report = haulway.scan(path)
    assert not report.safe, report.reason
    assert not haulway.scan(scan_cases.zipped({name: data}))
    assert not haulway.scan(scan_cases.tarred({name: data}))
    assert scan_foreign.BY_NAME & {*readers} or not haulway.scan(data) \
        or not readers


def test_harmless_files_are_safe(tmp_path):
    wrong = [(name, report.verdict, report.reason)
             for name, report, verdict in scan_harmless.reports(tmp_path)
             if report.verdict != verdict]
    assert wrong == []


@pytest.mark.parametrize("protocol", range(6))
def test_types_with_fields_are_safe_unless_they_hold_objects(protocol):
    kinds = (
        [("a", "f4"), ("b", "S3")], [("x", "f4", (3,)), ("y", "M8[ns]")],
        [("in", [("a", "i1"), ("b", ">u8", (2, 2))]), ("c", "U5")],
        numpy.dtype([("a", "i1"), ("b", "f8")], align=True),
        {"names": ["a", "b"], "formats": ["i2", "i2"], "offsets": [6, 0],
         "itemsize": 20, "titles": ["first", "second"]},
        [(f"column {i}", "f8") for i in range(700)], [("a", "V0")],
    )
    for kind in kinds:
        rows = numpy.zeros(2, kind)
        for value in (rows, [rows, rows[0], numpy.ones(2), rows.dtype]):
            report = haulway.scan(pickle.dumps(value, protocol))
            assert report.safe, (kind, report.reason)
    report = haulway.scan(pickle.dumps(numpy.zeros(2, [("a", "O")]), protocol))
    assert report.verdict == "UNKNOWN" and "fields" in report.reason


def test_arrays_of_other_classes_are_the_callers():
    rows = numpy.zeros(3, [("a", "f4")]).view(numpy.recarray)
    masked = "numpy.ma.core._mareconstruct", "numpy.ma.MaskedArray"
    for value, names in (
        (numpy.ma.ones(3), (*masked, "numpy.ma.core.MaskedArray")),
        (rows, ("numpy.rec.recarray", "numpy.record", "numpy.recarray")),
    ):
        data = pickle.dumps(value)
        assert haulway.scan(data).verdict == "UNSAFE"
        assert haulway.scan(data, allow=names).safe
        # A tensor of another class proves nothing about NumPy's.
        assert haulway.scan(data, allow=["canary.ran"]).verdict == "UNSAFE"


def test_names_that_a_caller_allows_may_be_called_with_keywords():
    data = scan_bypasses.whole(scan_bypasses.RAN, b")}\x92")
    assert haulway.scan(data, allow=["canary.ran"]).safe
    assert haulway.scan(data).verdict == "UNSAFE"


def verdict_of(module, name):
    """Returns the verdict on a pickle that names something and does not use
    it."""
    data = b"".join(b"\x8c" + bytes([len(text)]) + text
                    for text in (module.encode(), name.encode()))
    found = {haulway.scan(data).verdict for data in (
        b"\x80\x04" + data + b"\x93.", f"c{module}\n{name}\n.".encode())}
    assert len(found) == 1, (module, name)
    return found.pop()


def test_no_list_of_evil_names_is_needed():
    # Other scanners list dangerous names, and that list was evaded time and
    # again. Of all modules of Python, only these names may be SAFE.
    allowed = {
        (module, name)
        for module in sys.stdlib_module_names if module.isascii()
        for name in ("anything", *dir(sys.modules.get(module)))
        if name.isascii() and verdict_of(module, name) != "UNSAFE"
    }
    modules = {module for module, _ in allowed}
    assert modules <= {"_codecs", "argparse", "builtins", "collections",
                       "copyreg", "datetime", "decimal", "fractions",
                       "pathlib", "types", "uuid"}


def test_a_module_of_an_odd_name_is_one_where_there_is_a_protocol():
    for module in (b" (x)", b"a b", b"(x)", b"x;y", b"\x01"):
        assert haulway.scan(b"\x80\x02c" + module + b"\nrun\n.") \
            .verdict == "UNSAFE", module
        # Without a module of that name it may be prose; whether one exists is
        # unknown.
        report = haulway.scan(b"c" + module + b"\nrun\n.")
        assert report.verdict == "UNKNOWN" and "imports" in report.reason
    assert haulway.scan(b"Copyright (c) 2026\nAll rights reserved\n").safe


@pytest.mark.parametrize("module, name", [
    ("collections", "OrderedDict"), ("torch", "FloatStorage"),
    ("torch._utils", "_rebuild_tensor_v2"), ("numpy", "dtype"),
    ("builtins", "set"), ("datetime", "datetime"), ("torch", "Size"),
    ("argparse", "Namespace"), ("joblib.numpy_pickle", "NumpyArrayWrapper"),
])
def test_nothing_is_reached_through_a_name_that_may_stand(module, name):
    assert verdict_of(module, name) == "SAFE"
    for further in ("__class__", "__init__", "__init__.__globals__", "mro",
                    "__reduce__", "__subclasses__", "__dict__", "fromkeys"):
        assert verdict_of(module, f"{name}.{further}") == "UNSAFE", further
    for other in (f"{module}.{name}", f".{module}", f"{module}.",
                  module.upper()):
        assert verdict_of(other, name) == "UNSAFE", other


def test_records_are_looked_into_whatever_their_flags_and_checksums_say():
    data = scan_cases.torch_zip(scan_cases.evil(2))
    at = data.index(b"PK\x01\x02")
    for offset in (6, 8, 10, 16, 20, 24):
        for bits in (1, 0x20, 0x80):
            changed = bytearray(data)
            changed[at + offset] ^= bits
            report = haulway.scan(bytes(changed))
            assert not report.safe, (offset, bits)
    crc = data.replace(data[at + 16 : at + 20], b"\1\2\3\4")
    report = haulway.scan(crc)
    assert report.verdict == "UNSAFE" and "canary.ran" in report.reason


def test_a_report_is_its_verdict(tmp_path):
    good, bad = tmp_path / "good.pt", tmp_path / "bad.pt"
    torch.save({"a": torch.ones(2)}, good)
    bad.write_bytes(scan_cases.torch_zip(scan_cases.evil(2)))
    assert haulway.scan(good) and haulway.scan(good).verdict == "SAFE"
    assert not haulway.scan(bad)
    assert haulway.verify(good)
    assert not haulway.verify(good.read_bytes()[:-9])
    both = haulway.scan([good, bad])
    assert not both and both.verdict == "UNSAFE" and len(both.files) == 2
    assert "bad.pt" in both.reason
    assert haulway.scan(bad, allow=["canary.ran"])
    assert haulway.scan(tmp_path).to_dict()["files"][0]["verdict"] == "UNSAFE"
    with pytest.raises(haulway.NotFoundError, match="no files in folder"):
        (tmp_path / "empty").mkdir()
        haulway.scan(tmp_path / "empty")
    with pytest.raises(FileNotFoundError):
        haulway.scan(tmp_path / "none")


def test_names_that_are_no_text_are_shown(tmp_path):
    folder = os.fsencode(tmp_path)
    path = os.path.join(folder, b"\xff\xfe.pkl")
    with open(path, "wb") as file:
        file.write(b"\x80\x02cos\nsys\xe9tem\n.")
    report = haulway.scan(os.fsdecode(path))
    assert os.fsencode(report.file) == path and not report
    made = io.BytesIO(scan_cases.torch_zip(scan_cases.evil(2)))
    data = made.getvalue().replace(b"archive/data.pkl", b"archive/d\xff\xfea.pkl")
    assert haulway.scan(data).verdict == "UNSAFE"


# The command

@pytest.fixture(scope="module")
def command():
    path = os.path.join(os.path.dirname(sys.executable), "haulway")
    return path


def run(command, *arguments):
    return subprocess.run([command, "scan", *arguments], capture_output=True,
                          timeout=60)


def test_the_exit_code_is_the_verdict(command, tmp_path):
    files = {"safe.txt": b"some words\n", "unsafe.pkl": scan_cases.evil(0),
             "unknown.h5": b"\x89HDF\r\n\x1a\n" + bytes(64)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    for name, code in (("safe.txt", 0), ("unsafe.pkl", 1), ("unknown.h5", 2)):
        done = run(command, tmp_path / name)
        assert done.returncode == code
        assert done.stdout.startswith(name.split(".")[0].upper().encode())
    done = run(command, "--json", tmp_path)
    assert done.returncode == 1
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(os.path.basename(one["file"]), one["verdict"], one["safe"])
            for one in reports] == [("safe.txt", "SAFE", True),
                                    ("unknown.h5", "UNKNOWN", False),
                                    ("unsafe.pkl", "UNSAFE", False)]
    assert all(one["reason"] for one in reports)
    (tmp_path / "unsafe.pkl").unlink()
    assert run(command, tmp_path).returncode == 2
    empty = tmp_path / "empty"
    empty.mkdir()
    done = run(command, empty)
    assert done.returncode == 3 and b"no files in folder" in done.stderr


def test_unsafe_is_the_worst_of_several_whatever_else_there_is(
        command, tmp_path):
    files = {"safe": b"", "unsafe": scan_cases.evil(0),
             "unknown": b"\x89HDF\r\n\x1a\n" + bytes(64)}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    for names in (("unsafe", "unknown"), ("unknown", "unsafe", "safe"),
                  ("unsafe", "none"), ("none", "unknown", "unsafe")):
        paths = [tmp_path / name for name in names]
        assert run(command, *paths).returncode == 1, names
        assert run(command, "--json", *paths).returncode == 1, names
        if "none" not in names:
            report = haulway.scan(paths)
            assert report.verdict == "UNSAFE" and not report
    assert run(command, tmp_path / "unknown", tmp_path).returncode == 1
    both = [tmp_path / "safe", tmp_path / "unknown"]
    assert run(command, *both).returncode == 2
    assert haulway.scan(both).verdict == "UNKNOWN"


def test_allow_reaches_the_command(command, tmp_path):
    path = tmp_path / "x.pkl"
    path.write_bytes(scan_cases.evil(2))
    assert run(command, path).returncode == 1
    assert run(command, "--allow", "canary.ran", path).returncode == 0


def test_a_folder_never_blocks_or_stops(command, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.txt").write_text("words")
    (tmp_path / os.fsdecode(b"\xff.txt")).write_text("words")
    (tmp_path / "nowhere").symlink_to("gone")
    done = run(command, "--json", tmp_path)
    assert done.returncode == 2 and len(done.stdout.splitlines()) == 4
    for line in done.stdout.splitlines():
        json.loads(line)
    assert run(command, tmp_path / "pipe").returncode == 5


def test_small_files_take_little_memory(tmp_path):
    script = (
        "import resource, sys, haulway\n"
        "def used():\n"
        "    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
        "before = used()\n"
        "for path in sys.argv[1:]:\n"
        "    haulway.scan(path)\n"
        "    assert used() - before < 200, (path, used() - before)\n"
    )
    bomb = scan_cases.zipped(
        {"data.pkl": b"\x80\x02(" + b"]" * 100_000_000 + b"l."},
        zipfile.ZIP_DEFLATED)
    stacked = io.BytesIO()
    torch.save({}, stacked, _use_new_zipfile_serialization=False)
    files = {
        "bomb": bomb,
        "gzip": gzip.compress(bytes(100_000_000), 1),
        "stacked": stacked.getvalue() * 5000,
        "many": b"N." * 1_000_000,
        "names": b"\x80\x02" + b"cos\nsystem\n0" * 300_000 + b"N.",
        "claim": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40),
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    subprocess.run([sys.executable, "-c", script,
                    *(tmp_path / name for name in files)], check=True)


def test_the_guide_allows_a_name_that_pickles_have(tmp_path):
    root = pathlib.Path(__file__).parents[3]
    guide = (root / "docs/guides/scan-in-ci.md").read_text()
    name = guide.partition("`--allow ")[2].partition("`")[0]
    torch.save(torch.nn.Linear(2, 2), tmp_path / "module.pt")
    assert not haulway.scan(tmp_path / "module.pt").safe
    assert haulway.scan(tmp_path / "module.pt", allow=[name]).safe
