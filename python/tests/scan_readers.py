"""Tests whether a file runs code in the readers that `scan` covers.

Each file is given to a reader in a forked child of one process that has
imported everything, so that a case takes milliseconds. Code that runs calls
`canary.ran` or imports `canary`; both leave a mark in a file. A process killed
by an invalid memory access counts, too.
"""

import enum
import faulthandler
import importlib
import io
import os
import pathlib
import pickle
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

SECONDS = 20
_BAD_ADDRESS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL)

CANARY = """
import os
def ran(*arguments):
    with open(os.environ["HAULWAY_CANARY"], "a") as mark:
        mark.write("x")
    return arguments[0] if arguments else None
ran()
"""


class LoggingC(pickle.Unpickler):
    """Python's C unpickler; records its lookups and runs nothing."""

    def __init__(self, file, names):
        super().__init__(file)
        self.names = names

    def find_class(self, module, name):
        return _look_up(module, name, self.names)


class LoggingPython(pickle._Unpickler):
    """The same for the unpickler in Python."""

    def __init__(self, file, names):
        super().__init__(file)
        self.names = names

    def find_class(self, module, name):
        return _look_up(module, name, self.names)


# No module has these names, so the real find_class() fails.
_NO_MODULE = {chr(i) for i in range(32)} | set(" ()[]{}:;,=\"'#*!?/\\`&|\x7f")


def _look_up(module, name, names):
    if not module or _NO_MODULE & set(module):
        raise ImportError(module)
    names.append((module, name))
    return _Inert


class _Inert:
    """Replaces every class and function, and does nothing."""

    def __new__(cls, *arguments, **words):
        return object.__new__(cls)

    def __init__(self, *arguments, **words):
        pass

    def __setstate__(self, state):
        pass

    def append(self, item):
        pass

    def extend(self, items):
        pass

    def add(self, item):
        pass

    def __setitem__(self, key, value):
        pass


class ENUMERATION(enum.Enum):
    """Replaces the enumeration of torch.distributed.checkpoint."""

    TORCH_CONTIGUOUS_FORMAT = 0
    TORCH_CHANNELS_LAST = 1


def loads_with(getattr_, data, names):
    """Unpickles `data` with `getattr_` in place of Python's getattr; appends
    the names looked up to `names`."""
    class Unpickler(pickle.Unpickler):
        def find_class(self, module, name):
            if (module, name) == ("builtins", "getattr"):
                names.add(getattr_)
                return getattr_
            if name == "_MEM_FORMAT_ENCODING":
                return ENUMERATION
            return super().find_class(module, name)

    return Unpickler(io.BytesIO(data)).load()


def names_of(unpickler, data):
    """Returns what an unpickler looks up in `data`, in order."""
    names = []
    try:
        unpickler(io.BytesIO(data), names).load()
    except BaseException:
        pass
    return names


def _pickle_c(path):
    with open(path, "rb") as file:
        pickle.load(file)


def _pickle_bytes(path):
    pickle.loads(pathlib.Path(path).read_bytes())


def _pickle_python(path):
    with open(path, "rb") as file:
        pickle._Unpickler(file).load()


def _pickle_unbuffered(path):
    with open(path, "rb", buffering=0) as file:
        pickle._Unpickler(file).load()


def _pickle_all(path):
    with open(path, "rb") as file:
        _all_pickles(file)


def _pickle_same(path):
    with open(path, "rb") as file:
        unpickler = pickle.Unpickler(file)
        while True:
            unpickler.load()


def _pickle_buffers(path):
    with open(path, "rb") as file:
        pickle.load(file, buffers=[b"x"] * 9)


def _pandas(path):
    try:
        import pandas
    except ImportError:
        return
    pandas.read_pickle(path)


def _numpy_all(path):
    """Reads all consecutive arrays with numpy.load(), which also reads
    pickles."""
    import numpy

    with open(path, "rb") as file:
        while True:
            numpy.load(file, allow_pickle=True)


def _torch(path):
    import torch

    torch.load(path, weights_only=False)


def _torch_bytes(path):
    import torch

    torch.load(io.BytesIO(pathlib.Path(path).read_bytes()), weights_only=False)


def _jit(path):
    import torch

    torch.jit.load(path)


def _export(path):
    import torch

    torch.export.load(path)


def _joblib(path):
    import joblib

    joblib.load(path)


