"""The package index and the wheelhouse: wheels by hash."""
