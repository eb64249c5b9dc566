"""Facts in, findings out: pure functions."""
