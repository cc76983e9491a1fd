"""The libraries linked into a wheel: names, sources, and how to build them.
Their headers are those of the system's packages.

Each comes from a source package of Debian 12 whose description (.dsc) has the
checksum given here; the description has those of the archives. Debian's patches
are applied.
"""

import dataclasses
import hashlib
import os
import pathlib
import platform
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Callable

CMAKE = ("cmake", "-S", ".", "-B", "build-static", "-G", "Ninja",
         "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF",
         "-DCMAKE_INSTALL_LIBDIR=lib", "-DCMAKE_POSITION_INDEPENDENT_CODE=ON",
         "-DBUILD_TESTING=OFF")


COMPILERS = {"C_COMPILER": "cc", "CXX_COMPILER": "c++", "AR": "ar",
             "RANLIB": "ranlib"}


class Builder:
    """Runs the commands that build one library into a prefix."""

    def __init__(self, source, prefix, tools, environment, log):
        self.source = source
        self.prefix = prefix
        self.tools = tools
        # Keeps this machine's paths out of the binaries.
        self.flags = " ".join((*tools.flags, f"-ffile-prefix-map={source}=."))
        self.environment = {**environment, "CFLAGS": self.flags,
                            "CXXFLAGS": self.flags}
        self.log = log

    def run(self, *command, folder=".", **variables):
        subprocess.run(list(command), check=True, cwd=self.source / folder,
                       env={**self.environment, **variables},
                       stdout=self.log, stderr=subprocess.STDOUT)

    def make(self, *words, folder="."):
        self.run("make", f"-j{os.cpu_count()}", *words, folder=folder)

    def cmake(self, *options, by_system=False):
        """Builds with the tools' compiler, or what is C++ with the system's, which
        compiles Haulway."""
        machine = self.tools.machine
        if not by_system:
            options = (*options, f"-DCMAKE_TOOLCHAIN_FILE={self.tools.cmake_file}")
        elif machine.is_this:
            options = (*options, *(f"-DCMAKE_{variable}={machine.tool(name)}"
                                   for variable, name in COMPILERS.items()))
        else:
            options = (*options, f"-DCMAKE_TOOLCHAIN_FILE={machine.cmake_file}")
        self.run(*CMAKE, f"-DCMAKE_INSTALL_PREFIX={self.prefix}", *options)
        self.run("cmake", "--build", "build-static")
        self.run("cmake", "--install", "build-static")


def build_fmt(b):
    b.cmake("-DFMT_TEST=OFF", "-DFMT_DOC=OFF", by_system=True)


def build_simdjson(b):
    b.cmake("-DSIMDJSON_DEVELOPER_MODE=OFF", by_system=True)


def build_re2(b):
    # Debian's source package has the generators of these files, not their
    # output.
    for command, made in (
        (("perl", "re2/make_perl_groups.pl"), "perl_groups"),
        (("/usr/bin/python3", "re2/make_unicode_casefold.py"), "unicode_casefold"),
        (("/usr/bin/python3", "re2/make_unicode_groups.py"), "unicode_groups"),
    ):
        text = subprocess.run(command, check=True, cwd=b.source,
                              capture_output=True).stdout
        (b.source / "re2" / f"{made}.cc").write_bytes(text)
    b.cmake("-DRE2_BUILD_TESTING=OFF", by_system=True)


def build_libdeflate(b):
    b.make("install", "DISABLE_SHARED=1", f"PREFIX={b.prefix}",
           f"CFLAGS={b.flags}", "CC=cc", "AR=ar")


def build_zlib(b):
    b.run("./configure", "--static", f"--prefix={b.prefix}")
    b.make("libz.a")
    b.make("install")


def build_libsodium(b):
    b.run("autoreconf", "--install")
    b.run("./configure", "--disable-shared", "--enable-static", "--with-pic",
          "--disable-dependency-tracking", f"--host={b.tools.machine.triple}",
          f"--build={platform.machine()}-linux-gnu", f"--prefix={b.prefix}")
    b.make("install")


