"""The bytes of what has the buffer protocol."""


def flat_view(obj):
    """A memoryview of bytes over the object's content, copied if need be."""
    view = memoryview(obj)
    if not view.c_contiguous:
        return memoryview(view.tobytes())
    return view.cast("B") if view.nbytes else memoryview(b"")
