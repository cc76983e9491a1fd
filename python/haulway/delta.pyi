from typing import Literal, type_check_only

from typing_extensions import Unpack

from . import OpeningOptions, Report, _Path, _RemoteWords, _Source

__all__ = ["Version", "verify", "versions", "write"]

class Version(Report):
    id: str
    number: int
    kind: str
    base: str | None
    encoding: str | None
    checksum: str | None
    tensors: int
    bytes: int
    complete: bool
    missing: list[str]
    path: str
    def __bool__(self) -> bool: ...

@type_check_only
class _VerifyingVersions(_RemoteWords, total=False):
    base: _Path | None
    threads: int | None

@type_check_only
class _WritingVersions(OpeningOptions, total=False):
    threads: int | None

def versions(url: _Path, **options: Unpack[_RemoteWords]) -> list[Version]: ...
def verify(url: _Path, **options: Unpack[_VerifyingVersions]) -> Report: ...
def write(
    old: _Source, new: _Source, out: _Path, *, version: int | str,
    base_version: int | str, encoding: Literal["xor", "overwrite"] = "xor",
    checksum: Literal["xxh3-128", "blake3", "adler32"] = "xxh3-128",
    shard: int | str | None = None, durability: Literal["full", "none"] = "full",
    **options: Unpack[_WritingVersions],
) -> Version: ...
