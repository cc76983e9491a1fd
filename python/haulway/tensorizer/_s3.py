"""Converts the reference's arguments for S3 credentials and endpoints."""

from __future__ import annotations

import configparser
import os
from typing import NamedTuple

from .. import _haulway
from .._errors import PermissionDeniedError, UnsupportedError
from .._options import text

_V4 = (None, "v4", "s3v4")


class Access(NamedTuple):
    """Credentials, and the other settings of a configuration file."""

    access_key: str | None
    secret_key: str | None
    endpoint: str | None = None
    use_https: bool | None = None


def _of_config(paths):
    """Returns the settings of the first readable file, or None."""
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
    """Returns the credentials. Missing keys are taken from .s3cfg; both keys
    are set or neither."""
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
        # Ignores all other credentials on the machine.
        return Access(None, None)
    missing = "s3_secret_access_key" if access_key else "s3_access_key_id"
    raise ValueError(
        f"{missing} is not given: expected both keys, or the other one in "
        f"{os.fsdecode(paths[0])}"
    )


def endpoint_of(endpoint, force_http):
    """Returns the endpoint with its scheme; None lets the library choose."""
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
    """Returns the S3 options as the library takes them."""
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
    """Returns the S3 options for open_stream's arguments, with .s3cfg."""
    access = access_of(access_key, secret_key, config_path)
    if force_http is None and access.use_https is not None:
        force_http = not access.use_https
    endpoint = endpoint_of(endpoint or access.endpoint, force_http)
    return options_of(access, endpoint, region, signature_version)


def is_object(name):
    """Returns whether the name is an S3 URL."""
    return isinstance(name, str) and name[:5].lower() == "s3://"


def open_object(uri, options, remote):
    """Opens an object as a source. Without credentials the request is unsigned,
    since the object may be public."""
    try:
        return _haulway.open_s3_source(uri, options, remote)
    except PermissionDeniedError:
        if options["access_key"] or options["anonymous"]:
            raise
    return _haulway.open_s3_source(uri, {**options, "anonymous": True}, remote)
