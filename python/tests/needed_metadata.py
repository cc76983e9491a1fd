"""The metadata that a format requires, as options of save and convert."""


def needed(name):
    """Returns the options.

    name: a format, or a file with its extension.
    """
    if not str(name).endswith("gguf"):
        return {}
    return {"metadata": {"general.architecture": "test"}}
