"""Marks for what was read off one release of PyTorch."""

from __future__ import annotations

import re

import pytest
import torch


def read_on(release: str) -> pytest.MarkDecorator:
    """Skips on older releases than the one whose C++ sources a test quotes."""
    here = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    there = tuple(int(part) for part in release.split("."))
    return pytest.mark.skipif(here < there, reason=f"quotes torch {release}, and this is {torch.__version__}")
