"""The names that programs import from tensorizer.stream_io: streams of local
files, http(s), S3 and Redis, over Haulway's sources and sinks.

Any thread may call the functions of this module at any time, unless a
docstring says otherwise.
"""

# Design: the reference's names and arguments over the library's sources and sinks.
# Reads are ranges, retried and checked as for every URL, and writes are
# uploaded in parts while the caller writes. Only the visible state of a stream,
# its position, timings and headers, is kept here.
#
# Running curl in a separate process with a pipe, as the reference does, was
# left out: seeking needs a new process, and the server's response is not
# available. Credentials come from arguments, or from .s3cfg as in the
# reference; boto3 is not needed.

from __future__ import annotations

import builtins
import http.client
import io
import os
import pathlib
import time
import urllib.parse

from .. import _haulway
from .._describing import described, shown
from .._errors import (
    DecryptError,
    IoError,
    NotFoundError,
    UnsupportedError,
)
from .._reading.remote import take_remote
from .._reading.source import refuse_folder
from .._reading.streams import SourceStream, UploadStream
from ._redis import open_keys
from ._s3 import access_of, asking, open_object, options_of

__all__ = ["CAInfo", "CURLStreamFile", "RedisStreamFile", "open_stream"]

# The minimum validity of the reference's presigned URLs.
_PRESIGNED_SECONDS = 86400


class CAInfo:
    """The certificates that streams over TLS trust: exactly one of three
    arguments.

    cacert: a file of certificates.
    capath: a folder of certificates.
    allow_untrusted: True trusts any certificate.

    Raises ValueError for none or several, and for a path that does not exist.
    Threads may share one.
    """

    __slots__ = ("_options",)

    def __init__(self, *, cacert=None, capath=None, allow_untrusted=False):
        if (cacert is not None) + (capath is not None) + bool(
            allow_untrusted
        ) != 1:
            raise ValueError(
                "Exactly one of cacert, capath, or allow_untrusted=True must "
                "be specified; for the usual certificates, None instead of a "
                "CAInfo"
            )
        if cacert is not None and not os.path.isfile(cacert):
            raise ValueError(f"cacert {os.fspath(cacert)!r} is no file")
        if capath is not None and not os.path.isdir(capath):
            raise ValueError(f"capath {os.fspath(capath)!r} is no folder")
        self._options = {
            "ca_file": None if cacert is None else os.fspath(cacert),
            "ca_dir": None if capath is None else os.fspath(capath),
            "insecure": bool(allow_untrusted),
        }

    @property
    def curl_flags(self):
        """The equivalent arguments of curl."""
        for name, flag in (("ca_file", "--cacert"), ("ca_dir", "--capath")):
            if self._options[name] is not None:
                return (flag, self._options[name])
        return ("--insecure",)

    def __repr__(self):
        return described(self, shown(" ".join(self.curl_flags), 80))

    def __hash__(self):
        return hash(self.curl_flags)

    def __eq__(self, other):
        return isinstance(other, CAInfo) and self._options == other._options


def _remote(certificate_handling, headers=None):
    """Returns the connection options as the library takes them."""
    if certificate_handling is not None and not isinstance(
        certificate_handling, CAInfo
    ):
        raise TypeError(
            "certificate_handling must be None or a CAInfo, not "
            f"{type(certificate_handling).__name__}"
        )
    told = {}
    if headers:
        told["headers"] = {name: str(text) for name, text in headers.items()}
    if certificate_handling is None:
        return take_remote("open_stream", told)
    trust = certificate_handling._options
    remote = take_remote("open_stream", {**told, "ca_file": trust["ca_file"],
                                         "insecure": trust["insecure"]})
    return {**remote, "ca_dir": trust["ca_dir"]}


def _check_range(begin, end):
    for name, value in (("begin", begin), ("end", end)):
        if value is not None and value < 0:
            raise ValueError(f"{name} is negative")
    if end is not None and end <= (begin or 0):
        raise ValueError("end must be after begin")


