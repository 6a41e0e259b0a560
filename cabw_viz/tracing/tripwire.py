"""Stand-ins that tell who reads them during the initial trace.

The tracer computes with FakeTensors: dummies of shape [0, 123456789], results of custom Functions, clones for hooks,
and what it lifts. Each is handed out as a `Dummy`, a FakeTensor too, which holds the tracer's own one, its `plain`
twin. Proxies are bound to the twin, and ops run on the twin: below the dummies a trace is what it always is, and
whatever PyTorch's machinery reads there is its own affair. What is read of a dummy itself comes here:

    C++ or Python asks for size, stride, device, ...    ─► _Mode ─► Tripwire.ask   noted, the twin's answer
    an op is called on it                               ─► _Mode ─► Tripwire.run   noted, run on the twin
    Python reads .dtype, .device, .is_sparse, ...       ─► a property of Dummy     noted, the twin's answer

What cannot be seen: dtype, is_sparse, element size and storage read by C++, which asks nobody.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree  # noqa
