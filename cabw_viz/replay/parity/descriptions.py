"""Descriptions of the two sides of a parity."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from cabw_viz.record.model import CaptureRecord
from cabw_viz.record.wording import counted, run_words
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
        return f"made into code by {target.backend_name} and run again"
    kept = "" if result.graph_count else ", which compiled nothing of it"
    parts = f" ({counted(result.graph_count, 'graph')})" if result.graph_count else ""
    return f"compiled by torch.compile(backend={target.backend_name!r}){kept} and run again{parts}"


def describe_placement(tensors: Iterable[torch.Tensor]) -> str:
    """`, on cpu in float32` of the tensors of one side."""
    tensors = list(tensors)
    devices = dict.fromkeys(str(tensor.device) for tensor in tensors)
    dtypes = dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)
    return f", on {' and '.join(devices)} in {' and '.join(dtypes)}" if tensors else ""
