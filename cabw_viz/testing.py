"""For other people's tests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cabw_viz.surfaces.step_divergence import first_divergences
from cabw_viz.surfaces.step_report import ParityMatrix, compare

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

__all__ = ["assert_gradient_parity"]


def assert_gradient_parity(
    step: Callable[..., Any], params: torch.nn.Module | Mapping[str, torch.Tensor] | None = None, **options: Any
) -> ParityMatrix:
    """Fail where the gradients of a step differ from those of the uncompiled step, and say which, where and how.

        def test_my_backend():
            cabw_viz.testing.assert_gradient_parity(step, model, backends=[my_backend])

    Args:
        step: as for `cabw_viz.compare`.
        params: as for `cabw_viz.compare`.
        **options: the others of `cabw_viz.compare`.

    Returns:
        The matrix, for whatever else is to be asserted.

    Raises:
        AssertionError: names each run, call and parameter that differs, with the first wrong element on both sides; and
            the first autograd node whose gradients part from eager's, where the step's backward, run again under
            compiled autograd or the backend, has one.
        CabwError: as `cabw_viz.compare` does.
    """
    __tracebackhide__ = True
    matrix = compare(step, params, **options)
    if not matrix.ok:
        lines = [*matrix.differences, *first_divergences(step, params, matrix, **options)]
        raise AssertionError("\n".join([matrix.summary, *(f"  {line}" for line in lines)]))
    return matrix
