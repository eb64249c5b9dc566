"""What runs on a host: standard library only, python3 >= 3.8, shipped in memory."""
