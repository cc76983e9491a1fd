#!/usr/bin/env python3
"""Kills training loops that save checkpoints at random moments; see
scripts/crashtest. After each kill the newest whole checkpoint must be right, and
no older than the last one that was saved, and the next loop must go on and leave
nothing behind.
"""

import argparse
import pathlib
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python/tests"))

from killed_run import KilledRun  # noqa: E402
from remote_servers import bucket_of, moto_server  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--s3", action="store_true", help="save to a store")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if options.s3:
            with moto_server() as url, bucket_of(url):
                told = kill(folder, options, "s3://bkt/run", url)
        else:
            told = kill(folder, options)
    for name, count in told.items():
        print(f"{name}: {count}")
    print(f"no fault, in {time.monotonic() - began:.0f} s")


def kill(folder, options, uri=None, endpoint=None):
    if endpoint:
        import os

        os.environ.update(
            AWS_ENDPOINT_URL=endpoint, AWS_ACCESS_KEY_ID="AKID",
            AWS_SECRET_ACCESS_KEY="s3cret", AWS_REGION="us-east-1",
            TMPDIR=str(folder))
    killed = KilledRun(folder / "kills", options.seed, uri)
    return killed.kill_often(options.runs)


if __name__ == "__main__":
    main()
