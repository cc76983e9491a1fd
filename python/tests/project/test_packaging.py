"""The parts of scripts/package and scripts/release."""

import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tools/packaging")]

import deb  # noqa: E402
import libraries  # noqa: E402
import package  # noqa: E402
import release  # noqa: E402
import repack  # noqa: E402
import sbom  # noqa: E402
import toolchain  # noqa: E402

import make_man  # noqa: E402


@pytest.fixture
def wheel(tmp_path):
    """Returns a wheel as the build makes it."""
    info = "haulway-1.0.dist-info"
    path = tmp_path / "haulway-1.0-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("haulway/_haulway.so", b"x")
        archive.writestr(f"{info}/METADATA", (
            "Metadata-Version: 2.4\nName: haulway\nLicense-Expression: Apache-2.0\n"
            "License-File: LICENSE\nRequires-Python: >=3.10\n\n"
            "See [the page](docs/x.md) and [this](https://example.org).\n"))
        archive.writestr(f"{info}/WHEEL",
                         "Wheel-Version: 1.0\nTag: cp311-cp311-linux_x86_64\n")
        archive.writestr(f"{info}/licenses/LICENSE", "own")
        archive.writestr(f"{info}/RECORD", "")
    return path


def repacked(wheel, out, epoch=1_700_000_000):
    licences = repack.runtime_licences(sys.executable)
    own = {library.name: library.licence for library in libraries.LIBRARIES}
    # Wheels are made on Debian 12; its package of the C++ library is only there.
    own["libstdc++"] = "GPL"
    for name, licence in own.items():
        licences[name] = wheel.parent / f"{name}.txt"
        licences[name].write_text(licence)
    out.mkdir()
    return repack.repack(wheel, out, "manylinux_2_28_x86_64", libraries.LIBRARIES,
                         licences, epoch)


def test_a_wheel_tells_all_that_is_inside(wheel, tmp_path):
    path = repacked(wheel, tmp_path / "out")
    assert path.name == "haulway-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    info = "haulway-1.0.dist-info"
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    assert files[f"{info}/WHEEL"].count(b"Tag: ") == 1
    assert b"Tag: cp311-cp311-manylinux_2_28_x86_64\n" in files[f"{info}/WHEEL"]
    metadata = files[f"{info}/METADATA"].decode()
    expression = re.search(r"License-Expression: (.*)", metadata)[1].split(" AND ")
    assert {library.licence for library in libraries.LIBRARIES} <= set(expression)
    named = re.findall(r"License-File: (.*)", metadata)
    inside = {one.name for one in libraries.LIBRARIES} | {
        one[0] for one in repack.RUNTIME}
    assert set(named) == {"LICENSE", *(f"{name}.txt" for name in inside)}
    assert all(files[f"{info}/licenses/{name}"] for name in named)
    # If a licence is the head comment of a source file, only that comment is
    # included.
    mit = files[f"{info}/licenses/robin-map.txt"].decode()
    assert mit.startswith("MIT License\n\nCopyright") and "#" not in mit
    # Links that lead nowhere outside the repository become text.
    assert "See the page and [this](https://example.org).\n" in metadata
    record = dict(line.split(",", 1) for line in
                  files[f"{info}/RECORD"].decode().splitlines())
    assert set(record) == set(files) and record[f"{info}/RECORD"] == ","
    bill = json.loads(files[f"{info}/sboms/haulway.cdx.json"])
    assert {"openssl", "curl"} <= {one["name"] for one in bill["components"]}


def test_two_wheels_of_one_build_are_equal(wheel, tmp_path):
    first, second = (repacked(wheel, tmp_path / name).read_bytes()
                     for name in ("a", "b"))
    assert first == second


def test_the_list_of_components_is_as_the_specification_has_it():
    bill = json.loads(sbom.bill_of("1.0", libraries.LIBRARIES, repack.RUNTIME))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", bill["serialNumber"])
    components = bill["components"]
    assert len(components) == len(libraries.LIBRARIES) + len(repack.RUNTIME)
    for one in components:
        assert one["type"] == "library" and one["version"]
        assert one["purl"] == one["bom-ref"] and one["purl"].startswith("pkg:")
        (licence,) = one["licenses"]
        assert set(licence) in ({"license"}, {"expression"})
        # Versions do not contain Debian's revision.
        assert "dfsg" not in one["version"] and "deb" not in one["version"]
    (own, *others) = bill["dependencies"]
    assert own["dependsOn"] == [one["ref"] for one in others]


