"""A CI step: no file in a model registry may run code when it is read.

    python scan_registry.py FOLDER [--known FILE] [--allow NAME]...

Prints each file that is not proven SAFE. Exits with 1 if one is UNSAFE, 2 if
one is UNKNOWN. The file --known lists SAFE files by SHA-256.
"""

import argparse
import hashlib
import json
import pathlib
import sys

import haulway

EXIT = {"SAFE": 0, "UNKNOWN": 2, "UNSAFE": 1}
RANK = list(EXIT).index


def digest(path):
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--known", type=pathlib.Path)
    parser.add_argument("--allow", action="append", default=[])
    options = parser.parse_args()
    rules, safe = str([haulway.__version__, sorted(options.allow)]), set()
    if options.known and options.known.exists():
        safe |= set(json.loads(options.known.read_text()).get(rules, []))
    worst, counts = "SAFE", dict.fromkeys(EXIT, 0)
    for path in sorted(filter(pathlib.Path.is_file, options.folder.rglob("*"))):
        # The name matters, too: a shell runs a text file by its name.
        key = f"{digest(path)} {path.name}"
        verdict = "SAFE"
        if key not in safe:
            report = haulway.scan(path, allow=options.allow)
            verdict = report.verdict
            if not report:
                print(verdict, path.relative_to(options.folder), report.reason)
        if verdict == "SAFE":
            safe.add(key)
        counts[verdict] += 1
        worst = max(worst, verdict, key=RANK)
    if options.known:
        options.known.write_text(json.dumps({rules: sorted(safe)}))
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return EXIT[worst]


if __name__ == "__main__":
    sys.exit(main())
