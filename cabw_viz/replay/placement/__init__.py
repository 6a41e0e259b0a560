"""A captured graph on another device, in another dtype, under another backend."""
