# SPDX-License-Identifier: Apache-2.0
"""Batches that are one axis of rows, of which each example has some."""

from __future__ import annotations

import torch
from torch.nn.utils.rnn import PackedSequence


def example_of_row(packed: PackedSequence) -> torch.Tensor:
    """Of each row of a packed batch the example that it is a step of, for `observe(.., example_of_row=)`.

    >>> import torch, cdgrab
    >>> from torch.nn.utils.rnn import pack_sequence
    >>> cdgrab.example_of_row(pack_sequence([torch.zeros(1), torch.zeros(3), torch.zeros(2)], enforce_sorted=False))
    tensor([1, 2, 0, 1, 2, 1])
    """
    sequences = torch.cat([torch.arange(running) for running in packed.batch_sizes.tolist()])
    return sequences if packed.sorted_indices is None else packed.sorted_indices.cpu()[sequences]
