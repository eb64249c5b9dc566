"""One module a nox session: the order of steps and checks."""
