"""Descriptions of the two sides of a parity, and notes on the hooks in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from cabw_viz import torch_adapter
from cabw_viz.record.model import CaptureRecord, Hook
from cabw_viz.record.options import HookPolicy
from cabw_viz.record.wording import counted, run_words
from cabw_viz.replay.hook_policy import follows_accumulation
from cabw_viz.replay.placement.target import Target
from cabw_viz.replay.replay import ReplayResult


def describe_run(record: CaptureRecord, gradients: Iterable[torch.Tensor]) -> str:
    """The user's own run: `your own eager run, 2 compiled regions in it by kernels of their own, on cpu in float32`."""
    regions = sum(node.kind == "aot_backward" for node in record.autograd_nodes)
    compiled = f", {counted(regions, 'compiled region')} in it by kernels of {'its' if regions == 1 else 'their'} own"
    return (
        run_words(record.run).reference
        + (compiled if record.run == "eager" and regions else "")
        + describe_placement(gradients)
    )


def describe_graph(target: Target, result: ReplayResult) -> str:
    """The captured graph, run again: how, where and in what dtype."""
    dtype = "" if target.dtype is None else ": the backward of the saved forward in that dtype"
    execution, placement = _describe_execution(target, result), describe_placement(result.gradients.values())
    return f"the captured graph {execution}{placement}{dtype}"


def _describe_execution(target: Target, result: ReplayResult) -> str:
    if not target.compiles:
        return "run again, op by op on eager kernels"
    if result.graph_count is None:
        return f"compiled by {target.backend_name} and run again"
    outcome = "" if result.graph_count else ", which compiled nothing of it"
    parts = f" ({counted(result.graph_count, 'graph')})" if result.graph_count else ""
    return f"compiled by torch.compile(backend={target.backend_name!r}){outcome} and run again{parts}"


def describe_placement(tensors: Iterable[torch.Tensor]) -> str:
    """`, on cpu in float32` of the tensors of one side."""
    tensors = list(tensors)
    devices = dict.fromkeys(str(tensor.device) for tensor in tensors)
    dtypes = dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
    return f", on {' and '.join(devices)} in {' and '.join(dtypes)}" if tensors else ""


def _accumulate_hooks(record: CaptureRecord) -> list[Hook]:
    return [hook for node in record.autograd_nodes if node.kind == "accumulate_grad" for hook in node.hooks]


def framework_note(record: CaptureRecord) -> str:
    """What was left out of a replay because it belongs to a training framework."""
    count = len(record.framework_calls)
    reduces = not torch_adapter.REDUCING.isdisjoint(record.frameworks)
    return f"in the replay {counted(count, 'hook')} of {' and '.join(record.frameworks)} did not run" + (
        ": gradients are this process's own on both sides, before they are reduced" if reduces else ""
    )


def hook_notes(record: CaptureRecord, hooks: HookPolicy) -> Sequence[str]:
    """What a reader of a comparison must know about hooks, and about leaves where there are none."""
    own = [(node, hook.kind) for node in record.autograd_nodes for hook in node.hooks if not hook.framework]
    kinds = [kind for _, kind in own]
    post_accumulate, unpack = sum(follows_accumulation(*each) for each in own), kinds.count("unpack_hook")
    retained = kinds.count("cpp_tensor_pre_hook")
    others = len(kinds) - post_accumulate - unpack - retained
    notes = []
    if record.run == "user" and any(hook.kind.startswith("post") for hook in _accumulate_hooks(record)):
        notes.append("hooks that follow an accumulation may have changed .grad before it was read")
    if record.frameworks:
        notes.append(framework_note(record))
    if others:
        notes.append(f"in the replay {counted(others, 'hook')} {'ran again' if hooks == 'run' else 'did not run'}")
    if unpack:
        notes.append(f"in the replay {counted(unpack, 'saved-tensor hook')} unpacked again")
    if retained:
        notes.append(f"in the replay {counted(retained, 'gradient')} kept by retain_grad() stayed as it was")
    if post_accumulate:
        notes.append(f"in the replay {counted(post_accumulate, 'post-accumulate hook')} did not run")
    if not record.leaves:
        notes.append("this backward computes the gradient of no leaf")
    return notes
