"""fully_shard (FSDP2) on a one-rank gloo CPU mesh, backward under compiled autograd"""

import torch

NAME = "kind_fsdp2_one_rank"
SOURCE = "pytorch/torchtitan#1708"
POINT = "fully_shard (FSDP2) on a one-rank gloo CPU mesh, backward under compiled autograd"
EXPECT = "differs: grads of the first shard group (later all) stay None, because FSDP's final callback never runs"

import torch.distributed as dist


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)).to(device, dtype)
    mesh = init_device_mesh("cpu", (1,))
    for l in (net[0], net[2]):
        fully_shard(l, mesh=mesh)
    fully_shard(net, mesh=mesh)
    x = torch.randn(3, 4, device=device, dtype=dtype)
    return dict(net.named_parameters()), lambda: net(x).square().mean()
