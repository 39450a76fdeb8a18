# SPDX-License-Identifier: Apache-2.0
"""A small training loop that the tests share."""

import io

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class Task:
    """A model, its data, and what happens to a batch."""

    def __init__(self, n=23, lr=0.1, dtype=torch.float64):
        torch.manual_seed(1)
        self.x = torch.randn(n, 6, dtype=dtype)
        self.y = torch.randint(3, (n,))
        self.dataset = TensorDataset(torch.arange(n), self.x, self.y)
        self.model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).to(dtype)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=lr)

    def loader(self, sampler, batch_size=4, **options):
        return DataLoader(self.dataset, batch_size=batch_size, sampler=sampler, **options)

    def step(self, sampler, batch, named=False):
        indices, x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        if named:
            sampler.observe(loss, indices=indices)
        else:
            sampler.observe(loss, len(x))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return indices.tolist()

    def epoch(self, sampler, loader=None, named=False):
        return [self.step(sampler, batch, named) for batch in loader or self.loader(sampler)]

    def state_dict(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def flat(batches):
    return [index for batch in batches for index in batch]


def through_torch(state):
    """As a checkpoint file would hold it."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)
