"""Building and installing from source, and the messages for missing
packages."""

import os
import pathlib
import re
import shutil
import subprocess

import haulway

ROOT = pathlib.Path(__file__).resolve().parents[3]

# Names of the libraries in `find_package`: their packages in Debian, Fedora,
# Arch.
LIBRARIES = {
    "fmt": ("libfmt-dev", "fmt-devel", "fmt"),
    "simdjson": ("libsimdjson-dev", "simdjson-devel", "simdjson"),
    "OpenSSL": ("libssl-dev", "openssl-devel", "openssl"),
    "CLI11": ("libcli11-dev", "cli11-devel", "cli11"),
    "GTest": ("libgtest-dev", "gtest-devel", "gtest"),
    "ZLIB": ("zlib1g-dev", "zlib-devel", "zlib"),
    "CURL": ("libcurl4-openssl-dev", "libcurl-devel", "curl"),
    "Python": ("python3-dev", "python3-devel", "python"),
}
BY_PKG_CONFIG = [("pkg-config", "pkgconf-pkg-config", "pkgconf"),
                 ("libdeflate-dev", "libdeflate-devel", "libdeflate"),
                 ("libsodium-dev", "libsodium-devel", "libsodium"),
                 ("liburing-dev", "liburing-devel", "liburing"),
                 ("libre2-dev", "re2-devel", "re2")]


def configure(folder, *options, **environment):
    return subprocess.run(
        ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", *options],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, **environment})


def commands_of(message):
    """Returns the packages that each command in the message installs."""
    found = re.findall(r"(?:apt-get install|dnf install|pacman -S) (.*)", message)
    return [line.split() for line in found]


def test_all_missing_packages_are_named_at_once(tmp_path):
    done = configure(
        tmp_path, "-DPKG_CONFIG_EXECUTABLE=/nonexistent", "-DHAULWAY_BUILD_PYTHON=ON",
        *(f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in LIBRARIES))
    assert done.returncode != 0
    assert done.stderr.count("CMake Error") == 1
    expected = zip(*LIBRARIES.values(), *BY_PKG_CONFIG)
    for packages, names in zip(commands_of(done.stderr), expected, strict=True):
        assert set(names) <= set(packages), done.stderr
        assert len(packages) == len(set(packages))
    assert "scripts/setup" in done.stderr


def test_only_what_is_missing_is_named(tmp_path):
    done = configure(tmp_path, "-DCMAKE_DISABLE_FIND_PACKAGE_simdjson=ON")
    assert commands_of(done.stderr) == [["libsimdjson-dev"], ["simdjson-devel"],
                                        ["simdjson"]]


def test_without_a_compiler_all_is_named(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("cmake", "ninja"):
        (programs / name).symlink_to(shutil.which(name))
    done = configure(tmp_path / "build", PATH=str(programs))
    assert done.returncode != 0
    debian, fedora, arch = commands_of(done.stderr)
    assert "build-essential" in debian and "libfmt-dev" in debian
    assert "gcc-c++" in fedora and "base-devel" in arch


def test_what_quickstart_builds_can_be_installed(tmp_path):
    built = re.search(r"ninja -C build/release --quiet (.*)",
                      (ROOT / "scripts/quickstart").read_text())[1].split()
    subprocess.run(["cmake", "--preset", "release", "-B", tmp_path], cwd=ROOT,
                   check=True, capture_output=True, timeout=300)
    made = subprocess.run(["ninja", "-C", tmp_path, "-t", "commands", *built],
                          check=True, capture_output=True, text=True).stdout
    installed = set()
    for script in tmp_path.rglob("cmake_install.cmake"):
        for path in re.findall(rf'"{tmp_path}/([^"]+)"', script.read_text()):
            if not path.endswith((".cmake", ".pc", "_MANIFEST}")):
                installed.add(path)
    assert len(installed) >= 3
    for path in installed:
        # Symlinks to a shared library are made together with it.
        assert re.sub(r"\.so\b.*", ".so", path) in made, path


def test_the_version_stands_in_one_place(run):
    said = re.search(r"project\(haulway VERSION ([\d.]+)",
                     (ROOT / "CMakeLists.txt").read_text())[1]
    assert haulway.__version__ == said
    assert run("--version").stdout.split()[1] == said
    assert said not in (ROOT / "pyproject.toml").read_text()
