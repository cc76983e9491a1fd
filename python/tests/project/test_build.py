"""Building and installing from source, and the messages for missing
packages."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

import haulway

ROOT = pathlib.Path(__file__).resolve().parents[3]

# For each row of the table: found, and the packages of each system.
ROWS = [row.split()[1:] for row in
        (ROOT / "cmake/packages.txt").read_text().splitlines()
        if not row.startswith("#")]
SYSTEMS = ("apt-get install", "dnf install", "pacman -S", "apk add", "brew install")
# As `find_package` names them. The others are found with pkg-config.
LIBRARIES = ("fmt", "simdjson", "OpenSSL", "CLI11", "GTest", "ZLIB", "CURL", "Python")


def configure(folder, *options, **environment):
    return subprocess.run(
        ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *options],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, **environment})


def commands_of(message):
    """Returns the packages that each command in the message installs."""
    return [re.search(f"{system} (.*)", message)[1].split() for system in SYSTEMS]


def test_all_missing_packages_are_named_at_once(tmp_path):
    done = configure(
        tmp_path, "-DPKG_CONFIG_EXECUTABLE=/nonexistent", "-DHAULWAY_BUILD_PYTHON=ON",
        *(f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in LIBRARIES))
    assert done.returncode != 0
    assert done.stderr.count("CMake Error") == 1
    expected = zip(*(names for found, *names in ROWS
                     if found == "pkg-config" or found.endswith("_FOUND")))
    for packages, names in zip(commands_of(done.stderr), expected, strict=True):
        assert set(names) == set(packages), done.stderr
        assert len(packages) == len(set(packages))
    assert "scripts/setup" in done.stderr


def test_only_what_is_missing_is_named(tmp_path):
    done = configure(tmp_path, "-DCMAKE_DISABLE_FIND_PACKAGE_simdjson=ON")
    (names,) = (names for found, *names in ROWS if found == "simdjson_FOUND")
    assert commands_of(done.stderr) == [[name] for name in names]


def test_without_a_compiler_all_is_named(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("cmake", "ninja"):
        (programs / name).symlink_to(shutil.which(name))
    done = configure(tmp_path / "build", PATH=str(programs))
    assert done.returncode != 0
    debian, fedora, arch, *_ = commands_of(done.stderr)
    assert "build-essential" in debian and "libfmt-dev" in debian
    assert "gcc-c++" in fedora and "base-devel" in arch


def test_what_quickstart_builds_can_be_installed(tmp_path):
    built = re.search(r"\nbuild release (.*)",
                      (ROOT / "scripts/quickstart").read_text())[1].split()
    subprocess.run(["cmake", "--preset", "release", "-B", tmp_path], cwd=ROOT,
                   check=True, capture_output=True, timeout=300)
    made = subprocess.run(["ninja", "-C", tmp_path, "-t", "commands", *built],
                          check=True, capture_output=True, text=True).stdout
    installed = set()
    for script in tmp_path.rglob("cmake_install.cmake"):
        for path in re.findall(rf'"{tmp_path}/([^"]+)"', script.read_text()):
            # CMake makes these itself, and fills a folder when it installs.
            if not re.search(r"\.cmake$|\.pc$|/$|manifest|MANIFEST", path):
                installed.add(path)
    assert len(installed) >= 3
    for path in installed:
        # Symlinks to a shared library are made together with it.
        assert re.sub(r"\.so\b.*", ".so", path) in made, path


@pytest.mark.parametrize("preset", ["release", "test", "shared", "asan", "tsan"])
def test_warnings_are_errors_in_the_builds_of_tests_only(preset, tmp_path):
    said = subprocess.run(
        ["cmake", "--preset", preset, "-B", tmp_path, "-N"], cwd=ROOT, check=True,
        capture_output=True, text=True).stdout
    assert ('HAULWAY_WERROR="ON"' in said) == (preset != "release")


def test_the_version_stands_in_one_place(run):
    said = re.search(r"project\(haulway VERSION ([\d.]+)",
                     (ROOT / "CMakeLists.txt").read_text())[1]
    assert haulway.__version__ == said
    assert run("--version").stdout.split()[1] == said
    assert said not in (ROOT / "pyproject.toml").read_text()
