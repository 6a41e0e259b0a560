"""C++ autograd Function (CppNode) reached through _c10d_functional_autograd.all_to_all_single on one gloo rank"""

import torch

NAME = "fn_cpp_collective"
SOURCE = "pytorch/FBGEMM#3143"
POINT = "C++ autograd Function (CppNode) reached through _c10d_functional_autograd.all_to_all_single on one gloo rank"
EXPECT = "parity"

import torch.distributed as dist


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    import torch.distributed._functional_collectives as fc

    torch.manual_seed(0)
    w = torch.randn(4, 3, device=device, dtype=dtype).requires_grad_()

    def step():
        y = fc.all_to_all_single_autograd(w.exp(), [4], [4], dist.group.WORLD)
        return (y * y).sum()

    return {"w": w}, step
