"""Reading: what a call was given, the source it names, and what it returns."""
