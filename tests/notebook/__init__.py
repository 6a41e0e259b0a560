"""Tests of the magics."""
