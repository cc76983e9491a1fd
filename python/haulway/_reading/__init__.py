"""Reading: a call's options, the source that a path names, and the results."""
