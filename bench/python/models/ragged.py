# SPDX-License-Identifier: Apache-2.0
"""Sequences of different lengths: their tokens as rows of one axis, or packed. Token 0 is padding, and no row."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from .case import Case, Module, class_loss, class_losses

LENGTH, WIDTH, VOCABULARY = 12, 64, 200


def tokens(batch: int) -> Tensor:
    lengths = torch.randint(1, LENGTH + 1, (batch, 1))
    return torch.randint(1, VOCABULARY, (batch, LENGTH)) * (torch.arange(LENGTH) < lengths)


def tokens_and_labels(batch: int) -> tuple[Tensor, Tensor]:
    return tokens(batch), torch.randint(VOCABULARY, (batch, LENGTH))


def tokens_and_classes(batch: int) -> tuple[Tensor, Tensor]:
    return tokens(batch), torch.randint(10, (batch,))


def example_of_row(x: Tensor) -> Tensor:
    return x.nonzero()[:, 0]


def row_loss(model: Module, x: Tensor, y: Tensor) -> Tensor:
    """The sum over an example's rows, the mean of the examples."""
    return F.cross_entropy(model(x), y[x > 0], reduction="sum") / len(x)


def row_losses(model: Module, x: Tensor, y: Tensor) -> Tensor:
    losses = F.cross_entropy(model(x), y[x > 0], reduction="none")
    return losses.new_zeros(len(x)).index_add(0, example_of_row(x), losses)


def of_rows(model: nn.Module) -> Case:
    return Case(model, tokens_and_labels, row_loss, row_losses, example_of_row=example_of_row)


class Rows(nn.Module):
    """A class for every token, of a batch that has no padding in it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, VOCABULARY),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x[x > 0])  # type: ignore[no-any-return]


def rows() -> Case:
    return of_rows(Rows())


class RowAttention(nn.Module):
    """The same with attention over all rows, and a mask that lets those of one example see each other only."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        owners = example_of_row(x)
        h = self.token(x[x > 0])
        q, k, v = self.into(h).view(len(h), 3, 4, -1).permute(1, 2, 0, 3).unsqueeze(1)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=owners[:, None] == owners)
        return self.head(self.norm(h + self.out(mixed[0].transpose(0, 1).flatten(1))))  # type: ignore[no-any-return]


def row_attention() -> Case:
    return of_rows(RowAttention())


class PackedLstm(nn.Module):
    """The last states of sequences that were packed."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, 32)
        self.layer = nn.LSTM(32, WIDTH, num_layers=2, bidirectional=True)
        self.head = nn.Linear(2 * WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        lengths = (x > 0).sum(1)
        packed = pack_padded_sequence(self.token(x), lengths, batch_first=True, enforce_sorted=False)
        _, (states, _) = self.layer(packed)
        return self.head(torch.cat([states[-2], states[-1]], 1))  # type: ignore[no-any-return]


def packed_lstm() -> Case:
    return Case(PackedLstm(), tokens_and_classes, class_loss, class_losses)
