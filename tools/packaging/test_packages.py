"""Implements scripts/test-packages: installs the output of scripts/package in
minimal systems, and uses it there."""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import interpreters
import toolchain
from toolchain import THIS
from wheel import REQUIREMENTS, TAG, find_pythons, tag_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/package"
# sid has the newest Python. Debian 11 has none that Haulway supports: the one
# tested there is built from the source of Debian 12.
RELEASES = ("bullseye", "bookworm", "trixie", "sid")
# Under qemu-user a root takes six minutes: sid, which changes each day, is left out for
# other machines.
RELEASES_OF_ANOTHER = RELEASES[:3]
KERNEL_TABLE = pathlib.Path("/proc/sys/fs/binfmt_misc")


def run(*command, check=True, **options):
    return subprocess.run([str(word) for word in command], check=check, text=True,
                          **options)


def run_programs_of(machine):
    """Tells the kernel to run another machine's programs under qemu-user, inside
    roots as well."""
    program = f"qemu-{machine.name}"
    if not (KERNEL_TABLE / "register").exists():
        run("mount", "-t", "binfmt_misc", "binfmt_misc", KERNEL_TABLE)
    if not (KERNEL_TABLE / program).exists():
        (KERNEL_TABLE / "register").write_bytes(
            pathlib.Path(f"/usr/lib/binfmt.d/{program}.conf").read_bytes().strip())


def place_of_root(release, machine):
    return FOLDER / "roots" / f"{release}{machine.suffix}"


def bare_root(release, machine=THIS):
    """Makes a minimal system with Python once; returns a fresh copy."""
    base = place_of_root(release, machine)
    if not (base / "done").exists():
        print(f"making a bare {base.name}", flush=True)
        shutil.rmtree(base, ignore_errors=True)
        run("debootstrap", f"--arch={machine.debian}", "--variant=minbase",
            "--include=python3,python3-venv", release, base, interpreters.mirror(),
            stdout=subprocess.DEVNULL)
        if release == "bullseye" and machine.is_this:
            add_python(base)
        (base / "done").touch()
    root = copy_of(base)
    shutil.copytree(ROOT / "testdata", root / "root/testdata")
    shutil.copy(ROOT / "tools/packaging/check_installed.py", root / "root")
    return root


def copy_of(base):
    root = base.with_name(f"{base.name}-used")
    shutil.rmtree(root, ignore_errors=True)
    run("cp", "-a", "--reflink=auto", base, root)
    return root


def add_python(base):
    """Builds a Python in a copy of a root, and installs only the result in the
    root."""
    print("  building a Python for it", flush=True)
    root = copy_of(base)
    add_sources(root, f"deb {interpreters.mirror()} {base.name} main\n")
    source = interpreters.source_of("cp311", FOLDER / "interpreters")
    shutil.copytree(source, root / "root/source", symlinks=True)
    inside(root, f"""
apt-get update -qq
apt-get install -y -qq --no-install-recommends gcc libc6-dev make zlib1g-dev \
  libssl-dev libffi-dev >/dev/null 2>&1
mkdir /root/built /root/made
cd /root/built
{interpreters.script_of("cp311", "/usr/local", "/root/made")}
""")
    run("cp", "-a", f"{root}/root/made/usr/local/.", base / "usr/local")


def this_release():
    return run("sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME",
               capture_output=True).stdout.strip()


def root_with_sources(release):
    """Returns a minimal root that uses this system's sources of Debian
    packages."""
    root = bare_root(release)
    lines = run("apt-get", "indextargets", "--format",
                "deb $(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages",
                "Origin: Debian", capture_output=True).stdout
    add_sources(root, lines)
    return root


def add_sources(root, lines):
    (root / "etc/apt/sources.list").write_text(lines)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")


