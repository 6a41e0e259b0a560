"""The captured graph as a graph of aten operators alone."""
