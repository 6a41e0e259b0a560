"""selective checkpoint whose policy saves a product that an in-place activation then overwrites"""

import torch

NAME = "ck_selective_inplace_saved"
SOURCE = "pytorch/pytorch#113737"
POINT = "selective checkpoint whose policy saves a product that an in-place activation then overwrites"
EXPECT = "parity"
EXPECT_COMPILED = (
    "differs: aot_eager and inductor give the true gradient, eager with allow_cache_entry_mutation does not"
)

from functools import partial

from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts


def policy(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    w = torch.randn(5, 5, device=device, dtype=dtype).requires_grad_()
    x = torch.randn(3, 5, device=device, dtype=dtype).requires_grad_()

    def block(a):
        h = a @ w
        h = torch.nn.functional.elu_(h)
        return torch.sigmoid(h)

    def step():
        return checkpoint(
            block,
            x,
            use_reentrant=False,
            context_fn=partial(create_selective_checkpoint_contexts, policy, allow_cache_entry_mutation=True),
        ).sum()

    return {"w": w, "x": x}, step


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
