# SPDX-License-Identifier: Apache-2.0
"""How much of what `pair` gains over random reshuffling is left with a sketch (docs/results.md, Sketches).

Logistic regression, or LeNet-5 on MNIST; batches of 16, momentum 0.9, cosine rate. Prints the regularised loss, or with
--herding the mean herding bound of the second half of the epochs, which is what an order changes, and the gain that is
kept: (that of rr - that of the sketch) / (that of rr - that of pair).
"""

from __future__ import annotations

import argparse
import gzip
import math
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import cdgrab

BATCH = 16


def read(folder: Path, name: str) -> bytes:
    path = next(folder.glob(name + "*"))
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def read_idx(folder: Path, name: str) -> np.ndarray:
    data = read(folder, name)
    sides = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(data[3])]
    return np.frombuffer(data, np.uint8, offset=4 + 4 * len(sides)).reshape(sides)


def mnist(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = read_idx(folder, "train-images")[:10000].reshape(10000, -1).astype(np.float32) / 255
    return torch.tensor(pixels), torch.tensor(read_idx(folder, "train-labels")[:10000].astype(np.int64))


def a9a(folder: Path) -> tuple[torch.Tensor, torch.Tensor]:
    lines = read(folder, "a9a").decode().splitlines()
    x = torch.zeros(len(lines), 123)
    for row, line in zip(x, lines, strict=True):
        row[[int(field.split(":")[0]) - 1 for field in line.split()[1:]]] = 1.0
    return x, torch.tensor([int(line.startswith("+")) for line in lines])


def linear(x: torch.Tensor, y: torch.Tensor) -> nn.Module:
    model = nn.Linear(x.shape[1], int(y.max()) + 1)
    for p in model.parameters():
        nn.init.zeros_(p)
    return model


def lenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def train(x: torch.Tensor, y: torch.Tensor, order: str, args: argparse.Namespace) -> float:
    torch.manual_seed(args.seed)
    model = lenet() if args.task == "lenet" else linear(x, y)
    momentum = [torch.zeros_like(p) for p in model.parameters()]
    sampler = cdgrab.Sampler(len(x), order, seed=args.seed, record_herding=args.herding)
    bounds = []
    steps = len(x) // BATCH
    for epoch in range(args.epochs):
        examples = torch.tensor(list(sampler))
        if bound := sampler.herding_bound():  # of the epoch before
            bounds.append(bound["used_l2"])
        for step in range(steps):
            batch = examples[step * BATCH : (step + 1) * BATCH]
            rate = 0.5 * args.lr * (1 + math.cos(math.pi * (epoch * steps + step) / (args.epochs * steps)))
            loss = functional.cross_entropy(model(x[batch]), y[batch])
            if order != "rr" or args.herding:
                sampler.observe(loss, BATCH)
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for p, m in zip(model.parameters(), momentum, strict=True):
                    p.sub_(m.mul_(0.9).add_(p.grad).add_(p, alpha=args.l2), alpha=rate)
    if args.herding:
        return float(np.mean(bounds[len(bounds) // 2 :]))
    with torch.no_grad():
        wide = model.double()
        penalty = 0.5 * args.l2 * sum(p.square().sum() for p in wide.parameters())
        return float(functional.cross_entropy(wide(x.double()), y) + penalty)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=["mnist", "a9a", "lenet"])
    parser.add_argument("folder", type=Path, help="with the data, as $CDGRAB_DATA/mnist")
    parser.add_argument("sketches", nargs="+", help="as pca:8")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=3e-2)
    parser.add_argument("--l2", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--examples", type=int, help="the first of them; all unless said")
    parser.add_argument("--herding", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    x, y = a9a(args.folder) if args.task == "a9a" else mnist(args.folder)
    x, y = x[: args.examples], y[: args.examples]
    random, pair = (train(x, y, order, args) for order in ("rr", "pair"))
    print(f"rr {random:.10f}\npair {pair:.10f}", flush=True)
    for sketch in args.sketches:
        loss = train(x, y, f"pair; sketch={sketch}", args)
        print(f"{sketch} {loss:.10f} keeps {100 * (random - loss) / (random - pair):.1f}%", flush=True)


if __name__ == "__main__":
    main()
