"""`python -m cabw_viz`."""

import sys

from cabw_viz.surfaces.cli import main

sys.exit(main())
