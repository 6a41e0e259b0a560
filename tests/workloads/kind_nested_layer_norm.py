"""layer norm of a jagged nested tensor, then its values"""

import torch

NAME = "kind_nested_layer_norm"
SOURCE = "pytorch/pytorch#182217"
POINT = "layer norm of a jagged nested tensor, then its values"
EXPECT = "raises: NestedTensor support not implemented"
EXPECT_COMPILED = "raises: list index out of range"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    values = torch.randn(9, 4, device=device, dtype=dtype).requires_grad_()
    gain = torch.randn(4, device=device, dtype=dtype).requires_grad_()
    offsets = torch.tensor([0, 2, 6, 9], device=device)

    def step():
        nt = torch.nested.nested_tensor_from_jagged(values, offsets)
        return (
            (torch.nn.functional.layer_norm(nt, [4], gain).values() * torch.arange(4.0, device=device, dtype=dtype))
            .square()
            .sum()
        )

    return {"values": values, "gain": gain}, step


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
