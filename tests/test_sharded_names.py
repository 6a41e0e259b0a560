"""Leaves of sharded models have the names of the parameters that they stand for, and their modules."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard

from tests.captures import session_of


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))


@pytest.fixture(scope="module")
def mesh():
    if not dist.is_initialized():  # as the workloads: it stays until the process ends
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return dist.init_device_mesh("cpu", (1,))


def leaves(net):
    """Name, shape and module of each leaf, in the order of the NodeCalls, for two steps."""
    session = session_of(net, lambda: [net(torch.ones(2, 8)).float().square().mean().backward() for _ in range(2)])
    record = session[0].record
    modules = {node.number: node.module for node in record.autograd_nodes}
    return [(leaf.names, leaf.shape, modules[leaf.autograd_node]) for leaf in record.leaves], record


@pytest.mark.parametrize("options", [{}, {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}])
def test_fsdp2(mesh, options):
    expected, _ = leaves(model())
    net = model()
    for layer in (net[0], net[2]):
        fully_shard(layer, mesh=mesh, **options)
    actual, record = leaves(fully_shard(net, mesh=mesh, **options))
    assert sorted(actual) == sorted(expected)
    named = {name for row in record.inputs for name in (*row.names, *row.view_of)}
    assert {"0.weight", "2.weight", "4.weight"} <= named


def test_fsdp2_with_a_tied_parameter(mesh):
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    net[2].weight = net[0].weight
    expected, _ = leaves(net)
    actual, _ = leaves(fully_shard(net, mesh=mesh))
    assert sorted((sorted(names), shape) for names, shape, _ in actual) == sorted(
        (sorted(names), shape) for names, shape, _ in expected
    )


@pytest.mark.parametrize("original", [True, False])
def test_fsdp1(mesh, original):
    net = FullyShardedDataParallel(model(), device_id=torch.device("cpu"), use_orig_params=original)
    (leaf,), _ = leaves(net)
    assert leaf == (
        ("_fsdp_wrapped_module._flat_param",),
        (8 * 16 + 16 + 16 * 16 + 16 + 16 * 3 + 3,),
        "_fsdp_wrapped_module",
    )
