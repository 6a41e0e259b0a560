"""selective activation checkpoint (recompute addmm only) over four linear layers and a GELU"""

import torch

NAME = "ck_selective"
SOURCE = "pytorch/pytorch#142862"
POINT = "selective activation checkpoint (recompute addmm only) over four linear layers and a GELU"
EXPECT = "parity"

from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


def policy(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_RECOMPUTE if op is torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_SAVE


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(6, 6) for _ in range(4)], torch.nn.GELU()).to(device, dtype)
    x = torch.randn(2, 6, device=device, dtype=dtype)

    def step():
        torch.manual_seed(1)
        return (
            checkpoint(net, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(policy))
            .square()
            .sum()
        )

    return dict(net.named_parameters()), step
