"""What people touch: sessions, notebook magics, the command line."""
