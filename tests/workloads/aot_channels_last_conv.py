"""channels_last conv weights: memory format of .grad is compared with the parameter"""

import torch

NAME = "aot_channels_last_conv"
SOURCE = "pytorch/pytorch#127922"
POINT = "channels_last conv weights: memory format of .grad is compared with the parameter"
EXPECT = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    net = (
        torch.nn.Sequential(torch.nn.Conv2d(4, 4, 3, bias=False), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3))
        .to(device, dtype)
        .to(memory_format=torch.channels_last)
    )
    x = torch.randn(2, 4, 9, 9, device=device, dtype=dtype).to(memory_format=torch.channels_last)
    c = torch.compile(net, backend="aot_eager")
    return dict(net.named_parameters()), lambda: c(x).square().sum()


def backward(loss, params):
    loss.backward()
    return {k: (tuple(p.stride()), tuple(p.grad.stride())) for k, p in params.items() if p.dim() == 4}
