"""haulway.safetensors in place of the package."""

import subprocess
import sys
import textwrap

import pytest

import haulway


def run(program):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True, text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_before_the_package_is_imported(tmp_path):
    run(f"""
        import sys
        import haulway.safetensors as ours
        with ours.install() as done:
            assert done.patched == [] and ours.installed()
            assert not {{"numpy", "torch", "haulway._haulway"}} & set(sys.modules)
            import safetensors
            assert safetensors is ours
            from safetensors.torch import load_file, save_file
            import safetensors.numpy, torch
            assert safetensors.torch is ours.torch
            assert load_file is ours.torch.load_file
            assert safetensors.numpy.load is ours.numpy.load
            save_file({{"a": torch.ones(2)}}, {str(tmp_path / "x")!r})
            # The package's other modules build on ours.
            import importlib.util
            assert importlib.util.find_spec("safetensors.flax") is not None
            assert importlib.util.find_spec("safetensors.nope") is None
        assert not ours.installed()
        import safetensors
        assert safetensors is not ours and safetensors.safe_open is not ours.safe_open
        with safetensors.safe_open({str(tmp_path / "x")!r}, "pt") as file:
            assert file.keys() == ["a"]
        """)


def test_after_others_bound_its_names():
    run("""
        import sys, types
        import safetensors, safetensors.numpy
        from safetensors import safe_open as opens
        from safetensors.torch import load_file, save_file as saves
        theirs = safetensors
        user = types.ModuleType("user")
        exec("import safetensors\\n"
             "from safetensors.torch import load_file, _remove_duplicate_names",
             vars(user))
        sys.modules["user"] = user
        bound = (opens, load_file, saves, user.load_file)
        import haulway.safetensors as ours
        done = ours.install()
        assert {"__main__.opens", "__main__.load_file", "__main__.saves",
                "user.load_file", "user.safetensors"} <= set(done.patched)
        assert opens is ours.safe_open and saves is ours.torch.save_file
        assert user.load_file is load_file is ours.torch.load_file
        assert user.safetensors is ours
        assert user._remove_duplicate_names is ours.torch._remove_duplicate_names
        # What was bound since is found by the next call.
        user.late = bound[0]
        assert ours.install().patched == ["user.late"]
        back = ours.uninstall()
        assert set(done.patched) < set(back), (done.patched, back)
        assert (opens, load_file, saves, user.load_file) == bound
        assert user.late is bound[0]
        import safetensors
        assert safetensors.safe_open is bound[0] and user.safetensors is safetensors
        assert ours.safe_open is not bound[0]
        assert sys.modules["haulway.safetensors"] is ours
        import haulway
        assert haulway.safetensors is ours
        assert ours.uninstall() == []
        """)


def test_a_block_within_an_installed_program_leaves_it_installed():
    run("""
        import haulway.safetensors as ours
        ours.install()
        with ours.install():
            pass
        import safetensors
        assert ours.installed() and safetensors is ours
        ours.uninstall()
        with ours.install():
            with ours.install():
                pass
            assert ours.installed()
        assert not ours.installed()
        """)


def test_the_extension_is_ours_too():
    run("""
        import sys
        import haulway.safetensors as ours
        ours.install()
        from safetensors._safetensors_rust import SafetensorError
        import safetensors._safetensors_rust as rust
        assert SafetensorError is ours.SafetensorError and rust is ours
        ours.uninstall()
        assert "_safetensors_rust" not in vars(ours)
        import safetensors
        from safetensors._safetensors_rust import SafetensorError as theirs
        assert theirs is safetensors.SafetensorError is not SafetensorError
        rust = sys.modules["safetensors._safetensors_rust"]
        bound = rust
        done = ours.install()
        assert "__main__.bound" in done.patched and bound is ours
        try:
            ours.safe_open("/nope/" * 3, "np", backend="nope")
        except theirs:
            pass
        assert theirs is safetensors._safetensors_rust.SafetensorError
        assert sys.modules["safetensors._safetensors_rust"] is ours
        ours.uninstall()
        assert sys.modules["safetensors._safetensors_rust"] is rust is bound
        assert theirs is rust.SafetensorError
        """)


def test_nothing_of_it_stays():
    run("""
        import sys
        import haulway.safetensors as ours
        ours.safe_open, ours.torch, ours.numpy, ours.install
        before = set(vars(ours))
        with ours.install():
            sys.modules["safetensors.extra"] = ours.extra = sys
        assert set(vars(ours)) == before
        """)


def test_ours_fails_to_be_imported_before_anything_is_exchanged():
    run("""
        import sys
        import safetensors, safetensors.numpy
        import haulway.safetensors as ours
        from haulway.safetensors import _install
        before = {name: module for name, module in sys.modules.items()
                  if name.startswith("safetensors")}
        sys.modules["haulway.safetensors.numpy"] = None
        try:
            ours.install()
        except ImportError:
            pass
        else:
            raise AssertionError
        assert not ours.installed() and _install._Finder not in sys.meta_path
        assert all(sys.modules[name] is module for name, module in before.items())
        """)


def test_huggingface_hub_saves_and_loads_with_ours(tmp_path):
    said = run(f"""
        import haulway.safetensors as ours
        ours.install()
        import huggingface_hub, torch
        from safetensors.torch import load_file
        assert load_file is ours.torch.load_file
        state = {{f"layer{{i}}.weight": torch.randn(64, 64) for i in range(8)}}
        huggingface_hub.save_torch_state_dict(
            state, {str(tmp_path)!r}, max_shard_size=50_000
        )
        import pathlib
        files = sorted(p.name for p in pathlib.Path({str(tmp_path)!r}).iterdir())
        got = {{}}
        for name in files:
            if name.endswith(".safetensors"):
                got.update(load_file({str(tmp_path)!r} + "/" + name))
        assert got.keys() == state.keys()
        assert all(torch.equal(got[k], state[k]) for k in got)
        print(len(files))
        """)
    assert int(said) == 4  # Three shards and the index.


def test_a_pointer_of_git_lfs_is_named(tmp_path):
    path = tmp_path / "m.safetensors"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\n"
                     b"oid sha256:4d7a\nsize 12345\n")
    with pytest.raises(haulway.safetensors.SafetensorError, match=(
        "^Error while deserializing header: header too large: it is a pointer of "
        "Git LFS: fetch the file itself$"
    )):
        haulway.safetensors.safe_open(path, "np")


def test_it_is_imported_when_it_is_named():
    run("""
        import sys, haulway
        assert "haulway.safetensors" not in sys.modules
        import haulway.safetensors
        assert not {"numpy", "torch", "haulway._haulway"} & set(sys.modules)
        haulway.safetensors.safe_open
        assert "torch" not in sys.modules and "numpy" not in sys.modules
        """)
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        haulway.safetensors.nope  # noqa: B018
