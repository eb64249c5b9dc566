"""What is wanted: the repository's files as frozen values."""
