"""What stays alive of a capture while its session is open, and helpers that tracing and replay share."""
