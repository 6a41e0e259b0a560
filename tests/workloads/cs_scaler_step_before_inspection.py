"""autocast, GradScaler, unscale, clipping and an optimizer step all happen before anybody looks at .grad"""

import torch

NAME = "cs_scaler_step_before_inspection"
SOURCE = "pytorch/pytorch#138412"
POINT = "autocast, GradScaler, unscale, clipping and an optimizer step all happen before anybody looks at .grad"
EXPECT = "parity"

STATE = {}


def build(device="cpu", dtype=None):
    dtype = dtype or torch.float32
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3)).to(device, dtype)
    x, y = torch.randn(4, 6, device=device, dtype=dtype), torch.randn(4, 3, device=device, dtype=dtype)
    STATE.update(
        scaler=torch.amp.GradScaler(torch.device(device).type, init_scale=1024.0),
        opt=torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
    )

    def step():
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
            h = net[1](net[0](x))
        return torch.nn.functional.mse_loss(net[2](h.float()), y)  # the head saves its float32 weight itself

    return dict(net.named_parameters()), step


def backward(loss, params):
    scaler, opt = STATE["scaler"], STATE["opt"]
    scaler.scale(loss).backward()
    scaler.unscale_(opt)
    norm = torch.nn.utils.clip_grad_norm_(params.values(), 0.5)
    scaler.step(opt)
    scaler.update()
    return {"norm": norm, "scale": scaler.get_scale(), **{k + "_new": p.detach().clone() for k, p in params.items()}}