def build_liburing(b):
    b.run("./configure", "--cc=cc", f"--cxx={b.tools.machine.tool('c++')}",
          f"--prefix={b.prefix}")
    b.make("install", "ENABLE_SHARED=0", f"CFLAGS={b.flags}", folder="src")
    b.make("liburing.pc")
    pkgconfig = b.prefix / "lib/pkgconfig"
    pkgconfig.mkdir(parents=True, exist_ok=True)
    shutil.copy(b.source / "liburing.pc", pkgconfig)


def build_xxhash(b):
    b.make("libxxhash.a", "libxxhash.pc", f"PREFIX={b.prefix}",
           f"CFLAGS={b.flags} -O3", "CC=cc", "AR=ar")
    for name, folder in (("libxxhash.a", "lib"), ("libxxhash.pc", "lib/pkgconfig"),
                         ("xxhash.h", "include")):
        target = b.prefix / folder
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(b.source / name, target)


def build_zstd(b):
    b.make("install-static", "install-includes", "install-pc", f"PREFIX={b.prefix}",
           f"CFLAGS={b.flags} -O3", "CC=cc", "AR=ar", folder="lib")


def build_openssl(b):
    # The prefix is compiled in, as the location of modules and of the default
    # certificates.
    b.run("perl", "Configure", b.tools.machine.openssl, "no-shared", "no-module",
          "no-engine", "no-tests", "no-legacy", "no-autoload-config", "no-ui-console",
          "no-ssl3", "no-dtls", "no-srp", "no-comp", "no-cms", "no-ts", "no-ct",
          "no-idea", "no-seed", "no-camellia", "no-aria", "no-rc2", "no-rc4",
          "no-bf", "no-cast", "no-md4", "no-mdc2", "no-rmd160", "no-whirlpool",
          "no-sm2", "no-sm3", "no-sm4", "no-gost", "no-blake2", "no-siphash",
          "--prefix=/usr", "--libdir=lib", "--openssldir=/etc/ssl",
          # The flags are compiled in, too. All paths here are relative.
          *b.tools.flags, CFLAGS="", CXXFLAGS="")
    b.make("build_libs")
    b.make("install_dev", "DESTDIR=" + str(b.source / "staged"))
    shutil.copytree(b.source / "staged/usr", b.prefix, dirs_exist_ok=True)
    for path in (b.prefix / "lib/pkgconfig").glob("*ssl*.pc"):
        path.write_text(path.read_text().replace("prefix=/usr\n",
                                                 f"prefix={b.prefix}\n"))


def build_curl(b):
    b.cmake("-DBUILD_CURL_EXE=OFF", "-DHTTP_ONLY=ON", "-DCURL_USE_OPENSSL=ON",
            "-DCURL_CA_BUNDLE=none", "-DCURL_CA_PATH=none", "-DCURL_ZLIB=OFF",
            "-DUSE_LIBIDN2=OFF", "-DCURL_USE_LIBPSL=OFF",
            "-DCURL_USE_LIBSSH2=OFF", "-DCURL_DISABLE_NTLM=ON",
            "-DCURL_DISABLE_ALTSVC=ON", "-DCURL_DISABLE_HSTS=ON",
            "-DCURL_DISABLE_OPENSSL_AUTO_LOAD_CONFIG=ON",
            "-DPICKY_COMPILER=OFF", "-DENABLE_MANUAL=OFF")


@dataclasses.dataclass(frozen=True)
class Library:
    name: str  # The name in lists of components.
    source: str  # Debian's source package.
    version: str  # Debian's version.
    sha256: str  # Checksum of the .dsc.
    licence: str  # An SPDX expression.
    text: str  # The source file with the licence.
    build: Callable[[Builder], None]

    @property
    def upstream(self):
        """The version without Debian's revision and marks."""
        return self.version.rsplit("-", 1)[0].split("+")[0].removesuffix(".dfsg")


