# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training in orders that the ranks make together from their examples' gradients.

torchrun --nproc-per-node=2 examples/python/train_ddp.py [--order d-rr]
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import cdgrab


def generated(count: int) -> TensorDataset:
    """Ten classes around centres of their own."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (count,), generator=generator)
    centres = torch.randn(10, 32, generator=generator)
    return TensorDataset(centres[labels] + torch.randn(count, 32, generator=generator), labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=2001)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16, help="of each rank")
    parser.add_argument("--order", default="cd-pair", help="cd-pair, id-pair or d-rr, which is random reshuffling")
    parser.add_argument("--state", help="a file for the order, written after every epoch")
    arguments = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    dataset = generated(arguments.examples)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sampler = cdgrab.DistributedSampler(dataset, order=arguments.order, seed=0)
    loader = DataLoader(dataset, batch_size=arguments.batch, sampler=sampler, num_workers=1)
    for epoch in range(1, arguments.epochs + 1):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            sampler.observe(loss, len(x))  # the one new line; the ranks agree on signs when backward ends
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        sampler.end_epoch()
        if arguments.state:
            sampler.save(arguments.state)
        if dist.get_rank() == 0:
            with torch.no_grad():
                x, y = dataset.tensors
                mean = F.cross_entropy(model.module(x), y).item()
            print(f"epoch {epoch}: loss {mean:.6f}, next order {sampler.order_hash() & 0xFFFFFFFF:08x}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
