"""DTensor op with two outputs of which one is unused: the missing grad is a plain tensor of zeros"""

import torch

NAME = "kind_dtensor_unused_output"
SOURCE = "pytorch/pytorch#173123"
POINT = "DTensor op with two outputs of which one is unused: the missing grad is a plain tensor of zeros"
EXPECT = "raises: mixed torch.Tensor and DTensor"

import torch.distributed as dist
from torch.distributed.tensor import DeviceMesh, Replicate, Shard, distribute_tensor


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh = DeviceMesh("cpu", [0])
    torch.manual_seed(0)
    w = torch.nn.Parameter(distribute_tensor(torch.randn(4, 4, dtype=dtype), mesh, [Shard(0)]))
    x = distribute_tensor(torch.randn(2, 4, dtype=dtype), mesh, [Replicate()])
    return {"w": w}, lambda: (x @ w.mT).split(2, dim=1)[0].square().sum().full_tensor()