@pytest.mark.parametrize("word, said", [
    ("python3.99", "python3.99 is not a Python that runs here"),
    ("cp399", "cp399 is not a Python that runs here"),
    ("false", "false is not a Python that runs here"),
    ("older", "older is cp39: expected one of cp310, cp311, cp312, .*cp314t"),
])
def test_interpreters_that_no_wheel_is_made_for_are_refused(
        word, said, tmp_path, monkeypatch):
    (tmp_path / "older").write_text("#!/bin/sh\necho cp39\n")
    (tmp_path / "older").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SystemExit, match=said):
        package.python_of(word)


def test_an_interpreter_is_found_by_its_name_and_its_path(tmp_path, monkeypatch):
    for word in (sys.executable, "/usr/bin/python3", "python3"):
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
        assert package.python_of(word).is_absolute()


@pytest.mark.parametrize("kinds", [["deb"], package.KINDS])
def test_a_missing_maintainer_is_said_before_anything_is_made(
        kinds, tmp_path, monkeypatch):
    monkeypatch.delenv("DEBEMAIL", raising=False)
    monkeypatch.setattr(package, "KINDS", dict.fromkeys(package.KINDS))
    with pytest.raises(SystemExit, match="DEBEMAIL is not set"):
        package.make(kinds, tmp_path)
    assert not list(tmp_path.iterdir())


def test_debian_packages_have_one_time_and_the_modes_of_packages(tmp_path):
    program, header = tmp_path / "usr/bin/x", tmp_path / "usr/include/x.h"
    for path, when in (program, 1), (header, 2_000_000_000):
        path.parent.mkdir(parents=True)
        path.touch(0o600)
        os.utime(path, (when, when))
    (tmp_path / "usr/bin/y").symlink_to("x")
    deb.settle(tmp_path, 1_700_000_000)
    found = [tmp_path, *tmp_path.rglob("*")]
    assert {one.lstat().st_mtime for one in found} == {1_700_000_000}
    assert [one.stat().st_mode & 0o777 for one in (program, header, header.parent)] == [
        0o755, 0o644, 0o755]


DSC = """\
Checksums-Sha1:
 aaaa 3 x_1.orig.tar.gz
Checksums-Sha256:
 {} 3 x_1.orig.tar.gz
Files:
 bbbb 3 x_1.orig.tar.gz
"""


@pytest.fixture
def archive(tmp_path, monkeypatch):
    """A Debian archive with the source package x 1, and the arguments to fetch
    it."""
    pool = tmp_path / "debian/pool/updates/main/x/x"
    pool.mkdir(parents=True)
    (pool / "x_1.orig.tar.gz").write_bytes(b"abc")
    dsc = DSC.format(hashlib.sha256(b"abc").hexdigest())
    (pool / "x_1.dsc").write_text(dsc)
    monkeypatch.setattr(libraries.Sources, "_lines", lambda self: [
        f"file://{tmp_path}/none main", f"file://{tmp_path}/debian/ main"])
    return pool, ("x", "2:1", hashlib.sha256(dsc.encode()).hexdigest())


def test_sources_come_from_the_archive_that_has_them(archive, tmp_path):
    dsc = libraries.Sources(tmp_path / "kept").fetch(*archive[1])
    assert dsc.name == "x_1.dsc"
    assert (dsc.parent / "x_1.orig.tar.gz").read_bytes() == b"abc"


@pytest.mark.parametrize("name", ["x_1.dsc", "x_1.orig.tar.gz"])
def test_sources_that_are_not_what_is_named_are_refused(archive, name, tmp_path):
    (archive[0] / name).write_bytes(b"abd")
    sources = libraries.Sources(tmp_path / "kept")
    with pytest.raises(SystemExit, match=f"no archive of Debian has {name}"):
        sources.fetch(*archive[1])
    # A file that is already there is checked, too.
    (sources.folder / name).write_bytes(b"abd")
    with pytest.raises(SystemExit, match=f"no archive of Debian has {name}"):
        sources.fetch(*archive[1])


