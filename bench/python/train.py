# SPDX-License-Identifier: Apache-2.0
"""`cdgrab train` beside the same loop in PyTorch: seconds of an epoch, one thread, random order.

python bench/python/train.py --data FOLDER [--cdgrab build/release/bin/cdgrab]

FOLDER has mnist/ and a9a/, as CDGRAB_DATA. The two take turns, an epoch each, so that what else the machine does hits
both alike; the first turn is left out. Batches are indexed out of one tensor on both sides, and the seconds are those
of the steps alone: forward, backward and optimizer. `pair` is what ordering adds.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import struct
import subprocess
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

Data = tuple[torch.Tensor, torch.Tensor]


def read_idx(path: Path) -> torch.Tensor:
    with gzip.open(path) as file:
        rank = file.read(4)[3]
        shape = struct.unpack(f">{rank}I", file.read(4 * rank))
        return torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).view(shape)


def read_mnist(folder: Path) -> Data:
    images = read_idx(folder / "train-images-idx3-ubyte.gz")
    return images.unsqueeze(1) / 255.0, read_idx(folder / "train-labels-idx1-ubyte.gz").long()


def read_libsvm(path: Path) -> Data:
    with gzip.open(path, "rt") as file:
        lines = [line.split() for line in file]
    dim = max(int(entry.split(":")[0]) for line in lines for entry in line[1:])
    inputs = torch.zeros(len(lines), dim)
    for row, line in enumerate(lines):
        for entry in line[1:]:
            column, value = entry.split(":")
            inputs[row, int(column) - 1] = float(value)
    return inputs, torch.tensor([[float(line[0]) > 0] for line in lines]).float()


def lenet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(16 * 5 * 5, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def torch_epoch(model: nn.Module, loss_of, optimizer: torch.optim.Optimizer, data: Data, batch: int) -> float:
    inputs, targets = data
    order = torch.randperm(len(inputs))
    start = time.perf_counter()
    for indices in order.split(batch):
        loss = loss_of(model(inputs[indices]), targets[indices])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return time.perf_counter() - start


def cdgrab_epoch(program: str, task: str, order: str, path: Path, examples: int, batch: int) -> float:
    command = [program, "train", "--task", task, "--data", str(path), "--examples", str(examples), "--order", order]
    command += ["--batch", str(batch), "--epochs", "1", "--json", "--quiet"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    seconds = json.loads(lines[-1])["seconds"]
    return seconds["training"] + seconds["observing"]


def compare(task: str, path: Path, data: Data, loss_of, model: nn.Module, args: argparse.Namespace) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    examples = min(args.examples, len(data[0]))
    data = (data[0][:examples], data[1][:examples])
    turns = []
    for _ in range(args.turns + 1):
        turns.append(
            (
                torch_epoch(model, loss_of, optimizer, data, args.batch),
                cdgrab_epoch(args.cdgrab, task, "rr", path, examples, args.batch),
                cdgrab_epoch(args.cdgrab, task, "pair", path, examples, args.batch),
            )
        )
    plain, ours, ordered = (statistics.median(column) for column in zip(*turns[1:], strict=True))
    ratios = sorted(turn[1] / turn[0] for turn in turns[1:])
    print(
        f"{task:9} {examples:8} {plain:8.2f} {ours:8.2f} {ordered:8.2f} {statistics.median(ratios):12.2f} "
        f"  ({ratios[0]:.2f}, {ratios[-1]:.2f}) {ordered / ours:12.2f}"
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", metavar="FOLDER", default=os.environ.get("CDGRAB_DATA"))
    arguments.add_argument("--cdgrab", default="build/release/bin/cdgrab")
    arguments.add_argument("--examples", type=int, default=20000)
    arguments.add_argument("--batch", type=int, default=16)
    arguments.add_argument("--turns", type=int, default=5)
    args = arguments.parse_args()
    if args.data is None:
        arguments.error("no --data, and CDGRAB_DATA is not set; name the folder that has mnist/ and a9a/")
    torch.set_num_threads(1)
    folder = Path(args.data)
    print(f"batches of {args.batch}, one thread; load {os.getloadavg()[0]:.1f}; seconds of an epoch")
    heads = f"{'task':9} {'examples':>8} {'PyTorch':>8} {'cdgrab':>8} {'pair':>8} {'cdgrab/torch':>12}"
    print(f"{heads}   (least, most) {'pair/plain':>12}")
    rows = read_libsvm(folder / "a9a" / "a9a.gz")
    linear = nn.Linear(rows[0].shape[1], 1)
    compare("logistic", folder / "a9a" / "a9a.gz", rows, F.binary_cross_entropy_with_logits, linear, args)
    compare("lenet", folder / "mnist", read_mnist(folder / "mnist"), F.cross_entropy, lenet(), args)


if __name__ == "__main__":
    main()
