"""Hooks compiled autograd's tracer: from a backward call to a record and a graph that can be run again."""
