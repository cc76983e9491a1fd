import os
from typing import Any, BinaryIO

def open_stream(
    path_uri: str | os.PathLike[str] | BinaryIO, mode: str = "rb",
    s3_access_key_id: str | None = None,
    s3_secret_access_key: str | None = None, s3_endpoint: str | None = None,
    s3_config_path: str | os.PathLike[str] | None = None,
    buffer_size: int | None = None, force_http: bool | None = None, *,
    begin: int | None = None, end: int | None = None,
    s3_region_name: str | None = None,
    s3_signature_version: str | None = None, certificate_handling: Any = None,
) -> BinaryIO: ...