# In build order: curl needs OpenSSL.
LIBRARIES = (
    Library("fmt", "fmtlib", "9.1.0+ds1-2",
            "1c8982464f1281f5b7d42ca24e058d80d71db7c381b278cc22cbdb40c534f0c5",
            "MIT", "LICENSE.rst", build_fmt),
    Library("simdjson", "simdjson", "3.0.1-1",
            "83aae46d3ab6729f8dffe0755e3e780f5052120bc9dadf012898b6c2fb9b574b",
            "Apache-2.0", "LICENSE", build_simdjson),
    Library("re2", "re2", "20220601+dfsg-1",
            "e0d2eab89a0312e9a0ba4e9a6fb18b081764d6776a28496d389aa3831d970940",
            "BSD-3-Clause", "LICENSE", build_re2),
    Library("libdeflate", "libdeflate", "1.14-1",
            "1f82791c5ac5623ed110e09cc991471deebfe4c419414392d1242e122c6f4c19",
            "MIT", "COPYING", build_libdeflate),
    Library("zlib", "zlib", "1:1.2.13.dfsg-1",
            "3fa1e6b2fc525062aa88207dda52fed8e045373c809d362fe8a2bfbf7cf515a8",
            "Zlib", "LICENSE", build_zlib),
    Library("libsodium", "libsodium", "1.0.18-1+deb12u1",
            "2c23c57b5a9385dab5a1916014c9b5f2cdd7dadeb8a35b28c1bfb603ce7095c4",
            "ISC", "LICENSE", build_libsodium),
    Library("liburing", "liburing", "2.3-3",
            "1eefd4e81c0c3c767ccc95adcb6a37d184418ea127dd9e8b68624ae911f2f66d",
            "MIT", "LICENSE", build_liburing),
    Library("xxhash", "xxhash", "0.8.1-1",
            "4a961627c06efc8fa3bc4b06ee9dba6cfaf092f2550b88d63e9218a2728721b4",
            "BSD-2-Clause", "LICENSE", build_xxhash),
    Library("zstd", "libzstd", "1.5.4+dfsg2-5",
            "8f602f92b575aa8b5e979196fb6ee82d78f233521dc9636526d3ecba1f63c1b1",
            "BSD-3-Clause", "LICENSE", build_zstd),
    Library("openssl", "openssl", "3.0.22-1~deb12u1",
            "9eb196075ff65fed9512c743d5ccf918b77c3c637f6d518e4be550cf9065c655",
            "Apache-2.0", "LICENSE.txt", build_openssl),
    Library("curl", "curl", "7.88.1-10+deb12u15",
            "2744f12e3aef161c0361743fa1b318296b122e566e47f381e4a63320fbcc23f4",
            "curl", "COPYING", build_curl),
)


def digest_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def archives_of(description):
    """Returns the archives of a source package and their checksums from its
    .dsc."""
    (rows,) = re.findall(r"^Checksums-Sha256:\n((?: .*\n)+)", description,
                         re.MULTILINE)
    fields = [row.split() for row in rows.splitlines()]
    return {name: digest for digest, _, name in fields}


