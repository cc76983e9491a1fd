"""What scripts/test-packages runs: installs what scripts/package made in bare
systems, and uses it there."""

import argparse
import pathlib
import shutil
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build/package"
# Debian 11 has no Python that Haulway supports: there only the libraries that
# the extension asks for are checked.
RELEASES = ("bullseye", "bookworm", "trixie")


def run(*command, check=True, **options):
    return subprocess.run([str(word) for word in command], check=check, text=True,
                          **options)


def mirror():
    """Where this system's packages come from."""
    said = run("apt-get", "indextargets", "--format", "$(REPO_URI)",
               "Created-By: Packages", "Origin: Debian", capture_output=True).stdout
    return next(line for line in said.splitlines() if line.endswith("/debian/"))


def bare_root(release):
    """A minimal system with Python, made once; returns a fresh copy."""
    base = FOLDER / "roots" / release
    if not (base / "done").exists():
        print(f"making a bare {release}", flush=True)
        shutil.rmtree(base, ignore_errors=True)
        run("debootstrap", "--variant=minbase", "--include=python3,python3-venv",
            release, base, mirror(), stdout=subprocess.DEVNULL)
        (base / "done").touch()
    root = FOLDER / "roots" / f"{release}-used"
    shutil.rmtree(root, ignore_errors=True)
    run("cp", "-a", "--reflink=auto", base, root)
    shutil.copytree(ROOT / "testdata", root / "root/testdata")
    shutil.copy(ROOT / "tools/packaging/check_installed.py", root / "root")
    return root


def inside(root, script, **options):
    """Runs a shell script in the root, with its own /proc, /dev and /dev/shm."""
    mounts = (f"mount -t proc proc {root}/proc && mount --rbind /dev {root}/dev && "
              f"mount -t tmpfs tmpfs {root}/dev/shm && exec chroot {root} "
              "/usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "
              "DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 sh -euc \"$1\"")
    return run("unshare", "--mount", "--pid", "--fork", "--propagation", "private",
               "sh", "-euc", mounts, "sh", script, **options)


def make_certificates(folder):
    """An authority and a server's certificate, as strict checkers want them."""
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


def check_wheel(wheel):
    """What can be said of a wheel without installing it."""
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
    extension = FOLDER / "extension.so"
    extension.write_bytes(data)
    shown = run("nm", "-D", "--defined-only", extension, capture_output=True).stdout
    assert [line.split()[-1] for line in shown.splitlines()] == ["PyInit__haulway"]
    # All else comes from a library of the system, by its version.
    asked = run("nm", "-D", "--undefined-only", extension, capture_output=True).stdout
    for kind, symbol in (line.split() for line in asked.splitlines()):
        assert kind == "w" or "@" in symbol or symbol.startswith(("Py", "_Py")), symbol
    sections = run("readelf", "-W", "-d", "-l", extension,
                   capture_output=True).stdout
    assert "GNU_RELRO" in sections and "TEXTREL" not in sections
    print(f"  {wheel.name}: {size} bytes, one symbol, {platform}", flush=True)
    return extension


def test_wheel(wheel, certificates):
    print(wheel.name, flush=True)
    extension = check_wheel(wheel)
    used = 0
    for release in RELEASES:
        root = bare_root(release)
        shutil.copy(extension, root / "root")
        # Python's own symbols are those of the program that loads it.
        missing = inside(
            root, "ldd -r /root/extension.so 2>&1 || true",
            capture_output=True).stdout
        wrong = [line for line in missing.splitlines()
                 if "not found" in line or
                 ("undefined symbol" in line and " Py" not in line
                  and " _Py" not in line)]
        assert not wrong, wrong
        print(f"  {release}: no library and no symbol is missing", flush=True)
        tag = "cp" + inside(root, "python3 -c 'import sys; "
                            "print(\"%d%d\" % sys.version_info[:2])'",
                            capture_output=True).stdout.strip()
        if f"-{tag}-" not in wheel.name:
            continue
        used += 1
        shutil.copytree(certificates, root / "root/certificates")
        shutil.copy(wheel, root / "root")
        inside(root, f"""
python3 -m venv /root/venv
/root/venv/bin/pip install -q --no-index --disable-pip-version-check /root/{wheel.name}
cd /root
venv/bin/python check_installed.py testdata venv/bin/haulway certificates
venv/bin/pip uninstall -q -y haulway
! find venv -iname '*haulway*' | grep .
""")
        print(f"  {release}: used and removed", flush=True)
    return used


