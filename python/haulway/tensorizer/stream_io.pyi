import io
import os
from collections.abc import Mapping
from http.client import HTTPMessage
from typing import Any, BinaryIO, type_check_only

@type_check_only
class _Stream(io.BufferedIOBase):
    bytes_read: int
    bytes_skipped: int
    read_operations: int
    @property
    def name(self) -> str: ...
    def register_error_context(self, msg: str) -> None: ...
    def peek(self, size: int = 0) -> bytes: ...

class CAInfo:
    def __init__(
        self, *, cacert: str | None = None, capath: str | None = None,
        allow_untrusted: bool = False,
    ) -> None: ...
    @property
    def curl_flags(self) -> tuple[str, ...]: ...
    def __hash__(self) -> int: ...
    def __eq__(self, other: object) -> bool: ...

class CURLStreamFile(_Stream):
    popen_latencies: list[float]
    http_response_latencies: list[float]
    response_headers: HTTPMessage
    def __init__(
        self, uri: str, begin: int | None = None, end: int | None = None,
        headers: Mapping[str, Any] | None = None, *,
        buffer_size: int | None = None,
        certificate_handling: CAInfo | None = None,
    ) -> None: ...
    def readline(self, size: int | None = -1) -> bytes: ...

class RedisStreamFile(_Stream):
    setup_latency: float
    response_latencies: list[float]
    def __init__(
        self, uri: str, *, begin: int | None = None, end: int | None = None,
        buffer_size: int | None = None,
    ) -> None: ...

def s3_upload(
    path: str | os.PathLike[str], target_uri: str,
    s3_access_key_id: str | None, s3_secret_access_key: str | None,
    s3_endpoint: str | None = None, s3_region_name: str | None = None,
    s3_signature_version: str | None = None,
) -> None: ...
def s3_download(
    path_uri: str, s3_access_key_id: str | None,
    s3_secret_access_key: str | None, s3_endpoint: str | None = None,
    s3_region_name: str | None = None,
    s3_signature_version: str | None = None, buffer_size: int | None = None,
    begin: int | None = None, end: int | None = None,
    certificate_handling: CAInfo | None = None,
) -> CURLStreamFile: ...
def open_stream(
    path_uri: str | os.PathLike[str] | BinaryIO, mode: str = "rb",
    s3_access_key_id: str | None = None,
    s3_secret_access_key: str | None = None, s3_endpoint: str | None = None,
    s3_config_path: str | os.PathLike[str] | None = None,
    buffer_size: int | None = None, force_http: bool | None = None, *,
    begin: int | None = None, end: int | None = None,
    s3_region_name: str | None = None,
    s3_signature_version: str | None = None,
    certificate_handling: CAInfo | None = None,
) -> BinaryIO: ...
