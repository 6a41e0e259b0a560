"""What a backward gave no gradient, in sentences: parameters that lack it for the same reason stand in one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cabw_viz.analysis.drawing import file_and_line
from cabw_viz.record.kinds import MissingReason
from cabw_viz.record.missing import MissingGradient, MissingGradients
from cabw_viz.record.wording import counted

NAMED = 4
"""Parameters that are named in a sentence one by one; more are named by their modules."""
MODULES = 4
"""Modules that are named in a sentence."""


def summary(missing: MissingGradients) -> str:
    """How many parameters got no gradient, and how many one that is zero everywhere."""
    zeros = [row for row in missing.rows if row.reason == "zero"]
    cleared = [row for row in missing.rows if row.reason == "set_to_none"]
    without = len(missing.rows) - len(zeros) - len(cleared)
    of = "" if missing.parameters is None else f" of {counted(missing.parameters, 'parameter')}"
    if not missing.rows:
        if missing.parameters is None:
            return f"{counted(missing.gradients, 'gradient')}, none of which is zero everywhere."
        return f"Every one of {counted(missing.parameters, 'parameter')} got a gradient, and none is zero everywhere."
    parts = [f"{without:,}{of} got no gradient from this backward"] if without or not (zeros or cleared) else []
    parts += [f"{counted(len(zeros), 'gradient')} {_is(zeros)} zero everywhere"] if zeros else []
    parts += [f"{counted(len(cleared), '.grad', '.grad')} {_is(cleared)} None by now"] if cleared else []
    return f"{'; '.join(parts)}."


def sentences(missing: MissingGradients) -> list[str]:
    """A sentence for each reason and place, in the order of the parameters."""
    groups: dict[tuple[object, ...], list[MissingGradient]] = {}
    for row in missing.rows:
        groups.setdefault(_cause(row), []).append(row)
    return [_sentence(rows) for rows in groups.values()]


def sentence(row: MissingGradient) -> str:
    """The reason of one parameter."""
    return _sentence([row])


def _cause(row: MissingGradient) -> tuple[object, ...]:
    place = row.operator, row.line, row.autograd_node, row.maker, row.in_loss, row.facts
    calls = row.calls > 1, row.calls == row.calls_without_grad
    return row.reason, *place, *(calls if row.reason in ("no_grad", "inference_mode") else ())


def _sentence(rows: Sequence[MissingGradient]) -> str:
    return f"{_names(rows)}: {_REASONS[rows[0].reason](rows)}."


def _names(rows: Sequence[MissingGradient]) -> str:
    if len(rows) <= NAMED:
        return ", ".join(row.label for row in rows)
    modules = list(dict.fromkeys(row.module or "the subject itself" for row in rows))
    more = f" and {counted(len(modules) - MODULES, 'other module')}" if len(modules) > MODULES else ""
    return f"{counted(len(rows), 'parameter')} of {', '.join(modules[:MODULES])}{more}"


def _is(rows: Sequence[object]) -> str:
    return "is" if len(rows) == 1 else "are"


def _its(rows: Sequence[object], noun: str) -> str:
    return f"its {noun}" if len(rows) == 1 else f"their {noun}"


def _it(rows: Sequence[object]) -> str:
    return "it" if len(rows) == 1 else "them"


def _modules(rows: Sequence[MissingGradient]) -> str:
    """The module, or modules, and whether they were or was something."""
    paths = list(dict.fromkeys((row.module, row.module_class) for row in rows))
    if len(paths) > 1:
        return "their modules were"
    path, cls = paths[0]
    return f"{_its(rows, 'module')} {path or cls} was"


def _at(row: MissingGradient) -> str:
    return "" if row.line is None else f" at {file_and_line(str(row.line))}"


def _call(row: MissingGradient) -> str:
    """The operation as it is written: `detach()`, `.data`, `mul() under no_grad`."""
    name, under, mode = row.operator.partition(" under ")
    return (name if name.startswith(".") else f"{name}()") + under + mode + _at(row)


def _not_called(rows: Sequence[MissingGradient]) -> str:
    text = f"{_modules(rows)} not called in the forward of this loss"
    row = rows[0]
    if not row.operator:
        return text
    return f"{text}; {_call(row)} took {_it(rows)} outside of any module, which is no part of this loss"


def _without_grad(mode: str) -> Callable[[Sequence[MissingGradient]], str]:
    def text(rows: Sequence[MissingGradient]) -> str:
        row = rows[0]
        if row.operator:
            return f"{_call(row)} took {_it(rows)} under {mode}"
        how = "" if row.calls < 2 else f", {row.calls} times" if len(rows) == 1 else ", each time"
        return f"{_modules(rows)} called under {mode}{how}"

    return text


def _detached(rows: Sequence[MissingGradient]) -> str:
    row = rows[0]
    text = f"the way to the loss ends at {_call(row)}, which returns what has no history"
    return text if row.in_loss else f"{text}; whether this loss depends on that is not known"


def _not_in_loss(rows: Sequence[MissingGradient]) -> str:
    row = rows[0]
    quiet = max(each.calls_without_grad for each in rows)
    more = f"; {counted(quiet, 'other call')} of its module ran under no_grad" if quiet and len(rows) == 1 else ""
    return f"{_call(row)} took {_it(rows)}, and this loss does not depend on the result{more}"


def _made_by(rows: Sequence[MissingGradient]) -> str:
    """The step of the backward, with its place."""
    row = rows[0]
    if row.autograd_node is None:
        return ""
    inside = f" in {row.made_in}" if row.made_in else ""
    node = f"{row.operator} (#{row.autograd_node}){inside}{_at(row)}"
    return {"hook": f"a hook of {node}", "sum": f"a sum of gradients that cancel, into {node},"}.get(row.maker, node)


def _undefined(rows: Sequence[MissingGradient]) -> str:
    by = _made_by(rows)
    return f"this backward reaches {_it(rows)}, but {by or 'a node'} returned None for a gradient"


def _zero(rows: Sequence[MissingGradient]) -> str:
    by, row = _made_by(rows), rows[0]
    text = f"{_its(rows, 'gradient')} is zero everywhere"
    if row.autograd_node == 0:
        return f"{text}, as is the gradient that the backward was called with"
    facts = f": {row.facts}" if row.facts else ""
    return f"{text}: {by} made zeros of what was not{facts}" if by else f"{text}; what made it so is not known"


_REASONS: dict[MissingReason, Callable[[Sequence[MissingGradient]], str]] = {
    "requires_grad": lambda rows: f"{_its(rows, 'requires_grad')} is False",
    "not_leaf": lambda rows: (
        f"computed from other tensors, so that autograd keeps no .grad of {_it(rows)}; retain_grad() asks for it"
    ),
    "inputs": lambda rows: f"this backward reaches {_it(rows)}, and was called for other inputs (inputs=)",
    "only": lambda rows: (
        f"another backward of the same forward gave {_it(rows)} a gradient, which only= left out of the captures"
    ),
    "not_called": _not_called,
    "no_grad": _without_grad("no_grad"),
    "inference_mode": _without_grad("inference_mode"),
    "detached": _detached,
    "not_in_loss": _not_in_loss,
    "not_used": lambda rows: f"{_modules(rows)} called, and no operation in its forward took {_it(rows)}",
    "undefined": _undefined,
    "set_to_none": lambda rows: (
        f"this backward gave {_it(rows)} a gradient, and .grad was set to None since then, as zero_grad() does"
    ),
    "not_known": lambda rows: f"not known: {rows[0].facts}",
    "zero": _zero,
}
