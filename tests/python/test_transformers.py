# SPDX-License-Identifier: Apache-2.0
"""cdgrab.transformers against the real Trainer, with a GPT-2 that was never trained."""

import shutil

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import cdgrab
import cdgrab.accelerate
import cdgrab.transformers

N = 22


class Tokens(torch.utils.data.Dataset):
    """Sequences of one length, or of several, filled up to 9."""

    def __init__(self, ragged=False):
        generator = torch.Generator().manual_seed(3)
        self.tokens = torch.randint(50, (N, 9), generator=generator)
        self.lengths = torch.randint(4, 10, (N,), generator=generator) if ragged else torch.full((N,), 9)
        self.read = []

    def __len__(self):
        return N

    def __getitem__(self, index):
        self.read.append(index)
        kept = torch.arange(9) < self.lengths[index]
        tokens = self.tokens[index]
        return {
            "input_ids": tokens,
            "attention_mask": kept.long(),
            "labels": tokens.where(kept, torch.tensor(-100)),
        }


def gpt2():
    torch.manual_seed(0)
    config = GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=50, n_positions=16, bos_token_id=0, eos_token_id=0)
    return GPT2LMHeadModel(config)


class Orders(TrainerCallback):
    """Every epoch's order and report."""

    def __init__(self, sampler):
        self.sampler, self.orders, self.reports = sampler, [], []

    def on_epoch_end(self, *_, **__):
        self.orders.append(self.sampler.current_order().tolist())
        self.reports.append(self.sampler.report())


def trainer_of(path, epochs=3, data=None, **options):
    model = gpt2()
    # The position embedding is looked up once for the whole batch, which observe does not take yet.
    sampler = cdgrab.accelerate.Sampler(N, "pair", seed=1, parameters=model)
    arguments = TrainingArguments(
        output_dir=str(path),
        num_train_epochs=epochs,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        **{"save_strategy": "no", **options},
    )
    seen = Orders(sampler)
    trainer = cdgrab.transformers.Trainer(
        model=model,
        args=arguments,
        train_dataset=data or Tokens(),
        eval_dataset=Tokens(),
        sampler=sampler,
        callbacks=[seen],
    )
    return trainer, seen


@pytest.mark.parametrize("accumulated", [1, 4])
@pytest.mark.parametrize("ragged", [False, True])
def test_every_epoch_is_observed_and_orders_change(tmp_path, accumulated, ragged):
    data = Tokens(ragged)
    trainer, seen = trainer_of(tmp_path, data=data, gradient_accumulation_steps=accumulated)
    trainer.train()
    assert [report["observed"] for report in seen.reports] == [N, N, N]
    assert [sorted(order) for order in seen.orders] == [list(range(N))] * 3
    assert data.read == seen.orders[0] + seen.orders[1] + seen.orders[2]
    assert seen.orders[0] != seen.orders[1] != seen.orders[2]
    assert trainer.sampler.missed_backwards() == 0


def test_evaluation_is_not_observed(tmp_path):
    trainer, seen = trainer_of(tmp_path, eval_strategy="steps", eval_steps=2)
    trainer.train()
    assert [report["observed"] for report in seen.reports] == [N, N, N]


def test_observing_leaves_the_training_as_it_is(tmp_path):
    observed, seen = trainer_of(tmp_path, epochs=1)
    observed.train()

    class Plain(Trainer):
        def _get_train_sampler(self, *_):
            return seen.orders[0]

    plain = Plain(model=gpt2(), args=observed.args, train_dataset=Tokens())
    plain.train()
    assert all(torch.equal(a, b) for a, b in zip(observed.model.parameters(), plain.model.parameters(), strict=True))


@pytest.mark.parametrize("accumulated", [1, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_resume_from_a_checkpoint_continues_as_if_never_stopped(tmp_path, accumulated, drop_last):
    options = {"gradient_accumulation_steps": accumulated, "dataloader_drop_last": drop_last}
    data = Tokens()
    whole, seen = trainer_of(tmp_path / "whole", data=data, save_strategy="steps", save_steps=1, **options)
    whole.train()
    epoch = whole.state.global_step // 3
    for stop in (1, epoch, epoch + 1):
        copy = tmp_path / f"from-{stop}"
        shutil.copytree(tmp_path / "whole" / f"checkpoint-{stop}", copy / f"checkpoint-{stop}")
        rest = Tokens()
        trainer, again = trainer_of(copy, data=rest, **options)
        trainer.train(resume_from_checkpoint=True)
        assert again.orders == seen.orders[-len(again.orders) :]
        assert rest.read == data.read[-len(rest.read) :]
        assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), trainer.model.parameters(), strict=True))


def test_a_checkpoint_without_the_order_is_refused(tmp_path):
    trainer, _ = trainer_of(tmp_path, epochs=1, save_strategy="epoch")
    trainer.train()
    next(tmp_path.glob("checkpoint-*/cdgrab*")).unlink()
    trainer, _ = trainer_of(tmp_path)
    with pytest.raises(cdgrab.FileError, match="without cdgrab"):
        trainer.train(resume_from_checkpoint=True)


def test_a_plain_sampler_is_refused():
    with pytest.raises(cdgrab.UserError, match=r"cdgrab\.accelerate\.Sampler"):
        cdgrab.transformers.Trainer(model=gpt2(), sampler=cdgrab.Sampler(N))
