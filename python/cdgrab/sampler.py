# SPDX-License-Identifier: Apache-2.0
"""The sampler of a training loop, and its batches."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
import torch.utils.data

from cdgrab._arguments import (
    entries_of,
    flag_of,
    list_of,
    numbers_of,
    path_of,
    rows_of,
    shapes_of,
    size_of,
    text_of,
    whole_numbers,
)
from cdgrab._native import Native, observe_options, rows_of_batch
from cdgrab.errors import StateMismatch, UserError, whole_number

_CHUNK = 1 << 16
_STATE_VERSION = 1


def asking_for(sampler: object) -> Any:
    """Who makes batches of it, for its __iter__: a loader's own batch sampler says `iter(self.sampler)`, and not who
    it is, but it stands in the frame. None if nobody does."""
    asking = sys._getframe(2).f_locals.get("self")
    return asking if getattr(asking, "sampler", None) is sampler else None


def to_entries(state: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """A state of the library's, which comes by kinds, as one dict."""
    entries: dict[str, Any] = {}
    for kind in state:
        entries.update(kind)
    entries["version"] = _STATE_VERSION
    return entries


def from_entries(state: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """And back: integers, numbers, texts and tensors."""
    entries = dict(state)
    version = entries.pop("version", None)
    if not isinstance(version, int) or version != _STATE_VERSION:
        raise StateMismatch(
            f"a state of version {version!r}; {_STATE_VERSION} is read: was it made by state_dict() of a sampler?"
        )
    kinds: dict[type, dict[str, Any]] = {int: {}, float: {}, str: {}, torch.Tensor: {}}
    for key, value in entries.items():
        kind = next((kind for kind in kinds if isinstance(value, kind)), None)
        if kind is None:
            raise StateMismatch(f"{key!r} is a {type(value).__name__}; numbers, texts and tensors are allowed")
        if kind is torch.Tensor and (value.layout != torch.strided or value.is_meta):
            raise StateMismatch(f"{key!r} is a tensor without numbers of its own in rows; load what state_dict() gave")
        kinds[kind][key] = value
    return tuple(kinds.values())


class Sampler(torch.utils.data.Sampler[int]):
    """Hands out examples in an order that it learns from the loss.

    >>> import torch, cdgrab
    >>> model = torch.nn.Linear(3, 2)
    >>> x, y = torch.randn(10, 3), torch.randint(2, (10,))
    >>> sampler = cdgrab.Sampler(10, order="pair", seed=0)
    >>> for epoch in range(2):
    ...     for batch in torch.utils.data.BatchSampler(sampler, 4, drop_last=False):
    ...         loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
    ...         sampler.observe(loss, len(batch))  # the one new line, before backward
    ...         loss.backward()
    >>> sampler.report()["observed"]
    10

    Args:
        examples: how many there are, or the data set itself.
        order: what kind of order, in the words of docs/cli.md: ``"pair"``, ``"mean; sign=walk,c=30"``, ``"rr"``.
        seed: of everything random.
        initial_order: the first epoch's; seeded random if not given.
        parameters: which ones count, and what they are called in messages: a model, or (name, tensor) pairs. All
            that require gradients if not given.
        pattern: names with * and ?, separated by commas; one that begins with ! takes away.
        reduction: what the loss is of its examples, ``"mean"`` or ``"sum"``.
        batch_axis: the axis of the examples in what the loss reduces, counted before (B, T) or (T, B) was flattened
            into one; found out if not given.
        budget: bytes of per-example gradients that may be held until the signs fall (docs/observe.md).
        shapes: of the tensors that make up a row, for ``sketch=kron`` and ``pca`` of gradients given as one matrix.
        strict: raise where otherwise a warning would do: an epoch that begins while batches are unobserved, a node
            that no rule covers (docs/observe.md).
        record_herding, record_norms, record_timings: diagnostics, free when off. Herding keeps a copy of the epoch's
            vectors, examples x parameters numbers of float64, in the state too.
    """

    def __init__(
        self,
        examples: int | Sized,
        order: str = "pair",
        *,
        seed: int = 0,
        initial_order: Sequence[int] | torch.Tensor | None = None,
        parameters: torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]] | None = None,
        pattern: str | None = None,
        reduction: str = "mean",
        batch_axis: int | None = None,
        budget: int | None = None,
        shapes: Sequence[Sequence[int]] = (),
        strict: bool = False,
        record_herding: bool = False,
        record_norms: bool = False,
        record_timings: bool = False,
    ) -> None:
        examples = size_of("examples", examples)
        if initial_order is not None:
            initial_order = whole_numbers("initial_order", initial_order)
        self._observing = (reduction, batch_axis, parameters, pattern, budget, strict)
        self._strict = strict
        self._arguments = (
            examples,
            text_of("order", order),
            whole_number("seed", seed),
            initial_order,
            shapes_of(shapes),
            flag_of("record_herding", record_herding),
            flag_of("record_norms", record_norms),
            flag_of("record_timings", record_timings),
        )
        self._native = self._make_native()
        self._batch = 0  # units; fewer that are not observed may be a tail that the loader dropped; 0: not known yet
        self._observed_before = 0  # this pass, in the same epoch
        self._yielded = 0  # examples handed to the loader that the library has not been told of yet
        self._iterator: _Iterator | None = None  # the newest
        self._warned: set[str] = set()

    def __len__(self) -> int:
        return int(self._native.examples())

    def __iter__(self) -> _Iterator:
        batches = asking_for(self)
        self._check(batches)
        return _Iterator(self, batches)

    def __repr__(self) -> str:
        return f"cdgrab.Sampler({self._native.examples()}, order={self.order!r}, epoch {self.epoch})"

    # -- observing ---------------------------------------------------------------------------------------------

    def observe(
        self,
        loss: torch.Tensor,
        batch_size: int | None = None,
        *,
        indices: Sequence[int] | torch.Tensor | None = None,
        example_of_row: Sequence[int] | torch.Tensor | None = None,
    ) -> None:
        """Read the per-example gradients off the backward of `loss`, when it runs.

        They are those of the oldest `batch_size` examples handed out and not yet observed; with `indices`, of the
        examples named, one per example of the batch. `loss` is a scalar or one number per example. In a batch that is
        one axis of rows (packed, ragged), row r is of example `example_of_row[r]` of the batch (docs/observe.md, rows).
        """
        self._tell()
        rows = rows_of_batch(example_of_row)
        if (batch_size is None) == (indices is None):
            raise UserError("observe takes batch_size or indices=, one of the two")
        if indices is not None:
            named = whole_numbers("indices", indices)
            self._native.observe_named(loss, named, rows)
            self._batch = len(named)
        else:
            count = whole_number("batch_size", batch_size, least=0)
            self._native.observe(loss, count, rows)
            self._batch = count

    def step(
        self,
        per_sample_grads: torch.Tensor | Mapping[str, torch.Tensor] | Sequence[torch.Tensor],
        *,
        indices: Sequence[int] | torch.Tensor | None = None,
    ) -> None:
        """Take per-example gradients that you have: B x d, or a dict or list of B x .. tensors, one per parameter."""
        self._tell()
        rows = rows_of(per_sample_grads)
        named = None if indices is None else whole_numbers("indices", indices)
        self._native.observe_gradients(rows, named)
        self._batch = len(rows[0])

    def observe_microbatch(self, parameters: Iterable[torch.Tensor]) -> None:
        """One vector for a whole unit, read from the .grad of `parameters`; for orders with ``unit=``.

        The unit is the oldest one handed out and not yet observed: call this once per unit, when the gradients of its
        examples, and no others, have been accumulated. A short last unit is always the last of an epoch.
        """
        self._tell()
        self._native.observe_microbatch(list_of("parameters", parameters))
        self._batch = 2  # a loader that drops a short batch may leave out the short unit, and no other

    def set_scores(self, scores: torch.Tensor | Sequence[float]) -> None:
        """For the order ``score``: one number per unit, ascending in the next epoch."""
        self._native.set_scores(numbers_of("scores", scores))

    def set_epoch(self, epoch: int) -> None:
        """Advisory, for frameworks that call it: the order is state, and no function of the epoch's number."""
        if epoch not in (self.epoch, self.epoch + 1):
            self._warn(
                "set_epoch", f"set_epoch({epoch}) in epoch {self.epoch} changes nothing: the order is part of the state"
            )

    # -- what there is to know ---------------------------------------------------------------------------------

    @property
    def order(self) -> str:
        """The kind of order, in full."""
        return str(self._native.spec())

    @property
    def epoch(self) -> int:
        return int(self._native.position()[0])

    @property
    def needs_vectors(self) -> bool:
        """Whether the next order is made from vectors of this epoch. If not (``rr``, most epochs with ``every=``),
        observing costs nothing and may be left out, and so may gradients that are computed for it."""
        return bool(self._native.needs_vectors())

    def current_order(self) -> torch.Tensor:
        """The order of this epoch, in units; frozen when it begins."""
        return self._native.order()  # type: ignore[no-any-return]

    def next_order(self) -> torch.Tensor:
        """The order that the next epoch would have if this one ended now."""
        return self._native.next_order()  # type: ignore[no-any-return]

    def report(self) -> dict[str, int]:
        """What became of the units of this epoch: observed, not_finite, unpaired, unobserved."""
        self._tell()
        return dict(self._native.report())

    def last_report(self) -> dict[str, int]:
        """The same of the epoch that ended last."""
        return dict(self._native.last_report())

    def herding_bound(self) -> dict[str, float]:
        """Of the epoch that ended last, with record_herding: of its order and of the one made from it.

        Empty before one has ended here, and for an epoch whose first part was trained without recording.
        """
        return dict(self._native.herding())

    def norms(self) -> torch.Tensor:
        """The length of every unit's last vector, with record_norms; NaN where none was seen."""
        return self._native.norms()  # type: ignore[no-any-return]

    def timings(self) -> dict[str, float]:
        """Seconds so far, with record_timings: walk, gradients, products, signs, update, order."""
        return dict(self._native.timings())

    def missed_backwards(self) -> int:
        """Observed losses that were dropped without a backward."""
        return int(self._native.missed_backwards())

    # -- state -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything, at any moment: integers, numbers, texts and tensors.

        What a loader has prefetched and training has not seen is handed out again after a load.
        """
        self._tell()
        state = to_entries(self._native.state())
        state["trained"] = int(self._native.trained_position()[1])
        return state

    def load_state_dict(self, state: Mapping[str, Any], *, replay: bool = False) -> None:
        """Take back what state_dict() gave, into a sampler made with the same arguments.

        Iteration goes on where training stood, with the examples that were not observed; if that is less than a batch
        and the loader drops it, with the next epoch. With `replay` it goes on at the first example of the same epoch,
        for loops that skip the batches that were trained on.
        """
        entries = entries_of(state)
        trained = entries.pop("trained", None)
        kinds = from_entries(entries)
        if not (isinstance(trained, int) and 0 <= trained <= len(self)):
            raise StateMismatch(f"'trained' is {trained!r}; a number of examples up to {len(self)} is needed")
        self._native.load(*kinds)
        self._yielded = 0
        self._iterator = None
        if replay:
            self._native.replay()
        else:
            self._native.seek(self.epoch, trained)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state as a file that C++ and ``cdgrab inspect`` read too."""
        self._tell()
        self._native.save_file(path_of(path))

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read a file that save() or C++ wrote."""
        self._native.load_file(path_of(path))
        self._yielded = 0
        self._iterator = None
        self._native.seek(*self._native.trained_position())

    def __getstate__(self) -> dict[str, Any]:
        if self._observing[2] is not None:
            raise UserError(
                "a sampler that was given parameters cannot be pickled, since they belong to a model; save its "
                "state_dict() and load it into a new one"
            )
        gone = ("_native", "_iterator", "_yielded")
        kept = {key: value for key, value in self.__dict__.items() if key not in gone}
        return {**kept, "_state": self.state_dict()}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        state = kept.pop("_state")
        self.__dict__.update(kept)
        self._native = self._make_native()
        self._yielded = 0
        self._iterator = None
        self.load_state_dict(state)

    # -- inside ------------------------------------------------------------------------------------------------

    def _make_native(self) -> Native:
        options = observe_options(*self._observing)
        native = Native("Sampler", *self._arguments)
        native.observe_with(options)
        return native

    def _tell(self) -> None:
        """Handing out one by one is Python's; the library hears of it when it matters."""
        if self._yielded:
            self._native.hand_out(self._yielded)
            self._yielded = 0

    def _begin(self, iterator: _Iterator) -> None:
        self._tell()
        observed, outstanding = self._native.report()["observed"], self._native.outstanding()
        # Less than a batch may be a dropped tail; with more, a loader ran ahead, or the loop was broken off.
        if observed > self._observed_before and 0 < self._batch <= outstanding and self._native.balances():
            self._complain_of_unobserved()
        if observed == self._observed_before and observed and outstanding and self._native.position()[1] == len(self):
            self._complain_of_an_empty_pass()
        self._native.expect_batches(*iterator.batches())
        self._native.begin()
        self._observed_before = self._native.report()["observed"]
        self._iterator = iterator

    def _check(self, batches: Any) -> None:
        if type(batches).__module__.startswith("torchdata."):
            raise UserError(
                "StatefulDataLoader(sampler=..) keeps the sampler as it was when a batch was fetched, ahead of "
                "training, and would go back there; give it batch_sampler=cdgrab.BatchSampler(sampler, batch_size, "
                "drop_last), and save the sampler's state_dict() beside the loader's"
            )

    def _complain_of_unobserved(self) -> None:
        self._complain(
            "unobserved",
            f"epoch {self.epoch} ends with {self._native.outstanding()} units handed out and not observed; they go "
            "to the middle of the next order. If the loader prefetches across epochs, name the examples: "
            "observe(loss, indices=..); with unit=, observe every unit",
        )

    def _complain_of_an_empty_pass(self) -> None:
        self._complain(
            "empty",
            f"the pass that went on with epoch {self.epoch} after a load handed out {self._native.outstanding()} "
            "units, and none was observed. If they were a last short batch that is dropped, make the batches by "
            "cdgrab.BatchSampler(sampler, batch_size, drop_last=True), and the pass does not come about",
        )

    def _complain(self, kind: str, text: str) -> None:
        if self._strict:
            raise UserError(text)
        self._warn(kind, text)

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"cdgrab: {text}", stacklevel=3)


