"""What activation checkpoints read and write when a captured graph makes them run their forward again.

A checkpoint saves nothing but its inputs, and its backward runs the forward again: on the parameters and buffers of
then, and with all that it writes (running statistics, codebooks, counters). So that every run of a captured graph
computes what the user's own run did, and changes nothing, each run begins with the state that the modules had when the
backward was captured, and afterwards the modules have again what they had before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError, warn
from cabw_viz.runtime.gradient_snapshots import SMALL, same_bits
from cabw_viz.runtime.module_attributes import ModuleAttributes
from cabw_viz.runtime.reached_state import ReachedState
from cabw_viz.runtime.tensor_state import storage_location, version_of

TensorNames = Callable[[torch.Tensor], tuple[str, ...]]
"""All names of a tensor; none where it has none."""


@dataclass
class ReadTensor:
    """A parameter, a buffer or another tensor that a recomputation can read."""

    tensor: torch.Tensor
    name: str
    version: int | None
    storage_location: tuple[Any, ...] | None
    copy: torch.Tensor | None = None
    """The tensor as it was captured; None where it is expected to be unchanged."""
    is_written: bool = True
    """Whether a recomputation writes to it; taken to be so until the user's own run has shown otherwise."""

    @property
    def stand_in(self) -> torch.Tensor | None:
        """What a recomputation reads in the tensor's place; None for the tensor itself."""
        return _copy_of(self.copy) if self.copy is not None and self.is_written else self.copy

    @property
    def change(self) -> str:
        """What happened to it since the capture; empty where it is as it was, or where there is a copy."""
        if self.copy is not None:
            return ""
        if self.storage_location not in (None, storage_location(self.tensor)):
            return "has other memory: its .data has been assigned, as model.to() does"
        if self.version != version_of(self.tensor):
            return "was changed in place"
        return ""


@dataclass
class Recomputation:
    """The state that the checkpoints in one captured graph recompute from.

    of_graph            at the capture, before the user's own run
    ├─ compare_written  after that run: drops the copies of what it did not write to
    ├─ check            before each run of the graph
    └─ running          around each run of the graph
    """

    frames: tuple[Any, ...] = ()
    packed_data: tuple[Any, ...] = ()
    modules: tuple[ModuleAttributes, ...] = ()
    tensors: tuple[ReadTensor, ...] = ()
    snapshot: bool = False
    kept_results: tuple[torch_adapter.KeptResults, ...] = ()
    """Of selective checkpoints."""
    kept_tensors: tuple[ReadTensor, ...] = ()

    @classmethod
    def of_graph(
        cls,
        graph: torch.fx.GraphModule,
        hooks: tuple[Any, ...],
        packed_data: tuple[Any, ...],
        names_of: TensorNames,
        *,
        snapshot: bool,
    ) -> Recomputation:
        """The state from which the checkpoints in a graph recompute; where that fails, warns, and knows of none.

        Args:
            graph: the captured graph.
            hooks: what it takes as its hooks: hooks, and contexts of Python Functions.
            packed_data: what hooks that unpack saved tensors are called with.
            names_of: names of parameters and buffers.
            snapshot: copy parameters too, so that changes of them after the call do not matter.
        """
        try:
            with torch_adapter.below_modes_and_functions():
                frames, roots = _roots(graph, hooks)
                return cls._of_roots(frames, roots, packed_data, names_of, snapshot=snapshot) if roots else cls()
        except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward must go on
            warn(f"it is not known what the checkpoints of this backward read ({type(error).__name__}: {error})")
            return cls()

    @classmethod
    def _of_roots(
        cls,
        frames: tuple[Any, ...],
        roots: list[Any],
        packed_data: tuple[Any, ...],
        names_of: TensorNames,
        *,
        snapshot: bool,
    ) -> Recomputation:
        reached = ReachedState()
        for root in roots:
            reached.add(root)
        modules = tuple(ModuleAttributes.of(module) for _, module in reached.modules.values())
        tensors = {id(each.tensor): each for each in _tensors_of_modules(reached, names_of, snapshot=snapshot)}
        for name, tensor in reached.tensors.values():
            tensors.setdefault(id(tensor), _read_tensor(tensor, names_of(tensor), name))
        results = tuple(kept for frame in frames if (kept := torch_adapter.KeptResults.of(frame)))
        kept_tensors = (item for kept in results for item in kept.tensors())
        return cls(
            frames,
            packed_data,
            modules,
            tuple(tensors.values()),
            snapshot,
            results,
            tuple(_read_tensor(tensor, (), f"what it keeps of {operator}") for operator, tensor in kept_tensors),
        )

    def compare_written(self) -> None:
        """After the user's own run: note what it has written to; drop large copies of what it has not."""
        try:
            with torch_adapter.below_modes_and_functions():
                for each in self.kept_tensors:
                    each.version = version_of(each.tensor)
                for each in self.tensors:
                    if each.copy is not None:
                        each.is_written = not same_bits(each.copy, each.tensor)
                        if not (self.snapshot or each.is_written or each.copy.nbytes <= SMALL):
                            each.copy = None
        except Exception as error:  # noqa: BLE001  # whatever it is, the user's backward must go on
            warn(f"it is not known what a checkpoint of this backward has written to ({type(error).__name__}: {error})")

    def check(self) -> None:
        """Refuse to recompute from tensors that have changed since the capture.

        Raises:
            CabwError: names the tensor.
        """
        for each in (*self.tensors, *self.kept_tensors):
            if each.change:
                raise CabwError(
                    f"a checkpoint recomputes from {each.name}, which {each.change} since the backward was captured",
                    expected="parameters and buffers as they were, or the recomputation would give other tensors",
                    try_="parity before optimizer.step(), or capture(..., snapshot=True), which copies what the "
                    "modules in the checkpoint hold"
                    if not self.snapshot
                    else "cap.parity() before it is changed: what is no attribute of a module cannot be copied",
                )

    @contextmanager
    def running(self) -> Iterator[None]:
        """A context for one run of the graph: each checkpoint recomputes once, from the state at the capture."""
        if not (self.frames or self.modules or self.tensors):
            yield
            return
        with ExitStack() as stack:
            stack.enter_context(self._at_capture())
            for kept in self.kept_results:
                stack.enter_context(kept.unused())
            group = stack.enter_context(torch_adapter.one_recomputation())
            stack.callback(torch_adapter.drop_recomputed, group, self.frames, self.packed_data)
            yield

    @contextmanager
    def _at_capture(self) -> Iterator[None]:
        """A context in which the modules have the attributes that they had at the capture, and copies of tensors."""
        before = [ModuleAttributes.of(each.module) for each in self.modules]
        stand_ins = {id(each.tensor): stand_in for each in self.tensors if (stand_in := each.stand_in) is not None}
        try:
            for attributes in self.modules:
                attributes.restore(stand_ins)
            yield
        finally:
            for attributes in before:
                attributes.restore({})


