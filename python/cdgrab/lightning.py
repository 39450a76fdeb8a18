# SPDX-License-Identifier: Apache-2.0
"""Lightning: a callback that observes the loss and keeps the order in checkpoints (docs/frameworks.md)."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback  # type: ignore[import-not-found, unused-ignore]

from cdgrab.errors import UserError
from cdgrab.sampler import Sampler


class Order(Callback):  # type: ignore[misc, unused-ignore]
    """Shows `sampler`, which the training loader was built with, the loss of every batch.

    One process, one training loader, one backward per batch.
    """

    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler
        self._rows = 0  # of the batch under way
        self._ended: int | None = None  # the epoch whose last batch was the last that was trained

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.world_size > 1:
            raise UserError(f"{trainer.world_size} processes; cdgrab.lightning.Order orders the examples of one")
        batches = getattr(trainer.train_dataloader, "batch_sampler", None)
        if getattr(batches, "sampler", None) is not self.sampler:
            raise UserError("the training loader has another sampler; build one DataLoader with sampler= this one")

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        # Counted rather than looked up in the batch, which may be of any make.
        size = trainer.train_dataloader.batch_sampler.batch_size
        self._rows = min(size, len(self.sampler) - batch_idx * size)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: torch.Tensor) -> None:
        if self._rows == 0:
            raise UserError("a second backward in one batch; observe the loss that counts in your own training_step")
        self.sampler.observe(loss, self._rows)
        self._rows = 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._ended = self.sampler.epoch if trainer.is_last_batch else None

    def state_dict(self) -> dict[str, Any]:
        state = self.sampler.state_dict()
        if self._ended == self.sampler.epoch:
            state["trained"] = len(self.sampler)  # whatever the loader drops, the epoch is over
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Lightning does not replay a resumed epoch: the loader begins with what is left.
        self.sampler.load_state_dict(state_dict)
        self._ended = self.sampler.epoch if state_dict["trained"] == len(self.sampler) else None
