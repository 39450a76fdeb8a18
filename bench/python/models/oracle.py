# SPDX-License-Identifier: Apache-2.0
"""What per-example gradients are: every example has a copy of the parameters, and they are the gradients of these."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from .case import Case

Rows = dict[str, Tensor]  # (B, ..) by the parameter's name


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def rows(case: Case, x: Tensor, y: Tensor) -> Rows:
    return rows_of_copies(case, x, y) if case.mixes else rows_one_by_one(case, x, y)


def rows_one_by_one(case: Case, x: Tensor, y: Tensor) -> Rows:
    """One backward per example, from the same buffers each time."""
    parameters = trained(case.model)
    buffers = {name: buffer.clone() for name, buffer in case.model.named_buffers()}
    found = []
    for i in range(len(x)):
        loss = case.loss(case.model, x[i : i + 1], y[i : i + 1])
        gradients = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
        found.append(gradients)
        for name, buffer in case.model.named_buffers():
            buffer.copy_(buffers[name])
    return {name: torch.stack(all_of) for name, all_of in zip(parameters, zip(*found, strict=True), strict=True)}


class OwnCopies(nn.Module):
    """A layer, applied to each example with a copy of its parameters; a batch norm takes the batch's moments first."""

    def __init__(self, layer: nn.Module, batch: int) -> None:
        super().__init__()
        self.layer = layer
        self.copies = {
            name: p.detach().expand(batch, *p.shape).clone().requires_grad_() for name, p in layer.named_parameters()
        }

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layer, nn.BatchNorm2d):
            normal = F.batch_norm(x, None, None, training=True, eps=self.layer.eps)
            weight, bias = (self.copies[name][:, :, None, None] for name in ("weight", "bias"))
            return normal * weight + bias
        outputs = [
            functional_call(self.layer, {name: copies[i] for name, copies in self.copies.items()}, x[i : i + 1])
            for i in range(len(x))
        ]
        return torch.cat(outputs)


def rows_of_copies(case: Case, x: Tensor, y: Tensor) -> Rows:
    """The definition itself, for models of layers that are called and have no layers with parameters inside."""
    model = copy.deepcopy(case.model)
    replaced = {}
    for name, layer in list(model.named_modules()):
        if list(layer.parameters(recurse=False)):
            replaced[name] = OwnCopies(layer, len(x))
            model.set_submodule(name, replaced[name])
    copies = {f"{name}.{key}": value for name, layer in replaced.items() for key, value in layer.copies.items()}
    gradients = torch.autograd.grad(len(x) * case.loss(model, x, y), list(copies.values()))
    return dict(zip(copies, gradients, strict=True))


def error(found: Rows, expected: Rows) -> float:
    """Largest difference of any parameter, by the largest gradient of that parameter.

    A parameter whose gradients vanish (the bias of an attention's keys) has nothing but rounding to compare: it is
    measured by a thousandth of the largest gradient of all.
    """
    largest = max(float(value.abs().max()) for value in expected.values())
    return max(
        float((found[name].reshape(value.shape) - value).abs().max()) / max(float(value.abs().max()), 1e-3 * largest)
        for name, value in expected.items()
    )


def gram(rows: Rows) -> Tensor:
    flat = torch.cat([value.reshape(len(value), -1) for value in rows.values()], 1).double()
    return flat @ flat.T
