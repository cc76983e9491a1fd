"""Links code of this system's compiler against an older C library.

The linker gets stand-ins for the system's libraries, which have the names and
versions of their symbols up to GLIBC, and no code. Functions that newer systems
added are then missing, and come from older_glibc.c.
"""

import hashlib
import pathlib
import re
import subprocess

import toolchain

LIBRARIES = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2",
             "librt.so.1")
LIMIT = tuple(map(int, toolchain.GLIBC.split(".")))
# A row of `readelf --dyn-syms`: its type, its section, its name and version.
SYMBOL = re.compile(r"\s(FUNC|OBJECT|NOTYPE|TLS|IFUNC|<OS specific>: 10)\s+"
                    r"(?:GLOBAL|WEAK|UNIQUE)\s+DEFAULT\s+(\d+)\s+"
                    r"(\w+)@@?GLIBC_([\d.]+)$", re.MULTILINE)
SIZE = re.compile(r"^\s*\d+:\s+[0-9a-f]+\s+(\d+)")


def symbols_of(library):
    """Returns the newest version up to the limit of each symbol, and its
    type."""
    said = subprocess.run(["readelf", "-W", "--dyn-syms", library], check=True,
                          text=True, capture_output=True).stdout
    found = {}
    for line in said.splitlines():
        row = SYMBOL.search(line)
        if row is None:
            continue
        kind, _, name, text = row.groups()
        version = tuple(map(int, text.split(".")))
        if version > LIMIT or found.get(name, ((0,),))[0] > version:
            continue
        found[name] = (version, kind, int(SIZE.match(line)[1], 0))
    return found


def make_stand_in(library, name, folder, compiler):
    """Writes a library `name` without code, where the linker will find it."""
    found = symbols_of(library)
    by_version, lines = {}, [".text"]
    for symbol, (version, kind, size) in sorted(found.items()):
        by_version.setdefault(version, []).append(symbol)
        if kind == "OBJECT":
            lines += [".data", f".globl {symbol}", f".type {symbol}, @object",
                      f".size {symbol}, {size}", f"{symbol}: .skip {max(size, 1)}"]
        elif kind == "TLS":
            lines += ['.section .tbss,"awT",@nobits', f".globl {symbol}",
                      f".type {symbol}, @tls_object", f"{symbol}: .skip {max(size, 1)}"]
        else:
            lines += [".text", f".globl {symbol}", f".type {symbol}, @function",
                      f"{symbol}: ret"]
    script, before = "", ""
    for version in sorted(by_version):
        node = "GLIBC_" + ".".join(map(str, version))
        names = "".join(f" {one};" for one in by_version[version])
        rest = "" if before else " local: *;"
        script += f"{node} {{ global:{names}{rest} }}{before};\n"
        before = f" {node}"
    short = name.split(".so")[0]
    (folder / f"{short}.s").write_text("\n".join(lines) + "\n")
    (folder / f"{short}.map").write_text(script)
    subprocess.run(
        [compiler, "-shared", "-nostdlib", f"-Wl,-soname,{name}",
         f"-Wl,--version-script={folder}/{short}.map", folder / f"{short}.s",
         "-o", folder / f"{short}.so"], check=True)


def make_all(folder, machine):
    """Writes the stand-ins and the object with missing functions; returns the
    linker's options."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    compiler = machine.tool("cc")
    for name in (*LIBRARIES, machine.loader):
        make_stand_in(machine.root / f"lib/{machine.triple}/{name}", name, folder,
                      compiler)
    source = pathlib.Path(__file__).with_name("older_glibc.c")
    # Another source has another name: an extension that is there is linked anew.
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:8]
    missing = folder / f"older_glibc-{digest}.o"
    subprocess.run([compiler, "-O2", "-fPIC", "-fvisibility=hidden", "-fno-builtin",
                    "-c", source, "-o", missing], check=True)
    return (f"{missing} -L{folder} -static-libstdc++ "
            "-Wl,--no-as-needed -lpthread -ldl -lm -lrt "
            f"-l:{machine.loader.split('.so')[0]}.so "
            "-Wl,--as-needed")
