"""The bytes of objects with the buffer protocol."""


def flat_view(obj):
    """Returns a memoryview of the object's bytes, copied if not contiguous."""
    view = memoryview(obj)
    if not view.c_contiguous:
        return memoryview(view.tobytes())
    return view.cast("B") if view.nbytes else memoryview(b"")
