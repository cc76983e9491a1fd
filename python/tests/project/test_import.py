"""What `import haulway` imports, and what it does not."""

import os
import pickle
import subprocess
import sys

import pytest

import haulway


def test_modules_are_imported_when_they_are_named():
    subprocess.run(
        [sys.executable, "-c",
         "import sys\n"
         "before = set(sys.modules)\n"
         "import haulway\n"
         "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
         "assert new <= {'haulway', 'importlib', 'warnings'}, new\n"
         "assert 'haulway._haulway' not in sys.modules\n"
         "haulway.load, haulway.save, haulway.Error\n"
         "for heavy in 'numpy', 'torch', 'haulway.torch', 'haulway.ipc':\n"
         "    assert heavy not in sys.modules, heavy\n"
         "haulway.ipc.iterate_in_subprocess\n"
         "assert 'torch' not in sys.modules\n"
         "haulway.torch.load, haulway.archive.PyTorchFileReader\n"
         "haulway.tensorizer.TensorSerializer\n"],
        check=True,
    )


def test_other_names_are_refused():
    with pytest.raises(AttributeError, match="'haulway' has no .*'tensorflow'"):
        haulway.tensorflow  # noqa: B018
    assert {"load", "torch", "ipc"} <= set(dir(haulway))
    assert all(hasattr(haulway, name) for name in haulway.__all__)
    assert set(haulway.__all__) <= set(dir(haulway))


def test_names_are_found_in_any_order():
    names = [*haulway.__all__, "_haulway", "_config", "torch", "tensorizer"]
    for shown in names, names[::-1]:
        subprocess.run(
            [sys.executable, "-c",
             f"import haulway\nfor name in {shown!r}:\n"
             "    assert getattr(haulway, name) is getattr(haulway, name)\n"
             "assert callable(haulway.config) and callable(haulway.plan)\n"],
            check=True,
        )


def test_errors_have_the_name_by_which_they_are_caught():
    with pytest.raises(haulway.UnsupportedError) as caught:
        haulway.open(__file__)
    assert caught.type.__module__ == "haulway"
    copied = pickle.loads(pickle.dumps(caught.value))
    assert type(copied) is haulway.UnsupportedError
    assert haulway.LoadIntoError.__module__ == haulway.Error.__module__ == "haulway"


def test_libraries_of_networks_are_loaded_when_a_url_is_named(tmp_path, small):
    program = (
        "import haulway\n"
        "def is_loaded():\n"
        "    with open('/proc/self/maps') as maps:\n"
        "        return 'libcurl' in maps.read()\n"
        f"haulway.load({str(small)!r}, 'numpy')\n"
        "assert not is_loaded()\n"
        "try:\n"
        "    haulway.open('http://localhost:1/x')\n"
        "except haulway.Error as error:\n"
        "    print(type(error).__name__, error)\n"
        "assert is_loaded() is EXPECTED\n"
    )
    none = tmp_path / "libcurl.so.4"
    none.write_bytes(b"no library")
    for folder, loads, expected in (
        ("", True, "UnavailableError "),
        (str(tmp_path), False, "UnsupportedError URLs need libcurl, which "
                               f"cannot be loaded: {none}: "),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program.replace("EXPECTED", str(loads))],
            env={**os.environ, "LD_LIBRARY_PATH": folder}, check=True,
            capture_output=True, text=True, timeout=60,
        )
        assert done.stdout.startswith(expected), done.stdout
        assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("name", ["load", "open", "save", "convert", "verify"])
def test_a_name_brings_no_module_that_takes_long(name):
    subprocess.run(
        [sys.executable, "-S", "-c",
         f"import sys\nsys.path[:0] = {sys.path!r}\n"
         f"import haulway\nhaulway.{name}\n"
         "slow = {'dataclasses', 'hashlib', 'inspect', 'json', 'logging', 'random',"
         " 'subprocess', 'tempfile'}\n"
         "assert not slow & set(sys.modules), slow & set(sys.modules)\n"],
        check=True,
    )


def test_a_load_imports_no_more_than_it_needs(small):
    subprocess.run(
        [sys.executable, "-c",
         "import haulway, sys, torch\n"
         "before = set(sys.modules)\n"
         f"haulway.load({str(small)!r})\n"
         "new = set(sys.modules) - before\n"
         "assert not {'decimal', 'haulway._data_classes'} & new, new\n"],
        check=True,
    )


@pytest.mark.parametrize("asked", [
    "c.keys(), len(c), list(c), 'weight' in c, repr(c)",
    "[c.info(name).shape for name in c]",
    "c.metadata, c.container, c.format, c.tree(), c.stats()",
    "[c.get_slice(name).shape for name in c]",
])
def test_what_asks_for_no_tensor_imports_no_framework(asked, small):
    subprocess.run(
        [sys.executable, "-c",
         "import haulway, sys\n"
         f"c = haulway.open({str(small)!r})\n"
         f"{asked}\n"
         "assert not {'torch', 'numpy'} & set(sys.modules)\n"
         "assert c.framework == 'torch'\n"
         "first = c[next(iter(c))]\n"
         "assert type(first) is sys.modules['torch'].Tensor\n"],
        check=True,
    )
