# SPDX-License-Identifier: Apache-2.0
"""Architectures of Transformers, small and never trained, without dropout; and one with PEFT's adapters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    logging,
)

from .case import Case

logging.set_verbosity_error()  # type: ignore[no-untyped-call]

LENGTH, WIDTH, VOCABULARY = 12, 64, 200
Model = Callable[..., Any]


def own_loss(model: Model, x: Tensor, y: Tensor) -> Tensor:
    """The one that the model computes when it is given labels."""
    return model(x, labels=y).loss  # type: ignore[no-any-return]


def class_losses(model: Model, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x).logits, y, reduction="none")


def next_token_losses(model: Model, x: Tensor, y: Tensor) -> Tensor:
    logits = model(x).logits[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), y[:, 1:], reduction="none").mean(1)


def answer_losses(model: Model, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x, labels=y).logits.transpose(1, 2), y, reduction="none").mean(1)


def causal(model: nn.Module) -> Case:
    def examples(batch: int) -> tuple[Tensor, Tensor]:
        tokens = torch.randint(VOCABULARY, (batch, LENGTH))
        return tokens, tokens

    return Case(model, examples, own_loss, next_token_losses)


def made(architecture: Any, config: Any) -> nn.Module:
    return architecture(config).train()  # type: ignore[no-any-return]


def gpt2_model() -> nn.Module:
    config = GPT2Config(
        n_layer=2, n_embd=WIDTH, n_head=4, vocab_size=VOCABULARY, n_positions=2 * LENGTH, bos_token_id=0,
        eos_token_id=0, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
    )  # fmt: skip
    return made(GPT2LMHeadModel, config)


def gpt2() -> Case:
    return causal(gpt2_model())


def gpt2_lora() -> Case:
    lora = LoraConfig(
        r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["c_attn", "c_fc", "c_proj"], fan_in_fan_out=True,
        task_type="CAUSAL_LM",
    )  # fmt: skip
    model = get_peft_model(gpt2_model(), lora)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # zero at first, and with it the gradient of A
            nn.init.normal_(parameter, std=0.1)
    return causal(model)


def llama() -> Case:
    config = LlamaConfig(
        num_hidden_layers=2, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=VOCABULARY, max_position_embeddings=2 * LENGTH, bos_token_id=0,
        eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return causal(made(LlamaForCausalLM, config))


def bert() -> Case:
    config = BertConfig(  # type: ignore[call-arg]
        num_hidden_layers=2, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_attention_heads=4,
        vocab_size=VOCABULARY, max_position_embeddings=2 * LENGTH, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, num_labels=10,
    )  # fmt: skip

    def examples(batch: int) -> tuple[Tensor, Tensor]:
        return torch.randint(1, VOCABULARY, (batch, LENGTH)), torch.randint(10, (batch,))

    return Case(made(BertForSequenceClassification, config), examples, own_loss, class_losses)


def t5() -> Case:
    config = T5Config(  # type: ignore[call-arg]
        num_layers=2, d_model=WIDTH, d_kv=16, d_ff=2 * WIDTH, num_heads=4, vocab_size=VOCABULARY, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0,
    )  # fmt: skip

    def examples(batch: int) -> tuple[Tensor, Tensor]:
        return torch.randint(1, VOCABULARY, (batch, LENGTH)), torch.randint(1, VOCABULARY, (batch, LENGTH - 2))

    return Case(made(T5ForConditionalGeneration, config), examples, own_loss, answer_losses)


def vit() -> Case:
    config = ViTConfig(  # type: ignore[call-arg]
        num_hidden_layers=2, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_attention_heads=4, image_size=16,
        patch_size=4, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=10,
    )  # fmt: skip

    def examples(batch: int) -> tuple[Tensor, Tensor]:
        return torch.randn(batch, 3, 16, 16), torch.randint(10, (batch,))

    return Case(made(ViTForImageClassification, config), examples, own_loss, class_losses)