def inside(root, script, shared=(), **options):
    """Runs a shell script in the root, with its own /proc, /dev and /dev/shm,
    and with these folders of this system in the same place."""
    share = ""
    for folder in shared:
        there = root / pathlib.Path(folder).relative_to("/")
        there.mkdir(parents=True, exist_ok=True)
        share += f"mount --bind {folder} {there} && "
    mounts = (f"{share}"
              f"mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev && "
              f"mount -t tmpfs tmpfs {root}/dev/shm && exec chroot {root} "
              "/usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "
              "DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 sh -euc \"$1\"")
    return run("unshare", "--mount", "--pid", "--fork", "--propagation", "private",
               "sh", "-euc", mounts, "sh", script, **options)


def make_certificates(folder):
    """Makes an authority and a server's certificate that strict clients
    accept."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    run("openssl", "req", "-x509", *key, "-days", "2", "-subj", "/CN=authority",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-keyout",
        folder / "ca.key", "-out", folder / "ca.pem", stderr=subprocess.DEVNULL)
    run("openssl", "req", *key, "-subj", "/CN=localhost", "-keyout",
        folder / "server.key", "-out", folder / "server.csr",
        stderr=subprocess.DEVNULL)
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    run("openssl", "x509", "-req", "-in", folder / "server.csr", "-CA",
        folder / "ca.pem", "-CAkey", folder / "ca.key", "-days", "2", "-extfile",
        folder / "names", "-out", folder / "server.crt", stderr=subprocess.DEVNULL)
    (folder / "server.pem").write_text((folder / "server.crt").read_text()
                                       + (folder / "server.key").read_text())


def machine_of(wheel):
    return next(one for one in toolchain.MACHINES.values()
                if wheel.stem.endswith(one.platform))


def check_wheel(wheel):
    """Checks what can be checked of a wheel without installing it."""
    machine = machine_of(wheel)
    said = run("auditwheel", "show", wheel, capture_output=True).stdout
    platform = wheel.name.removesuffix(".whl").rsplit("-", 1)[1]
    assert f'"{platform}"' in " ".join(said.split()), said
    run("twine", "check", "--strict", wheel, stdout=subprocess.DEVNULL)
    size = wheel.stat().st_size
    assert size <= 12 << 20, size
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".so"))
        data = archive.read(name)
        for one in archive.namelist():
            content = archive.read(one)
            for place in (str(ROOT), "/root/", "/home/"):
                assert place.encode() not in content, (one, place)
    extension = FOLDER / wheel.with_suffix(".so").name
    extension.write_bytes(data)
    nm = machine.tool("nm")
    shown = run(nm, "-D", "--defined-only", extension, capture_output=True).stdout
    assert [line.split()[-1] for line in shown.splitlines()] == ["PyInit__haulway"]
    # All other symbols come from a system library, with a version.
    asked = run(nm, "-D", "--undefined-only", extension, capture_output=True).stdout
    for kind, symbol in (line.split() for line in asked.splitlines()):
        assert kind == "w" or "@" in symbol or symbol.startswith(("Py", "_Py")), symbol
    sections = run("readelf", "-W", "-d", "-l", "-S", extension,
                   capture_output=True).stdout
    assert "GNU_RELRO" in sections and "TEXTREL" not in sections
    # If a path had been cut out of the string table, two builds would differ.
    row = re.search(r"\.dynstr +STRTAB +\w+ (\w+) (\w+)", sections)
    begin, length = (int(number, 16) for number in row.groups())
    assert b"\0\0" not in data[begin:begin + length]
    print(f"  {wheel.name}: {size} bytes, one symbol, {platform}", flush=True)
    return extension


def fits(name, tag):
    """Returns whether a Python accepts the wheel: one made for it, or for all
    from an older one on."""
    _, _, python, abi, _ = name.removesuffix(".whl").split("-")
    return abi == tag or (abi == "abi3" and not tag.endswith("t")
                          and int(python.removeprefix("cp3"))
                          <= int(tag.removeprefix("cp3")))


def check_symbols(extensions, release, machine):
    """Checks that a release of Debian has all symbols that the extensions
    need."""
    root = bare_root(release, machine)
    for extension in extensions:
        shutil.copy(extension, root / "root")
        # Python's own symbols are in the program that loads it.
        missing = inside(root, f"ldd -r /root/{extension.name} 2>&1 || true",
                         capture_output=True).stdout
        wrong = [line for line in missing.splitlines() if "not found" in line or
                 ("undefined symbol" in line and not re.search(r" _?Py", line))]
        assert not wrong, (extension, wrong)
    print(f"  {release}{machine.suffix}: no library and no symbol is missing",
          flush=True)


def use_wheel(wheel, certificates, release, python, shared=()):
    """Installs, uses and removes the wheel with one Python in a minimal
    system."""
    root = bare_root(release, machine_of(wheel))
    shutil.copytree(certificates, root / "root/certificates")
    shutil.copy(wheel, root / "root")
    inside(root, f"""
{python} -m venv /root/venv
/root/venv/bin/pip install -q --no-index --disable-pip-version-check /root/{wheel.name}
cd /root
venv/bin/python check_installed.py testdata venv/bin/haulway certificates
venv/bin/pip uninstall -q -y haulway
! find venv -iname '*haulway*' | grep .
""", shared)
    print(f"  {release}: {wheel.name} used with {python} and removed", flush=True)


def test_wheels(wheels, certificates, machine):
    """Uses each wheel with the Pythons of the minimal systems, and, on this
    machine, with those of this system in a minimal one of its release. Returns
    the wheels that no Python accepted."""
    if not machine.is_this:
        run_programs_of(machine)
    extensions = [check_wheel(wheel) for wheel in wheels]
    unused = set(wheels)

    def use_with(release, python, tag, *shared):
        for wheel in wheels:
            if fits(wheel.name, tag):
                use_wheel(wheel, certificates, release, python, shared)
                unused.discard(wheel)

    for release in RELEASES if machine.is_this else RELEASES_OF_ANOTHER:
        check_symbols(extensions, release, machine)
        root = place_of_root(release, machine)
        python = "/usr/local/bin/python3"
        if not (root / python[1:]).exists():
            python = "/usr/bin/python3"
        tag = inside(root, f'{python} -c "{TAG}"', capture_output=True).stdout
        use_with(release, python, tag.strip())
    if machine.is_this:
        of_this = (*find_pythons(), *interpreters.built(FOLDER / "interpreters"))
        for python in of_this:
            if not python.is_relative_to("/usr"):
                use_with(this_release(), python, tag_of(python), python.parents[1])
    return sorted(one.name for one in unused)


def processor_time():
    """Returns the processor seconds of ended child processes: the load of the
    machine does not matter."""
    times = os.times()
    return times.children_user + times.children_system


def test_sdist(sdist, certificates):
    """Builds the archive with pip in a minimal system. Without libraries the
    build ends with one message, whose command installs everything that is
    missing."""
    print(sdist.name, flush=True)
    run("twine", "check", "--strict", sdist, stdout=subprocess.DEVNULL)
    root = root_with_sources(this_release())
    shutil.copytree(certificates, root / "root/certificates")
    shutil.copy(sdist, root / "root")
    # Offer the oldest CMake that the archive accepts: it orders the compiler's
    # options as this system's does. With the same compiler name, objects
    # compiled here are found in the cache.
    run(sys.executable, "-m", "pip", "download", "--quiet", "--dest",
        root / "root/offered", "cmake==3.25.2", "ninja",
        *(f"{name}=={version}" for name, version in REQUIREMENTS.items()))
    # Share this system's compiler cache.
    cache = pathlib.Path.home() / ".cache/ccache"
    cache.mkdir(parents=True, exist_ok=True)
    install = (f"CCACHE_DIR={cache} CCACHE_BASEDIR=/tmp CCACHE_NOHASHDIR=1 "
               f"/root/venv/bin/pip install --no-index --find-links /root/offered "
               f"/root/{sdist.name}")
    begin = processor_time()
    said = inside(root, f"python3 -m venv /root/venv; {install} 2>&1 || true",
                  capture_output=True).stdout
    took = processor_time() - begin
    commands = re.findall(r"apt-get install (.*)", said)
    assert len(commands) == 1 and took < 60, (took, said)
    print(f"  says within {took:.0f} s of a processor what is missing", flush=True)
    inside(root, f"""
