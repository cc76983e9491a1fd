"""Makes the Debian packages for the release of Debian on which this runs.

CMake installs everything into one folder, and each file goes to a package by
its path. dpkg's own tools find the libraries that each package needs and write
the archives.
"""

import email.utils
import fnmatch
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import wheel  # noqa: E402

import stability  # noqa: E402

MACHINE = "x86_64-linux-gnu"
LIB = f"usr/lib/{MACHINE}"

# The version in the soname, and the package of the shared library.
SONAME = ".".join(stability.version_of_source().split(".")[:2])
LIBRARY = f"libhaulway{SONAME}"

# The files of each package, by paths in the installed tree, and the fields of
# its control file. A `{}` is filled in below.
PACKAGES = {
    LIBRARY: {
        "files": [f"{LIB}/libhaulway.so.*"],
        "fields": {"Section": "libs", "Recommends": "ca-certificates"},
        "depends": ["libcurl4"],  # Loaded on demand.
        "about": "moves tensors out of files: shared library",
        "shlibs": [f"libhaulway {SONAME} {LIBRARY} (>= {{upstream}})"],
    },
    "libhaulway-c1": {
        "files": [f"{LIB}/libhaulway_c.so.*"],
        "fields": {"Section": "libs", "Recommends": "ca-certificates"},
        "depends": ["libcurl4"],
        "about": "moves tensors out of files: shared library for C",
        "shlibs": ["libhaulway_c 1 libhaulway-c1 (>= {upstream})"],
    },
    "libhaulway-dev": {
        "files": ["usr/include/*", f"{LIB}/libhaulway*.so", f"{LIB}/*.a",
                  f"{LIB}/pkgconfig/*", f"{LIB}/cmake/*"],
        "fields": {"Section": "libdevel",
                   "Suggests": "libdeflate-dev, libfmt-dev, libsimdjson-dev, "
                               "libre2-dev, libsodium-dev, libssl-dev, liburing-dev, "
                               "libxxhash-dev, libzstd-dev, zlib1g-dev"},
        "depends": [f"{LIBRARY} (= {{version}})", "libhaulway-c1 (= {version})"],
        "about": "moves tensors out of files: headers and archive",
    },
    "haulway": {
        "files": ["usr/bin/*", "usr/share/man/*", "usr/share/bash-completion/*",
                  "usr/share/zsh/*", "usr/share/fish/*"],
        "fields": {"Section": "utils", "Suggests": "python3-haulway"},
        "depends": [f"{LIBRARY} (= {{version}})"],
        "about": "moves tensors out of files: command",
    },
    "python3-haulway": {
        "files": ["usr/lib/python3/*"],
        "fields": {"Section": "python",
                   "Suggests": "python3-numpy, python3-torch"},
        "depends": [f"{LIBRARY} (= {{version}})", "python3 (>= {python})",
                    "python3 (<< {next_python})"],
        "about": "moves tensors out of files: Python package",
        "postinst": "py3compile -p python3-haulway",
        "prerm": "py3clean -p python3-haulway",
    },
}

ABOUT = """\
 Haulway reads, checks, converts and writes the checkpoints of PyTorch,
 safetensors, GGUF, tensorizer and NumPy, from files, HTTP, object stores and
 Redis. Nothing that is read is ever run.
"""

COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: haulway
Source: the repository of Haulway

Files: *
Copyright: the authors of Haulway
License: Apache-2.0

License: Apache-2.0
 On Debian systems, the complete text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
"""


def maintainer():
    """Returns the maintainer, found as by all of Debian's tools."""
    address = os.environ.get("DEBEMAIL")
    if not address:
        raise SystemExit("DEBEMAIL is not set: expected the address of whoever "
                         "maintains the packages")
    return f"{os.environ.get('DEBFULLNAME', 'Haulway maintainers')} <{address}>"


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, text=True,
                          **options)


# At the same depth as other build folders, so that all share the compiler
# cache.
SHARED, ARCHIVE = ROOT / "build/deb-shared", ROOT / "build/deb-archive"
COMMAND = SHARED / "cli/haulway"


