"""Builders for tests: wheels, ELF files, servers, hosts."""
