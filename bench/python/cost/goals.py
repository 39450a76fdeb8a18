# SPDX-License-Identifier: Apache-2.0
"""What is to be reached, one thread, beside what was."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .contenders import Contender
from .figures import added_megabytes, ordering_peers, share
from .models import MODELS
from .results import Results

STEPS = (("mlp", 64), ("lenet", 64), ("lenet", 16), ("gpt", 16))
RATIOS = {"exact": (1.65, 1.35, 1.4, 1.25), "fused": (1.40, 1.20, 1.25, 1.12), "sketch": (1.05, 1.12, 1.15, 1.06)}
SORTER = ((62006, 1.5), (1000000, 1.35))


@dataclass
class Judged:
    says: str
    where: str
    most: float
    reached: float


def judged(results: Results, contenders: list[Contender]) -> Iterator[Judged]:
    """Those that were measured."""
    names = [contender.name for contender in contenders if contender.ours]
    sketches = [name for name in names if name.startswith(("pca", "kron"))]
    for kind, ways in (("exact", ["exact"]), ("fused", ["fused"]), ("sketch", sketches)):
        for way in ways:
            yield from judged_ratios(results, way, RATIOS[kind])
    lora = results.cell("gpt_lora", 16, "exact")
    if lora is not None and lora.ratio is not None:
        yield Judged("exact, ratio", place("gpt_lora", 16), 1.03, lora.ratio)
    # The plain loop holds the parameters, their gradients and the batch's activations.
    yield from judged_memory(results, "exact", "two copies of the parameters and the activations", 1.0)
    for way in sketches:
        yield from judged_memory(results, way, "plain", 0.05)
    for row in results.entries["programs"].get("sorter", []):
        for dim, most in SORTER:
            if (row["d"], row["B"]) == (dim, 64):
                yield Judged("sorter, pair, in reads", f"d = {dim:,}, B = 64", most, row["multiples"]["pair"])
    for way in ("exact", "fused"):
        yield from judged_peers(results, way, "grab-sampler", ["grab-sampler"])
        yield from judged_peers(results, way, "cheapest peer, given our sorter", ordering_peers(contenders))


def place(model: str, batch: int) -> str:
    return f"{next(entry.says for entry in MODELS if entry.name == model)}, B = {batch}"


def judged_ratios(results: Results, way: str, goals: tuple[float, ...]) -> Iterator[Judged]:
    for (model, batch), most in zip(STEPS, goals, strict=True):
        cell = results.cell(model, batch, way)
        if cell is not None and cell.ratio is not None:
            yield Judged(f"{way}, ratio", place(model, batch), most, cell.ratio)


def judged_memory(results: Results, way: str, beside: str, most: float) -> Iterator[Judged]:
    for model, batch in STEPS:
        cell = results.cell(model, batch, way)
        added = added_megabytes(cell)
        if cell is not None and added is not None and cell.plain_megabytes:
            yield Judged(f"{way}, memory added / {beside}", place(model, batch), most, added / cell.plain_megabytes)


def judged_peers(results: Results, way: str, beside: str, peers: list[str]) -> Iterator[Judged]:
    """The worst of a model's batch sizes."""
    for entry in MODELS:
        shares = [(share(results, entry.name, batch, way, peers), batch) for batch in results.batches(entry.name)]
        known = [(part, batch) for part, batch in shares if part is not None]
        if known:
            part, batch = max(known)
            most = 0.1 if entry.name == "mlp" else 1 / 3
            yield Judged(f"{way}, added / {beside}", place(entry.name, batch), most, part)