class _Iterator(Iterator[int]):
    """One pass; the epoch begins with its first example, so that a peek at a loader costs nothing."""

    def __init__(self, sampler: Sampler, batches: Any) -> None:
        self._sampler = sampler
        self._batches = batches  # who asks, if it makes batches
        self._chunk: list[int] = []
        self._at = 0
        self._begun = False

    def __iter__(self) -> _Iterator:
        return self

    def batches(self) -> tuple[int, bool]:
        """The size of a batch, 0 if it is not known, and whether a last one that is smaller is dropped."""
        size = getattr(self._batches, "batch_size", None)
        if not isinstance(size, int):
            return 0, False
        return size, getattr(self._batches, "drop_last", None) is True

    def __next__(self) -> int:
        if self._at == len(self._chunk):
            self._fetch()
        elif self._sampler._iterator is not self:
            self._refuse()
        example = self._chunk[self._at]
        self._at += 1
        self._sampler._yielded += 1
        return example

    def _fetch(self) -> None:
        sampler = self._sampler
        if not self._begun:
            sampler._begin(self)
            self._begun = True
        elif sampler._iterator is not self:
            if not self._chunk:
                raise StopIteration
            self._refuse()
        sampler._tell()
        self._chunk = sampler._native.upcoming(_CHUNK).tolist()
        self._at = 0
        if not self._chunk:
            raise StopIteration

    def _refuse(self) -> None:
        raise UserError("an iterator of a sampler that has begun another pass, or was loaded, since; use the newest")

    def seek(self, epoch: int, handed_out: int) -> None:
        """Go on from there; all handed out means the beginning of the next epoch."""
        sampler = self._sampler
        sampler._tell()
        if epoch + 1 == sampler.epoch and handed_out >= len(sampler):
            epoch, handed_out = sampler.epoch, 0
        if epoch != sampler.epoch:
            raise StateMismatch(
                f"a loader's position in epoch {epoch}, and the sampler is in epoch {sampler.epoch}; load the "
                "sampler's state_dict() of that moment first"
            )
        sampler._native.seek(epoch, handed_out)
        self._chunk, self._at = [], 0


