"""What of the user's must be the same after every later call: modules, tensors, random numbers, modes and settings."""
