# SPDX-License-Identifier: Apache-2.0
"""The models of docs/benchmark.md, of the sizes that people train on one machine."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..models.case import Case, Entry, classifier, language_model
from ..models.images import BasicBlock, Norm, lenet, pooled_head

PIXELS, VOCABULARY = 784, 2000


def logistic() -> Case:
    return classifier(nn.Linear(PIXELS, 10), (PIXELS,))


def mlp(width: int = 1024) -> Case:
    layers = (nn.Linear(PIXELS, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    return classifier(nn.Sequential(*layers), (PIXELS,))


class Block(BasicBlock):
    """With nothing on the way past it, where shapes allow."""

    def __init__(self, inner: int, outer: int, stride: int, norm: Norm) -> None:
        super().__init__(inner, outer, stride, norm)
        if inner == outer and stride == 1:
            self.skip = nn.Sequential()


def resnet18(norm: Norm) -> nn.Module:
    blocks: list[nn.Module] = []
    inner = 64
    for outer, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Block(inner, outer, stride, norm), Block(outer, outer, 1, norm)]
        inner = outer
    first = (nn.Conv2d(3, 64, 3, padding=1, bias=False), norm(64), nn.ReLU())
    return nn.Sequential(*first, *blocks, pooled_head(512))


def resnet18_batch_norm() -> Case:
    return classifier(resnet18(nn.BatchNorm2d), (3, 32, 32), mixes=True)


def resnet18_group_norm() -> Case:
    return classifier(resnet18(lambda channels: nn.GroupNorm(32, channels)), (3, 32, 32))


class LstmModel(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.layers = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layers(self.token(x))[0])  # type: ignore[no-any-return]


def lstm() -> Case:
    return language_model(LstmModel(200), 35, VOCABULARY)


class GptLayer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attend, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.attend(self.norms[0](x)).chunk(3, 2)
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.widen(self.norms[1](x))))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, length: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(GptLayer(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.size(1)).expand_as(x)  # one per example, without which opacus counts one example
        return self.head(self.norm(self.layers(self.token(x) + self.position(positions))))  # type: ignore[no-any-return]


def gpt(layers: int = 2, width: int = 128, length: int = 128) -> Case:
    return language_model(Gpt(layers, width, length), length, VOCABULARY)


class Lora(nn.Module):
    """A layer that stands still, and two thin ones beside it."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x))  # type: ignore[no-any-return]


def gpt_lora(rank: int = 8) -> Case:
    """On all linear layers of the blocks; the thin ones are past their first step, at which one of them is zero."""
    model = Gpt(6, 384, 128).requires_grad_(False)
    for name, layer in list(model.layers.named_modules()):
        if isinstance(layer, nn.Linear):
            model.layers.set_submodule(name, Lora(layer, rank))
    return language_model(model, 128, VOCABULARY)


MODELS = [
    Entry("dense", "logistic", logistic, "logistic 784-10"),
    Entry("dense", "mlp", mlp, "MLP 784-1024-1024-10"),
    Entry("convolutions", "lenet", lenet, "LeNet-5"),
    Entry("convolutions", "resnet18", resnet18_batch_norm, "ResNet-18, batch norm"),
    Entry("convolutions", "resnet18_gn", resnet18_group_norm, "ResNet-18, group norm"),
    Entry("sequences", "lstm", lstm, "LSTM 2x200, T=35"),
    Entry("sequences", "gpt", gpt, "GPT 2x128, T=128"),
    Entry("sequences", "gpt_6x384", lambda: gpt(6, 384), "GPT 6x384, T=128"),
    Entry("sequences", "gpt_lora", gpt_lora, "LoRA on GPT 6x384"),
]
