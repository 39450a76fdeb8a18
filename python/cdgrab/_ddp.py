# SPDX-License-Identifier: Apache-2.0
"""The sampler of many ranks in torch.distributed: its group, and hooks of DDP and Join."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import JoinHook

from cdgrab.errors import UserError, whole_number

if TYPE_CHECKING:
    from cdgrab.distributed import DistributedSampler

_RANKS_FIRST = (
    "call init_process_group first, or make the sampler where the ranks are known, in Lightning's train_dataloader "
    "for instance"
)


class Answering(JoinHook):
    """A round with nothing to say for every step of a rank that goes on; DDP's hook makes it where there is one."""

    def __init__(self, sampler: DistributedSampler) -> None:
        self._sampler = sampler

    def main_hook(self) -> None:
        if not self._sampler._hooked:
            self._sampler._answer()


class Averaging:
    """DDP's communication hook: buckets wait for the last, and are averaged as one vector.

    Its coordinates are in the order of the model's parameters, which buckets are not, and which stays.
    """

    def __init__(self, sampler: DistributedSampler, model: torch.nn.parallel.DistributedDataParallel) -> None:
        self._sampler = sampler
        ignored = set(model.parameters_to_ignore)
        self._parameters = [
            parameter
            for name, parameter in model.module.named_parameters()
            if parameter.requires_grad and name not in ignored
        ]
        self._gradients: dict[int, torch.Tensor] = {}
        self._waiting: list[tuple[torch.futures.Future[torch.Tensor], torch.Tensor]] = []

    def average(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self._waiting.append((future, bucket.buffer()))
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            self._gradients[id(parameter)] = gradient
        if bucket.is_last():
            gradients = [self._gradients[id(parameter)] for parameter in self._parameters]
            waiting, self._waiting, self._gradients = self._waiting, [], {}
            # Outside of a backward it is Join, for a rank that is through: the buckets are zeros.
            self._sampler._average(gradients, shadow=torch._C._current_graph_task_id() == -1)
            for one, buffer in waiting:
                one.set_result(buffer)
        return future


def require_same_world(group: dist.ProcessGroup | None) -> None:
    """Ranks that were made known after the sampler have all the whole data set."""
    if group is None and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        raise UserError(
            f"the sampler was made for one process, and this is one of {dist.get_world_size()} now; {_RANKS_FIRST}"
        )


def group_with_messages(group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    """The group, or one of the same ranks for messages in the CPU's memory if it has none; None: one process."""
    if not (dist.is_available() and dist.is_initialized()):
        if group is not None:
            raise UserError("a group without torch.distributed; call init_process_group first")
        ranks_to_be = os.environ.get("WORLD_SIZE", "1")
        if ranks_to_be.isdecimal() and int(ranks_to_be) > 1:
            raise UserError(f"WORLD_SIZE is {ranks_to_be}, and there is no process group yet; {_RANKS_FIRST}")
        return None
    if group is None:
        group = dist.group.WORLD
    if not isinstance(group, dist.ProcessGroup) or dist.get_rank(group) < 0:
        raise UserError("a group that this rank is not in; make the sampler on the group's ranks only")
    if "cpu:" in dist.get_backend_config(group):
        return group
    ranks = dist.get_process_group_ranks(group)
    return dist.new_group(ranks, backend="gloo", use_local_synchronization=True)  # type: ignore[no-any-return]


def place_in(group: dist.ProcessGroup | None, num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    here = (1, 0) if group is None else (dist.get_world_size(group), dist.get_rank(group))
    given = zip(("num_replicas", "rank"), (num_replicas, rank), here, strict=True)
    if any(value is not None and whole_number(name, value) != actual for name, value, actual in given):
        remedy = "call init_process_group first" if group is None else "leave them out, or give group="
        raise UserError(f"num_replicas={num_replicas}, rank={rank}, but this is rank {here[1]} of {here[0]}; {remedy}")
    return here
