from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, TypedDict, type_check_only

from typing_extensions import Self, Unpack

from . import IndexOptions, Report, _Path, _RemoteWords, _Source, _UnsignedWords

__all__ = [
    "Publisher", "Version", "apply", "compact", "fold", "follow", "prune",
    "publisher", "verify", "versions", "write",
]

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

class Publisher:
    def __init__(
        self, url: str, base: Any, options: Mapping[str, Any], group: Any,
        report: Any,
    ) -> None: ...
    @property
    def version(self) -> int: ...
    def publish(
        self, state: Mapping[str, Any], *, full: bool = False,
    ) -> Version: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

@type_check_only
class _PublishingVersions(_RemoteWords, total=False):
    threads: int | None

@type_check_only
class _FollowingVersions(TypedDict, total=False):
    headers: Mapping[str, str] | None
    bearer_token: str | None
    netrc: _Path | None
    ca_file: _Path | None
    client_certificate: _Path | None
    client_key: _Path | None
    insecure: bool | None
    proxy: str | None
    connect_timeout: float | None
    stall_timeout: float | None
    connections: int | None
    cache_dir: _Path | None
    cache_size: int | str | None

@type_check_only
class _VerifyingVersions(_RemoteWords, total=False):
    base: _Path | None
    threads: int | None

@type_check_only
class _FoldingVersions(_RemoteWords, total=False):
    threads: int | None

@type_check_only
class _WritingVersions(IndexOptions, _UnsignedWords, total=False):
    mmap: bool | None
    threads: int | None

def versions(url: _Path, **options: Unpack[_RemoteWords]) -> list[Version]: ...
def verify(url: _Path, **options: Unpack[_VerifyingVersions]) -> Report: ...
def apply(
    target: _Path, url: _Path, *, to: int | str | None = None,
    start: int | str | None = None,
    durability: Literal["full", "none"] | None = None,
    **options: Unpack[_VerifyingVersions],
) -> Report: ...
def fold(
    url: _Path, out: _Path, *, start: int | str, to: int | str,
    **options: Unpack[_FoldingVersions],
) -> Version: ...
def compact(
    url: _Path, out: _Path, *, version: int | str | None = None,
    shard: int | str | None = None, **options: Unpack[_VerifyingVersions],
) -> Version: ...
def write(
    old: _Source, new: _Source, out: _Path, *, version: int | str,
    base_version: int | str, encoding: Literal["xor", "overwrite"] = "xor",
    checksum: Literal["xxh3-128", "blake3", "adler32"] = "xxh3-128",
    shard: int | str | None = None, durability: Literal["full", "none"] = "full",
    **options: Unpack[_WritingVersions],
) -> Version: ...
def publisher(
    url: _Path, base: _Path | Mapping[str, Any], *,
    encoding: Literal["xor", "overwrite"] = "xor",
    checksum: Literal["xxh3-128", "blake3", "adler32"] = "xxh3-128",
    shard: int | str | None = None, full_every: int | None = None,
    keep: int | None = None, layout: Literal["weight_v", "v"] = "weight_v",
    group: Any = None, durability: Literal["full", "none"] | None = None,
    **options: Unpack[_PublishingVersions],
) -> Publisher: ...
def follow(
    url: _Path, *, newer_than: int | None = None, timeout: float | None = None,
    poll: float = 0.2, **options: Unpack[_FollowingVersions],
) -> Iterator[Version]: ...
def prune(
    url: _Path, *, keep: int = 1, dry_run: bool = False,
    **options: Unpack[_RemoteWords],
) -> Report: ...
