"""Parsed documents (TOML, JSON), read with paths, every problem collected."""
