# SPDX-License-Identifier: Apache-2.0
"""Training that may be killed at any moment and goes on as if nothing had happened, bit for bit.

python examples/python/resume.py                 # never stopped
python examples/python/resume.py --kill-at 130   # kills itself with SIGKILL after step 130
python examples/python/resume.py                 # goes on from the last checkpoint: the same two hashes
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import signal
import struct
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

import cdgrab


class Numbered(Dataset):
    """Examples with their indices, which this program needs for the hash only."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[int, torch.Tensor, torch.Tensor]:
        return i, self.images[i], self.labels[i]


class Training:
    def __init__(self, dataset: Dataset, batch: int, workers: int, order: str) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(
            *(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10)),
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02, momentum=0.9)
        self.sampler = cdgrab.Sampler(dataset, order=order)
        # A loader draws its workers' seeds whenever it starts; with a generator of its own, it does so beside dropout.
        self.loader = DataLoader(
            dataset, batch, sampler=self.sampler, num_workers=workers, generator=torch.Generator().manual_seed(0)
        )
        self.step = 0
        self.seen = ""  # hash of all example indices so far, in order

    def train(self, steps: int, checkpoint: Path, every: int, kill_at: int | None) -> None:
        self.model.train()
        while self.step < steps:
            for indices, x, y in self.loader:
                loss = F.cross_entropy(self.model(x), y)
                self.sampler.observe(loss, len(x))  # the one new line
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()

                self.step += 1
                self.seen = hashlib.sha256(self.seen.encode() + indices.numpy().tobytes()).hexdigest()
                if self.step % every == 0:
                    self.save(checkpoint)
                if self.step == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                if self.step == steps:
                    break

    def save(self, path: Path) -> None:
        """Written beside and renamed: whenever the process dies, `path` is a whole checkpoint."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "sampler": self.sampler.state_dict(),  # what was prefetched and not trained on comes again after a load
            "random": torch.get_rng_state(),
            "step": self.step,
            "seen": self.seen,
        }
        beside = path.with_name(path.name + ".part")
        torch.save(state, beside)
        os.replace(beside, path)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.sampler.load_state_dict(state["sampler"])
        torch.set_rng_state(state["random"])
        self.step, self.seen = state["step"], state["seen"]


@torch.no_grad()
def score(model: nn.Module, dataset: Numbered) -> float:
    model.eval()
    return F.cross_entropy(model(dataset.images), dataset.labels).item()


def hash_of(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def read_idx(folder: Path, name: str) -> torch.Tensor:
    path = folder / name
    data = path.read_bytes() if path.exists() else gzip.decompress((folder / f"{name}.gz").read_bytes())
    shape = struct.unpack_from(f">{data[3]}I", data, 4)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=4 + 4 * len(shape)).view(shape)


def load(folder: str | None, examples: int) -> Numbered:
    found = folder or os.environ.get("CDGRAB_DATA")
    if found:
        path = Path(found, "mnist") if Path(found, "mnist").is_dir() else Path(found)
        try:
            images, labels = (read_idx(path, f"train-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
            print(f"MNIST in {path}, the first {examples} examples")
            return Numbered(images[:examples].unsqueeze(1) / 255.0, labels[:examples].long())
        except FileNotFoundError:
            if folder:
                raise
    print(f"no MNIST at hand (--data FOLDER, or CDGRAB_DATA): {examples} generated images instead")
    torch.manual_seed(0)
    patterns, labels = torch.rand(10, 1, 28, 28), torch.randint(10, (examples,))
    return Numbered(patterns[labels] + torch.randn(examples, 1, 28, 28), labels)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", metavar="FOLDER", help="with the files of MNIST, plain or gzipped, or mnist/")
    arguments.add_argument("--examples", type=int, default=2000)
    arguments.add_argument("--steps", type=int, default=250)
    arguments.add_argument("--batch", type=int, default=32)
    arguments.add_argument("--order", default="pair")
    arguments.add_argument("--workers", type=int, default=2, help="processes that load ahead of training")
    arguments.add_argument("--checkpoint", type=Path, default=Path("resume_example.pt"), metavar="FILE")
    arguments.add_argument("--every", type=int, default=20, metavar="STEPS", help="from checkpoint to checkpoint")
    arguments.add_argument("--kill-at", type=int, metavar="STEP")
    args = arguments.parse_args()

    torch.set_num_threads(1)  # sums of floats depend on the number of threads
    try:
        dataset = load(args.data, args.examples)
    except FileNotFoundError as error:
        arguments.error(f"{error.filename} is missing; --data takes a folder with the four files of MNIST")
    training = Training(dataset, args.batch, args.workers, args.order)
    if args.checkpoint.exists():
        training.load(args.checkpoint)
        print(f"{args.checkpoint}: going on after step {training.step}", flush=True)
    training.train(args.steps, args.checkpoint, args.every, args.kill_at)
    args.checkpoint.unlink(missing_ok=True)  # so that the next run of this example starts anew

    rows = {
        "steps": training.step,
        "train loss": f"{score(training.model, dataset):.6f}",
        "examples, sha256": training.seen[:16],
        "weights, sha256": hash_of(training.model)[:16],
    }
    for name, value in rows.items():
        print(f"{name:18} {value}")


if __name__ == "__main__":
    main()
