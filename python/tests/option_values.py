"""Values that options refuse."""

import haulway

# One value of each type that some option accepts, and of types that none does.
VALUES = {"str": "\0", "int": -7, "float": 0.5, "bytes": b"x",
          "list": [object()], "object": object(), "dict": {3: 3}, "set": {3}}


def wrong_values(name, option):
    """Returns the values in VALUES that an option does not accept."""
    for value in VALUES.values():
        try:
            option.check(name, value)
        except haulway.Error:
            yield value


def check_refusal(error, name, option, value):
    """Checks that the error names the option and what it expects, and shows no
    secret."""
    assert str(error).startswith(name), value
    assert "expected" in str(error), value
    if option.secret:
        assert repr(value) not in str(error)
