# SPDX-License-Identifier: Apache-2.0
"""GPT-2 of transformers with LoRA adapters of PEFT, ordered by the gradients of the adapters alone.

Parameters that need no gradient cost nothing: an example's vector is as short as the adapters are. The model is tiny
and its weights are random, so that nothing has to be downloaded; GPT2LMHeadModel.from_pretrained(..) is used alike.

python examples/python/lora.py [--data FOLDER]
"""

from __future__ import annotations

import argparse
import gzip
import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

import cdgrab

try:
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel, logging
except ImportError as error:
    print(f"this example needs transformers and peft ({error}): pip install transformers peft", file=sys.stderr)
    raise SystemExit(2) from None

LENGTH = 64


def adapted_gpt2(rank: int) -> torch.nn.Module:
    torch.manual_seed(1)
    sizes = {"vocab_size": 256, "n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 4}
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    # Without dropout the two runs differ in nothing but the order.
    dropout = {"attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    # Adapters can make more of random weights that are not as small as GPT-2's initial ones.
    config = GPT2Config(**sizes, **tokens, **dropout, initializer_range=0.2)
    adapters = LoraConfig(
        task_type="CAUSAL_LM",
        r=rank,
        lora_alpha=2 * rank,
        target_modules=["c_attn", "c_fc", "c_proj"],
        fan_in_fan_out=True,  # GPT-2's layers keep their weights transposed
    )
    return get_peft_model(GPT2LMHeadModel(config), adapters)


class Training:
    def __init__(self, windows: torch.Tensor, order: str, batch: int, rate: float, rank: int) -> None:
        self.model = adapted_gpt2(rank)
        self.optimizer = torch.optim.AdamW((p for p in self.model.parameters() if p.requires_grad), lr=rate)
        self.sampler = cdgrab.Sampler(len(windows), order=order)
        self.loader = DataLoader(TensorDataset(windows), batch_size=batch, sampler=self.sampler)

    def epoch(self) -> None:
        self.model.train()
        for (windows,) in self.loader:
            loss = self.model(input_ids=windows, labels=windows).loss
            self.sampler.observe(loss, len(windows))  # the one new line; with "rr" it does nothing
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def score(self, windows: torch.Tensor) -> float:
        self.model.eval()
        parts = windows.split(64)
        return sum(self.model(input_ids=p, labels=p).loss.item() * len(p) for p in parts) / len(windows)

    def observed_parameters(self, windows: torch.Tensor) -> list[str]:
        """The names of those whose gradients decide on the order."""
        loss = self.model(input_ids=windows, labels=windows).loss
        met = {id(p) for p in cdgrab.GradientGeometry().compute(loss, len(windows)).parameters()}
        return [name for name, p in self.model.named_parameters() if id(p) in met]


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


def load(folder: str | None, examples: int) -> torch.Tensor:
    """examples x LENGTH bytes."""
    size = examples * LENGTH
    found = folder or os.environ.get("CDGRAB_DATA")
    path = Path(found or ".", "wikitext-2", "valid.txt.gz")
    if folder and not path.is_file():
        raise FileNotFoundError(2, "No such file", str(path))
    if found and path.is_file():
        print(f"{path}, {examples} windows of {LENGTH} bytes")
        text = gzip.decompress(path.read_bytes())[:size]
    else:
        print(f"no WikiText-2 at hand (--data FOLDER, or CDGRAB_DATA): {examples} windows of generated text instead")
        text = generated(size)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8).long().view(-1, LENGTH)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", metavar="FOLDER", help="with wikitext-2/valid.txt.gz")
    arguments.add_argument("--examples", type=int, default=1000)
    arguments.add_argument("--epochs", type=int, default=3)
    arguments.add_argument("--batch", type=int, default=16)
    arguments.add_argument("--rate", type=float, default=1e-2)
    arguments.add_argument("--rank", type=int, default=8)
    args = arguments.parse_args()

    torch.set_num_threads(1)
    logging.set_verbosity_error()  # GPT2LMHeadModel warns of its own default loss
    try:
        windows = load(args.data, args.examples)
    except FileNotFoundError as error:
        arguments.error(f"{error.filename} is missing; --data takes a folder with wikitext-2/valid.txt.gz")
    trainings = [Training(windows, order, args.batch, args.rate, args.rank) for order in ("rr", "pair")]

    model = trainings[1].model
    observed = trainings[1].observed_parameters(windows[:2])
    size = {name: p.numel() for name, p in model.named_parameters()}
    print(
        f"observed: {sum(size[name] for name in observed):,} of {sum(size.values()):,} parameters, "
        f"{sum('lora_' in name for name in observed)} of {len(observed)} tensors are adapters"
    )
    print(f"{'':5}   {'rr: random order':19}   pair: ordered by the adapters' gradients")
    print("epoch" + "   train loss  seconds" * 2)
    for epoch in range(args.epochs):
        print(f"{epoch + 1:5}", end="")
        losses = []
        for training in trainings:
            start = time.perf_counter()
            training.epoch()
            seconds = time.perf_counter() - start
            losses.append(training.score(windows))
            print(f"   {losses[-1]:10.5f} {seconds:8.2f}", end="", flush=True)
        print()
    rr, pair = losses
    print(f"train loss, pair to rr: {pair / rr:.4f}. One run each: other seeds move it, too.")


if __name__ == "__main__":
    main()
