"""Turns running out of memory in a replay into a CabwError, and releases what the run had kept."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from cabw_viz.errors import CabwError
from cabw_viz.replay.placement.device_dtype_map import is_out_of_memory


@contextmanager
def oom_as_cabw_error(activity: Callable[[], str], device: torch.device | None) -> Iterator[None]:
    """A context in which running out of memory becomes a clear error, with nothing of the run kept alive.

    Args:
        activity: returns what was being done, for the message: `the inputs was being moved`.
        device: where the run is, if it was moved.

    Raises:
        CabwError: instead of torch.OutOfMemoryError and its like.
    """
    try:
        yield
    except Exception as error:  # of any other kind goes on
        if not is_out_of_memory(error):
            raise
        during, reason = activity(), str(error).partition("\n")[0]
        _release_frames(error)
    else:
        return
    gc.collect()
    _empty_cache()
    raise CabwError(
        f"there was not enough memory{'' if device is None else f' on {device}'} when {during}: {reason}",
        expected="room for the captured inputs and for the gradients on their way",
        try_="another device, a smaller batch, or only= in capture(), to hold fewer graphs at once",
    ) from None


def _release_frames(error: BaseException) -> None:
    """Clear the frames that an error, or an error before it, keeps alive."""
    current: BaseException | None = error
    while current is not None:
        traceback.clear_frames(current.__traceback__)
        current.__traceback__, current = None, current.__context__


def _empty_cache() -> None:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    empty = getattr(getattr(torch, accelerator.type, None), "empty_cache", None) if accelerator is not None else None
    if empty is not None:
        empty()
