"""Command lines of the sessions: words after ``--`` become a request."""
