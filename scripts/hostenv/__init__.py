"""hostenv: reproducible, provable Python environments on GPU hosts."""
