"""The first step of a backward at which eager and the graph run again part."""
