"""Where the NaN and the infinities of a backward begin, in words."""

from __future__ import annotations

import math

from cabw_viz.analysis.drawing import file_and_line
from cabw_viz.record.nonfinite import NonFiniteOrigin, NonFiniteSearch, ValueRange, Way
from cabw_viz.record.wording import counted

WAYS: dict[Way, str] = {
    "overflow": "overflow",
    "division_by_zero": "division by zero",
    "zero_times_infinity": "0 * inf",
    "infinity_minus_infinity": "inf - inf",
    "log_of_zero": "log(0)",
    "root_at_zero": "the derivative of a root at 0",
    "outside_domain": "a root or a logarithm of a number below its domain",
    "masked_row": "a softmax over a row of nothing but -inf",
    "passed_on": "passed on from the forward",
    "held": "held before, by a tensor that it takes",
    "hook": "a hook",
    "custom_function": "a custom Function",
    "compiled_region": "a compiled region",
    "in_place_write": "a write in place",
}
"""How a NaN or an infinity is made, in words."""

NAMED = 4
"""How many ranges, origins and leaves are named in a sentence."""


def ok(search: NonFiniteSearch) -> bool:
    """Whether the loss and all gradients that were looked at are finite, and there were gradients to look at."""
    return not (search.loss or search.origins or search.leaves) and search.compared[1] > 0


def summary(search: NonFiniteSearch) -> str:
    """The outcome in a sentence or two, the loss first."""
    sentences = [_loss_text(search)] if search.loss else []
    first = search.first
    if first is not None:
        sentences.append(origin_text(first))
    elif search.loss:
        sentences.append(
            "No saved tensor shows where it begins: it was made where nothing was saved, or what was is not kept."
        )
    elif search.leaves:
        names = ", ".join(name for name, _ in search.leaves[:NAMED])
        sentences.append(f"The gradients of {names} are not finite, and what was kept does not show where that begins.")
    elif not search.compared[1]:
        sentences.append("No gradients were kept, so it is not known whether they are finite.")
    else:
        sentences.append(f"No NaN or infinity: {_counts(search)} are finite.")
    return " ".join(sentences)


def _counts(search: NonFiniteSearch) -> str:
    losses, gradients, _ = search.compared
    loss = "the loss and " if losses == 1 else f"{losses:,} losses and " if losses else ""
    return f"{loss}{counted(gradients, 'gradient')}"


def _loss_text(search: NonFiniteSearch) -> str:
    return f"The loss is {content(search.loss[0])}."


def content(values: ValueRange) -> str:
    """What a tensor holds that is not finite: `NaN`, `inf in 3 of 8 elements`."""
    elements = math.prod(values.shape)
    if elements == 1:
        return "NaN" if values.nans else "inf" if values.positive else "-inf"
    counts = [("NaN", values.nans), ("inf", values.positive), ("-inf", values.negative)]
    parts = [f"{count:,} {name}" for name, count in counts if count]
    return f"not finite ({', '.join(parts)} of {elements:,} elements)"


def range_text(values: ValueRange) -> str:
    """The range of a tensor: `-1.2 to 3.4, magnitudes 1e-05 to 3.4`."""
    parts = [f"{count:,} {name}" for name, count in (("NaN", values.nans), ("inf", values.infinities)) if count]
    if math.isnan(values.low):
        return ", ".join(parts) or "no elements"
    text = f"{values.low:.4g} to {values.high:.4g}"
    if values.smallest is not None:
        text += f" (magnitudes {values.smallest:.4g} to {values.largest:.4g}{_zeros(values)})"
    elif values.zeros:
        text += " (all 0)"
    return ", ".join([text, *parts])


def _zeros(values: ValueRange) -> str:
    return f", {counted(values.zeros, 'zero')}" if values.zeros else ""


