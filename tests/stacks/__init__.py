"""Training stacks, and what belongs to the user in each: a capture and every later call must change nothing of it.

table.py       the stacks: model, data and optimizer of each, and which calls are refused
state.py       everything that the next training step depends on, read without the package
harness.py     trains a stack with and without the tool; a process of its own for each distributed one
"""
