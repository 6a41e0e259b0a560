"""Gradients of the graph run again against those of the user's own run."""
