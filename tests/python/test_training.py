# SPDX-License-Identifier: Apache-2.0
"""The ways people train: each against the gradients of one example at a time, or against the plain loop."""

import contextlib
import gc
import platform
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from training import Task

import cdgrab


class Net(torch.nn.Module):
    """In-place activations, dropout in eval mode, a norm, a middle part that may be checkpointed or compiled."""

    def __init__(self, middle=lambda function, x: function(x)):
        super().__init__()
        self.first = torch.nn.Linear(6, 10)
        self.inner = torch.nn.Sequential(torch.nn.Linear(10, 10), torch.nn.ReLU(inplace=True), torch.nn.LayerNorm(10))
        self.last = torch.nn.Linear(10, 3)
        self.middle = middle

    def forward(self, x):
        return self.last(self.middle(self.inner, F.relu_(self.first(x))))


def one_at_a_time(model, x, y, parameters):
    rows = []
    for i in range(len(x)):
        loss = F.cross_entropy(model(x[i : i + 1]).float(), y[i : i + 1])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)]))
    return torch.stack(rows)


def observed(model, x, y, *, scale=1.0, context=None):
    geometry = cdgrab.GradientGeometry()
    if context is None:
        loss = F.cross_entropy(model(x), y)
    else:
        with context():
            loss = F.cross_entropy(model(x), y)
    geometry.observe(loss, len(x))
    (loss * scale).backward()
    return geometry


@pytest.fixture
def data():
    return torch.randn(7, 6), torch.randint(3, (7,))


def test_loss_scaling_and_accumulation_change_nothing(data):
    model = Net()
    for scale in (1.0, 65536.0, 1 / 3):
        geometry = observed(model, *data, scale=scale)
        torch.testing.assert_close(
            geometry.rows(), one_at_a_time(model, *data, geometry.parameters()), rtol=1e-4, atol=1e-6
        )


def test_accumulated_steps_are_observed_one_by_one():
    task = Task()
    sampler = cdgrab.Sampler(23)
    for count, (_, x, y) in enumerate(task.loader(sampler)):
        loss = F.cross_entropy(task.model(x), y) / 3
        sampler.observe(loss, len(x))
        loss.backward()
        if count % 3 == 2:
            task.optimizer.step()
            task.optimizer.zero_grad()
    assert sampler.report()["observed"] == 23


def test_autocast_bfloat16(data):
    model = Net()
    geometry = observed(model, *data, context=lambda: torch.autocast("cpu", dtype=torch.bfloat16))
    expected = one_at_a_time(model, *data, geometry.parameters())
    error = (geometry.gram() - expected @ expected.T).norm() / (expected @ expected.T).norm()
    assert geometry.gram().dtype == torch.float32
    assert error < 0.05, "as near as bfloat16 forward and backward passes are"


def test_a_sampler_orders_under_autocast(data):
    model = Net()
    sampler = cdgrab.Sampler(7)
    for _ in range(2):
        order = list(sampler)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(data[0][order]), data[1][order])
        sampler.observe(loss, 7)
        loss.backward()
    assert sampler.report() == {"epoch": 1, "observed": 7, "not_finite": 0, "unpaired": 1, "unobserved": 0}


def test_checkpointing_without_reentry(data):
    model = Net(lambda function, x: checkpoint(function, x, use_reentrant=False))
    geometry = observed(model, *data)
    plain = Net()
    plain.load_state_dict(model.state_dict())
    names = {id(p): name for name, p in model.named_parameters()}
    parameters = [plain.get_parameter(names[id(p)]) for p in geometry.parameters()]
    torch.testing.assert_close(geometry.rows(), one_at_a_time(plain, *data, parameters), rtol=1e-4, atol=1e-6)


def test_reentrant_checkpointing_is_refused_by_name(data):
    model = Net(lambda function, x: checkpoint(function, x, use_reentrant=True))
    with pytest.raises(cdgrab.UserError, match="use_reentrant=False"):
        observed(model, *data)


