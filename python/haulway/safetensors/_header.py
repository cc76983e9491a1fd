"""What only the header itself says."""

from __future__ import annotations

import json

from .. import _haulway
from ._dtypes import PACKED, in_files


def parsed_header(core):
    """The header of an open checkpoint, a dict."""
    return json.loads(_haulway.safetensors_header(core))


def header_shape(name, info, header):
    """The shape of a tensor as the header has it, a list.

    header: a function that returns parsed_header(); only called where items
        hold several elements.
    """
    if in_files(info.dtype) not in PACKED:
        return list(info.shape)
    return list(header()[name]["shape"])


def refusal_of(source, error):
    """What the package says of a source that Haulway refused with `error`."""
    return _haulway.safetensors_refusal(source) or str(error)
