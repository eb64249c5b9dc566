"""What was read on a host, as typed values."""
