# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Trainer: trains in an order that it learns on the way (docs/frameworks.md)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import transformers  # type: ignore[import-not-found, unused-ignore]
from transformers.trainer_pt_utils import find_batch_size  # type: ignore[import-not-found, unused-ignore]

from cdgrab.accelerate import Sampler
from cdgrab.errors import FileError, UserError


class Trainer(transformers.Trainer):  # type: ignore[misc, unused-ignore]
    """transformers.Trainer with ``sampler=``, which it iterates, shows every training loss, and keeps in checkpoints.

    In front of another trainer it does the same for that one: ``class Mine(cdgrab.transformers.Trainer, SFTTrainer)``.
    """

    def __init__(self, *args: Any, sampler: Sampler, **kwargs: Any) -> None:
        if not isinstance(sampler, Sampler):
            raise UserError(f"sampler is a {type(sampler).__name__}; a cdgrab.accelerate.Sampler is needed")
        self.sampler = sampler
        super().__init__(*args, **kwargs)
        if self.args.n_gpu > 1:
            raise UserError(f"one process with {self.args.n_gpu} devices; start one process per device")
        if self.args.ignore_data_skip:
            raise UserError("ignore_data_skip; a resumed epoch goes on with what it has not trained on: leave it out")

    def _get_train_sampler(self, *_: Any, **__: Any) -> Sampler:
        return self.sampler

    def get_train_dataloader(self) -> Any:
        return self.sampler.attach(self.accelerator, super().get_train_dataloader(), checkpoint=False)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        # Before the loss, which may take the labels out of the inputs.
        batch_size = find_batch_size(inputs)  # type: ignore[no-untyped-call, unused-ignore]
        result = super().compute_loss(model, inputs, *args, **kwargs)
        loss = result[0] if isinstance(result, tuple) else result
        if model.training and loss.requires_grad:  # evaluation passes through here too
            self.sampler.observe(loss, batch_size)
        return result

    # Beside the optimizer's state: on every process, unless only the model is wanted.

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        torch.save(self.sampler.state_dict(), self._sampler_file(output_dir))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        file = self._sampler_file(checkpoint)
        if not file.is_file():
            raise FileError(
                f"{file} is missing: the checkpoint was made without cdgrab, with save_only_model or by fewer "
                "processes; load its model and train without resume_from_checkpoint"
            )
        self.sampler.load_state_dict(torch.load(file, weights_only=True))

    def _sampler_file(self, folder: str | os.PathLike[str]) -> Path:
        return Path(folder) / f"cdgrab_{self.args.process_index}_of_{self.args.world_size}.pt"
