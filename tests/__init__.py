"""The tests. A package, so that `tests.corpus` is found wherever pytest starts."""
