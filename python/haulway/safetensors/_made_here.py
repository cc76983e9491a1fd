"""Objects that a program gets from safe_open and cannot make."""


class OnlyMadeHere:
    """The base of classes that cannot be called and whose objects cannot be
    pickled, as in the package. Ours are made by object.__new__()."""

    __slots__ = ()

    def __new__(cls, *_args, **_kwargs):
        raise TypeError(f"cannot create '{cls.__name__}' instances")

    def __reduce__(self):
        raise TypeError(f"cannot pickle '{type(self).__name__}' object")
