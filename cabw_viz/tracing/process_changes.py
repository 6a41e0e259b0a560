"""Everything that a capture block changes in the process, in one list.

Importing the package changes nothing. A block enters the changes below in this order and leaves them in the reverse
one, whatever ends it: the end of the block, an exception, Ctrl-C, or a failure half-way through the list. Each patch
restores what was there before, unless another tool has patched the same name inside the block: then that patch stays,
and ours underneath passes every call on.

What a single backward call changes while it is traced ends before the call returns, and is not listed here:
`torch_adapter.tracing` and `torch_adapter.trace_isolation`. `docs/architecture.md` lists both, with the reasons; a
test compares that list with what is patched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from cabw_viz import torch_adapter
from cabw_viz.tracing.module_calls import ModuleCalls
from cabw_viz.tracing.source_lines import SourceLines


def changes_of_block(
    own_cache: AbstractContextManager[None] | None,
    engine_entry: Callable[..., Any],
    calls: ModuleCalls,
    lines: SourceLines | None,
) -> Iterator[AbstractContextManager[None]]:
    """The changes, each as a context that makes and undoes it.

    Args:
        own_cache: empties compiled autograd's cache of captures, at its start and its end. None leaves that change
            out: where nothing is traced.
        engine_entry: runs in the place of the engine's entry, `(original, *args, **options)`.
        calls: records module calls.
        lines: records forward lines; None leaves the last two changes out.
    """
    # compiled autograd's cache of captures
    if own_cache is not None:
        yield own_cache
    # torch.autograd._engine_run_backward
    yield torch_adapter.patched_engine_entry(engine_entry)
    # torch._dynamo.callback.callback_handler.install_callbacks, torch._dynamo.convert_frame.trace_frame
    yield torch_adapter.wrapped_compilations(calls.paused)
    # torch._dynamo.eval_frame._TorchDynamoContext.__call__
    yield torch_adapter.mapped_compile_requests(calls.uninstrumented)
    # torch.nn.Module.__call__
    yield calls.recording()
    if lines is not None:
        # torch._dynamo.eval_frame._maybe_set_eval_frame
        yield torch_adapter.watched_compiled_regions(lines.switch_region)
        # the stack of TorchFunctionModes of the block's thread
        yield lines.recording()
