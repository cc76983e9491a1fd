"""What a format cannot be written without, as options of save and convert."""


def needed(name):
    """name: of a format, or of a file with its ending."""
    if not str(name).endswith("gguf"):
        return {}
    return {"metadata": {"general.architecture": "test"}}
