"""Why a backward call gives parameters of the subject no gradient: found out before it runs.

A parameter that the call's graph does not reach is looked at in turn:

    requires_grad, is_leaf, inputs=     what the parameter is, and what the call was asked for
    ends of histories                   `detach` and the like, above the last use of the parameter
    uses                                the operations that took the parameter, with gradient or without
    calls of its module                 where no use was seen

What is not certain (forward lines are off, a compiled region hides calls, part of the forward ran before the block) is
`not_known`, with what was seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from cabw_viz import torch_adapter
from cabw_viz.record.kinds import MissingReason
from cabw_viz.record.missing import MissingGradient
from cabw_viz.record.model import Leaf
from cabw_viz.record.wording import counted
from cabw_viz.torch_adapter import EngineCall
from cabw_viz.tracing.forward_uses import HistoryEnd, Use
from cabw_viz.tracing.forwards import CallSummary, Forward
from cabw_viz.tracing.module_names import ModuleNames
from cabw_viz.tracing.naming import Names
from cabw_viz.tracing.source_lines import line_of

Parameter = tuple[tuple[str, ...], Any]
"""All names of a tensor, and the tensor."""


class MissingSearch:
    """Finds the reasons for one call.

    Args:
        call: that is to be made.
        names: of the subject's tensors.
        modules: names of the subject's modules.
        forward: of the call.
        hidden: why module calls or operations may not have been seen; empty where all were.
    """

    def __init__(self, call: EngineCall, names: Names, modules: ModuleNames, forward: Forward, hidden: str) -> None:
        self._call, self._names, self._modules, self._forward, self._hidden = call, names, modules, forward, hidden
        self._ends: dict[int, list[tuple[HistoryEnd, bool]]] = {}

    def missing(self, leaves: Sequence[Leaf], parameters: Sequence[Parameter]) -> tuple[MissingGradient, ...]:
        """The parameters that are no leaves of the call, each with the reason."""
        reached = {name for leaf in leaves if leaf.autograd_node is not None for name in leaf.names}
        missing = [(names, tensor) for names, tensor in parameters if reached.isdisjoint(names)]
        if not missing:
            return ()
        left_out = self._reached_without_inputs()
        self._ends = self._forward.ends_above([tensor for _, tensor in missing])
        return tuple(self._row(names, tensor, left_out) for names, tensor in missing)

    def _reached_without_inputs(self) -> set[int]:
        if not self._call.inputs:
            return set()
        return {id(leaf) for _, leaf in torch_adapter.accumulating_nodes(self._call.roots)}

    def _row(self, names: tuple[str, ...], tensor: Any, left_out: set[int]) -> MissingGradient:
        owner = self._modules.owner(names)
        path, cls = ("", "") if owner is None else (owner.path, owner.cls)
        row = MissingGradient(names, "not_known", path, cls)
        if not tensor.requires_grad:
            return replace(row, reason="requires_grad")
        if not tensor.is_leaf:
            return replace(row, reason="not_leaf")
        if id(tensor) in left_out:
            return replace(row, reason="inputs")
        numbers = self._numbers_of_owners(names)
        calls = self._forward.calls_of(numbers)
        row = replace(row, calls=calls.calls, calls_without_grad=calls.without_grad)
        return self._of_ends(row, tensor) or self._of_uses(row, tensor, calls) or self._of_calls(row, tensor, calls)

    def _numbers_of_owners(self, names: tuple[str, ...]) -> set[int]:
        numbers: set[int] = set()
        for name in names:
            module = self._names.module_at(name.rpartition(".")[0])
            if module is not None:
                numbers |= self._modules.numbers_of(module)
        return numbers

    def _of_ends(self, row: MissingGradient, tensor: Any) -> MissingGradient | None:
        """Detached: a way to the loss ends. It does not count where the loss is known not to depend on the result."""
        ends = self._ends.get(id(tensor), [])
        sure = [end for end, in_loss in ends if in_loss]
        last_unseen = self._forward.last_unseen
        open_ends = [end for end, _ in ends if end.is_lost or self._hidden or end.number <= last_unseen]
        for end in (*sure, *open_ends):
            in_loss = True if end in sure else None
            return replace(row, reason="detached", operator=end.function, line=line_of(end.line), in_loss=in_loss)
        return None

    def _of_uses(self, row: MissingGradient, tensor: Any, calls: CallSummary) -> MissingGradient | None:
        use, quiet = self._forward.use_of(tensor), self._forward.quiet_use_of(tensor)
        has_module = bool(row.module_class)
        if use is not None and (calls.calls or not has_module or self._forward.module_at(use.number)):
            return self._at(row, "not_in_loss", use)
        if quiet is not None and (quiet.in_module or not has_module) and calls.with_history == 0:
            return self._at(row, "no_grad", quiet)
        if use is not None and has_module and not self._hidden:
            return self._at(row, "not_called", use)
        return None

    def _at(self, row: MissingGradient, reason: MissingReason, use: Use) -> MissingGradient:
        return replace(row, reason=reason, operator=use.function, line=line_of(use.line))

    def _of_calls(self, row: MissingGradient, tensor: Any, calls: CallSummary) -> MissingGradient:
        if calls.calls and calls.calls == calls.without_grad and self._forward.is_in_block:
            reason: MissingReason = "inference_mode" if calls.in_inference == calls.calls else "no_grad"
            return replace(row, reason=reason)
        if not self._forward.is_in_block:
            return replace(row, facts="part of the forward of this loss ran before the block was entered")
        if self._hidden:
            return replace(row, facts=f"{_seen(row, calls)}, and {self._hidden}")
        if not row.module_class:
            return replace(row, facts="no operation was seen that took it")
        if not calls.calls:
            return replace(row, reason="not_called")
        quiet = self._forward.quiet_use_of(tensor)
        if quiet is not None:
            return self._at(row, "no_grad", quiet)
        if calls.unseen:
            return replace(
                row, facts=f"{_seen(row, calls)}; a custom Function or an operation in C++ ran in its forward"
            )
        return replace(row, reason="not_used")


def _seen(row: MissingGradient, calls: CallSummary) -> str:
    if not row.module_class:
        return "no module owns it"
    if not calls.calls:
        return "no call of its module was seen"
    if calls.with_history:
        return f"{counted(calls.calls, 'call')} of its module was seen, which returned a tensor with a history"
    return f"{counted(calls.calls, 'call')} of its module was seen, which returned no tensor with a history"


def hidden_calls(subject: Any, lines_off: str, *, other_threads: bool) -> str:
    """Why module calls or operations of a forward may not have been seen; empty where all were."""
    if torch_adapter.dynamo_has_compiled():
        return "what runs in a compiled region is not seen"
    if other_threads:
        return "what runs in other threads is not seen"
    modules = subject.modules() if isinstance(subject, torch.nn.Module) else ()
    if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
        return "what runs in a scripted module is not seen"
    if lines_off:
        return f"operations were not watched ({lines_off})"
    return ""
