"""What knows torch. Imported only where torch is wanted."""
