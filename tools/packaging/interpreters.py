"""Builds interpreters from Debian's sources that neither this system nor pyenv
has. Wheels are made for them and tested with them; they are not distributed."""

import os
import shutil
import subprocess

import libraries

# By tag: Debian's source package, its version, the checksum of its description,
# and options for CPython's configure.
_PYTHON_3_13 = ("python3.13", "3.13.15-1",
                "4078ff651ea7096e6933f794b854054cda195d600e02ac83306cee524da31b87")
_PYTHON_3_14 = ("python3.14", "3.14.7-1",
                "cc0e605221af514ef83d0445ef163c8ef05fcc53b54cf7b71ccedbbd28dbea90")
INTERPRETERS = {
    "cp311": ("python3.11", "3.11.2-6+deb12u8",
              "197fa19ab45f41c820f40f6d9ead671c2ea29ddc53ba9424b36f1bf58458a10e", ()),
    "cp313t": (*_PYTHON_3_13, ("--disable-gil",)),
    "cp314": (*_PYTHON_3_14, ()),
    "cp314t": (*_PYTHON_3_14, ("--disable-gil",)),
}
# Run in the source folder. Builds only what tests of packages use.
BUILD = """\
../source/configure --quiet --prefix={prefix} --without-doc-strings \
  --disable-test-modules {options} >/dev/null
make -j{jobs} >/dev/null 2>&1
make install DESTDIR={destination} >/dev/null 2>&1
"""


def mirror():
    """Returns the mirror of this system's packages."""
    said = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)",
         "Created-By: Packages", "Origin: Debian"],
        check=True, text=True, capture_output=True).stdout
    return next(line for line in said.splitlines() if line.endswith("/debian/"))


def source_of(tag, folder):
    """Unpacks the source of an interpreter in `folder`."""
    name, version, sha256, _ = INTERPRETERS[tag]
    path = folder / "sources" / f"{name}-{version}"
    if not path.exists():
        sources = libraries.Sources(folder / "sources")
        # Debian's patches remove pip.
        libraries.unpack(sources.fetch(name, version, sha256), path, "--skip-patches")
    return path


def script_of(tag, prefix, destination="/"):
    """Returns the script that builds an interpreter in a folder beside its
    source."""
    return BUILD.format(prefix=prefix, destination=destination,
                        jobs=os.cpu_count(), options=" ".join(INTERPRETERS[tag][3]))


def program_of(tag, folder):
    name = INTERPRETERS[tag][0] + ("t" if tag.endswith("t") else "")
    return folder / tag / "bin" / name


def built(folder):
    """Returns the programs of the interpreters built for this system."""
    programs = [program_of(tag, folder) for tag in INTERPRETERS]
    return [program for program in programs if program.exists()]


def build(tag, folder):
    """Builds an interpreter for this system, once, and returns its program."""
    program = program_of(tag, folder)
    prefix = folder / tag
    if not program.exists():
        print(f"building the Python of {tag}", flush=True)
        source = source_of(tag, folder)
        work = folder / f"{tag}-work"
        for path in (work, prefix):
            shutil.rmtree(path, ignore_errors=True)
        (work / "built").mkdir(parents=True)
        (work / "source").symlink_to(source)
        subprocess.run(["sh", "-euc", script_of(tag, prefix, work / "made")],
                       check=True, cwd=work / "built")
        # Whole or not at all, if the installation is interrupted.
        (work / "made" / prefix.relative_to("/")).rename(prefix)
        shutil.rmtree(work)
    return program
