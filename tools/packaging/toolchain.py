"""A C and C++ compiler for an older C library than this system's.

The compiler is that of the Python package ziglang, a clang with the headers and
the symbol lists of every glibc. Its output needs no symbol newer than GLIBC,
and its C++ library is linked statically.
"""

import dataclasses
import os
import pathlib
import platform
import shlex
import shutil
import subprocess
import sys

# The platform tag of a wheel promises these: PEP 600.
GLIBC = "2.28"

ROOT = pathlib.Path(__file__).resolve().parents[2]


@dataclasses.dataclass(frozen=True)
class Machine:
    """What a wheel is made for."""

    name: str  # As the kernel and the platform tag have it.
    debian: str  # As Debian has it.
    loader: str  # The file name of the C library's loader.
    openssl: str  # As OpenSSL's Configure has it.
    flags: tuple[str, ...]  # The compiler's, for this machine alone.

    @property
    def triple(self):
        return f"{self.name}-linux-gnu"

    @property
    def platform(self):
        """The platform tag."""
        return f"manylinux_{GLIBC.replace('.', '_')}_{self.name}"

    @property
    def is_this(self):
        return self.name == platform.machine()

    @property
    def suffix(self):
        """What tells folders of another machine from those of this one."""
        return "" if self.is_this else f"-{self.name}"

    @property
    def root(self):
        """Where the system's libraries and headers for the machine lie: for another
        one scripts/setup unpacks them."""
        return pathlib.Path("/") if self.is_this else ROOT / f"build/{self.name}-root"

    @property
    def cmake_file(self):
        """What tells CMake of another machine."""
        return ROOT / f"cmake/{self.name}.cmake"

    def tool(self, name):
        """The system's compiler, "cc" or "c++", or one of its tools."""
        if self.is_this:
            return f"/usr/bin/{name}"
        return f"/usr/bin/{self.triple}-{ {'cc': 'gcc', 'c++': 'g++'}.get(name, name)}"


MACHINES = {machine.name: machine for machine in (
    Machine("x86_64", "amd64", "ld-linux-x86-64.so.2", "linux-x86_64",
            ("-fcf-protection=full",)),
    Machine("aarch64", "arm64", "ld-linux-aarch64.so.1", "linux-aarch64",
            ("-mbranch-protection=standard",)),
)}

THIS = MACHINES[platform.machine()]

# Flags for the libraries in a wheel: the linker drops sections without
# references, and none of their symbols is visible.
C_FLAGS = ("-O2", "-fPIC", "-fvisibility=hidden", "-ffunction-sections",
           "-fdata-sections", "-fstack-protector-strong", "-g0")


class Toolchain:
    """Wrappers named cc, c++, ar and ranlib in `folder`, and their files."""

    def __init__(self, folder, machine):
        self.machine = machine
        self.flags = (*C_FLAGS, *machine.flags)
        self.folder = pathlib.Path(folder).resolve()
        self.bin = self.folder / "bin"
        self.bin.mkdir(parents=True, exist_ok=True)
        import ziglang

        self.zig = pathlib.Path(ziglang.__file__).parent / "zig"
        version = subprocess.run([self.zig, "version"], check=True, text=True,
                                 capture_output=True).stdout.strip()
        target = f"{machine.triple}.{GLIBC}"
        for name, words in {"cc": ["cc", "-target", target],
                            "c++": ["c++", "-target", target],
                            "ar": ["ar"], "ranlib": ["ranlib"]}.items():
            self._write(name, f"#!/bin/sh\n# zig {version}\n"
                              f"exec {shlex.join([str(self.zig), *words])} \"$@\"\n")
        self.cmake_file = self.folder / "toolchain.cmake"

    def _write(self, name, text):
        path = self.bin / name
        if path.exists() and path.read_text() == text:
            return  # The compiler cache compares its modification time.
        path.write_text(text)
        path.chmod(0o755)

    def environment(self, epoch, prefix):
        """Returns the environment for all compilations."""
        names = ("HOME", "TMPDIR", "CCACHE_DIR")
        kept = {name: os.environ[name] for name in names if name in os.environ}
        return {
            **kept,
            "PATH": os.pathsep.join([str(self.bin), os.path.dirname(sys.executable),
                                     os.defpath, "/usr/bin", "/bin"]),
            "LC_ALL": "C.UTF-8",
            "TZ": "UTC",
            "SOURCE_DATE_EPOCH": str(epoch),
            "ZIG_GLOBAL_CACHE_DIR": str(self.folder / "cache"),
            "ZIG_LOCAL_CACHE_DIR": str(self.folder / "cache"),
            "CCACHE_COMPILERTYPE": "clang",
            "CCACHE_COMPILERCHECK": "content",
            "CCACHE_NOHASHDIR": "1",
            "CC": "cc", "CXX": "c++", "AR": "ar", "RANLIB": "ranlib",
            "PKG_CONFIG_LIBDIR": str(prefix / "lib/pkgconfig"),
        }

    def write_cmake_file(self, prefix):
        """Returns CMake's description of the target: libraries come from
        `prefix` only, never from this system."""
        other = "" if self.machine.is_this else f"""\
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR {self.machine.name})
"""
        self.cmake_file.write_text(f"""\
{other}set(CMAKE_C_COMPILER "{self.bin}/cc")
set(CMAKE_CXX_COMPILER "{self.bin}/c++")
set(CMAKE_AR "{self.bin}/ar" CACHE FILEPATH "")
set(CMAKE_RANLIB "{self.bin}/ranlib" CACHE FILEPATH "")
set(CMAKE_PREFIX_PATH "{prefix}")
set(CMAKE_MAKE_PROGRAM "{shutil.which('ninja')}" CACHE FILEPATH "")
set(PKG_CONFIG_EXECUTABLE "{shutil.which('pkg-config')}" CACHE FILEPATH "")
set(CMAKE_FIND_USE_CMAKE_SYSTEM_PATH OFF)
set(CMAKE_FIND_USE_SYSTEM_ENVIRONMENT_PATH OFF)
set(OPENSSL_USE_STATIC_LIBS ON)
""")
        return self.cmake_file
