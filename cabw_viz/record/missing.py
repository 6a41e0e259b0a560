"""What a backward gave no gradient, or one that is zero everywhere, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from cabw_viz.record.kinds import MissingReason
from cabw_viz.record.source_line import SourceLine


@dataclass(frozen=True)
class MissingGradient:
    """A parameter of the subject without a gradient, and why."""

    names: tuple[str, ...]
    """All its names in the subject."""
    reason: MissingReason
    module: str = ""
    """Path of the module that owns it; empty for the subject itself, and for what no module owns."""
    module_class: str = ""
    """Class of that module; empty where no module owns it."""
    calls: int = 0
    """How many calls of modules that own it were seen in the forward of this loss."""
    calls_without_grad: int = 0
    """How many of these were made under `no_grad` or `inference_mode`."""
    operator: str = ""
    """The function at which its way to the loss ends (`detach`, `argmax`), or the last that was seen to take it; the
    name of the autograd node for `undefined` and `zero`."""
    line: SourceLine | None = None
    """The line of the user's that called this function, or made this autograd node."""
    in_loss: bool | None = None
    """For `detached`: whether what that function returned was seen to flow into this loss; None where that is not
    known."""
    autograd_node: int | None = None
    """For `undefined` and `zero`: number of the first autograd node, in the order of the backward, that makes it so."""
    maker: str = ""
    """For `undefined` and `zero`: what does it at that node: `node`, `sum` (of gradients that cancel), `hook`."""
    made_in: str = ""
    """Path of the module that made that node; empty for the subject itself, and outside of any."""
    facts: str = ""
    """What is known besides, in words."""

    @property
    def label(self) -> str:
        """All names in one text: `wte.weight = lm_head.weight`."""
        return " = ".join(self.names)


@dataclass(frozen=True)
class MissingGradients:
    """What `cap.missing()` finds in one capture."""

    parameters: int | None
    """How many parameters the subject has; None where `capture()` got no subject."""
    gradients: int
    """How many leaves of the subject, or of the call where there is none, this backward gave a gradient."""
    rows: tuple[MissingGradient, ...]
    """In the order of the subject's parameters; those whose gradient is zero after the others."""
    notes: tuple[str, ...] = ()
    """What could not be looked at, and why."""
