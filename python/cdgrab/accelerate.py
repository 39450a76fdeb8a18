# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Accelerate: one order on one process or many, kept by save_state() (docs/frameworks.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed
from accelerate.data_loader import BatchSamplerShard  # type: ignore[import-untyped, import-not-found, unused-ignore]
from accelerate.utils import gather_object  # type: ignore[import-untyped, import-not-found, unused-ignore]

from cdgrab import sampler as base
from cdgrab.errors import CommunicationError, StateMismatch, UserError


class Sampler(base.Sampler):
    """A cdgrab.Sampler for a loader that Accelerate prepares.

    Accelerate lets every process iterate the whole order and deals out its batches in turn. Each process balances the
    batches it gets, with an accumulator of its own; when an epoch ends they put their signs together, and each makes
    the same next order of them. To begin a pass over the loader is therefore a collective call.

    Call attach() once the loader is prepared, then observe() as ever.
    """

    def __init__(self, examples: Any, order: str = "pair", **options: Any) -> None:
        super().__init__(examples, order, **options)
        self._recorded = [name for name in ("record_herding", "record_norms") if options.get(name)]
        self._processes = 0  # that share the order; 0: not attached
        self._process = 0
        self._device = torch.device("cpu")
        self._rows = 0  # of a batch of one process
        self._length = 0  # batches of one process in an epoch
        self._batches = 0  # of these, observed
        self._examples = torch.empty(0, dtype=torch.int64)  # the order of this epoch, once it is needed
        self._resuming = False
        self._registered = False

    def attach(self, accelerator: Any, loader: Any, *, checkpoint: bool = True) -> Any:
        """Learn who shares `loader`, which accelerator.prepare() returned; give it back.

        With `checkpoint`, accelerator.save_state() and load_state() keep the sampler from now on. After load_state()
        the epoch is replayed from its first batch: pass over what was trained on by accelerator.skip_first_batches().
        """
        batches = loader.batch_sampler
        shard = isinstance(batches, BatchSamplerShard)
        if getattr(batches.batch_sampler if shard else batches, "sampler", None) is not self:
            raise UserError("attach: a loader of another sampler; build it with sampler= this one, and prepare it")
        if accelerator.num_processes > 1:
            self._require_shareable(shard)
        if not batches.batch_size:
            raise UserError("attach: a batch sampler without batch_size; batches of one size are needed")
        self._processes = batches.num_processes if shard else 1
        self._process = batches.process_index if shard else 0
        self._rows = batches.batch_size // (self._processes if shard and batches.split_batches else 1)
        self._batch = self._rows
        self._device = accelerator.device
        self._length = len(loader)
        if checkpoint and not self._registered:
            accelerator.register_for_checkpointing(_Checkpoint(accelerator, self))
            self._registered = True
        return loader

    def observe(
        self,
        loss: torch.Tensor,
        batch_size: int | None = None,
        *,
        indices: Sequence[int] | torch.Tensor | None = None,
        example_of_row: Sequence[int] | torch.Tensor | None = None,
    ) -> None:
        """As cdgrab.Sampler.observe, of this process's next batch.

        A batch that Accelerate has filled up with repeats is passed over: its examples go to the middle.
        """
        if self._processes == 0:
            raise UserError("observe before attach(accelerator, loader); call it with the prepared loader")
        padded = False
        if self._processes > 1 and indices is None and batch_size is not None:
            if not len(self._examples):
                self._examples = self.current_order()
            first = (self._batches * self._processes + self._process) * self._rows
            own = self._examples[first : first + batch_size]
            padded = len(own) < batch_size
            batch_size, indices = None, own
        if not padded:
            super().observe(loss, batch_size, indices=indices, example_of_row=example_of_row)
        self._batches += 1

    def set_epoch(self, epoch: int) -> None:
        """Nothing: Accelerate counts the passes of a loader, from 0 after every start."""

    def state_dict(self) -> dict[str, Any]:
        """Of this process, for this process."""
        state = super().state_dict()
        state["batches"] = self._batches
        if self._length and self._batches >= self._length:
            state["trained"] = len(self)  # whatever the loader drops or pads, the epoch is over
        return state

    def load_state_dict(self, state: Mapping[str, Any], *, replay: bool = True) -> None:
        """As cdgrab.Sampler.load_state_dict, with a replay unless the epoch was over."""
        entries = dict(state)
        batches = entries.pop("batches", None)
        if not isinstance(batches, int):
            raise StateMismatch("a state without 'batches'; only those of cdgrab.accelerate.Sampler are read")
        over = entries.get("trained") == len(self)
        if self._processes > 1 and not over and not replay:
            raise UserError("load_state_dict: on several processes only replay=True keeps them together")
        super().load_state_dict(entries, replay=replay and not over)
        self._batches = batches
        self._resuming = not over

    # -- inside ------------------------------------------------------------------------------------------------

    def _require_shareable(self, shard: bool) -> None:
        if not shard:
            raise UserError(
                "attach: process 0 reads for all (dispatch_batches=True); leave it out, so that each reads its batches"
            )
        if self._recorded or self.order.startswith("greedy") or self._native.unit() != 1:
            raise UserError(
                f"attach: several processes, and {', '.join([self.order, *self._recorded])}; greedy orders, unit= and "
                "recorded herding or norms need every vector in one process"
            )

    def _begin(self, iterator: base._Iterator) -> None:
        if self._processes > 1:
            self._exchange()
        before = self.epoch
        super()._begin(iterator)
        if self.epoch != before or not self._resuming:
            self._batches = 0
        self._resuming = False
        self._examples = self._examples[:0]

    def _exchange(self) -> None:
        """End the epoch with the codes of all processes, if one was under way."""
        state = super().state_dict()
        codes = state["codes"].view(torch.uint16).to(torch.int32)
        order = self.current_order().to(torch.int32)
        both = torch.cat([codes, order, -order]).to(self._device)
        # What was observed is the least: everything else is the greatest code there is.
        torch.distributed.all_reduce(both, torch.distributed.ReduceOp.MIN)
        codes, least, greatest = both.cpu().chunk(3)
        if not torch.equal(least, -greatest):
            raise CommunicationError(
                f"the processes have different orders in epoch {self.epoch}; make the sampler with the same arguments "
                "on each, the seed too, and load the same checkpoint"
            )
        unobserved = torch.iinfo(torch.uint16).max
        if self._resuming or bool((codes == unobserved).all()):
            return
        state["codes"] = codes.to(torch.uint16).view(torch.int16)
        super().load_state_dict(state)
        self._native.seek(self.epoch, state["handed_out"])
        if self._native.outstanding() >= self._processes * self._rows:
            self._complain_of_unobserved()
        self._native.end_epoch()


class _Checkpoint:
    """The states of all processes in one file; Accelerate asks every process, and the first one writes."""

    def __init__(self, accelerator: Any, sampler: Sampler) -> None:
        self._accelerator = accelerator
        self._sampler = sampler

    def state_dict(self) -> dict[str, Any]:
        return {"processes": gather_object([self._sampler.state_dict()])}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        states, here = state["processes"], self._accelerator.num_processes
        if len(states) != here:
            raise StateMismatch(f"a state of {len(states)} processes, and there are {here}; start as many")
        self._sampler.load_state_dict(states[self._accelerator.process_index])