CHANGELOG = """# Changelog

## Unreleased

### Added

- Something.

## 0.9.0 - 2026-01-01

- Older.
"""


def test_the_changelog_is_cut():
    after = release.cut(CHANGELOG, "1.0.0", "2026-02-03")
    assert release.section_of(after, "Unreleased") == "\n"
    assert release.section_of(after, "1.0.0") == "### Added\n\n- Something.\n"
    assert release.section_of(after, "0.9.0") == "- Older.\n"
    with pytest.raises(SystemExit, match="a section 1.0.0 already"):
        release.cut(after, "1.0.0", "2026-02-03")
    with pytest.raises(SystemExit, match="nothing that is unreleased"):
        release.cut(after, "1.1.0", "2026-02-03")


def test_checksums_are_those_that_sha256sum_checks(tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b c").write_bytes(b"b")
    release.write_sums(tmp_path)
    subprocess.run(["sha256sum", "--strict", "--check", "--quiet", "SHA256SUMS"],
                   cwd=tmp_path, check=True)
    assert hashlib.sha256(b"a").hexdigest() in (tmp_path / "SHA256SUMS").read_text()


def test_manual_pages_have_every_option_of_the_help(command, tmp_path):
    pages = make_man.make_pages(command, tmp_path)
    verbs = make_man.verbs_of(make_man.help_of(command))
    assert {page.name for page in pages} == {
        "haulway.1", *(f"haulway-{verb}.1" for verb in verbs)}
    for page in pages:
        verb = page.name.removesuffix(".1").removeprefix("haulway").lstrip("-")
        text = page.read_text().replace("\\-", "-")
        told = make_man.help_of(command, *([verb] if verb else []))
        for option in re.findall(r"^ +(?:-\w,)?(--[a-z-]+)", told, re.MULTILINE):
            assert re.search(rf"^\.B .*{option}\b", text, re.MULTILINE), (verb, option)
        for heading in ("NAME", "SYNOPSIS", "OPTIONS", "SEE ALSO"):
            assert f".SH {heading}\n" in text
        if verb:
            last = told.splitlines()[-1]
            assert last.replace("'", "\\(aq") in text.replace("\\e", "\\")


def test_manual_pages_are_read_by_a_reader_of_them(tmp_path):
    page = "Say\nUsage: haulway x FILE\n\nOptions:\n  --it's INT    \\fB.not\n\n.x 'a'"

    (tmp_path / "haulway").write_text(
        "#!/bin/sh\ncat <<'END'\n" + page + "\nEND\n")
    (tmp_path / "haulway").chmod(0o755)
    text = make_man.page_of(tmp_path / "haulway", "1", "x")
    assert ".B \\-\\-it\\(aqs INT\n\\efB.not\n" in text
    assert ".SH EXAMPLES\n.nf\n\\&.x \\(aqa\\(aq\n.fi\n" in text


def test_tools_compile_for_the_machine_of_the_wheel(tmp_path, monkeypatch):
    """Each machine has tools of its own, in folders of its own."""
    (tmp_path / "ziglang").mkdir()
    (tmp_path / "ziglang/__init__.py").write_text("")
    zig = tmp_path / "ziglang/zig"
    zig.write_text('#!/bin/sh\necho "$@"\n')
    zig.chmod(0o755)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "ziglang", raising=False)
    for name, machine in toolchain.MACHINES.items():
        tools = toolchain.Toolchain(tmp_path / f"tools{machine.suffix}", machine)
        said = subprocess.run([tools.bin / "cc", "x.c"], check=True, text=True,
                              capture_output=True).stdout
        assert said == f"cc -target {name}-linux-gnu.2.28 x.c\n"
        assert machine.platform == f"manylinux_2_28_{name}"
        told = tools.write_cmake_file(tmp_path).read_text()
        assert ("CMAKE_SYSTEM_PROCESSOR" in told) is not machine.is_this
        assert machine.is_this or machine.cmake_file.exists()
    assert len({machine.suffix for machine in toolchain.MACHINES.values()}) == 2
