"""What a capture keeps alive: the graph, what it ran on, and the gradients of the user's own run."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.fx

from cabw_viz import torch_adapter
from cabw_viz.errors import CabwError
from cabw_viz.record.model import CaptureRecord, Failure
from cabw_viz.record.untraced import check_traced
from cabw_viz.runtime.bit_sums import BitSum, bit_sums, has_same_bits
from cabw_viz.runtime.forward_values import ForwardValues
from cabw_viz.runtime.gradient_snapshots import Gradient, NodeGradients
from cabw_viz.runtime.recomputation import Recomputation
from cabw_viz.runtime.tensor_state import copy_of, storage_location, version_of
from cabw_viz.runtime.user_objects import UserObjects

AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")


@dataclass(frozen=True)
class ThreadState:
    """The state of a thread that changes what a backward computes, as it was when the user made the call.

    The eager engine runs built-in nodes under the caller's autocast state and grad mode; a custom Function may
    draw random numbers.
    """

    create_graph: bool
    autocast: tuple[tuple[str, torch.dtype], ...]
    rng: torch.Tensor
    accelerator_rng: tuple[tuple[int, torch.Tensor], ...]

    @classmethod
    def current(cls, create_graph: bool) -> ThreadState:
        """The state at this moment."""
        autocast = tuple(
            (device, torch.get_autocast_dtype(device))
            for device in AUTOCAST_DEVICES
            if torch.amp.autocast_mode.is_autocast_available(device) and torch.is_autocast_enabled(device)
        )
        uses_cuda = torch.cuda.is_available() and torch.cuda.is_initialized()
        devices = range(torch.cuda.device_count()) if uses_cuda else ()
        accelerators = tuple((index, torch.cuda.get_rng_state(index)) for index in devices)
        return cls(create_graph, autocast, torch.get_rng_state(), accelerators)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A context with this state; at its end the thread has its own state again."""
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng([index for index, _ in self.accelerator_rng]))
            torch.set_rng_state(self.rng)
            for index, state in self.accelerator_rng:
                torch.cuda.set_rng_state(state, index)
            for device in AUTOCAST_DEVICES:
                if torch.amp.autocast_mode.is_autocast_available(device):
                    dtype = dict(self.autocast).get(device)
                    stack.enter_context(torch.autocast(device, dtype=dtype, enabled=dtype is not None))
            stack.enter_context(torch.set_grad_enabled(self.create_graph))
            yield


@dataclass(frozen=True)
class Arguments:
    """What one call of the captured graph gets from the engine."""

    inputs: list[Any]
    sizes: list[Any]
    scalars: list[Any]
    hooks: tuple[Any, ...]
    """Hooks, unpack hooks and ctxs; stand-ins for those of training frameworks, see `torch_adapter.framework_hooks`."""
    packed_data: tuple[Any, ...]
    versions: tuple[int | None, ...]
    """In-place version of each input at the time of the capture; None where a tensor keeps none."""
    storage_locations: tuple[tuple[Any, ...] | None, ...]
    """The memory of each input at the time of the capture; see `storage_location`."""
    bits: tuple[BitSum, ...]
    """The sum over the bits of each input at the time of the capture."""
    packed_bits: tuple[BitSum, ...]
    """The same of each tensor in `packed_data`."""
    scratch: frozenset[int] = frozenset()
    """Inputs that a kernel of the graph uses as its workspace: each run gets copies of them."""

    @classmethod
    def of_call(
        cls,
        inputs: list[Any],
        rest: tuple[Any, ...],
        copied: Container[int],
        scratch: frozenset[int],
        *,
        copy_packed: bool = False,
    ) -> Arguments:
        """The arguments of a call. PyTorch empties the list of inputs later, so the list is copied.

        Args:
            inputs: tensors lifted by the capture.
            rest: sizes, scalars, hooks, packed data.
            copied: indices of the inputs to copy, so that in-place changes after the call do not matter.
            scratch: indices of the workspaces among them.
            copy_packed: copy the tensors in what hooks of the user's have packed.
        """
        sizes, scalars, hooks, packed = rest
        if copy_packed:
            packed = torch_adapter.tree_map_only(torch.Tensor, copy_of, packed)
        tensors = [copy_of(tensor) if index in copied else tensor for index, tensor in enumerate(inputs)]
        versions, locations = tuple(map(version_of, tensors)), tuple(map(storage_location, tensors))
        own = tuple(map(torch_adapter.without_framework, hooks))
        arguments = cls(tensors, list(sizes), list(scalars), own, tuple(packed), versions, locations, (), (), scratch)
        packed_bits = bit_sums(tensor for _, tensor in arguments.packed_tensors)
        return replace(arguments, bits=bit_sums(tensors), packed_bits=packed_bits)

    @property
    def packed_tensors(self) -> list[tuple[int, torch.Tensor]]:
        """The tensors in what the user's hooks have packed, each with its index in `packed_data`."""
        leaves = [(index, torch_adapter.tree_leaves(each)) for index, each in enumerate(self.packed_data)]
        return [(index, leaf) for index, each in leaves for leaf in each if isinstance(leaf, torch.Tensor)]

    @property
    def run_inputs(self) -> list[Any]:
        """The inputs of one run: a new list, for a run pops what it has used, with workspaces of its own."""
        return [copy_of(tensor) if index in self.scratch else tensor for index, tensor in enumerate(self.inputs)]

    @property
    def size_values(self) -> tuple[int, ...]:
        """The sizes as numbers. PyTorch passes one above 0 as `torch.empty(0, n)`, so that it can be marked dynamic."""
        return tuple(int(size.shape[1]) if isinstance(size, torch.Tensor) else int(size) for size in self.sizes)

    def with_inputs(self, copies: dict[int, Any]) -> Arguments:
        """The same with other tensors in the place of some inputs, by index."""
        tensors = [copies.get(index, tensor) for index, tensor in enumerate(self.inputs)]
        versions, locations, bits = list(self.versions), list(self.storage_locations), list(self.bits)
        for (index, tensor), sums in zip(copies.items(), bit_sums(copies.values()), strict=True):
            versions[index], locations[index], bits[index] = version_of(tensor), storage_location(tensor), sums
        return replace(
            self, inputs=tensors, versions=tuple(versions), storage_locations=tuple(locations), bits=tuple(bits)
        )

    def is_changed(self) -> bool:
        """Whether any input has been changed in place since `versions` and `bits` were noted."""
        pairs = zip(self.versions, self.inputs, strict=True)
        if any(before is not None and version_of(tensor) != before for before, tensor in pairs):
            return True
        return not all(map(has_same_bits, self.bits, bit_sums(self.inputs)))


