"""How the reference's functions say who asks an S3, and where that is."""

from __future__ import annotations

import configparser
import os
from typing import NamedTuple

from .. import _haulway
from .._errors import PermissionDeniedError, UnsupportedError
from .._options import text

_V4 = (None, "v4", "s3v4")


class Access(NamedTuple):
    """The keys, and the other settings of a configuration file."""

    access_key: str | None
    secret_key: str | None
    endpoint: str | None = None
    use_https: bool | None = None


def _of_config(paths):
    """What the first of these files says that can be read, or None."""
    config = configparser.ConfigParser(interpolation=None)
    for path in paths:
        if config.read((path,)):
            break
    else:
        return None
    if "default" not in config:
        raise ValueError(f"{os.fsdecode(path)} has no section [default]")
    section = config["default"]
    return Access(
        section.get("access_key"), section.get("secret_key"),
        section.get("host_base"),
        {"True": True, "False": False}.get(section.get("use_https")),
    )


def access_of(access_key, secret_key, config_path):
    """Keys that are not given come from .s3cfg, both of them or none."""
    for name, given in (("s3_access_key_id", access_key),
                        ("s3_secret_access_key", secret_key)):
        if given is not None:
            text(name, given)
    if access_key is not None and secret_key is not None:
        return Access(access_key, secret_key)
    paths = [os.path.expanduser("~/.s3cfg")]
    if config_path:
        paths = [config_path]
    found = _of_config(paths)
    if found is not None:
        access_key = access_key or found.access_key
        secret_key = secret_key or found.secret_key
        if access_key and secret_key:
            return found._replace(
                access_key=access_key, secret_key=secret_key
            )
    if access_key is None and secret_key is None:
        return Access(None, None)  # Whatever else there is on the machine.
    missing = "s3_secret_access_key" if access_key else "s3_access_key_id"
    raise ValueError(
        f"{missing} is not given: expected both keys, or the other one in "
        f"{os.fsdecode(paths[0])}"
    )


def endpoint_of(endpoint, force_http):
    """With its scheme; None where the library is to look for it."""
    if not endpoint:
        return None
    text("s3_endpoint", endpoint)
    scheme, mark, host = endpoint.partition("://")
    if not mark:
        return ("http://" if force_http else "https://") + endpoint
    if scheme.lower() == "http" and not force_http:
        raise ValueError(
            "Non-HTTPS endpoint URLs are not allowed, but with force_http or "
            "by AWS_ENDPOINT_URL_S3."
        )
    return ("http://" if force_http else "https://") + host


def options_of(access, endpoint, region, signature_version):
    """As the library takes them."""
    for name, given in (("s3_endpoint", endpoint), ("s3_region_name", region)):
        if given is not None:
            text(name, given)
    if signature_version not in _V4:
        raise UnsupportedError(
            f"s3_signature_version is {signature_version!r}: requests are "
            "signed by version 4 only",
            "kUnsupported",
        )
    anonymous = access.access_key == access.secret_key == ""
    return {
        "access_key": access.access_key or None,
        "secret_key": access.secret_key or None,
        "endpoint": endpoint,
        "region": region,
        "anonymous": anonymous or None,
    }


def asking(access_key=None, secret_key=None, config_path=None, endpoint=None,
           force_http=None, region=None, signature_version=None):
    """The options that open_stream's arguments come to, with .s3cfg."""
    access = access_of(access_key, secret_key, config_path)
    if force_http is None and access.use_https is not None:
        force_http = not access.use_https
    endpoint = endpoint_of(endpoint or access.endpoint, force_http)
    return options_of(access, endpoint, region, signature_version)


def is_object(name):
    """Whether it is a name in an S3."""
    return isinstance(name, str) and name[:5].lower() == "s3://"


def open_object(uri, options, remote):
    """A source of an object; unsigned where nobody knows any keys, since it
    may be public."""
    try:
        return _haulway.open_s3_source(uri, options, remote)
    except PermissionDeniedError:
        if options["access_key"] or options["anonymous"]:
            raise
    return _haulway.open_s3_source(uri, {**options, "anonymous": True}, remote)