class CURLStreamFile(SourceStream):
    """An object behind a URL as a stream.

    uri: an http(s):// URL, or another name that haulway.open() takes.
    begin, end: the range of bytes in the stream; None: all.
    headers: a dict of headers.
    buffer_size: how many bytes are read ahead at most.
    certificate_handling: a CAInfo; None: the usual certificates.

    Attributes: response_headers, http_response_latencies and popen_latencies
        (in seconds; the latter is empty: no program is run), bytes_read,
        bytes_skipped, read_operations. For one thread at a time. Methods raise
        OSError if the server fails.
    """

    def __init__(self, uri, begin=None, end=None, headers=None, *,
                 buffer_size=None, certificate_handling=None):
        _check_range(begin, end)
        remote = _remote(certificate_handling, headers)
        self._open(lambda: _haulway.open_source(uri, False, remote),
                   begin, end, buffer_size)

    @classmethod
    def _over(cls, open_source, begin, end, buffer_size):
        _check_range(begin, end)
        stream = cls.__new__(cls)
        stream._open(open_source, begin, end, buffer_size)
        return stream

    def _open(self, open_source, begin, end, buffer_size):
        started = time.monotonic()
        try:
            source = open_source()
        except DecryptError as error:  # Certificate; programs expect OSError.
            raise IoError(
                f"Failed to open stream: {error.message}", error.code
            ) from error
        self.popen_latencies = []
        self.http_response_latencies = [time.monotonic() - started]
        SourceStream.__init__(self, source, begin or 0, end,
                              *(() if buffer_size is None else (buffer_size,)))
        self.response_headers = http.client.HTTPMessage()
        self.response_headers["Accept-Ranges"] = "bytes"
        self.response_headers["Content-Length"] = str(source.size)
        version = _haulway.source_stats(source)["version"]
        if version.startswith(('"', 'W/"')):
            self.response_headers["ETag"] = version
        elif version:
            self.response_headers["Last-Modified"] = version

    def readline(self, size=-1):
        """Returns the bytes up to the next newline, at most `size` of them."""
        return super().readline(size)


class RedisStreamFile(SourceStream):
    """The keys under a prefix in Redis as a stream: a Tensorizer file, or any
    keys PREFIX:NAME:OFFSET.

    uri: redis://HOST/PREFIX.
    begin, end: the range of bytes in the stream; None: all.
    buffer_size: how many bytes are read ahead at most.

    Attributes: setup_latency and response_latencies, in seconds, bytes_read,
        bytes_skipped, read_operations. For one thread at a time. Methods raise
        OSError if the server fails.
    """

    def __init__(self, uri, *, begin=None, end=None, buffer_size=None):
        _check_range(begin, end)
        started = time.monotonic()
        try:
            source = _haulway.open_source(uri, False, _remote(None))
        except NotFoundError:
            source = open_keys(uri)
        self.setup_latency = time.monotonic() - started
        self.response_latencies = []
        super().__init__(source, begin or 0, end,
                         *(() if buffer_size is None else (buffer_size,)))

    def _ask(self, offset, out):
        started = time.monotonic()
        super()._ask(offset, out)
        self.response_latencies.append(time.monotonic() - started)


def s3_upload(path, target_uri, s3_access_key_id, s3_secret_access_key,
              s3_endpoint=None, s3_region_name=None,
              s3_signature_version=None):
    """Uploads a file to an object, which appears complete or not at all.

    path: the file.
    target_uri: s3://BUCKET/KEY.
    s3_access_key_id, s3_secret_access_key, s3_endpoint: as for open_stream().
    s3_region_name: the region that requests are signed for; None: found out.
    s3_signature_version: "s3v4", or None for the same.

    Raises Error.
    """
    access = access_of(s3_access_key_id, s3_secret_access_key, None)
    options = options_of(access, s3_endpoint, s3_region_name,
                         s3_signature_version)
    refuse_folder(path)
    _haulway.upload(
        _haulway.open_source(os.fsdecode(os.fspath(path)), False),
        _haulway.Target(target_uri, _remote(None), options),
        {"durability": "none"}, None,
    )


def s3_download(path_uri, s3_access_key_id, s3_secret_access_key,
                s3_endpoint=None, s3_region_name=None,
                s3_signature_version=None, buffer_size=None, begin=None,
                end=None, certificate_handling=None):
    """Returns a stream of an object.

    path_uri: s3://BUCKET/KEY.
    s3_access_key_id, s3_secret_access_key, s3_endpoint, s3_region_name,
        s3_signature_version: as for s3_upload().
    buffer_size, begin, end, certificate_handling: as for CURLStreamFile.

    Raises Error.
    """
    access = access_of(s3_access_key_id, s3_secret_access_key, None)
    options = options_of(access, s3_endpoint, s3_region_name,
                         s3_signature_version)
    remote = _remote(certificate_handling)
    return CURLStreamFile._over(
        lambda: open_object(path_uri, options, remote), begin, end,
        buffer_size,
    )


def _s3_download_url(path_uri, s3_access_key_id, s3_secret_access_key,
                     s3_endpoint=None, s3_region_name=None,
                     s3_signature_version=None):
    """Returns a presigned URL of an object; the reference's tests call it."""
    access = access_of(s3_access_key_id, s3_secret_access_key, None)
    return _haulway.presign_s3(
        path_uri, _PRESIGNED_SECONDS,
        options_of(access, s3_endpoint, s3_region_name, s3_signature_version),
    )


