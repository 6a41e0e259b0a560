"""Runs captured graphs again and compares what comes out."""
