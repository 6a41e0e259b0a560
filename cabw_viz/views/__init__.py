"""Records and analyses as text, DOT and pictures, tables."""