def _open_local(path, mode, buffer_size, begin, end):
    if sorted(mode.replace("+", "")) not in (
        ["b", "r"], ["b", "w"], ["a", "b"], ["b", "x"]
    ) or mode.count("+") > 1:
        raise ValueError(
            f"mode is {mode!r}: Only binary modes (\"rb\", \"wb\", \"wb+\", "
            "etc.) are valid when opening local file streams."
        )
    buffering = io.DEFAULT_BUFFER_SIZE if buffer_size is None else buffer_size
    if "r" not in mode:
        if begin is not None or end is not None:
            raise ValueError("begin and end are for reading")
        pathlib.Path(path).parent.mkdir(parents=True, exist_ok=True)
        # The reference can read back what it wrote.
        mode = mode.replace("+", "") + "+"
        return builtins.open(path, mode, buffering=buffering)
    if begin is None and end is None:
        return builtins.open(path, mode, buffering=buffering)
    refuse_folder(path)
    # If a range is opened, positions count from its beginning, as in the
    # reference.
    source = _haulway.open_source(path, False)
    begin = min(begin or 0, source.size)
    end = source.size if end is None else min(end, source.size)
    part = _haulway.slice_source(source, begin, max(0, end - begin))
    return SourceStream(part, 0, None,
                        *(() if buffer_size is None else (buffer_size,)))


def open_stream(path_uri, mode="rb", s3_access_key_id=None,
                s3_secret_access_key=None, s3_endpoint=None,
                s3_config_path=None, buffer_size=None, force_http=None, *,
                begin=None, end=None, s3_region_name=None,
                s3_signature_version=None, certificate_handling=None):
    """Opens a stream, as the function with this name in the tensorizer package
    does.

    path_uri: a path, http(s)://, s3:// or redis://; anything but a str is
        local.
    mode: "rb"; for s3:// also "wb" and "ab", which write a temporary file that
        becomes the object when the stream is closed; for paths any binary
        mode, which creates missing folders.
    s3_access_key_id, s3_secret_access_key: if one is not given, .s3cfg in the
        home folder, or s3_config_path, has it; if neither is known, the
        credentials of docs/s3.md are used; "" and "" send unsigned requests.
    s3_endpoint: by default that of .s3cfg, otherwise as docs/s3.md says; no
        vendor is the default. The scheme is https unless force_http is set.
    begin, end: for reading, the range of bytes in the stream.

    buffer_size: how many bytes are read ahead, or buffered of a local file.
    s3_region_name, s3_signature_version: as for s3_upload().
    certificate_handling: as for CURLStreamFile.

    Raises ValueError for a mode that does not fit, UnsupportedError for
    another scheme, and OSError.
    """
    if hasattr(path_uri, "read") or hasattr(path_uri, "write"):
        return path_uri
    uri = os.fsdecode(os.fspath(path_uri))
    _check_range(begin, end)
    scheme = ""
    if isinstance(path_uri, str) and "://" in uri:
        scheme = uri.partition("://")[0].lower()
    if scheme in ("", "file"):
        path = urllib.parse.unquote(urllib.parse.urlsplit(uri).path)
        return _open_local(path if scheme else uri, mode, buffer_size, begin,
                           end)
    kind = "".join(sorted(mode))
    if scheme in ("http", "https"):
        if kind != "br":
            raise ValueError(
                'Only the mode "rb" is valid when opening http(s):// streams.'
            )
        return CURLStreamFile(
            uri, begin, end, buffer_size=buffer_size,
            certificate_handling=certificate_handling,
        )
    if scheme == "redis":
        if kind != "br":
            raise ValueError(
                'Only the mode "rb" is valid when opening redis:// streams.'
            )
        return RedisStreamFile(uri, begin=begin, end=end,
                               buffer_size=buffer_size)
    if scheme != "s3":
        raise UnsupportedError(
            f"{scheme}:// streams are not known: expected a path, http://, "
            "https://, s3:// or redis://",
            "kUnsupported",
        )
    if kind not in ("br", "bw", "ab", "+bw", "+ab"):
        raise ValueError(
            'Only the modes "rb", "wb[+]", and "ab[+]" are valid when opening '
            "s3:// streams."
        )
    options = asking(s3_access_key_id, s3_secret_access_key, s3_config_path,
                     s3_endpoint, force_http, s3_region_name,
                     s3_signature_version)
    remote = _remote(certificate_handling)
    if kind != "br":
        return UploadStream(_haulway.Target(uri, remote, options), buffer_size)
    return CURLStreamFile._over(
        lambda: open_object(uri, options, remote), begin, end, buffer_size
    )
