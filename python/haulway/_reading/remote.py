"""haulway.get and haulway.put: downloading and uploading whole files; and how
calls that write reach a URL.
"""

from __future__ import annotations

import errno
import io
import os

from .. import _haulway
from .._errors import ArgumentTypeError, make_error
from .._options import INDEX, OPENING, READING, REMOTE, check_flag
from .call import Reading, reads
from .source import (
    check_binary,
    is_path,
    open_bytes_of,
    open_source,
    path_of,
    path_to_write,
)

BRINGING = {
    **REMOTE,
    **{name: READING[name]
       for name in ("retries", "threads", "progress", "stats")},
}

# The verification of a download also needs the options for opening.
_GETTING = {
    **BRINGING, **INDEX,
    **{name: OPENING[name] for name in ("key", "passphrase")},
}


def take_remote(caller, options):
    """Removes the URL options from a call's options and returns them as the
    library takes them."""
    told = {name: options.pop(name) for name in REMOTE if name in options}
    return Reading(caller, told, REMOTE).remote


def target_of(path, remote=None, **more):
    """Returns the target that the library writes to: a path, a URL with the
    options for reaching it, or a function that takes the bytes.

    remote: the result of take_remote(); None: the configured options.
    """
    if not is_path(path):
        if not hasattr(path, "write"):
            raise ArgumentTypeError(
                f"path is {type(path).__name__}: expected a path, a URL or a "
                "binary file object to write to",
                "kInvalidArgument",
            )
        check_binary(path, "wb")
        return _write_of(path)
    name = path_of(path)
    if "://" not in name:
        return name
    if remote is None:
        remote = take_remote("save", {})
    return _haulway.Target(name, remote, **more)


def _write_of(file):
    """Returns the function that writes to a file object."""
    if not isinstance(file, io.RawIOBase):
        return file.write

    def write(view):
        taken = file.write(view)
        # A raw file that does not block took nothing.
        if taken is None:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return taken

    return write


@reads(_GETTING)
def get(url, path, *, verify=False, **options):
    """Downloads a file from a URL, resuming an interrupted download.

    url: what to download: a URL, or a path.
    path: the file to write. It appears in one step when it is complete. Until
        then the data is in a hidden file beside `path`; if a call is
        interrupted or killed, the next call resumes from that file.
    verify: check the whole file, as verify() does, before it appears; for an
        encrypted file, with its key or passphrase.
    OPTIONS

    Returns a dict of `bytes`, `seconds`, `requests`, `retries` and
    `resumed_bytes`, which an earlier call had received.

    Raises Error; the bytes received so far stay for the next call.
    """
    verify = check_flag("verify", verify)
    reading = Reading("get", options, _GETTING)
    opening = reading.opening()
    source = open_bytes_of(url, "url", reading.remote)
    check = None
    if verify:
        def check(part):
            _check(part, opening, reading.threads)

    done = _haulway.download(
        source, path_to_write(path), reading.threads,
        reading.progress, check,
    )
    reading.tell(done)
    return done


def _check(path, opening, threads):
    # A download is of one file.
    report = _haulway.verify(
        open_source(path), {**opening, "alone": True}, threads, None
    )
    if report["ok"]:
        return
    found = report["findings"][0]
    raise make_error(found["code"], found["message"], found["byte"], 0)