apt-get update -qq
apt-get install -y -qq --no-install-recommends ccache {commands[0]} >/dev/null
export CMAKE_CXX_COMPILER_LAUNCHER=ccache CXX=c++
{install} --quiet
cd /root
venv/bin/python check_installed.py testdata venv/bin/haulway certificates
""", [cache])
    print("  built with what the message names, and used", flush=True)


def test_debs(debs, certificates):
    """Installs, uses and purges the packages on the release they were made
    on."""
    release = this_release()
    run("lintian", "--fail-on", "error", "--allow-root", "--suppress-tags",
        "no-manual-page", *debs)
    root = root_with_sources(release)
    shutil.copytree(certificates, root / "root/certificates")
    shutil.copytree(ROOT / "cmake/consumer_test", root / "root/consumer_test")
    shutil.copytree(ROOT / "examples", root / "root/examples")
    (root / "root/debs").mkdir()
    for deb in debs:
        shutil.copy(deb, root / "root/debs")
    inside(root, """
apt-get update -qq
before() { find / -xdev \\( -path /root -o -path /proc -o -path /tmp \\
  -o -path /var/cache -o -path /var/lib/apt -o -path /var/log \\) -prune -o -print \\
  | sort; }
apt-get install -y -qq --no-install-recommends g++ cmake ninja-build pkg-config \\
  python3 libcurl4 libdeflate0 libfmt9 libre2-9 libsimdjson14 libsodium23 \\
  libssl3 liburing2 libxxhash0 libzstd1 \\
  >/dev/null
