"""Moved: see `cabw_viz.places`."""

from cabw_viz.places import place as place
