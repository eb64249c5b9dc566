"""How a host is reached, and how the agent on it is called."""
