"""Differences between torch releases, for tests that run with several."""

import contextlib
import io
import zipfile

import pytest
import torch

try:
    from torch.utils.serialization import config

    IS_OLD = False
except ImportError:  # Torch 2.6.

    IS_OLD = True

    class config:
        """A stand-in without the missing options."""

        class save:
            @staticmethod
            def patch(**settings):
                config.patch(settings)

        @staticmethod
        def patch(settings):
            if all(name.startswith("load.") for name in settings):
                return contextlib.nullcontext()  # It has only one way to load.
            return pytest.skip(
                f"torch {torch.__version__} has no config of {settings}")


def nested_allowed():
    """Within it torch accepts nested tensors, which 2.15 does only on
    request."""
    return torch.serialization.safe_globals([torch._utils._rebuild_nested_tensor])


def loads_sparse_without_data(context):
    """Returns whether torch.load() does not validate indices that it did not
    read, as in 2.15."""
    out = io.BytesIO()
    torch.save(torch.eye(3).to_sparse(), out)
    out.seek(0)
    try:
        with context():
            torch.load(out)
    except RuntimeError:
        return False
    return True


def dtypes(*names):
    """Returns those of the dtypes that this torch has."""
    return [getattr(torch, name) for name in names if hasattr(torch, name)]


def is_as_torch_saves(ours, theirs):
    """Returns whether a file equals torch's byte for byte; for torch 2.6, which
    writes two records fewer at other offsets, record for record."""
    if ours == theirs or not IS_OLD or not zipfile.is_zipfile(io.BytesIO(ours)):
        return ours == theirs
    ours, theirs = (zipfile.ZipFile(io.BytesIO(data)) for data in (ours, theirs))
    more = {name.partition("/")[2]
            for name in set(ours.namelist()) - set(theirs.namelist())}
    return more == {".format_version", ".storage_alignment"} and \
        all(name.endswith("serialization_id")
            or ours.read(name) == theirs.read(name) for name in theirs.namelist())


# For tests that save DCP directories without a process group.
needs_no_dist = pytest.mark.skipif(
    IS_OLD, reason="dcp.save() of torch 2.6 has no argument no_dist")
