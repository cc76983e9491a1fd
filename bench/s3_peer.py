"""A peer that reads or writes an object of the bucket "bucket". Runs in its own
process, since it needs other libraries than the tests.

    python bench/s3_peer.py get|put s3fs|runai PATH_OR_KEY SIZE

The AWS_ variables name the store. Prints the seconds of the second of two
calls, without imports.
"""

from __future__ import annotations

import os
import sys
import time


def s3fs_files():
    import s3fs

    return s3fs.S3FileSystem(
        key=os.environ["AWS_ACCESS_KEY_ID"],
        secret=os.environ["AWS_SECRET_ACCESS_KEY"],
        endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"])


def s3fs_get(key, size):
    """Downloads with 64 concurrent ranges; does not make tensors."""
    files = s3fs_files()
    step = -(-size // 64)
    starts = list(range(0, size, step))
    ends = [min(start + step, size) for start in starts]

    def read():
        files.cat_ranges([f"bucket/{key}"] * len(starts), starts, ends,
                         on_error="raise")

    return read


def s3fs_put(path, size):
    """s3fs uploads in parts of 50 MiB, in a loop of its own."""
    files = s3fs_files()
    return lambda: files.put_file(path, "bucket/key")


def runai_get(key, size):
    os.environ.setdefault("RUNAI_STREAMER_LOG_LEVEL", "ERROR")
    os.environ["RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING"] = "0"
    os.environ["RUNAI_STREAMER_S3_ENDPOINT"] = os.environ["AWS_ENDPOINT_URL_S3"]
    os.environ["AWS_ENDPOINT_URL"] = os.environ["AWS_ENDPOINT_URL_S3"]
    from runai_model_streamer import SafetensorsStreamer

    def read():
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(f"s3://bucket/{key}")
            return dict(streamer.get_tensors())

    return read


if __name__ == "__main__":
    what, who, name, size = sys.argv[1:]
    call = globals()[f"{who}_{what}"](name, int(size))
    call()
    start = time.perf_counter()
    call()
    print(time.perf_counter() - start)
