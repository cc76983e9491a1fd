"""Makes wheels that need only the C library of a system.

Each interpreter compiles its own: the extension uses features that the stable
ABI lacks. The engine is the same in all, and after the first it comes from the
compiler cache.
"""

import os
import pathlib
import shutil
import subprocess

import libraries
import older_glibc
import repack
import toolchain

ROOT = pathlib.Path(__file__).resolve().parents[2]

# The tags of the wheels: versions of CPython; "t" means free-threaded.
TAGS = ("cp310", "cp311", "cp312", "cp313", "cp313t", "cp314", "cp314t")

# Prints an interpreter's tag, e.g. "cp311" or "cp313t".
TAG = ("import sys, sysconfig; "
       "free = 't' if sysconfig.get_config_var('Py_GIL_DISABLED') else ''; "
       "print(f'cp{sys.version_info[0]}{sys.version_info[1]}{free}')")


def tag_of(python):
    return subprocess.run([python, "-c", TAG], check=True, text=True,
                          capture_output=True).stdout.strip()


def home_of(python):
    """Returns an interpreter's installation, also for a virtual environment."""
    if not pathlib.Path(python).exists():
        return None
    return subprocess.run([python, "-c", "import sys; print(sys.base_prefix)"],
                          check=True, text=True, capture_output=True).stdout.strip()


# The build requirements of pyproject.toml.
REQUIREMENTS = {"nanobind": "3.1.0", "scikit-build-core": "1.1.2"}


def environment_of(python, folder):
    """Returns an interpreter that can build a wheel: this one, or one of a
    virtual environment that all builds for this version share."""
    program = ("import importlib.metadata as m, sys\n"
               f"for name, version in {REQUIREMENTS!r}.items():\n"
               "    assert m.version(name) == version\n"
               "import pip")
    if subprocess.run([python, "-c", program], check=False,
                      capture_output=True).returncode == 0:
        return pathlib.Path(python)
    environment = folder / f"python-{tag_of(python)}"
    inner = environment / "bin/python"
    if home_of(inner) != home_of(python):
        subprocess.run([python, "-m", "venv", "--clear", environment], check=True)
    subprocess.run([inner, "-m", "pip", "install", "--quiet",
                    "--disable-pip-version-check",
                    *(f"{name}=={version}" for name, version in
                      REQUIREMENTS.items())], check=True)
    return inner


# Prints where an interpreter's headers lie.
HEADERS = "import sysconfig; print(sysconfig.get_path('include'))"


def settings_of_another(python, tag, machine):
    """What tells the build system that the extension is for another machine: the
    environment, and definitions for CMake."""
    suffix = f".cpython-{tag.removeprefix('cp')}-{machine.triple}.so"
    defines = {"CMAKE_TOOLCHAIN_FILE": machine.cmake_file}
    headers = pathlib.Path(subprocess.run(
        [python, "-c", HEADERS], check=True, text=True,
        capture_output=True).stdout.strip())
    if not (machine.root / headers.relative_to("/")).exists():
        # This machine's headers serve as well: what an extension sees of them is
        # the same for all machines with 64 bits.
        defines["Python_INCLUDE_DIR"] = headers
    return {"SETUPTOOLS_EXT_SUFFIX": suffix}, defines


def make_wheel(python, out, folder, epoch, machine):
    """Builds the wheel of one interpreter into `out` and returns its path."""
    tag = tag_of(python)
    suffix = machine.suffix
    tools = toolchain.Toolchain(folder / f"toolchain{suffix}", machine)
    prefix, licences = libraries.build_all(
        folder / f"libraries{suffix}", folder / "libraries/sources", tools)
    link = older_glibc.make_all(folder / f"glibc-{toolchain.GLIBC}{suffix}", machine)
    inner = environment_of(python, folder)
    built = folder / f"built-{tag}{suffix}"
    shutil.rmtree(built, ignore_errors=True)
    environment = {
        **os.environ,
        "PATH": f"{inner.parent}:/usr/bin:/bin", "TZ": "UTC",
        "SOURCE_DATE_EPOCH": str(epoch),
        "CC": machine.tool("cc"), "CXX": machine.tool("c++"),
        "CMAKE_GENERATOR": "Ninja",
    }
    defines = {
        "HAULWAY_STATIC_LIBRARIES": prefix / "lib",
        "HAULWAY_BUILD_EXAMPLES": "OFF",
        # Otherwise the linker writes the archives' folder as a run path; the
        # installation removes it, but its space remains.
        "CMAKE_SKIP_RPATH": "ON",
        "CMAKE_MODULE_LINKER_FLAGS": f"-s -Wl,--build-id=none {link}",
    }
    if not machine.is_this:
        for mine, other in zip((environment, defines),
                               settings_of_another(inner, tag, machine)):
            mine.update(other)
    settings = [f"--config-settings=cmake.define.{name}={value}"
                for name, value in defines.items()]
    # At the same depth as other build folders, so that all share the compiler
    # cache.
    settings.append(f"--config-settings=build-dir=build/{machine.platform}-{tag}")
    print(f"building the wheel of {tag}{suffix}", flush=True)
    with open(folder / f"wheel-{tag}{suffix}.log", "wb") as log:
        done = subprocess.run(
            [inner, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps",
             "--verbose", "--wheel-dir", built, *settings, "."],
            check=False, cwd=ROOT, env=environment, stdout=log,
            stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise SystemExit(f"the wheel of {tag} cannot be built, see {log.name}")
    (wheel,) = built.glob("*.whl")
    out.mkdir(parents=True, exist_ok=True)
    return repack.repack(wheel, out, machine.platform, libraries.LIBRARIES,
                         {**licences, **repack.runtime_licences(inner)}, epoch)


def find_pythons():
    """Returns the interpreters of the versions that wheels are made for."""
    home = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"))
    # Debian's own come first: their builds also serve the Debian packages.
    path = os.pathsep.join([os.defpath, *(one for one in os.get_exec_path()
                                          if not one.endswith("shims"))])
    found = []
    for tag in TAGS:
        name = f"python3.{tag.removeprefix('cp3')}"
        places = sorted(home.glob(f"versions/*/bin/{name}"))
        on_path = shutil.which(name, path=path)
        if on_path is not None:
            places.insert(0, pathlib.Path(on_path).resolve())
        if places:
            found.append(places[0])
    return found