class BatchSampler(torch.utils.data.BatchSampler):
    """Batches of a Sampler whose iterator knows its position, for torchdata's StatefulDataLoader.

    >>> import cdgrab
    >>> batches = cdgrab.BatchSampler(cdgrab.Sampler(10, order="so"), 4, drop_last=False)
    >>> len(batches), [len(batch) for batch in batches]
    (3, [4, 4, 2])
    """

    def __init__(self, sampler: Sampler, batch_size: int, drop_last: bool = False) -> None:
        if not isinstance(sampler, Sampler):
            raise UserError(f"a {type(sampler).__name__}; cdgrab.BatchSampler takes a cdgrab.Sampler")
        try:
            super().__init__(sampler, batch_size, drop_last)
        except ValueError as error:
            raise UserError(str(error)) from None
        self.sampler: Sampler = sampler

    def __iter__(self) -> _BatchIterator:
        return _BatchIterator(self)

    def set_epoch(self, epoch: int) -> None:
        self.sampler.set_epoch(epoch)


class _BatchIterator(Iterator[list[int]]):
    """Its state is the position: asked for at every batch, it costs the same for any number of examples."""

    def __init__(self, batches: BatchSampler) -> None:
        self._batches = batches
        self._sampler = batches.sampler
        self._iterator = _Iterator(self._sampler, batches)

    def __iter__(self) -> _BatchIterator:
        return self

    def __next__(self) -> list[int]:
        batch = []
        for example in self._iterator:
            batch.append(example)
            if len(batch) == self._batches.batch_size:
                return batch
        if not batch or self._batches.drop_last:
            raise StopIteration
        return batch

    def state_dict(self) -> dict[str, int]:
        self._sampler._tell()
        epoch, handed_out = self._sampler._native.position()
        return {"epoch": epoch, "handed_out": handed_out}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        entries = entries_of(state)
        place = [whole_number(key, entries.get(key), least=0) for key in ("epoch", "handed_out")]
        self._iterator.seek(*place)
