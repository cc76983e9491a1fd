"""Interpreters that neither this system nor pyenv has, built from Debian's sources:
those that wheels are made for and tested with, and that are part of nothing that
is handed out. Debian's signatures are checked by apt; which PATCH it has does not
matter.
"""

import os
import re
import shutil
import subprocess

import libraries

# Tag: the release of Debian whose source is taken, the source, and options of
# CPython's configure.
INTERPRETERS = {
    "cp311": ("bookworm", "python3.11", ()),
    "cp313t": ("trixie", "python3.13", ("--disable-gil",)),
    "cp314": ("sid", "python3.14", ()),
    "cp314t": ("sid", "python3.14", ("--disable-gil",)),
}
# Run in the folder of the source. What tests of packages use is all that is built.
BUILD = """\
../source/configure --quiet --prefix={prefix} --without-doc-strings \
  --disable-test-modules {options} >/dev/null
make -j{jobs} >/dev/null 2>&1
make install DESTDIR={destination} >/dev/null 2>&1
"""


def mirror():
    """Where this system's packages come from."""
    said = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)",
         "Created-By: Packages", "Origin: Debian"],
        check=True, text=True, capture_output=True).stdout
    return next(line for line in said.splitlines() if line.endswith("/debian/"))


def source_of(tag, folder):
    """The unpacked source of an interpreter, in `folder`."""
    release, name, _ = INTERPRETERS[tag]
    path = folder / "sources" / f"{name}-{release}"
    if not path.exists():
        sources = libraries.Sources(folder / "sources")
        options = sources.configure(release, f"{mirror()} {release} main")
        said = sources.apt("apt-cache", options, "showsrc", "--only-source", name)
        # A mirror may lack what its index names.
        dsc = next(
            (found for version in re.findall(r"^Version: (?:\d+:)?(.*)", said.stdout,
                                            re.MULTILINE)[::-1]
             if sources.apt("apt-get", options, "source", "--download-only",
                            f"{name}={version}").returncode == 0
             and (found := sources.folder / f"{name}_{version}.dsc").exists()), None)
        if dsc is None:
            raise SystemExit(f"the archive of {release} has no {name}")
        # Debian's patches leave out pip.
        libraries.unpack(dsc, path, "--skip-patches")
    return path


def script_of(tag, prefix, destination="/"):
    """What builds an interpreter in a folder beside its source."""
    return BUILD.format(prefix=prefix, destination=destination,
                        jobs=os.cpu_count(), options=" ".join(INTERPRETERS[tag][2]))


def program_of(tag, folder):
    name = INTERPRETERS[tag][1] + ("t" if tag.endswith("t") else "")
    return folder / tag / "bin" / name


def built(folder):
    """The programs of the interpreters that were built for this system."""
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
        subprocess.run(["sh", "-euc", script_of(tag, prefix)], check=True,
                       cwd=work / "built")
        shutil.rmtree(work)
    return program
