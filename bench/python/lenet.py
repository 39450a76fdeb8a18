# SPDX-License-Identifier: Apache-2.0
"""What ordering costs: an epoch of LeNet-5 on 12,800 examples of MNIST, one thread.

python bench/python/lenet.py --data FOLDER

plain      an ordinary loop in random order
cdgrab     the same with sampler.observe(loss, batch), exact pair
vmap       per-example gradients by torch.func, averaged for the step; random order
published  vmap with the pair balance of grab-sampler (tests/python/grab_sampler_shim.py), skipped where it is missing

The loops take turns every few steps, so that what else the machine does hits all alike; the first epoch is left out
and the figures are medians over the others. Peak memory is that of a fresh process that trains for an epoch.
Batches are indexed out of one tensor: a slower loader would flatter every ratio.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import os
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
import torch.utils.data
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.data import BatchSampler, RandomSampler

import cdgrab

# Imported by every contender, so that what it imports is in the memory of all.
sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "python"))
try:
    import grab_sampler_shim
except ImportError:
    grab_sampler_shim = None

Data = tuple[torch.Tensor, torch.Tensor]
CONTENDERS = ("plain", "cdgrab", "vmap", "published")
TURNS = 50  # per epoch


def lenet() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(16 * 5 * 5, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def published_sampler(images: torch.Tensor, model: nn.Module) -> torch.utils.data.Sampler:
    parameters = dict(model.named_parameters())
    return grab_sampler_shim.published_sampler(images, parameters, balance_type="pair", dtype=torch.float32)


class Loop:
    """The training loop of a contender."""

    def __init__(self, name: str, data: Data, batch: int) -> None:
        self.name = name
        self.images, self.labels = data
        self.batch = batch
        self.model = lenet()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        if name == "cdgrab":
            self.sampler = cdgrab.Sampler(self.images, order="pair")
        elif name == "published":
            self.sampler = published_sampler(self.images, self.model)
        else:
            self.sampler = RandomSampler(self.images)
        self.step = self.step_by_example if name in ("vmap", "published") else self.step_by_batch
        # They share their numbers with the model's, which the optimizer moves in place.
        self.parameters = {key: p.detach() for key, p in self.model.named_parameters()}
        self.gradients = vmap(grad(self.loss_of_one), in_dims=(None, 0, 0))

    def epoch(self) -> Iterator[None]:
        """Yields after every step."""
        for indices in BatchSampler(self.sampler, self.batch, drop_last=False):
            self.step(self.images[indices], self.labels[indices])
            yield

    def step_by_batch(self, x: torch.Tensor, y: torch.Tensor) -> None:
        loss = F.cross_entropy(self.model(x), y)
        if self.name == "cdgrab":
            self.sampler.observe(loss, len(x))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def step_by_example(self, x: torch.Tensor, y: torch.Tensor) -> None:
        gradients = self.gradients(self.parameters, x, y)
        if self.name == "published":
            self.sampler.step(gradients)
        for key, p in self.model.named_parameters():
            p.grad = gradients[key].mean(0)
        self.optimizer.step()

    def loss_of_one(self, parameters: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(self.model, parameters, x.unsqueeze(0)), y.unsqueeze(0))


def interleaved_epoch(loops: list[Loop], first: int) -> dict[str, float]:
    """Seconds of each; `first` is who begins."""
    order = loops[first % len(loops) :] + loops[: first % len(loops)]
    epochs = {loop.name: loop.epoch() for loop in order}
    seconds = dict.fromkeys(epochs, 0.0)
    steps_per_turn = max(1, len(loops[0].labels) // loops[0].batch // TURNS)
    running, done = list(epochs), object()
    while running:
        for name in list(running):
            start = time.perf_counter()
            for _ in range(steps_per_turn):
                if next(epochs[name], done) is done:
                    running.remove(name)
                    break
            seconds[name] += time.perf_counter() - start
    return seconds


def read_idx(folder: Path, name: str, count: int) -> torch.Tensor:
    """The first `count` only, so that reading is not the peak of memory."""
    path = folder / name
    with open(path, "rb") if path.exists() else gzip.open(folder / f"{name}.gz") as file:
        rank = file.read(4)[3]
        shape = (count, *struct.unpack(f">{rank}I", file.read(4 * rank))[1:])
        size = torch.Size(shape).numel()
        return torch.frombuffer(bytearray(file.read(size)), dtype=torch.uint8).view(shape)


def load(folder: str | None, count: int) -> Data:
    if folder is None:
        torch.manual_seed(0)
        return torch.rand(count, 1, 28, 28), torch.randint(10, (count,))
    path = Path(folder, "mnist") if Path(folder, "mnist").is_dir() else Path(folder)
    images, labels = (read_idx(path, f"train-{kind}-ubyte", count) for kind in ("images-idx3", "labels-idx1"))
    return images.unsqueeze(1) / 255.0, labels.long()


def peak_memory() -> int:
    """MB. Not ru_maxrss, which starts at that of the process one was forked from."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024


def peak_memory_of(name: str, batch: int, data: str | None, examples: int) -> int:
    command = [sys.executable, __file__, "--memory-of", name, "--batch", str(batch), "--examples", str(examples)]
    command += ["--data", data] if data else []
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", metavar="FOLDER", default=os.environ.get("CDGRAB_DATA"))
    arguments.add_argument("--examples", type=int, default=12800)
    arguments.add_argument("--batch", type=int, nargs="+", default=[64, 16])
    arguments.add_argument("--epochs", type=int, default=6, help="the first is left out")
    arguments.add_argument("--memory-of", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = arguments.parse_args()
    if args.epochs < 2:
        arguments.error(f"--epochs is {args.epochs}; at least 2 are needed, since the first is left out")

    torch.set_num_threads(1)
    data = load(args.data, args.examples)
    if args.memory_of:
        for _ in Loop(args.memory_of, data, args.batch[0]).epoch():
            pass
        print(peak_memory())
        return

    contenders = list(CONTENDERS)
    if grab_sampler_shim is None or importlib.util.find_spec("grabsampler") is None:
        contenders.remove("published")
        print("published: skipped; it needs pip install --no-deps grab-sampler==0.1.3 overrides==7.7.0, and pytest")
    source = "of MNIST" if args.data else "that are noise: --data FOLDER for MNIST"
    print(f"LeNet-5, {args.examples} examples {source}; load {os.getloadavg()[0]:.1f}")
    print(f"{'B':>3}  {'loop':10} {'s/epoch':>8} {'ratio':>6}  {'(least, most)':14} {'peak MB':>8} {'to plain':>9}")
    for batch in args.batch:
        memory = {name: peak_memory_of(name, batch, args.data, args.examples) for name in contenders}
        loops = [Loop(name, data, batch) for name in contenders]
        epochs = [interleaved_epoch(loops, first) for first in range(args.epochs)][1:]
        for name in contenders:
            seconds = statistics.median(epoch[name] for epoch in epochs)
            ratios = [epoch[name] / epoch["plain"] for epoch in epochs]
            spread = f"({min(ratios):.2f}, {max(ratios):.2f})"
            print(
                f"{batch:3}  {name:10} {seconds:8.2f} {statistics.median(ratios):6.2f}  {spread:14} "
                f"{memory[name]:8} {memory[name] - memory['plain']:+9}"
            )
    print(f"load afterwards {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
