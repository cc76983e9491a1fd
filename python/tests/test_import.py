"""What `import haulway` brings, and what it leaves alone."""

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
