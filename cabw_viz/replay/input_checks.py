"""Whether a captured graph still has the inputs that the user's own run had: their versions, memory and bits."""

from __future__ import annotations

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.record.model import AutogradNode, CaptureRecord, LiftedInput
from cabw_viz.runtime.bit_sums import BitSum, bit_sums, has_same_bits
from cabw_viz.runtime.capture_state import RunnableCapture
from cabw_viz.runtime.tensor_state import storage_location, version_of

BITS_CHANGED = "holds other bits than when the backward was captured"


def check_inputs(capture: RunnableCapture) -> None:
    """Refuse to run on tensors that were written to, or given other memory, since the capture.

    Old gradients and the running statistics of a batch normalization in training are let through: they change, and a
    replay does not read them. What the check cannot see: what `bit_sums` cannot, and tensors that are no inputs
    (attributes of a ctx, closures of hooks).

    Raises:
        CabwError: names the tensor; that a checkpoint recomputes from, too.
    """
    record = capture.record
    bits = bit_sums(capture.arguments.inputs)
    for row in record.inputs:
        if record.is_only_accumulated(row) and record.frameworks:  # a parameter that its framework has moved on
            continue
        if torch_adapter.is_freed(capture.arguments.inputs[row.index]):
            raise _freed_error(record, row)
        change = _change(row, capture, bits[row.index])
        if change and not is_old_gradient(record, row) and not _is_running_statistic(record, row):
            raise CabwError(
                f"{record.input_label(row)} {change}",
                expected="inputs as they were, or the replay would give other gradients",
                try_="parity before optimizer.step(), or capture(..., snapshot=True), which copies the inputs",
            )
    _check_packed(capture)
    capture.recomputation.check()


def _change(row: LiftedInput, capture: RunnableCapture, bits: BitSum) -> str:
    """What happened to an input since the capture; empty where it is as it was."""
    arguments, tensor = capture.arguments, capture.arguments.inputs[row.index]
    before, now = arguments.storage_locations[row.index], storage_location(tensor)
    if before is not None and now is not None and now != before:
        return "has other memory than when the backward was captured: its .data has been assigned, as model.to() does"
    version = arguments.versions[row.index]
    if version is not None and version_of(tensor) != version:
        return (
            f"was changed in place since the backward was captured (version {version} then, {version_of(tensor)} now)"
        )
    return "" if has_same_bits(arguments.bits[row.index], bits) else f"{BITS_CHANGED}; no version counts that write"


def _freed_error(record: CaptureRecord, row: LiftedInput) -> CabwError:
    sharding = [name for name in record.frameworks if name in torch_adapter.SHARDING]
    return CabwError(
        f"the memory of {record.input_label(row)} was freed after the backward"
        + (f", by {sharding[0]}, which gathers parameters only while they are in use" if sharding else ""),
        expected="inputs as they were when the backward ran",
        try_='capture(..., run="eager", gradients="leaves"), which copies sharded parameters while they are gathered',
    )


def _check_packed(capture: RunnableCapture) -> None:
    """The same for what hooks of the user's have packed, unless a hook has removed some of it."""
    arguments = capture.arguments
    bits = bit_sums(leaf for _, leaf in arguments.packed_tensors)
    if len(bits) != len(arguments.packed_bits):
        return
    for (index, tensor), before, now in zip(arguments.packed_tensors, arguments.packed_bits, bits, strict=True):
        if not has_same_bits(before, now):
            raise CabwError(
                f"{_packed_label(capture.record, index)} {tuple(tensor.shape)} {BITS_CHANGED}",
                expected="packed tensors as they were, or the replay would give other gradients",
                try_="parity before optimizer.step(), or capture(..., snapshot=True), which copies packed tensors",
            )


def _packed_label(record: CaptureRecord, index: int) -> str:
    """What to call a tensor that a hook has packed: by the autograd node that saved it, where that is known."""
    row = next((row for row in record.graph_nodes if row.arguments == f"(packed_data, {index})"), None)
    users = () if row is None else row.users
    number = next((record.graph_nodes[user].autograd_node for user in users), None)
    node = record.by_number.get(number) if number is not None else None
    origin = "" if node is None else f", saved by {node.name} (#{node.number})"
    return f"a tensor that a saved-tensor hook has packed{origin}"


def is_old_gradient(record: CaptureRecord, row: LiftedInput) -> bool:
    """Whether an input is a `.grad` from before, used by nothing but the accumulation into it.

    Up to torch 2.12 an accumulation reads it from the leaf, and nothing at all uses what was lifted.
    """
    users = [record.graph_nodes[user] for user in record.graph_nodes[row.graph_node].users]
    # The first argument of an accumulation is the leaf, the second its old gradient.
    return record.is_only_accumulated(row) and all(user.inputs[0] != row.graph_node for user in users)


def _is_running_statistic(record: CaptureRecord, row: LiftedInput) -> bool:
    """Whether an input is used by batch normalizations alone, as statistics that they do not read in training.

    Their forward updates them without counting it (`batch_norm_cpu_update_stats` in ATen/native/Normalization.cpp).
    """
    numbers = {record.graph_nodes[user].autograd_node for user in record.graph_nodes[row.graph_node].users}
    nodes = [record.by_number.get(number) if number is not None else None for number in numbers]
    return bool(nodes) and all(node is not None and _updates_statistic(node, row) for node in nodes)


def _updates_statistic(node: AutogradNode, row: LiftedInput) -> bool:
    is_training = any(each.meaning == "training" and each.value == "True" for each in node.baked)
    # In torch 2.8 it is not known what a node has saved; the name of the buffer says it then.
    fields = {saved.field for saved in node.saved if saved.input == row.index}
    fields = fields or {name.rpartition(".")[2] for name in row.names}
    return is_training and bool(fields) and fields <= {"running_mean", "running_var"}