def test_sdist(sdist):
    """Without libraries, building ends in one message."""
    print(sdist.name, flush=True)
    run("twine", "check", "--strict", sdist, stdout=subprocess.DEVNULL)
    folder = FOLDER / "unpacked"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    run("tar", "-xzf", sdist, "-C", folder)
    (source,) = folder.iterdir()
    assert source.name == sdist.name.removesuffix(".tar.gz")
    # Configured with nothing to be found, as on a system without any library.
    done = run("cmake", "-S", source, "-B", folder / "built", "-G", "Ninja",
               "-DBUILD_TESTING=OFF", "-DPKG_CONFIG_EXECUTABLE=/nonexistent",
               *(f"-DCMAKE_DISABLE_FIND_PACKAGE_{name}=ON" for name in
                 ("fmt", "simdjson", "OpenSSL", "CLI11", "ZLIB", "CURL")),
               check=False, capture_output=True)
    assert done.returncode != 0 and "apt-get install" in done.stderr, done.stderr
    run("cmake", "-S", source, "-B", folder / "whole", "-G", "Ninja",
        "-DBUILD_TESTING=OFF", stdout=subprocess.DEVNULL)
    print("  configures, and says what is missing", flush=True)


def test_debs(debs, certificates):
    """Installs, uses and purges the packages in the release they were made on."""
    release = run("sh", "-c", ". /etc/os-release; echo $VERSION_CODENAME",
                  capture_output=True).stdout.strip()
    run("lintian", "--fail-on", "error", "--allow-root", "--suppress-tags",
        "no-manual-page", *debs)
    root = bare_root(release)
    shutil.copytree(certificates, root / "root/certificates")
    shutil.copytree(ROOT / "cmake/consumer_test", root / "root/consumer_test")
    shutil.copytree(ROOT / "examples", root / "root/examples")
    (root / "root/debs").mkdir()
    for deb in debs:
        shutil.copy(deb, root / "root/debs")
    for name in ("sources.list", "sources.list.d"):
        here = pathlib.Path("/etc/apt") / name
        if here.is_file():
            shutil.copy(here, root / "etc/apt" / name)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    inside(root, """
apt-get update -qq
apt-get install -y -qq --no-install-recommends debsums- >/dev/null 2>&1 || true
before() { find / -xdev \\( -path /root -o -path /proc -o -path /tmp \\
  -o -path /var/cache -o -path /var/lib/apt -o -path /var/log \\) -prune -o -print \\
  | sort; }
apt-get install -y -qq --no-install-recommends g++ cmake ninja-build pkg-config \\
  python3 libcurl4 libdeflate0 libfmt9 libre2-9 libsimdjson14 libsodium23 \\
  libssl3 liburing2 \\
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
./summary testdata/small.pt >/dev/null
test -e /usr/share/man/man1/haulway.1.gz || ls /etc/dpkg/dpkg.cfg.d
apt-get purge -y -qq libhaulway0 libhaulway-c1 libhaulway-dev haulway \\
  python3-haulway >/dev/null
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
    used = sum(test_wheel(wheel, certificates) for wheel in wheels)
    if wheels and used == 0:
        raise SystemExit("no bare system has the Python of any of these wheels")
    for sdist in sdists:
        test_sdist(sdist)
    if debs:
        test_debs(debs, certificates)
    print("everything passed")


if __name__ == "__main__":
    sys.exit(main())
