"""The tensors that stand for sharded parameters while a backward runs: no parameter of the model is one of them.

Read in `_fully_shard/_fsdp_param.py` and `fully_sharded_data_parallel.py` of `torch/distributed/fsdp`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def gathered_tensors(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, torch.Tensor]]:
    """(module, attribute, tensor) of what FSDP accumulates gradients into: which parameter of which module it is.

    With FSDP2 the gathered parameter. With FSDP1 the flat one, in place of the parameters of the wrapped module.
    """
    for module in model.modules():
        for parameter in _parameters_of_fsdp2(module):
            info, tensor = parameter._module_info, getattr(parameter, "_unsharded_param", None)
            if tensor is not None:  # it is gathered before the first forward
                yield info.module, info.param_name, tensor
                yield from (
                    (*place, tensor) for place in zip(info.shared_modules, info.shared_param_names, strict=True)
                )
        flat = getattr(vars(module).get("_handle"), "flat_param", None)
        wrapped = None if flat is None else getattr(module, "_fsdp_wrapped_module", None)
        if flat is not None and wrapped is not None:
            yield wrapped, "_flat_param", flat


def _parameters_of_fsdp2(module: torch.nn.Module) -> Iterator[Any]:
    if not hasattr(type(module), "_get_fsdp_state"):
        return
    state: Any = module._get_fsdp_state()  # type: ignore[operator]  # of the class that fully_shard gives it
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]  # up to 2.11
    for group in groups:
        yield from getattr(group, "fsdp_params", ())