def place_of(origin: NonFiniteOrigin) -> str:
    """An origin's number, name, module and line: `#5 ExpBackward0 in layers.3, model.py:12`."""
    if origin.stage in ("leaf", "input"):
        place = f"{origin.name}"
    elif origin.kind in ("hook", "gradient_sum", "in_place_write"):
        place = f"{origin.name} (#{origin.number})"
    else:
        place = f"#{origin.number} {origin.name}"
    if origin.module:
        place += f" in {origin.module}" + (f" (call {origin.visit + 1})" if origin.visit else "")
    return place + (f", {file_and_line(str(origin.line))}" if origin.line is not None else "")


def origin_text(origin: NonFiniteOrigin) -> str:
    """One origin in whole sentences: what, where, how, and what flowed in."""
    where = place_of(origin)
    made = _made(origin)
    if origin.stage == "root_gradient":
        text = f"The gradient that the call begins with is {_content(origin)}{_at(origin)}."
    elif origin.stage in ("leaf", "input"):
        kind = "parameter or leaf " if origin.stage == "leaf" else "input: "
        text = f"Before the forward: {kind}{where} is {_content(origin)} ({origin.what})."
    elif origin.stage == "forward":
        text = f"First in the forward: the op of {where} gives {_content(origin)} ({origin.what})."
    else:
        verb = "makes NaN of infinities" if origin.of_infinity else f"makes {_content(origin)}"
        of = "" if origin.of_infinity else " of finite gradients"
        text = f"First in the backward: {where} {verb}{of} ({origin.what})."
    return " ".join([text, *made, *_into(origin)])


def _at(origin: NonFiniteOrigin) -> str:
    return f", at {file_and_line(str(origin.line))}" if origin.line is not None else ""


def _content(origin: NonFiniteOrigin) -> str:
    if origin.out is None:
        return "what is not finite"
    held = [name for name, count in (("NaN", origin.out.nans), ("inf", origin.out.infinities)) if count]
    return " and ".join(held) or "what is not finite"


def _made(origin: NonFiniteOrigin) -> list[str]:
    if origin.stage in ("leaf", "input", "root_gradient"):
        return []
    sentences = [f"How: {ways_text(origin)}."]
    if origin.others:
        names = ", ".join(f"#{number}" for number in origin.others[:NAMED])
        more = f" and {len(origin.others) - NAMED:,} more" if len(origin.others) > NAMED else ""
        sentences.append(f"It may have been made before it, by the op of {names}{more}: what these gave was not kept.")
    return sentences


def ways_text(origin: NonFiniteOrigin) -> str:
    """How it was made, with what is known beside it."""
    words = [WAYS[way] for way in origin.ways]
    text = " or ".join(words)
    if len(words) != 1:
        text = f"{text}, not known which" if words else "not known"
    if origin.ways == ("overflow",) and origin.out is not None:
        text += f" of {origin.out.dtype.removeprefix('torch.')}"
    return f"{text} ({origin.note})" if origin.note else text


def _into(origin: NonFiniteOrigin) -> list[str]:
    if not origin.into:
        return []
    ranges = "; ".join(map(range_text, origin.into[:NAMED]))
    return [f"What flowed in: {ranges}."]


def findings(search: NonFiniteSearch) -> list[str]:
    """The outcome in lines: the loss, each origin, the leaves, masks, gaps."""
    lines = [summary(search)]
    lines += [origin_text(origin) for origin in search.origins[1:]]
    if search.leaves:
        names = ", ".join(name for name, _ in search.leaves[:NAMED])
        more = f" and {len(search.leaves) - NAMED:,} more" if len(search.leaves) > NAMED else ""
        lines.append(
            f"{counted(len(search.leaves), 'leaf', 'leaves')} got a gradient with NaN or infinity: {names}{more}."
        )
    if ok(search) and search.saved:
        count = counted(len(search.saved), "saved tensor")
        lines.append(f"{count} with NaN or infinity: none of it reaches the loss or a gradient.")
    return [*lines, *search.gaps]
