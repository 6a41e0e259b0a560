"""The one rule by which the package replaces a function of PyTorch and restores it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(holder: Any, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """A context in which an attribute of a module, class or object is another function.

    At its end the earlier function returns, unless another tool has replaced ours in between: then its replacement
    stays. Since that one may call ours for good, a caller makes `function` pass everything through after the end.
    """
    is_own, original = name in vars(holder), getattr(holder, name)
    try:
        setattr(holder, name, function)
        yield
    finally:
        if vars(holder).get(name) is function:
            if is_own:
                setattr(holder, name, original)
            else:
                delattr(holder, name)
