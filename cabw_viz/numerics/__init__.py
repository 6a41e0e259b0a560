"""Comparing gradients, and telling rounding from faults: tolerances, distances, perturbed runs."""
