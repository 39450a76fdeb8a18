# SPDX-License-Identifier: Apache-2.0
"""LeNet-5 on MNIST, twice from the same weights: in random order, and in the order made from the gradients.

python examples/python/mnist.py [--data FOLDER]
"""

from __future__ import annotations

import argparse
import gzip
import os
import struct
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import cdgrab


def lenet() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(16 * 5 * 5, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


class Training:
    def __init__(self, dataset: TensorDataset, order: str, batch: int, rate: float, seed: int) -> None:
        self.model = lenet()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.9)
        self.sampler = cdgrab.Sampler(dataset, order=order, seed=seed)
        self.loader = DataLoader(dataset, batch_size=batch, sampler=self.sampler)

    def epoch(self) -> None:
        for x, y in self.loader:
            loss = F.cross_entropy(self.model(x), y)
            self.sampler.observe(loss, len(x))  # the one new line; with "rr" it does nothing
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


@torch.no_grad()
def score(model: nn.Module, dataset: TensorDataset) -> tuple[float, float]:
    """Mean loss and accuracy."""
    x, y = dataset.tensors
    output = torch.cat([model(part) for part in x.split(500)])
    return F.cross_entropy(output, y).item(), (output.argmax(1) == y).float().mean().item()


def read_idx(folder: Path, name: str) -> torch.Tensor:
    path = folder / name
    data = path.read_bytes() if path.exists() else gzip.decompress((folder / f"{name}.gz").read_bytes())
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=4 + 4 * len(shape)).view(shape)


def read_mnist(folder: Path, part: str) -> TensorDataset:
    images, labels = read_idx(folder, f"{part}-images-idx3-ubyte"), read_idx(folder, f"{part}-labels-idx1-ubyte")
    return TensorDataset(images.unsqueeze(1) / 255.0, labels.long())


def generated(count: int) -> TensorDataset:
    """Blurred patterns, one per class, mixed with one of another class and with noise."""
    torch.manual_seed(0)
    patterns = F.interpolate(torch.rand(10, 1, 7, 7), size=28, mode="bilinear")
    labels, others, share = torch.randint(10, (count,)), torch.randint(10, (count,)), torch.rand(count, 1, 1, 1) / 2
    images = (1 - share) * patterns[labels] + share * patterns[others] + 0.3 * torch.randn(count, 1, 28, 28)
    return TensorDataset(images, labels)


def load(folder: str | None, examples: int) -> tuple[TensorDataset, TensorDataset]:
    found = folder or os.environ.get("CDGRAB_DATA")
    if found:
        path = Path(found, "mnist") if Path(found, "mnist").is_dir() else Path(found)
        try:
            train, test = read_mnist(path, "train"), read_mnist(path, "t10k")
            print(f"MNIST in {path}, the first {examples} examples")
            return TensorDataset(*train[:examples]), test
        except FileNotFoundError:
            if folder:
                raise
    print(f"no MNIST at hand (--data FOLDER, or CDGRAB_DATA): {examples} generated images instead")
    both = generated(examples + 2000)
    return TensorDataset(*both[:examples]), TensorDataset(*both[examples:])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", metavar="FOLDER", help="with the files of MNIST, plain or gzipped, or mnist/")
    arguments.add_argument("--examples", type=int, default=6000)
    arguments.add_argument("--epochs", type=int, default=5)
    arguments.add_argument("--batch", type=int, default=32)
    arguments.add_argument("--rate", type=float, default=0.01)
    arguments.add_argument("--seed", type=int, default=0, help="of the orders")
    args = arguments.parse_args()

    torch.set_num_threads(1)  # batches this small gain little from more
    try:
        train, test = load(args.data, args.examples)
    except FileNotFoundError as error:
        arguments.error(f"{error.filename} is missing; --data takes a folder with the four files of MNIST")
    trainings = [Training(train, order, args.batch, args.rate, args.seed) for order in ("rr", "pair")]
    print(f"{'':5}   {'rr: random reshuffling':31}   pair: ordered by gradients")
    print("epoch" + "   train loss   test acc.  seconds" * 2)
    for epoch in range(args.epochs):
        print(f"{epoch + 1:5}", end="")
        losses = []
        for training in trainings:
            start = time.perf_counter()
            training.epoch()
            seconds = time.perf_counter() - start
            losses.append(score(training.model, train)[0])
            accuracy = score(training.model, test)[1]
            print(f"   {losses[-1]:10.6f} {100 * accuracy:9.2f} % {seconds:8.2f}", end="", flush=True)
        print()
    rr, pair = losses
    print(f"train loss, pair to rr: {pair / rr:.3f}. One run each: other seeds move it, too.")


if __name__ == "__main__":
    main()
