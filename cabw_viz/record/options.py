"""The values of public options, for the functions that check them and the surfaces that offer them."""

from typing import Literal, get_args

RunMode = Literal["eager", "compiled"]
"""How a captured backward call itself runs: as the user made it, or through compiled autograd."""

RUN_MODES: tuple[RunMode, ...] = get_args(RunMode)

GradientsMode = Literal["nodes", "leaves", "none"]
"""Which gradients of the user's own run are kept: those of every autograd node, those of the leaves, or none."""

GRADIENTS_MODES: tuple[GradientsMode, ...] = get_args(GradientsMode)

LinesMode = Literal["auto", True, False]
"""Whether forward lines are noted; `auto` leaves them out where a compiled region runs."""

LINES_MODES: tuple[LinesMode, ...] = get_args(LinesMode)

SWITCH = (True, False)
"""The values of an option that is on or off, the default first."""

HookPolicy = Literal["run", "drop", "refuse"]
"""What a replay does with hooks: it calls them again, leaves them out, or raises if there are any."""

HOOK_POLICIES: tuple[HookPolicy, ...] = get_args(HookPolicy)

EAGER = "eager"
"""The backend that interprets the graph, op by op on eager kernels."""

Exact = bool | Literal["auto"]
"""Whether a comparison runs the graph in float64 too; `auto` does so where not all gradients are bitwise equal."""

Measure = Literal["cosine", "ulp", "rms"]
"""Further measures of how far two gradients are apart."""

MEASURES: tuple[Measure, ...] = get_args(Measure)

Level = Literal["module", "autograd", "fx", "aten"]
"""`module`: boxes are the autograd nodes of one module. `autograd`: a box for each autograd node. `fx`: one for each
node of the captured graph. `aten`: one for each operator of the lowered graph."""

LEVELS: tuple[Level, ...] = get_args(Level)

ColorBy = Literal["kind", "family", "touches", "parity", "bytes", "time"]
"""What the boxes of a drawing and of the inspector are coloured by: `kind` is the kind of an autograd node, `family`
the work that it does."""

COLORS: tuple[ColorBy, ...] = get_args(ColorBy)
