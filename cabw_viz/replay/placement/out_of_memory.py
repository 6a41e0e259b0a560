"""What happens when a device has no memory left for a replay."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from cabw_viz.errors import CabwError
from cabw_viz.replay.placement.device_dtype_map import is_out_of_memory


@contextmanager
def oom_as_cabw_error(doing: Callable[[], str], device: torch.device | None) -> Iterator[None]:
    """A context in which running out of memory becomes a clear error, with nothing of the run kept alive.

    Args:
        doing: says what was being done, for the message.
        device: where the run is, if it was moved.

    Raises:
        CabwError: instead of torch.OutOfMemoryError and its like.
    """
    try:
        yield
    except Exception as error:  # of any other kind goes on
        if not is_out_of_memory(error):
            raise
        told, said = doing(), str(error).partition("\n")[0]
        _let_go(error)
    else:
        return
    gc.collect()
    _empty_cache()
    raise CabwError(
        f"there was not enough memory{'' if device is None else f' on {device}'} when {told}: {said}",
        expected="room for the captured inputs and for the gradients on their way",
        try_="another device, a smaller batch, or only= in capture(), to hold fewer graphs at once",
    ) from None


def _let_go(error: BaseException) -> None:
    """Empty the frames that an error, or what it came from, keeps alive."""
    seen: BaseException | None = error
    while seen is not None:
        traceback.clear_frames(seen.__traceback__)
        seen.__traceback__, seen = None, seen.__context__


def _empty_cache() -> None:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    empty = getattr(getattr(torch, accelerator.type, None), "empty_cache", None) if accelerator is not None else None
    if empty is not None:
        empty()
