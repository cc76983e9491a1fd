"""Writing: what a call was given, and files from tensors and from other files."""