before >/root/before
apt-get install -y -qq --no-install-recommends /root/debs/*.deb >/dev/null
cd /root
python3 check_installed.py testdata /usr/bin/haulway certificates
cmake -S consumer_test -B built -G Ninja >/dev/null
ninja -C built --quiet
built/consumer
c++ -std=c++20 consumer_test/main.cc -o by_pkg_config \\
  $(pkg-config --cflags --libs haulway)
./by_pkg_config
cc examples/summary.c -o summary -lhaulway_c
./summary testdata/small.pt copy.safetensors >/dev/null
test -e /usr/share/man/man1/haulway.1.gz || ls /etc/dpkg/dpkg.cfg.d
apt-get purge -y -qq $(dpkg-query -W -f '${Package} ' '*haulway*') >/dev/null
before >/root/after
diff /root/before /root/after
""")
    print(f"  {release}: installed, used, compiled against and purged", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder.resolve()
    certificates = FOLDER / "certificates"
    make_certificates(certificates)
    wheels = sorted(folder.glob("*.whl"))
    sdists = sorted(folder.glob("*.tar.gz"))
    debs = sorted(folder.glob("*.deb"))
    if not (wheels or sdists or debs):
        raise SystemExit(f"nothing to test in {folder}")
    unused = []
    for machine in toolchain.MACHINES.values():
        mine = [wheel for wheel in wheels if machine_of(wheel) == machine]
        if mine:
            unused += test_wheels(mine, certificates, machine)
    for sdist in sdists:
        test_sdist(sdist, certificates)
    if debs:
        test_debs(debs, certificates)
    if unused:
        raise SystemExit(f"no Python was found for these wheels: {unused}")
    print("everything passed")


if __name__ == "__main__":
    sys.exit(main())