class Sources:
    """Debian's source packages, fetched from the archives that the system uses
    and kept in `folder`."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.archives = None

    def fetch(self, source, version, sha256):
        """Fetches a source package. Returns its description (.dsc), which must
        have this checksum, with its archives beside it."""
        dsc = f"{source}_{version.split(':')[-1]}.dsc"
        self._fetch_file(source, dsc, sha256)
        described = (self.folder / dsc).read_text()
        for name, digest in archives_of(described).items():
            self._fetch_file(source, name, digest)
        return self.folder / dsc

    def _fetch_file(self, source, name, sha256):
        """Fetches one file from the first archive that has it with this
        checksum. Since the checksum identifies the file, a version can be used
        that an index no longer lists, or does not list yet."""
        path = self.folder / name
        if path.exists() and digest_of(path) == sha256:
            return
        for place in self._pools(source):
            try:
                with urllib.request.urlopen(f"{place}/{name}", timeout=60) as answer:
                    path.write_bytes(answer.read())
            except OSError:
                continue
            if digest_of(path) == sha256:
                return
            path.unlink()
        raise SystemExit(f"no archive of Debian has {name} with the checksum {sha256}")

    def _pools(self, source):
        """Returns the folders of a source package in Debian's archives."""
        initial = source[:4] if source.startswith("lib") else source[:1]
        return [f"{uri}/pool/{part}/{initial}/{source}"
                for uri in sorted({line.split()[0].rstrip("/")
                                   for line in self._lines()})
                for part in ("main", "updates/main")]

    def current(self, library):
        """Returns the newest version in Debian today."""
        newest = library.version
        for options in self._archives():
            said = self.apt("apt-cache", options, "showsrc", "--only-source",
                             library.source).stdout
            for line in said.splitlines():
                version = line.removeprefix("Version: ")
                if version != line and subprocess.run(
                        ["dpkg", "--compare-versions", version, "gt", newest],
                        check=False).returncode == 0:
                    newest = version
        return newest

    def apt(self, program, options, *words):
        return subprocess.run([program, "-q", *options, *words], check=False,
                              cwd=self.folder, text=True, capture_output=True)

    def _lines(self):
        """Returns the Debian archives that the system takes packages from."""
        targets = subprocess.run(
            ["apt-get", "indextargets", "--format",
             "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages",
             "Origin: Debian"],
            check=True, text=True, capture_output=True).stdout
        return sorted(set(targets.splitlines()))

    def _archives(self):
        """Returns apt's options for source packages of each of these
        archives."""
        if self.archives is None:
            self.archives = [self.configure(number, line)
                             for number, line in enumerate(self._lines())]
        return self.archives

    def configure(self, name, line):
        """Returns apt's options for source packages of one archive."""
        state = self.folder / f"apt-{name}"
        (state / "lists/partial").mkdir(parents=True, exist_ok=True)
        (state / "sources.list").write_text(f"deb-src {line}\n")
        options = ["-o", f"Dir::Etc::sourcelist={state}/sources.list",
                   "-o", "Dir::Etc::sourceparts=-",
                   "-o", f"Dir::State::lists={state}/lists",
                   "-o", "APT::Sandbox::User=root"]
        subprocess.run(["apt-get", "-qq", *options, "update"], check=True)
        return options


def unpack(dsc, folder, *options):
    """Unpacks a source package, with Debian's patches unless the options of
    dpkg-source exclude them, and returns its folder."""
    part = folder.with_name(f"{folder.name}.part")
    for path in (part, folder):
        shutil.rmtree(path, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["dpkg-source", "--no-check", *options, "-x", dsc, part],
                   check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)
    part.rename(folder)  # Whole or not at all, if unpacking is interrupted.
    return folder


def time_of(source):
    """Returns the time of a source package, in seconds. Libraries contain it:
    with the time of a commit, a wheel would depend on the commit at which its
    libraries were built."""
    return int(subprocess.run(
        ["dpkg-parsechangelog", "-l", source / "debian/changelog", "-S",
         "Timestamp"], check=True, text=True, capture_output=True).stdout)


def build_all(folder, sources, tools):
    """Builds the libraries that are not built yet, from source packages that are
    kept in `sources`; returns the prefix and the licence texts by library."""
    folder = pathlib.Path(folder).resolve()
    prefix = folder / "prefix"
    sources = Sources(sources)
    tools.write_cmake_file(prefix)
    licences = {}
    for library in LIBRARIES:
        stamp = folder / f"{library.name}.stamp"
        text = folder / "licences" / f"{library.name}.txt"
        licences[library.name] = text
        if stamp.exists() and stamp.read_text() == library.sha256:
            continue
        print(f"building {library.name} {library.version}", flush=True)
        source = unpack(sources.fetch(library.source, library.version, library.sha256),
                        folder / "source" / library.name)
        environment = tools.environment(time_of(source), prefix)
        with open(folder / f"{library.name}.log", "wb") as log:
            try:
                library.build(Builder(source, prefix, tools, environment, log))
            except subprocess.CalledProcessError as error:
                raise SystemExit(f"{library.name} cannot be built, see "
                                 f"{log.name}") from error
        text.parent.mkdir(exist_ok=True)
        shutil.copyfile(source / library.text, text)
        stamp.write_text(library.sha256)
    return prefix, licences
