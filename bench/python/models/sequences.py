# SPDX-License-Identifier: Apache-2.0
"""Sequences in: torch's own recurrent and attention layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .case import Case, classifier, language_model, token_classifier

LENGTH, WIDTH, VOCABULARY = 12, 64, 200


class Recurrent(nn.Module):
    """The state after the last step, classified."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        outer = layer.proj_size or layer.hidden_size
        self.head = nn.Linear(outer * (2 if layer.bidirectional else 1), 10)

    def forward(self, x: Tensor) -> Tensor:
        if self.layer.batch_first:
            return self.head(self.layer(x)[0][:, -1])  # type: ignore[no-any-return]
        return self.head(self.layer(x.transpose(0, 1))[0][-1])  # type: ignore[no-any-return]


def recurrent(layer: nn.RNNBase) -> Case:
    return classifier(Recurrent(layer), (LENGTH, layer.input_size))


def lstm() -> Case:
    return recurrent(nn.LSTM(32, WIDTH, num_layers=2, batch_first=True))


def lstm_both_ways() -> Case:
    return recurrent(nn.LSTM(32, WIDTH, bidirectional=True, batch_first=True))


def lstm_time_first() -> Case:
    return recurrent(nn.LSTM(32, WIDTH))


def lstm_projected() -> Case:
    return recurrent(nn.LSTM(32, WIDTH, proj_size=24, batch_first=True))


def gru() -> Case:
    return recurrent(nn.GRU(32, WIDTH, batch_first=True))


def rnn() -> Case:
    return recurrent(nn.RNN(32, WIDTH, batch_first=True))


class TiedLanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.layer = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.head.weight = self.token.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.token(x))[0])  # type: ignore[no-any-return]


def lstm_language_model() -> Case:
    return language_model(TiedLanguageModel(), LENGTH, VOCABULARY)


def embedding_bag() -> Case:
    return token_classifier(
        nn.Sequential(nn.EmbeddingBag(VOCABULARY, WIDTH, mode="mean"), nn.ReLU(), nn.Linear(WIDTH, 10)),
        LENGTH,
        VOCABULARY,
    )


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x, x, x, need_weights=False)[0].mean(1))  # type: ignore[no-any-return]


def attention() -> Case:
    return classifier(Attention(), (LENGTH, WIDTH))


class Encoder(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=batch_first)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 10)
        self.batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        if self.batch_first:
            return self.head(self.layers(x).mean(1))  # type: ignore[no-any-return]
        return self.head(self.layers(x.transpose(0, 1)).mean(0))  # type: ignore[no-any-return]


def encoder() -> Case:
    return classifier(Encoder(batch_first=True), (LENGTH, WIDTH))


def encoder_time_first() -> Case:
    return classifier(Encoder(batch_first=False), (LENGTH, WIDTH))


class Decoder(nn.Module):
    """Tokens that attend to those before them, and to a memory that is made of them."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.memory = nn.Linear(WIDTH, WIDTH)
        layer = nn.TransformerDecoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerDecoder(layer, 2)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        h = self.token(x) + self.position
        mask = nn.Transformer.generate_square_subsequent_mask(x.size(1))
        return self.head(self.layers(h, self.memory(h).relu(), tgt_mask=mask))  # type: ignore[no-any-return]


def decoder() -> Case:
    return language_model(Decoder(), LENGTH, VOCABULARY)
