# SPDX-License-Identifier: Apache-2.0
"""A small GPT on the bytes of WikiText-2, twice from the same weights: in random order, and ordered by gradients.

An example is a window of 64 bytes. The embedding and the output layer are one tensor; observe adds up its two uses.

python examples/python/language_model.py [--data FOLDER]
"""

from __future__ import annotations

import argparse
import gzip
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cdgrab

LENGTH = 64
WIDTH = 64
HEADS = 4
LAYERS = 2
VOCABULARY = 256


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part.unflatten(2, (HEADS, -1)).transpose(1, 2)
            for part in self.qkv(self.before_attention(x)).chunk(3, dim=2)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Gpt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.token = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.token.weight
        nn.init.normal_(self.token.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def loss_of(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    """Windows are one longer than what the model reads: the next byte is the target."""
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


class Training:
    def __init__(self, windows: torch.Tensor, order: str, batch: int, rate: float, seed: int) -> None:
        self.model = Gpt()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=rate)
        self.sampler = cdgrab.Sampler(len(windows), order=order, seed=seed)
        self.loader = DataLoader(TensorDataset(windows), batch_size=batch, sampler=self.sampler)

    def epoch(self) -> None:
        for (windows,) in self.loader:
            loss = loss_of(self.model, windows)
            self.sampler.observe(loss, len(windows))  # the one new line; with "rr" it does nothing
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


@torch.no_grad()
def score(model: nn.Module, windows: torch.Tensor) -> float:
    parts = windows.split(64)
    return sum(loss_of(model, part).item() * len(part) for part in parts) / len(windows)


def read_text(folder: Path, *names: str) -> bytes:
    """The first of these files that is there, plain or gzipped."""
    for name in names:
        if (folder / name).exists():
            return (folder / name).read_bytes()
        if (folder / f"{name}.gz").exists():
            return gzip.decompress((folder / f"{name}.gz").read_bytes())
    raise FileNotFoundError(2, "No such file", str(folder / names[-1]))


def generated(size: int) -> bytes:
    """Made-up words, of which each has a few that like to follow it."""
    torch.manual_seed(0)
    syllables = [consonant + vowel for consonant in "bdfgklmnprst" for vowel in "aeiou"]
    words = ["".join(syllables[k] for k in torch.randint(60, (1 + i % 3,))) for i in range(500)]
    followers = (500 * torch.rand(500, 8) ** 2).long().tolist()
    text, word = [], 0
    for choice in torch.randint(8, (size // 3,)).tolist():
        word = followers[word][choice]
        text.append(words[word])
    return " ".join(text).encode()[:size]


def windows_of(text: bytes, count: int) -> torch.Tensor:
    length = LENGTH + 1
    count = min(count, len(text) // length)
    return torch.frombuffer(bytearray(text[: count * length]), dtype=torch.uint8).long().view(count, length)


def load(folder: str | None, examples: int) -> tuple[torch.Tensor, torch.Tensor]:
    found = folder or os.environ.get("CDGRAB_DATA")
    if found:
        path = Path(found, "wikitext-2") if Path(found, "wikitext-2").is_dir() else Path(found)
        try:
            train, test = read_text(path, "train.txt", "valid.txt"), read_text(path, "test.txt")
            print(f"WikiText-2 in {path}, {examples} windows of {LENGTH} bytes")
            return windows_of(train, examples), windows_of(test, 500)
        except FileNotFoundError:
            if folder:
                raise
    print(f"no WikiText-2 at hand (--data FOLDER, or CDGRAB_DATA): {examples} windows of generated text instead")
    both = windows_of(generated((examples + 500) * (LENGTH + 1)), examples + 500)
    return both[:examples], both[examples:]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", metavar="FOLDER", help="with WikiText-2's *.txt, plain or .gz, or wikitext-2/")
    arguments.add_argument("--examples", type=int, default=2000)
    arguments.add_argument("--epochs", type=int, default=3)
    arguments.add_argument("--batch", type=int, default=16)
    arguments.add_argument("--rate", type=float, default=3e-3)
    arguments.add_argument("--seed", type=int, default=0, help="of the orders")
    args = arguments.parse_args()

    torch.set_num_threads(1)
    try:
        train, test = load(args.data, args.examples)
    except FileNotFoundError as error:
        arguments.error(f"{error.filename} is missing; --data takes a folder with the texts of WikiText-2")
    trainings = [Training(train, order, args.batch, args.rate, args.seed) for order in ("rr", "pair")]
    print(f"{'':5}   {'rr: random reshuffling':31}   pair: ordered by gradients   (loss per byte, nats)")
    print("epoch" + "   train loss   test loss  seconds" * 2)
    for epoch in range(args.epochs):
        print(f"{epoch + 1:5}", end="")
        losses = []
        for training in trainings:
            start = time.perf_counter()
            training.epoch()
            seconds = time.perf_counter() - start
            losses.append(score(training.model, train))
            print(f"   {losses[-1]:10.5f} {score(training.model, test):11.5f} {seconds:8.2f}", end="", flush=True)
        print()
    rr, pair = losses
    print(f"train loss, pair to rr: {pair / rr:.4f}. One run each: other seeds move it, too.")


if __name__ == "__main__":
    main()