def build(python, log):
    """Builds the shared libraries, the command and the extension, then the
    static archive."""
    common = ["cmake", "-S", ROOT, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
              "-DCMAKE_INSTALL_PREFIX=/usr", f"-DCMAKE_INSTALL_LIBDIR=lib/{MACHINE}",
              "-DBUILD_TESTING=OFF", "-DHAULWAY_BUILD_EXAMPLES=OFF",
              "-DCMAKE_CXX_COMPILER=/usr/bin/c++", "-DCMAKE_C_COMPILER=/usr/bin/cc",
              "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"]
    run(*common, "-B", SHARED, "-DBUILD_SHARED_LIBS=ON", "-DHAULWAY_BUILD_PYTHON=ON",
        # The loader finds the libraries in its default path. The run path that
        # the linker writes is the same in every build folder.
        "-DCMAKE_SKIP_INSTALL_RPATH=ON", "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",
        f"-DPython_EXECUTABLE={python}", stdout=log, stderr=log)
    run("cmake", "--build", SHARED, stdout=log, stderr=log)
    run(*common, "-B", ARCHIVE, "-DBUILD_SHARED_LIBS=OFF", stdout=log, stderr=log)
    run("cmake", "--build", ARCHIVE, "--target", "haulway", stdout=log, stderr=log)