def _roots(graph: torch.fx.GraphModule, hooks: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any]]:
    """The frames of checkpoints, and all that recomputes: what these run, other unpack hooks, contexts' functions."""
    frames: dict[int, Any] = {}
    roots: dict[int, Any] = {}
    for node in graph.graph.nodes:
        if torch_adapter.hook_type(node.target, node.kwargs) == "unpack_hook":
            index = torch_adapter.hook_index(node.args)
            hook = None if index is None else hooks[index]
            frame = torch_adapter.checkpoint_frame(hook)
            if frame is not None:
                frames[id(frame)] = frame
            found = [hook] if frame is None else torch_adapter.recomputed_objects(frame)
        elif node.target is torch_adapter.call_backward:
            index = torch_adapter.ctx_index(node.args)
            found = [] if index is None else _functions_of(hooks[index])
        else:
            continue
        roots |= {id(each): each for each in found}
    return tuple(frames.values()), list(roots.values())


def _functions_of(ctx: Any) -> Iterator[Any]:
    """Functions and modules that a Python Function has set on its context, as reentrant checkpoints do."""
    if not torch_adapter.is_aot_context(ctx):
        yield from (
            value
            for value in torch_adapter.ctx_attributes(ctx).values()
            if callable(value) and not isinstance(value, torch.Tensor | type)
        )


def _tensors_of_modules(reached: ReachedState, names_of: TensorNames, *, snapshot: bool) -> Iterator[ReadTensor]:
    for path, module in reached.modules.values():
        for name, tensor in ModuleAttributes.of(module).tensors():
            is_copied = tensor.grad_fn is None and (snapshot or not isinstance(tensor, torch.nn.Parameter))
            read = _read_tensor(tensor, names_of(tensor), f"{path}.{name}")
            if is_copied:
                read.copy = _copy_of(tensor)
            yield read


def _read_tensor(tensor: torch.Tensor, names: tuple[str, ...], name: str) -> ReadTensor:
    shape = torch_adapter.shape_of(tensor)
    return ReadTensor(tensor, f"{' = '.join(names) or name} {shape}", version_of(tensor), storage_location(tensor))


def _copy_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """A copy that a module can hold in the tensor's place; None for a tensor of another class."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return None
    copied = tensor.detach().clone()
    if isinstance(tensor, torch.nn.Parameter):
        copied = torch.nn.Parameter(copied, tensor.requires_grad)
    else:
        copied.requires_grad_(tensor.requires_grad)
    vars(copied).update(vars(tensor))
    return copied