def _numpy(path):
    import numpy

    loaded = numpy.load(path, allow_pickle=True)
    if hasattr(loaded, "files"):
        for name in loaded.files:
            try:
                loaded[name]
            except Exception:
                pass


def _all_pickles(file):
    while True:
        pickle.load(file)


def _unpacked(path):
    """Gives each member of an archive to the other readers."""
    import tarfile
    import zipfile

    import joblib
    import numpy
    import torch

    members = []
    try:
        with zipfile.ZipFile(path) as archive:
            members += [archive.read(name) for name in archive.namelist()]
    except Exception:
        pass
    try:
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                file = archive.extractfile(member)
                if file is not None:
                    members.append(file.read())
    except Exception:
        pass
    for data in members:
        for read in (_all_pickles, joblib.load,
                     lambda file: numpy.load(file, allow_pickle=True),
                     lambda file: torch.load(file, weights_only=False)):
            try:
                read(io.BytesIO(data))
            except Exception:
                pass


def _members_of(path):
    import zipfile

    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _package(path):
    """Loads every pickle of a torch.package and imports every module."""
    from torch.package import PackageImporter

    importer = PackageImporter(path)
    for name in _members_of(path):
        package, _, resource = name.partition("/")[2].rpartition("/")
        try:
            if name.endswith(".pkl"):
                importer.load_pickle(package.replace("/", "."), resource)
        except Exception:
            pass


def _modules(path):
    """Unpacks a zip and imports its modules, as TorchServe does."""
    import runpy

    for name, data in _members_of(path).items():
        if name.endswith(".py"):
            pathlib.Path("member.py").write_bytes(data)
            try:
                runpy.run_path("member.py")
            except Exception:
                pass


def _extractall(path):
    import tarfile

    os.mkdir("out")
    with tarfile.open(path) as archive:
        archive.extractall("out")


def _pickle_lzma(path):
    import lzma

    with lzma.open(path) as file:
        pickle.load(file)


def _pickle_bz2(path):
    import bz2

    with bz2.open(path) as file:
        pickle.load(file)


def _pickle_odd(path):
    """Unpickles beside a module with the name that the prose contains."""
    pathlib.Path("my canary.py").write_text(CANARY)
    sys.path.insert(0, os.getcwd())
    importlib.invalidate_caches()
    _pickle_c(path)


def _yaml(path):
    import yaml

    with open(path, "rb") as file:
        yaml.unsafe_load(file)


def _site(path):
    import site

    os.mkdir("site")
    shutil.copy(path, "site")
    site.addsitedir("site")


def _shell(path):
    os.chmod(path, 0o755)
    subprocess.run(["/bin/sh", "-c", shlex.quote(str(path))],
                   stdin=subprocess.DEVNULL)


def _python(path):
    import runpy

    runpy.run_path(path)


def _jinja(path):
    import json

    import jinja2

    source = pathlib.Path(path).read_text()
    try:
        source = json.loads(source)["chat_template"]
    except Exception:
        pass
    if isinstance(source, list):
        source = source[0]["template"]
    jinja2.Environment().from_string(source).render(messages=[])


def _jinja_by_name(path):
    """The same for a file with the name of a template."""
    if path.endswith((".jinja", "template.txt")):
        _jinja(path)


def _gguf(path):
    """Renders the templates of a GGUF file as llama.cpp's Python code does."""
    import gguf
    import jinja2

    for name, field in gguf.GGUFReader(path).fields.items():
        if "chat_template" in name:
            jinja2.Environment().from_string(field.contents()).render(
                messages=[])


def _logging(path):
    import logging.config

    logging.config.fileConfig(path)


def _logging_dict(path):
    import json
    import logging.config

    import yaml

    read = yaml.safe_load if path.endswith(".yaml") else json.loads
    logging.config.dictConfig(read(pathlib.Path(path).read_text()))


def _database(path):
    """Unpickles what a database holds, as shelve and diskcache do."""
    import sqlite3

    for (value,) in sqlite3.connect(path).execute("select value from Dict"):
        pickle.loads(value)


def _yolo(path):
    """Evaluates a model as parse_model() of Ultralytics does."""
    import yaml

    if path.endswith(".yaml"):
        model = yaml.safe_load(pathlib.Path(path).read_text())
        if model.get("activation"):
            eval(model["activation"])
        for _, _, module, _ in model["backbone"] + model["head"]:
            eval(module)


