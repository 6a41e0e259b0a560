"""DistributedDataParallel on a one-rank gloo group: the reducer installs C++ hooks on AccumulateGrad"""

import torch

NAME = "kind_ddp_one_rank"
SOURCE = "pytorch/pytorch#136309"
POINT = "DistributedDataParallel on a one-rank gloo group: the reducer installs C++ hooks on AccumulateGrad"
EXPECT = "raises: not compatible with C++ DDP Reducer"

import torch.distributed as dist


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)).to(device, dtype)
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    x = torch.randn(3, 4, device=device, dtype=dtype)
    return dict(net.named_parameters()), lambda: ddp(x).square().mean()