def install(tree, python, log):
    """Installs everything into a tree as on a system."""
    shutil.rmtree(tree, ignore_errors=True)
    environment = {**os.environ, "DESTDIR": str(tree)}
    run("cmake", "--install", SHARED, "--strip", env=environment, stdout=log)
    run("cmake", "--install", SHARED, "--strip", "--component", "python",
        env=environment, stdout=log)
    # The extension is installed below the prefix; the package around it is not.
    target = tree / "usr/lib/python3/dist-packages"
    target.mkdir(parents=True)
    shutil.copytree(ROOT / "python/haulway", target / "haulway",
                    ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for extension in (tree / "usr/haulway").glob("*.so"):
        shutil.move(extension, target / "haulway")
    shutil.rmtree(tree / "usr/haulway")
    run(python, "-c", "import sys\nfrom scikit_build_core import build\n"
        "build.prepare_metadata_for_build_wheel(sys.argv[1])", target, cwd=ROOT,
        stdout=log, stderr=log)
    (points,) = target.glob("*.dist-info/entry_points.txt")
    # The package haulway already has the command.
    points.write_text(re.sub(r"\[console_scripts\]\n[^\[]*", "", points.read_text()))
    shutil.copy(ARCHIVE / "libhaulway.a", tree / LIB)
    run("strip", "--strip-debug", "--enable-deterministic-archives",
        tree / LIB / "libhaulway.a")

    for page in sorted((tree / "usr/share/man/man1").iterdir()):
        compress(page)
    # By Debian's policy, packages of its own use another folder.
    (tree / "usr/share/zsh/site-functions").rename(
        tree / "usr/share/zsh/vendor-completions")


def compress(path):
    """Replaces a file by its gzip, which is the same at any time."""
    path.with_name(path.name + ".gz").write_bytes(
        gzip.compress(path.read_bytes(), 9, mtime=0))
    path.unlink()


def dependencies_of(binaries, folder, private):
    """Returns the dependencies that dpkg finds for these binaries, without our
    own libraries."""
    (folder / "debian").mkdir(parents=True, exist_ok=True)
    (folder / "debian/control").write_text(
        "Source: haulway\n\nPackage: haulway\nArchitecture: amd64\n")
    (folder / "debian/shlibs.local").write_text(
        f"libhaulway {SONAME} {LIBRARY}\nlibhaulway_c 1 libhaulway-c1\n")
    if not binaries:
        return []
    said = run("dpkg-shlibdeps", "-O", f"-l{private}",
               *(f"-e{one}" for one in binaries), cwd=folder,
               capture_output=True).stdout
    found = said.strip().removeprefix("shlibs:Depends=").split(", ")
    return [one for one in found if not one.startswith("libhaulway")]


def is_program(path):
    return path.is_file() and not path.is_symlink() and (
        path.read_bytes()[:4] == b"\x7fELF")


def make_package(name, tree, stage, values, epoch):
    """Moves the files of one package out of the tree, and writes its
    description."""
    facts = PACKAGES[name]
    for path in sorted(tree.rglob("*")):
        inner = path.relative_to(tree).as_posix()
        if path.is_dir() and not path.is_symlink():
            continue
        if any(fnmatch.fnmatchcase(inner, one) for one in facts["files"]):
            (stage / inner).parent.mkdir(parents=True, exist_ok=True)
            shutil.move(path, stage / inner)
    documents = stage / "usr/share/doc" / name
    documents.mkdir(parents=True)
    (documents / "copyright").write_text(COPYRIGHT)
    changes = documents / "changelog.Debian"
    changes.write_text(
        f"haulway ({values['version']}) unstable; urgency=medium\n\n"
        f"  * Release {values['upstream']}; /usr/share/doc/{name} of the source\n"
        f"    tells what is new.\n\n -- {maintainer()}  "
        f"{email.utils.formatdate(epoch)}\n")
    compress(changes)
    found = dependencies_of([one for one in stage.rglob("*") if is_program(one)],
                            stage.parent / f"{name}.work", tree.parent / "libraries")
    depends = [one.format(**values) for one in facts["depends"]] + found
    control = stage / "DEBIAN"
    control.mkdir()
    size = sum(one.lstat().st_size for one in stage.rglob("*") if one.is_file())
    fields = {
        "Package": name, "Source": "haulway", "Version": values["version"],
        "Architecture": "amd64", "Maintainer": maintainer(),
        "Installed-Size": str(-(-size // 1024)), "Depends": ", ".join(depends),
        "Priority": "optional",
        **({"Multi-Arch": "same"} if name.startswith("libhaulway") else {}),
        **facts["fields"], "Description": facts["about"]}
    (control / "control").write_text(
        "".join(f"{field}: {value}\n" for field, value in fields.items()) + ABOUT)
    sums = run("find", "usr", "-type", "f", "-print0", cwd=stage,
               capture_output=True).stdout.split("\0")
    (control / "md5sums").write_text(run(
        "md5sum", *sorted(filter(None, sums)), cwd=stage, capture_output=True).stdout)
    if "shlibs" in facts:
        (control / "shlibs").write_text(
            "".join(line.format(**values) + "\n" for line in facts["shlibs"]))
        (control / "triggers").write_text("activate-noawait ldconfig\n")
    for script in ("postinst", "prerm"):
        if script in facts:
            when = '[ "$1" = configure ] && ' if script == "postinst" else ""
            (control / script).write_text(
                f"#!/bin/sh\nset -e\n{when}{facts[script]}\n"
                if not when else
                f"#!/bin/sh\nset -e\nif [ \"$1\" = configure ]; then\n"
                f"  {facts[script]}\nfi\n")
            (control / script).chmod(0o755)


def settle(stage, epoch):
    """Sets modes and times as in packages, independent of the builder and the
    checkout."""
    for path in [*stage.rglob("*"), stage]:
        if not path.is_symlink():
            runs = path.is_dir() or path.parent.name == "bin" or (
                path.name in ("postinst", "prerm"))
            path.chmod(0o755 if runs else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def make_debs(out, folder, epoch):
    """Writes the packages into `out` and returns their paths."""
    python = wheel.environment_of(pathlib.Path("/usr/bin/python3"), folder)
    major, minor = run(python, "-c", "import sys; print(*sys.version_info[:2])",
                       capture_output=True).stdout.split()
    upstream = stability.version_of_source()
    values = {"upstream": upstream, "version": f"{upstream}-1",
              "python": f"{major}.{minor}", "next_python": f"{major}.{int(minor) + 1}"}
    out.mkdir(parents=True, exist_ok=True)
    os.environ["SOURCE_DATE_EPOCH"] = str(epoch)
    os.environ.update(CCACHE_BASEDIR=str(ROOT), CCACHE_NOHASHDIR="1")
    with open(folder / "deb.log", "w") as log:
        build(python, log)
        work = folder / "deb"
        shutil.rmtree(work, ignore_errors=True)
        install(work / "tree", python, log)
    shutil.copytree(work / "tree" / LIB, work / "libraries", symlinks=True)
    made = []
    for name in PACKAGES:
        stage = work / name
        stage.mkdir()
        make_package(name, work / "tree", stage, values, epoch)
        settle(stage, epoch)
        path = out / f"{name}_{values['version']}_amd64.deb"
        run("dpkg-deb", "--root-owner-group", "-Zxz", "--threads-max=1", "--build",
            stage, path, stdout=subprocess.DEVNULL)
        made.append(path)
    left = [one for one in (work / "tree").rglob("*") if not one.is_dir()]
    if left:
        raise SystemExit(f"files that belong to no package: {left}")
    return made
