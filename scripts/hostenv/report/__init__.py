"""What a person, or a program reading JSON, sees of a session."""
