"""Making objects of NumPy and JAX, and Python's own, over memory."""
