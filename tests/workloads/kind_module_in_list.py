"""layers kept in a plain Python list (not registered), batch norm in training mode and max pooling"""

import torch

NAME = "kind_module_in_list"
SOURCE = "mert-kurttutan/torchview#99"
POINT = "layers kept in a plain Python list (not registered), batch norm in training mode and max pooling"
EXPECT = "parity"


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    layers = [
        torch.nn.Conv2d(2, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 9, 3),
    ]
    layers = [l.to(device, dtype) for l in layers]
    x = torch.randn(4, 2, 8, 8, device=device, dtype=dtype)
    ps = {f"{i}.{k}": p for i, l in enumerate(layers) for k, p in l.named_parameters()}

    def step():
        h = x
        for l in layers:
            h = l(h)
        return h.logsumexp(1).sum()

    return ps, step