def test_compiled_parts_without_parameters(data):
    activation = torch.compile(lambda x: torch.tanh(x) * 2, backend="aot_eager")
    model = Net(lambda function, x: activation(function(x)))
    geometry = observed(model, *data)
    eager = Net(lambda function, x: torch.tanh(function(x)) * 2)
    eager.load_state_dict(model.state_dict())
    names = {id(p): name for name, p in model.named_parameters()}
    parameters = [eager.get_parameter(names[id(p)]) for p in geometry.parameters()]
    torch.testing.assert_close(geometry.rows(), one_at_a_time(eager, *data, parameters), rtol=1e-4, atol=1e-6)


def test_a_compiled_model_is_refused_with_the_remedy(data):
    model = torch.compile(Net(), backend="aot_eager")
    with pytest.raises(cdgrab.UserError, match=r"CompiledFunctionBackward.*observe_microbatch"):
        observed(model, *data)


def test_a_compiled_model_orders_microbatches():
    task = Task(n=24)
    model = torch.compile(task.model, backend="aot_eager")
    sampler = cdgrab.Sampler(24, "pair; unit=4")
    for _ in range(2):
        for _, x, y in task.loader(sampler):
            task.optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            sampler.observe_microbatch(task.model.parameters())
    assert sampler.report()["observed"] == 6


def _two_backwards(model, sampler):
    """The gradients of two losses, the first one's not sent to the other rank by itself."""
    model.zero_grad()
    torch.manual_seed(dist.get_rank())
    for context in (model.no_sync(), contextlib.nullcontext()):
        with context:
            loss = model(torch.randn(4, 7, 6)).square().mean()
            if sampler is not None:
                sampler.observe(loss, 4)
            loss.backward()
    return [p.grad.clone() for p in model.parameters()]


def _ddp(rank, meeting, results):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    _observe_under_ddp(rank)
    results[rank] = 1.0
    gc.collect()  # models in cycles would keep gloo's threads until the interpreter ends, and abort it now and then
    dist.destroy_process_group()


def _observe_under_ddp(rank):
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    torch.manual_seed(10 + rank)
    x, y = torch.randn(12, 6), torch.randint(3, (12,))
    sampler = cdgrab.Sampler(12)
    order = list(sampler)
    for count in range(3):
        rows = order[4 * count : 4 * count + 4]
        geometry = cdgrab.GradientGeometry()
        loss = F.cross_entropy(model(x[rows]), y[rows])
        geometry.observe(loss, 4)
        sampler.observe(loss, 4)
        loss.backward()
        plain = Net()
        plain.load_state_dict(model.module.state_dict())
        names = {id(p): name for name, p in model.module.named_parameters()}
        parameters = [plain.get_parameter(names[id(p)]) for p in geometry.parameters()]
        expected = one_at_a_time(plain, x[rows], y[rows], parameters)
        torch.testing.assert_close(geometry.rows(), expected, rtol=1e-4, atol=1e-6)
    assert sampler.report()["observed"] == 12
    over_time = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Tanh(), torch.nn.Linear(10, 3))
    model = DistributedDataParallel(over_time)
    fused = cdgrab.Sampler(8, order="pair; fused")
    assert len(list(fused)) == 8
    torch.testing.assert_close(_two_backwards(model, fused), _two_backwards(model, None), rtol=1e-5, atol=1e-7)
    assert fused.report()["observed"] == 8


def test_ddp_gives_every_rank_its_own_examples(tmp_path):
    results = torch.zeros(2).share_memory_()
    mp.spawn(_ddp, args=(tmp_path / "meeting", results), nprocs=2)
    assert results.tolist() == [1.0, 1.0]


STEPS_IN_A_PROCESS_OF_ITS_OWN = """
import resource
import torch
from torch import nn
import cdgrab

torch.set_num_threads(1)
x, y = torch.randn(64, 1, 28, 28), torch.randint(0, 10, (64,))
model = nn.Sequential(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
                      nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 10))
sampler = cdgrab.Sampler(64 * 120, order="pair")
indices = iter(sampler)
for step in range(120):
    if step == 20:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(64):
        next(indices)
    loss = nn.functional.cross_entropy(model(x), y)
    sampler.observe(loss, 64)
    model.zero_grad()
    loss.backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 100)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc's heap")
def test_what_a_step_frees_is_there_for_the_next_one():
    ran = subprocess.run([sys.executable, "-c", STEPS_IN_A_PROCESS_OF_ITS_OWN], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert float(ran.stdout) < 20, f"{ran.stdout} page faults a step; without observe there are none"
