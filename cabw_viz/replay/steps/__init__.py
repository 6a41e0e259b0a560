"""A user's whole steps, run in several ways and compared."""