def _named(path):
    """Imports the names in a configuration, as skops, sentence-transformers,
    diffusers, PEFT, AllenNLP and others do."""
    import json
    import zipfile

    path = pathlib.Path(path)
    text = _members_of(path)["schema.json"] if zipfile.is_zipfile(path) \
        else path.read_text()
    _import_named(json.loads(text), path.name == "model_index.json")


def _named_in_yaml(path):
    """The same for a file with a YAML name."""
    import yaml

    if path.endswith(".yaml"):
        _import_named(yaml.safe_load(pathlib.Path(path).read_text()), False)


def _import_named(value, is_pipeline):
    if isinstance(value, list):
        for item in value:
            _import_named(item, is_pipeline)
    if not isinstance(value, dict):
        return
    wholes = [value.get(key) for key in ("type", "target", "activation_function")]
    types = value.get("types")
    wholes += types.values() if isinstance(types, dict) else []
    modules = [whole.rpartition(".")[0] for whole in wholes
               if isinstance(whole, str)]
    modules += [value.get("__module__"), value.get("parent_library")]
    if is_pipeline:
        modules += [part[0] for part in value.values()
                    if isinstance(part, list) and part]
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:
            pass
    for item in value.values():
        _import_named(item, is_pipeline)


READERS = {
    "pickle": _pickle_c,
    "pickle.loads": _pickle_bytes,
    "pickle in Python": _pickle_python,
    "pickle unbuffered": _pickle_unbuffered,
    "pickle again and again": _pickle_all,
    "pickle with buffers": _pickle_buffers,
    "one Unpickler again and again": _pickle_same,
    "pandas": _pandas,
    "torch.load": _torch,
    "torch.load of bytes": _torch_bytes,
    "torch.jit.load": _jit,
    "torch.export.load": _export,
    "joblib": _joblib,
    "numpy": _numpy,
    "numpy again and again": _numpy_all,
    "members": _unpacked,
    "torch.package": _package,
    "modules": _modules,
    "extractall": _extractall,
    "pickle of lzma": _pickle_lzma,
    "pickle of bz2": _pickle_bz2,
    "pickle beside a module of an odd name": _pickle_odd,
    "yaml": _yaml,
    "site": _site,
    "shell": _shell,
    "python": _python,
    "jinja": _jinja,
    "jinja by name": _jinja_by_name,
    "gguf": _gguf,
    "logging": _logging,
    "dictConfig": _logging_dict,
    "database": _database,
    "YOLO": _yolo,
    "named": _named,
    "named in YAML": _named_in_yaml,
}
# Readers that continue after the first object.
ON = ("pickle", "pickle in Python", "one Unpickler again and again",
      "pickle with buffers", "torch.load", "joblib", "numpy again and again",
      "members")
QUICK = ("pickle", "pickle.loads", "pickle in Python", "torch.load", "joblib",
         "numpy")
# Readers of files that are not checkpoints.
FOREIGN = ("members", "extractall", "pickle of lzma", "pickle of bz2",
           "pickle beside a module of an odd name", "yaml", "site", "jinja",
           "named", "named in YAML")


class Ground:
    """A folder in which files are really read."""

    def __init__(self):
        self._folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self._folder.name)
        (self.path / "canary.py").write_text(CANARY)
        # Recreated for each reader.
        self.work = self.path / "work"
        self.work.mkdir()
        self.mark = self.work / "mark"
        os.environ["HAULWAY_CANARY"] = str(self.mark)
        sys.path.insert(0, str(self.path))
        importlib.invalidate_caches()
        # Imported here, so that the children need not.
        for name in ("jinja2", "joblib", "lzma", "numpy", "tarfile", "torch",
                     "torch.package", "yaml", "zipfile"):
            importlib.import_module(name)

    def close(self):
        sys.path.remove(str(self.path))
        self._folder.cleanup()

    def ran(self, path, readers=READERS):
        """Returns the given readers in which the file runs code."""
        return [name for name in readers if self._ran(READERS[name], path)]

    def _ran(self, reader, path):
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        child = os.fork()
        if child == 0:
            try:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, 1)
                os.dup2(null, 2)
                faulthandler.disable()
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                signal.alarm(SECONDS)
                os.chdir(self.work)
                sys.modules.pop("canary", None)
                reader(str(path))
            except BaseException:
                pass
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        return os.path.lexists(self.mark) or (
            os.WIFSIGNALED(status) and os.WTERMSIG(status) in _BAD_ADDRESS)
