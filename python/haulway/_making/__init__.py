"""Makes NumPy arrays, JAX arrays and plain Python objects over memory."""
