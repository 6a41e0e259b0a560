"""Whether this PyTorch is one that the package knows how to read."""

from __future__ import annotations

import functools
import inspect
import re

import torch

from cabw_viz.errors import CabwError
from cabw_viz.torch_adapter.callbacks import CALLBACKS, TracerBase
from cabw_viz.torch_adapter.engine import ENGINE_ENTRY

OLDEST = (2, 8)


@functools.cache
def check() -> None:
    """Compare the callbacks and the engine entry with those that the package was written for, once.

    Raises:
        CabwError: this PyTorch is too old, or has other callbacks or another entry.
    """
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version < OLDEST:
        raise CabwError(
            f"torch {torch.__version__} is installed",
            expected="torch 2.8 or newer (2.6 and 2.7 give wrong gradients or assert for in-place writes to views)",
            try_="pip install 'torch>=2.8'",
        )
    for name, callback in CALLBACKS.items():
        method = getattr(TracerBase, name, None)
        arguments = None if method is None else tuple(inspect.signature(method).parameters)[1:]
        if arguments not in callback.signatures:
            raise CabwError(
                f"compiled autograd's {name} takes {arguments} in torch {torch.__version__}"
                if method is not None
                else f"compiled autograd has no {name} in torch {torch.__version__}",
                expected=" or ".join(str(known) for known in callback.signatures),
                try_="a release of cabw_viz made for this torch, or a torch from 2.8 to 2.15",
            )
    if not callable(getattr(torch.autograd, ENGINE_ENTRY, None)):
        raise CabwError(
            f"torch.autograd has no {ENGINE_ENTRY} in torch {torch.__version__}",
            expected="the function through which every Python backward enters the engine",
            try_="a torch from 2.8 to 2.15",
        )
