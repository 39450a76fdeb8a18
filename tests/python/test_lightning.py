# SPDX-License-Identifier: Apache-2.0
"""cdgrab.lightning against the real Trainer."""

import pytest
import torch
import torch.nn.functional as F
from training import Task, flat

import cdgrab

pytest.importorskip("lightning")

import lightning.pytorch as pl
from lightning.pytorch.callbacks import ModelCheckpoint

import cdgrab.lightning

pytestmark = pytest.mark.filterwarnings("ignore:::lightning")


class Module(pl.LightningModule):
    """Task as Lightning has it; remembers what it trained on."""

    def __init__(self, n=23):
        super().__init__()
        self.task = Task(n)
        self.model = self.task.model
        self.seen = []

    def training_step(self, batch, batch_idx):
        indices, x, y = batch
        self.seen.append((self.current_epoch, indices.tolist()))
        return F.cross_entropy(self.model(x), y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def stream(self):
        return [flat([batch for epoch, batch in self.seen if epoch == e]) for e in range(1 + self.seen[-1][0])]


QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}


def run(order="pair", n=23, seed=2, checkpoints=(), loader=None, resume=None, **options):
    module = Module(n)
    sampler = cdgrab.Sampler(n, order, seed=seed)
    callbacks = [cdgrab.lightning.Order(sampler), *checkpoints]
    trainer = pl.Trainer(max_epochs=3, callbacks=callbacks, enable_checkpointing=bool(checkpoints), **QUIET, **options)
    trainer.fit(module, module.task.loader(sampler, **(loader or {})), ckpt_path=resume)
    return module, sampler


@pytest.mark.parametrize("order", ["pair", "mean", "rr"])
@pytest.mark.parametrize("workers", [0, 2])
def test_trains_as_without_lightning(order, workers):
    module, _ = run(order, loader={"num_workers": workers})
    task, sampler = Task(), cdgrab.Sampler(23, order, seed=2)
    assert module.stream() == [flat(task.epoch(sampler)) for _ in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(module.model.parameters(), task.model.parameters(), strict=True))


def test_accumulated_batches_are_observed_too():
    module, sampler = run(accumulate_grad_batches=4)
    assert sampler.report()["observed"] == 23
    stream = module.stream()
    assert stream[0] != stream[1] != stream[2]


@pytest.mark.parametrize("order", ["pair", "mean"])
@pytest.mark.parametrize("loader", [{}, {"drop_last": True}, {"num_workers": 2}])
def test_resume_by_ckpt_path_equals_never_stopping(tmp_path, order, loader):
    every = ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    whole, _ = run(order, checkpoints=[every], loader=loader)
    length = 5 if "drop_last" in loader else 6
    for step in (1, length - 1, length, length + 2, 2 * length):
        rest, _ = run(order, seed=99, loader=loader, resume=tmp_path / f"step={step}.ckpt")
        assert rest.seen == whole.seen[step:]
        assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), rest.model.parameters(), strict=True))


def test_resume_at_the_end_of_an_epoch_equals_never_stopping(tmp_path):
    ends = ModelCheckpoint(tmp_path, filename="{epoch}", every_n_epochs=1, save_top_k=-1, save_on_train_epoch_end=True)
    whole, _ = run(checkpoints=[ends], loader={"drop_last": True})
    rest, _ = run(seed=99, loader={"drop_last": True}, resume=tmp_path / "epoch=1.ckpt")
    assert rest.seen == whole.seen[10:]


class TwoBackwards(Module):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, batch_idx):
        for _ in range(2):
            self.manual_backward(super().training_step(batch, batch_idx))


def train(module, sampler, of_the_loader):
    trainer = pl.Trainer(max_epochs=1, callbacks=[cdgrab.lightning.Order(sampler)], enable_checkpointing=False, **QUIET)
    trainer.fit(module, module.task.loader(of_the_loader))


def test_a_loader_of_another_sampler_is_refused():
    with pytest.raises(cdgrab.UserError, match="another sampler"):
        train(Module(), cdgrab.Sampler(23), cdgrab.Sampler(23))


def test_a_second_backward_in_a_batch_is_refused():
    sampler = cdgrab.Sampler(23)
    with pytest.raises(cdgrab.UserError, match="second backward"):
        train(TwoBackwards(), sampler, sampler)