@dataclass
class CaptureState:
    """The graph, the tensors and the gradients of a capture; `release()` drops them."""

    graph: torch.fx.GraphModule | None = None
    arguments: Arguments | None = None
    thread_state: ThreadState | None = None
    recomputation: Recomputation = field(default_factory=Recomputation)
    """What the checkpoints in the graph recompute from."""
    reference: dict[int, Gradient] = field(default_factory=dict)
    """Index of the leaf in the record: its gradient in the user's own run. A leaf without gradient is absent."""
    grads_before: dict[int, torch.Tensor] = field(default_factory=dict)
    """For a compiled run: copies of each leaf's `.grad` as it was before the call; absent where it was None."""
    node_gradients: NodeGradients | None = None
    """Input and output gradients of every autograd node in the user's own run; None where they were not asked for."""
    parameter_norms: dict[int, torch.Tensor] = field(default_factory=dict)
    """Index of the leaf: its own Euclidean norm before the user's run, shape (); absent where it was not computed."""
    forward_values: ForwardValues = field(default_factory=ForwardValues)
    """The roots of the call, and where there is no graph, what was noted of the saved tensors."""
    has_reference: bool = False
    """Whether the user's own run was watched to its end."""
    run_failure: Failure | None = None
    """What the user's own run raised; None where it ended."""
    reference_error: str = ""
    """What went wrong while it was watched; empty where nothing did."""
    derived: dict[type, Any] = field(default_factory=dict)
    """What was worked out of the graph once, by its class."""
    users: UserObjects | None = None
    """The user's modules and leaves, which later runs must leave as they are."""
    leaf_tensors: tuple[Callable[[], Any] | None, ...] = ()
    """Weak references to the leaves of the record; None for those whose gradient the call returns."""
    given_later: set[str] = field(default_factory=set)
    """Labels of parameters that the call gives no gradient, and to which one that `only=` left out gave one later."""
    released: bool = False

    def release(self) -> None:
        """Drop every tensor."""
        self.graph = self.arguments = self.thread_state = self.users = None
        self.recomputation, self.forward_values = Recomputation(), ForwardValues()
        self.reference, self.grads_before, self.derived, self.parameter_norms = {}, {}, {}, {}
        if self.node_gradients is not None:
            self.node_gradients.clear()
        self.released = True


@dataclass
class Captured:
    """A capture: its record, and what it keeps alive. Tracing makes it, replay runs it again."""

    record: CaptureRecord
    state: CaptureState

    def check_open(self, needed: str = "parity") -> None:
        """Raise a CabwError where the session is closed, with what is needed of it."""
        if self.state.released:
            raise CabwError(
                "the session was closed, which released the captured tensors",
                expected="a session that is still open",
                try_=f"compute {needed} before session.close()",
            )

    def runnable(self) -> RunnableCapture:
        """The capture with all that a run of its graph takes.

        Raises:
            CabwError: there was no trace, or it failed, so that there is no complete graph; the session is closed.
        """
        self.check_open()
        state = self.state
        check_traced(self.record)
        failure = self.record.failure
        if state.graph is None or state.arguments is None or state.thread_state is None:
            raise CabwError(
                "this backward has no complete graph" + (f": {failure.cause}" if failure is not None else ""),
                expected="a backward that compiled autograd can trace",
                try_=(failure.try_ if failure is not None else "")
                or "cap.error.details, which has all that PyTorch says of it",
            )
        return RunnableCapture(
            self.record, state.graph, state.arguments, state.thread_state, state.recomputation, state.users
        )

    def check_reference(self) -> None:
        """Raise a CabwError where the user's own run left nothing to compare with."""
        state = self.state
        if state.has_reference:
            return
        if state.run_failure is not None:
            raise CabwError(
                f"the run of this backward raised {state.run_failure.cause}",
                expected="a backward that ends",
                try_="cap.error and session.events",
            )
        if state.reference_error:
            raise CabwError(
                f"the gradients of your own run could not be kept: {state.reference_error}",
                expected="a run whose gradients can be copied",
                try_='cabw_viz.capture(..., gradients="leaves"), and a report to the authors of cabw_viz',
            )
        raise CabwError(
            'the session was captured with gradients="none", so no reference was kept',
            expected="gradients of the user's own run",
            try_='cabw_viz.capture(..., gradients="leaves")',
        )


@dataclass(frozen=True)
class RunnableCapture:
    """A capture whose graph is complete, with what it ran on."""

    record: CaptureRecord
    graph: torch.fx.GraphModule
    arguments: Arguments
    thread_state: ThreadState
    recomputation: Recomputation
    users: UserObjects | None = None
