"""Read-only reconnaissance of the host that the agent runs on: facts, each with how it was read."""
