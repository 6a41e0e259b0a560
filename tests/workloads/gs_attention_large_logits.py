"""hand-written attention (math softmax) with key padding and large logits: softmax backward decomposition"""

import torch

NAME = "gs_attention_large_logits"
SOURCE = "pytorch/pytorch#152309"
POINT = "hand-written attention (math softmax) with key padding and large logits: softmax backward decomposition"
EXPECT = "parity"
EXPECT_COMPILED = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    mha = torch.nn.MultiheadAttention(16, 2, batch_first=True, device=device, dtype=dtype)
    x = (torch.randn(2, 24, 16, device=device, dtype=dtype) * 3).requires_grad_()
    pad = torch.zeros(2, 24, dtype=torch.bool, device=device)
    pad[0, 20:] = True
    params = dict(mha.named_parameters())
    params["x"] = x
    return params, lambda: mha(x, x, x, key_padding_mask=pad, need_weights=True)[0].square().sum()


def compiled(step, backend="aot_eager"):
    return torch.compile(step, backend=backend)
