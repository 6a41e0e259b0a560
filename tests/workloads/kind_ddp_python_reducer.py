"""DDP with the python reducer (torch._dynamo.config.optimize_ddp) on one gloo rank"""

import torch

NAME = "kind_ddp_python_reducer"
SOURCE = "pytorch/pytorch#111279"
POINT = "DDP with the python reducer (torch._dynamo.config.optimize_ddp) on one gloo rank"
EXPECT = "parity"

import torch.distributed as dist


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch._dynamo.config.optimize_ddp = "python_reducer"
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)).to(device, dtype)
    ddp = torch.nn.parallel.DistributedDataParallel(net)
    x = torch.randn(3, 4, device=device, dtype=dtype)
    return dict(net.named_parameters()), lambda: ddp(x).square().mean()
