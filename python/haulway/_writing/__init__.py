"""Writing: a call's options, and files made from tensors or other files."""
