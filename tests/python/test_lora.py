# SPDX-License-Identifier: Apache-2.0
"""PEFT LoRA: the adapters' gradients alone make the order, and what is frozen costs nothing."""

import pytest
import torch

import cdgrab

pytest.importorskip("peft")
pytest.importorskip("transformers")

from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

N = 22


def adapted(dropout=0.0, targets=("c_attn", "c_fc", "c_proj")):
    torch.manual_seed(0)
    # Without dropout in attention, torch takes its fused kernel.
    config = GPT2Config(
        n_layer=2,
        n_embd=16,
        n_head=2,
        vocab_size=50,
        n_positions=16,
        bos_token_id=0,
        eos_token_id=0,
        attn_pdrop=0.0,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
    )
    lora = LoraConfig(
        r=3,
        lora_alpha=6,
        lora_dropout=dropout,
        target_modules=list(targets),
        fan_in_fan_out=True,
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(GPT2LMHeadModel(config), lora)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero at first, and with it the gradient of A
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def tokens(n=N):
    return torch.randint(50, (n, 9), generator=torch.Generator().manual_seed(3))


def test_only_adapters_are_observed():
    model, x = adapted(), tokens(5)
    geometry = cdgrab.GradientGeometry(parameters=model).compute(model(input_ids=x, labels=x).loss, 5)
    names = {parameter.data_ptr(): name for name, parameter in model.named_parameters()}
    found = {names[parameter.data_ptr()] for parameter in geometry.parameters()}
    assert found == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert all(".lora_A." in name or ".lora_B." in name for name in found)


@pytest.mark.parametrize("targets", [("c_attn",), ("c_attn", "c_fc", "c_proj")])
def test_rows_are_the_gradients_of_one_example_at_a_time(targets):
    model, x = adapted(targets=targets), tokens(5)
    geometry = cdgrab.GradientGeometry().compute(model(input_ids=x, labels=x).loss, 5)
    for row, one in zip(geometry.rows(), x.split(1), strict=True):
        gradients = torch.autograd.grad(model(input_ids=one, labels=one).loss, geometry.parameters())
        alone = torch.cat([gradient.reshape(-1) for gradient in gradients])
        assert alone.norm() > 0
        assert torch.allclose(row, alone, rtol=0, atol=1e-5 * alone.norm())


@pytest.mark.parametrize("order", ["pair", "mean"])
def test_epochs_are_ordered_by_the_adapters(order):
    model, x = adapted(dropout=0.1), tokens()
    frozen = [p.detach().clone() for p in model.parameters() if not p.requires_grad]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    sampler = cdgrab.Sampler(N, order, parameters=model)
    orders = []
    for _ in range(3):
        for batch in torch.utils.data.BatchSampler(sampler, 4, drop_last=False):
            loss = model(input_ids=x[batch], labels=x[batch]).loss
            sampler.observe(loss, len(batch))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        assert sampler.report()["observed"] == N
        orders.append(sampler.current_order().tolist())
    assert orders[0] != orders[1] != orders[2]
    kept = int(sampler.state_dict()["parameters/numel"].sum())
    assert kept == sum(p.numel() for p in model.parameters() if p.requires_grad)
    still = [p for p in model.parameters() if not p.requires_grad]
    assert all(torch.equal(a, b) for a, b in zip(frozen, still, strict=True))
