"""Objects that several processes read in one memory."""
