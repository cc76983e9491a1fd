"""Objects in memory that several processes share."""
