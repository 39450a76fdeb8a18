# SPDX-License-Identifier: Apache-2.0
"""The sampler of a data-parallel training: one order for each worker, made together (docs/distributed.md)."""

from __future__ import annotations

import datetime
import logging
import os
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import torch
import torch.distributed as dist
import torch.utils.data
from torch.distributed.algorithms.join import Joinable, JoinHook

from cdgrab._arguments import entries_of, flag_of, list_of, path_of, rows_of, shapes_of, text_of, whole_numbers
from cdgrab._ddp import Answering, Averaging, group_with_messages, place_in, require_same_world
from cdgrab._lengths import Batches, Lengths, Rest
from cdgrab._native import Native, observe_options, rows_of_batch
from cdgrab._passes import Given, GlobalOrder, Lane, Pass, mixes
from cdgrab.errors import StateMismatch, UserError, whole_number
from cdgrab.sampler import asking_for, from_entries, to_entries

_PADDINGS = ("pad", "drop", "uneven")
UNOBSERVED = -1  # among a state's codes: the greatest 16 bits
_log = logging.getLogger("cdgrab")


class DistributedSampler(torch.utils.data.DistributedSampler[Any], Joinable):
    """Hands each rank the examples of its worker, in an order that all workers learn together.

    A drop-in for ``torch.utils.data.DistributedSampler`` under torchrun, in one process too:

    >>> import torch, cdgrab
    >>> model = torch.nn.Linear(3, 2)
    >>> x, y = torch.randn(10, 3), torch.randint(2, (10,))
    >>> sampler = cdgrab.DistributedSampler(range(10), seed=0)
    >>> for epoch in range(2):
    ...     for batch in torch.utils.data.BatchSampler(sampler, 4, drop_last=False):
    ...         loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
    ...         sampler.observe(loss, len(batch))  # the one new line, before backward
    ...         loss.backward()
    >>> sampler.report()["observed"]
    10

    Collective, so to be done by every rank: to make one, the backward of an observed loss, step(), a pass over the
    sampler that follows one with observations, end_epoch(), global_state_dict() and save(). A rank that comes to the
    end of its epoch answers the others until they have come too.

    Args:
        dataset: the data set, or how many examples there are.
        num_replicas, rank: as the process group has them; nothing else is allowed.
        shuffle: True; examples in their own order are torch's business.
        seed: of everything random; the same on all ranks, as every argument is.
        drop_last: True is ``padding="drop"``.
        order: ``"cd-pair"``, ``"id-pair"``, ``"d-rr"`` and their options, in the words of docs/cli.md.
        workers: how many there are; as many as ranks if not given. The order depends on this number and not on that
            of the ranks. A rank with several hands out a batch of each in turn, and one with fewer than others whole
            batches of repeats in their place.
        shares: the examples of each worker; every workers-th if not given.
        group: the process group; the default one if not given.
        padding: what becomes of workers that have fewer examples than others. ``"pad"``: they repeat some, which are
            trained on and not balanced again; ``"drop"``: the others leave out their last; ``"uneven"``: nothing; train
            DDP inside ``Join([model, sampler])`` then. ``"drop"`` needs as many workers on every rank.
        overlap: balance on a thread of its own, while training goes on. The same order.
        timeout: seconds that a rank waits for another before it raises CommunicationError.
        hold_limit: bytes that a rank may hold until signs fall (docs/distributed.md, what it costs).
        parameters, pattern, reduction, batch_axis, budget, shapes, strict: as in cdgrab.Sampler.
    """

    def __init__(
        self,
        dataset: int | Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        order: str = "cd-pair",
        workers: int | None = None,
        shares: Sequence[Sequence[int]] | None = None,
        group: dist.ProcessGroup | None = None,
        padding: str | None = None,
        overlap: bool = False,
        timeout: float | datetime.timedelta = 600.0,
        hold_limit: int | None = None,
        parameters: torch.nn.Module | Mapping[str, torch.Tensor] | Iterable[tuple[str, torch.Tensor]] | None = None,
        pattern: str | None = None,
        reduction: str = "mean",
        batch_axis: int | None = None,
        budget: int | None = None,
        shapes: Sequence[Sequence[int]] = (),
        strict: bool = False,
    ) -> None:
        shuffle, drop_last = flag_of("shuffle", shuffle), flag_of("drop_last", drop_last)
        if not shuffle:
            raise UserError("shuffle=False; the order is learnt: torch's own DistributedSampler has a fixed one")
        options = observe_options(reduction, batch_axis, parameters, pattern, budget, strict)
        Joinable.__init__(self)
        self._given_group = group
        self._group = group_with_messages(group)
        # torch's own __init__ would ask for a process group where one process has none.
        self.num_replicas, self.rank = place_in(self._group, num_replicas, rank)
        self.dataset: Any = dataset
        if not hasattr(dataset, "__len__") or isinstance(dataset, str):
            self.dataset = range(whole_number("dataset", dataset, least=0))
        self.shuffle, self.seed, self.drop_last = shuffle, whole_number("seed", seed), drop_last
        self._padding = _padding(padding, drop_last)
        self._strict = strict
        shares = None if shares is None else list_of("shares", shares)
        if shares is not None and workers is not None and whole_number("workers", workers) != len(shares):
            raise UserError(f"workers={workers} and shares of {len(shares)}; leave workers out")
        self._native = Native(
            "DistributedSampler",
            len(self.dataset),
            text_of("order", order),
            self.num_replicas if workers is None else whole_number("workers", workers, least=1),
            None if shares is None else [whole_numbers(f"the share of worker {w}", s) for w, s in enumerate(shares)],
            self.seed,
            "" if self._group is None else self._group.group_name,
            _milliseconds(timeout),
            flag_of("overlap", overlap),
            -1 if hold_limit is None else whole_number("hold_limit", hold_limit, least=0),
            shapes_of(shapes),
        )
        self._native.observe_with(options)
        self._hosted = range(self._native.first_worker(), self._native.first_worker() + self._native.hosted())
        self._unit = int(self._native.unit())
        sizes = [int(self._native.share_size(worker)) for worker in range(self.workers)]
        self._lengths = Lengths(sizes, self._unit, self._padding, self.num_replicas)
        self.num_samples = self._lengths.total(self.rank, self._lengths.whole)
        self.total_size = sum(self._lengths.total(rank, self._lengths.whole) for rank in range(self.num_replicas))
        self._balances = bool(self._native.balances())
        self._before = [0] * self.workers  # by worker: handed out before a load, for orders that are not observed
        self._start_counting()
        self._yielded: Counter[int] = Counter()  # by worker: handed to the loader, and the library was not told yet
        self._given: deque[Given] = deque()  # handed out and not observed, oldest first
        self._passed: set[int] = set()  # observed before a load, and handed out again for a loop that skips them
        self._newest = 0  # pass, by number: a pass holds its sampler, and the two are no cycle
        self._hooked = False  # DDP averages by the sampler
        self._seen = False  # something was observed in this pass
        self._rounds = False  # or this rank took part in a round
        self._through = False  # it has handed out everything
        self._unseen_passes = 0  # that were whole, one after the other
        self._loaded = False  # and not begun since
        self._replays = False  # what was loaded goes on at the first example of its epoch
        self._dealt_anew = False  # and was of other shares
        self._lane_lengths: list[int] = []  # what this rank's workers hand out in this pass
        self._mixed = False  # so that the loader makes batches of two of them
        self._block = 1  # examples that a worker hands out in its turn
        self._batch = 0  # units, of the loader; 0: not known
        self._warned: set[str] = set()

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        return Pass(self, asking_for(self))

    def __repr__(self) -> str:
        return (
            f"cdgrab.DistributedSampler({len(self.dataset)}, order={self.order!r}, epoch {self.epoch}, "
            f"{self.workers} workers, rank {self.rank} of {self.num_replicas})"
        )

    def __getstate__(self) -> dict[str, Any]:
        raise UserError(
            "a sampler of many ranks cannot be copied or pickled, since the ranks are connected by it; save its "
            "state_dict() and load it into a new one"
        )

    def global_order(self, block: int) -> GlobalOrder:
        """For frameworks that deal one sampler's examples to the ranks themselves (docs/distributed.md).

        `block` is what they deal at a time: the batch size, or 1 if they take every world-size-th example.
        """
        return GlobalOrder(self, block)

    # -- observing ---------------------------------------------------------------------------------------------

    def observe(
        self,
        loss: torch.Tensor,
        batch_size: int | None = None,
        *,
        indices: Sequence[int] | torch.Tensor | None = None,
        example_of_row: Sequence[int] | torch.Tensor | None = None,
    ) -> None:
        """Read the per-example gradients off the backward of `loss`, when it runs; at its end is a round.

        They are those of the oldest `batch_size` examples handed out and not yet observed; with `indices`, of the
        examples named, one per example of the batch. `loss` is a scalar or one number per example. Repeats that fill
        up the last batch are examples as any others, and are not balanced. `example_of_row` is that of cdgrab.Sampler.
        """
        self._tell()
        rows = rows_of_batch(example_of_row)
        given = self._outstanding(batch_size, indices, "observe")
        real = [g for g in given if not g.repeats]
        if self._balances and any(g.repeats for g in given[: len(real)]):
            raise UserError("observe: repeats that are not the last rows of a batch; keep the loader's sequence")
        workers = sorted({g.worker for g in real})
        if self._balances and (self._mixed or len(workers) > 1):
            self._refuse_mixed(len(given))
        for worker in workers:
            names = torch.tensor([g.example for g in real if g.worker == worker])
            self._native.observe_named(worker, loss, names, len(given) - len(real), rows)
        self._observed(given)
        if self._balances:
            self._step_after(loss)

    def step(
        self,
        per_sample_grads: torch.Tensor | Mapping[str, torch.Tensor] | Sequence[torch.Tensor] | None = None,
        *,
        indices: Sequence[int] | torch.Tensor | None = None,
    ) -> None:
        """A round, and before it the per-example gradients that you have: B x d, or B x .. tensors, one per parameter.

        Without them it is a round alone: of no use after observe(), whose backward ends with one.
        """
        self._tell()
        if per_sample_grads is not None:
            self._deposit(per_sample_grads, indices)
        elif indices is not None:
            raise UserError("step(indices=..) without gradients; give both or neither")
        self._round()

    def observe_microbatch(self, parameters: Iterable[torch.Tensor]) -> None:
        """One vector for a whole unit, read from the .grad of `parameters`, and a round; for orders with ``unit=``.

        The gradients are this rank's own: those that DDP has averaged are not. With DDP, register_comm_hook() does
        this and the averaging in one.
        """
        self._tell()
        if self._mixed:
            self._refuse_mixed(self._block)
        given = self._oldest_unit("observe_microbatch")
        if not given[0].repeats:
            self._native.observe_microbatch(given[0].worker, list_of("parameters", parameters))
        self._observed(given)
        self._batch = 2  # a loader that drops a short batch may leave out the short unit, and no other
        self._round()

    def register_comm_hook(self, model: torch.nn.parallel.DistributedDataParallel) -> None:
        """Let `model` average its gradients by the sampler, which then sees them: for orders with ``unit=``.

        Every backward that synchronises is one unit, of one worker per rank; there is nothing to observe. The means are
        DDP's, but for rounding; a batch that is nothing but repeats has no part in them.
        """
        if self._unit == 1:
            raise UserError(
                f"register_comm_hook with order={self.order!r}; a rank's gradient is of a whole batch: write "
                "unit= and the number of examples behind it, 'cd-pair; unit=16' for instance"
            )
        if self.workers != self.num_replicas:
            raise UserError(
                f"register_comm_hook with {self.workers} workers on {self.num_replicas} ranks; a model has one "
                "gradient: start as many ranks as workers"
            )
        self._hooked = True
        # DDP looks at the annotations of a hook, and takes none for these.
        model.register_comm_hook(Averaging(self, model), lambda state, bucket: state.average(bucket))

    def set_epoch(self, epoch: int) -> None:
        """Advisory, for loops that call it: the order is state, and no function of the epoch's number."""
        if epoch not in (self.epoch, self.epoch + 1):
            self._warn(
                "set_epoch", f"set_epoch({epoch}) in epoch {self.epoch} changes nothing: the order is part of the state"
            )

    def end_epoch(self) -> None:
        """Collective: make the next orders now. The next pass does it otherwise."""
        self._tell()
        self._native.end_epoch()
        self._given.clear()
        self._passed.clear()
        self._newest += 1
        self._seen = self._rounds = self._through = self._loaded = self._replays = self._dealt_anew = False
        self._before = [0] * self.workers
        self._start_counting()

    def join_hook(self, **_: Any) -> JoinHook:
        """For torch's Join, after the model: a rank that is through goes on answering the others' rounds."""
        return Answering(self)

    @property
    def join_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def join_process_group(self) -> Any:
        return self._given_group or dist.group.WORLD

    # -- what there is to know ---------------------------------------------------------------------------------

    @property
    def order(self) -> str:
        """The kind of order, in full."""
        return str(self._native.spec())

    @property
    def epoch(self) -> int:  # type: ignore[override]
        return int(self._native.epoch())

    @property
    def workers(self) -> int:
        return int(self._native.workers())

    @property
    def hosted_workers(self) -> range:
        """Those whose examples this rank hands out."""
        return self._hosted

    def current_order(self, worker: int | None = None) -> torch.Tensor:
        """The order of this epoch of any worker: examples; frozen when it begins."""
        return self._native.order(self._one(worker))  # type: ignore[no-any-return]

    def order_hash(self) -> int:
        """Of the orders of all workers: the same on all ranks."""
        return int(self._native.order_hash())

    def report(self, worker: int | None = None) -> dict[str, int]:
        """What became of the units of a worker in this epoch, as far as this rank has heard."""
        self._tell()
        return dict(self._native.report(self._one(worker)))

    def last_report(self, worker: int | None = None) -> dict[str, int]:
        """The same of the epoch that ended last."""
        return dict(self._native.last_report(self._one(worker)))

    def missed_backwards(self) -> int:
        """Observed losses that were dropped without a backward."""
        return int(self._native.missed_backwards())

    def traffic(self) -> dict[str, int]:
        """Calls, bytes sent and bytes received of sum, all_gather and all_to_all, so far."""
        return dict(self._native.traffic())

    def held_peak(self) -> int:
        """The most bytes that this rank has held for pairs that waited for their signs."""
        return int(self._native.held_peak())

    # -- state -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What this rank has, without a word to others: for the same rank of as many.

        All ranks' are to be made after the same step. What a loader has prefetched and training has not seen is handed
        out again after a load. With `overlap`, it waits for the rounds that were begun.
        """
        self._tell()
        state = to_entries(self._native.state())
        if not self._balances:
            self._assume_others(state)
        return state

    def global_state_dict(self) -> dict[str, Any]:
        """Collective: everything, the same on all ranks, for any number of ranks and of workers."""
        self._tell()
        return to_entries(self._native.save())

    def load_state_dict(self, state: Mapping[str, Any], *, replay: bool = False) -> None:
        """Take back what state_dict() or global_state_dict() gave; local, on all ranks.

        Iteration goes on where training stood, with the examples that were not observed (for orders that nobody has
        observed, d-rr, not handed out), bit for bit if there are as many workers, and else with all of them; the log
        says what changed. With `replay` it goes on at the first example of the same epoch, for loops that skip the
        batches that were trained on.
        """
        kinds = from_entries(entries_of(state))
        self._require_whole_units(kinds[0], kinds[3])
        before = self._handed_out(kinds[0], kinds[3])
        text = self._native.load(*kinds)
        if text and any(before):  # all ranks know what was observed, and not what was handed out
            count_as_observed(kinds[0], kinds[3])
            before = [0] * self.workers
            self._native.load(*kinds)
        if text:
            _log.warning("%s", text)
        self._before = before
        self._yielded.clear()
        self._given.clear()
        self._passed.clear()
        self._newest += 1
        self._seen = self._rounds = self._through = False
        self._loaded, self._replays, self._dealt_anew = True, replay, bool(text)
        self._start_counting()
        if replay:
            for worker in self._hosted:
                self._native.seek(worker, self.epoch, self._before[worker])
                left = self._native.upcoming(worker, self._native.share_size(worker))
                self._passed |= set(self._native.order(worker).tolist()) - set(left.tolist())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Collective: rank 0 writes global_state_dict() as a file that C++ and ``cdgrab inspect`` read too."""
        self._tell()
        self._native.save_file(path_of(path), self.rank == 0)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read a file that save() or C++ wrote; on all ranks."""
        self.load_state_dict(to_entries(self._native.read_file(path_of(path))))

    # -- inside ------------------------------------------------------------------------------------------------

    def _require_whole_units(self, integers: Mapping[str, int], tensors: Mapping[str, torch.Tensor]) -> None:
        """Units of other workers, visited in part, are not what a loader's batches are."""
        if self._unit == 1 or integers.get("workers") == self.workers:
            return
        codes = [value for key, value in tensors.items() if key.startswith("worker.") and key.endswith(".codes")]
        visited = [bool((code != UNOBSERVED).any()) for code in codes]
        visited += [not self._balances and value > 0 for key, value in integers.items() if key.endswith(".handed_out")]
        if any(visited) and any(bool((code == UNOBSERVED).any()) for code in codes):
            raise StateMismatch(
                f"a state of {integers.get('workers')} workers in the middle of an epoch, with unit={self._unit}; load "
                f"it with as many (here are {self.workers}), or one of the beginning of an epoch: call end_epoch() "
                "before save() or global_state_dict()"
            )

    def _handed_out(self, integers: dict[str, int], tensors: Mapping[str, torch.Tensor]) -> list[int]:
        """By worker, where that is how far training is: orders that need no observing, and where nothing is.

        Elsewhere what was handed out and not observed was not trained on, and counts as not handed out.
        """
        observed = any(bool((value != UNOBSERVED).any()) for key, value in tensors.items() if key.endswith(".codes"))
        keys = [key for key in integers if key.startswith("worker.") and key.endswith(".handed_out")]
        if self._balances or observed:
            integers.update(dict.fromkeys(keys, 0))
        before = [0] * max(self.workers, len(keys))
        for key in keys:
            worker = key.split(".")[1]
            if not worker.isdecimal() or int(worker) >= len(before):
                raise StateMismatch(f"{key!r}: workers are numbered from 0 on; this is not a state that cdgrab made")
            before[int(worker)] = integers[key]
        return before

    def _assume_others(self, state: dict[str, Any]) -> None:
        """Orders without rounds hear nothing of other ranks, which are as far as this one: after the same step."""
        observes = self._seen or any(self._native.report(worker)["observed"] for worker in self._hosted)
        for slot, workers in enumerate(self._lengths.slots):
            for worker in set(workers) - set(self._hosted):
                size = int(self._native.share_size(worker))
                if observes:
                    key = f"worker.{worker}.codes"
                    known = int(self._native.report(worker)["observed"])  # where step() or the hook make rounds
                    trained = self._known_before[worker] + -(-self._trained[slot] // self._unit)
                    state[key] = with_observed(state[key], max(0, trained - known))
                else:
                    before = 0 if self._replays else self._before[worker]
                    state[f"worker.{worker}.handed_out"] = min(before + self._handed[slot], size)

    def _start_counting(self) -> None:
        """Of each slot, repeats included: since the epoch began or was loaded, and in the pass."""
        self._trained = [0] * len(self._lengths.slots)
        self._handed = [0] * len(self._lengths.slots)
        self._known_before = [] if self._balances else self._observed_units()

    def _one(self, worker: int | None) -> int:
        if worker is not None:
            return worker
        if len(self._hosted) != 1:
            raise UserError(f"a rank with {len(self._hosted)} workers; say which: {list(self._hosted)}")
        return self._hosted[0]

    def _tell(self) -> None:
        """Handing out one by one is Python's; the library hears of it when it matters."""
        for worker, count in self._yielded.items():
            self._native.hand_out(worker, count)
        self._yielded.clear()

    def _hand_out(self, given: Given) -> None:
        self._handed[given.worker - self._hosted.start] += 1
        if not given.repeats:
            self._yielded[given.worker] += 1
        if given.repeats or given.example not in self._passed:
            self._given.append(given)

    def _begin(self, batches: Batches) -> list[Lane]:
        """Start a pass, and the next epoch if this one was trained on; a peek at a loader starts over."""
        require_same_world(self._group)
        if self._hooked and batches.size and self._unit % batches.size:
            self._refuse_batches(batches.size)
        self._tell()
        self._complain_of_unobserved()
        self._complain_of_unseen_passes()
        if self._over(batches):
            self.end_epoch()
        self._block = max(batches.size, self._unit)
        self._native.expect_batches(batches.size, batches.drop_last)
        # Rather than begin(), which ends epochs by what one rank knows.
        for worker in self._hosted:
            self._native.seek(worker, self.epoch, self._before[worker])
            if self._replays:
                self._native.replay(worker)
        self._start_counting()
        self._given.clear()
        self._seen = self._rounds = self._through = self._loaded = False
        self._newest += 1
        lanes = self._lanes(batches)
        self._lane_lengths = [len(lane.examples) for lane in lanes]
        self._mixed = batches.size > 0 and mixes(lanes, self._block, batches.size)
        return lanes

    def _over(self, batches: Batches) -> bool:
        least = batches.size if batches.drop_last else 1
        if self._loaded:
            return self._lengths.longest(self._rest(), batches) < least
        if not self._balances:
            return self._seen or self._through
        # Rounds are made by all ranks. One whose loader has no batch makes none, but inside Join.
        return self._rounds or (self._through and self._lengths.total(self.rank, self._rest(), batches) < least)

    def _rest(self) -> Rest:
        """Of the epoch, by what all ranks know."""
        seen = self._lengths.units(self._before) if any(self._before) else self._observed_units()
        return self._lengths.rest(seen, self._dealt_anew)

    def _observed_units(self) -> list[int]:
        return [int(self._native.report(worker)["observed"]) for worker in range(self.workers)]

    def _lanes(self, batches: Batches) -> list[Lane]:
        rest = self._lengths.whole if self._replays else self._rest()
        lanes = []
        for slot, before in enumerate(rest.before):
            worker = self._hosted.start + slot
            count, repeats = self._lengths.lane(self.rank, slot, rest, batches)
            examples = self._native.upcoming(worker, count) if count else torch.empty(0, dtype=torch.int64)
            done = max(0, self._lengths.repeats_in_all(self.rank, slot, batches) - repeats)
            own = [worker, *self._hosted] if worker in self._hosted else self._hosted
            filled = torch.cat([examples, self._repeated(own, done, repeats)])
            lanes.append(Lane(worker, filled, repeats, before * self._unit))
        return lanes

    def _repeated(self, workers: Sequence[int], done: int, count: int) -> torch.Tensor:
        """Examples to repeat, of the first of these workers that has any, or of all, after so many."""
        if count == 0:
            return torch.empty(0, dtype=torch.int64)
        orders = (self._native.order(worker) for worker in workers)
        head = next((order for order in orders if len(order)), None)
        if head is None:
            head = torch.cat([self._native.order(worker) for worker in range(self.workers)])
        return head.repeat(-(-(done + count) // len(head)))[done : done + count]

    def _outstanding(
        self, count: int | None, indices: Sequence[int] | torch.Tensor | None, where: str
    ) -> Sequence[Given]:
        if (count is None) == (indices is None):
            raise UserError(f"{where} takes batch_size or indices=, one of the two")
        if indices is None:
            count = whole_number("batch_size", count)
            if not 1 <= count <= len(self._given):
                raise UserError(
                    f"{where}: a batch of {count}, and {len(self._given)} examples are handed out and not observed; "
                    "observe every batch once, in the loader's sequence, or name the examples: indices="
                )
            return [self._given[k] for k in range(count)]
        places: dict[int, deque[Given]] = {}
        for given in self._given:
            places.setdefault(given.example, deque()).append(given)
        found = []
        for example in whole_numbers("indices", indices).reshape(-1).tolist():
            here = places.get(example)
            found.append(here.popleft() if here else Given(int(self._native.owner(example)), example, False))
        return found

    def _oldest_unit(self, where: str) -> Sequence[Given]:
        if not self._given:
            raise UserError(
                f"{where}: nothing is handed out that is not observed; iterate over the sampler, and go through one "
                f"unit, of unit={self._unit} examples, for each call"
            )
        first = self._given[0]
        unit: list[Given] = []
        for given in self._given:
            if len(unit) == self._unit or (given.worker, given.repeats) != (first.worker, first.repeats):
                break
            unit.append(given)
        return unit

    def _refuse_mixed(self, size: int) -> None:
        """Before anything is trained, where the loader's size is known."""
        raise UserError(
            f"batches of {size}, and this rank's workers hand out {self._lane_lengths} examples in this pass: a batch "
            "would be of two workers, and is observed for one. Give the loader a batch size that divides these, or "
            "drop_last=True, or start a rank for each worker; step(per_sample_grads) takes such batches"
        )

    def _in_part(self, unit: Sequence[Given]) -> bool:
        """Whether examples of the worker come after this unit, which is short."""
        return len(unit) < self._unit and not unit[0].repeats and len(self._native.upcoming(unit[0].worker, 1)) > 0

    def _refuse_batches(self, size: int) -> None:
        raise UserError(
            f"batch {size}, unit={self._unit}: they have to be equal, since a backward that synchronises is a unit; or "
            "accumulate the smaller batches of a unit with no_sync"
        )

    def _observed(self, given: Sequence[Given]) -> None:
        self._seen = True
        self._batch = len(given)
        for one in given:
            self._trained[one.worker - self._hosted.start] += 1
        if all(mine is theirs for mine, theirs in zip(self._given, given, strict=False)):
            for _ in given:
                self._given.popleft()
        else:
            gone = Counter(given)
            kept: deque[Given] = deque()
            for one in self._given:
                if gone[one] > 0:
                    gone[one] -= 1
                else:
                    kept.append(one)
            self._given = kept

    def _deposit(
        self,
        per_sample_grads: torch.Tensor | Mapping[str, torch.Tensor] | Sequence[torch.Tensor],
        indices: Sequence[int] | torch.Tensor | None,
    ) -> None:
        rows = rows_of(per_sample_grads)
        if not rows or any(not isinstance(row, torch.Tensor) or row.dim() == 0 for row in rows):
            raise UserError("step: no gradients, or one without rows; one row per example, B x d or B x .., is needed")
        given = self._outstanding(None if indices is not None else len(rows[0]), indices, "step")
        if len(given) != len(rows[0]):
            raise UserError(f"step: {len(rows[0])} rows and {len(given)} examples; one example per row is needed")
        for worker in sorted({g.worker for g in given}):
            own = [k for k, g in enumerate(given) if g.worker == worker and not g.repeats]
            if own:
                names = torch.tensor([given[k].example for k in own])
                self._native.observe_gradients(worker, [r[torch.tensor(own)] for r in rows], names)
        self._observed(given)

    def _answer(self) -> None:
        """A step of others that this rank has no batch for, inside Join."""
        if self._balances:
            self._round()
            return
        behind = self._trained.index(min(self._trained))
        self._trained[behind] += self._block
        self._handed[behind] += self._block

    def _step_after(self, loss: torch.Tensor) -> None:
        """A round at the end of the backward of `loss`, after what the library and DDP do there."""
        queue = torch.autograd.Variable._execution_engine.queue_callback
        loss.register_hook(lambda _: queue(lambda: queue(self._round)))  # type: ignore[no-untyped-call]

    def _round(self) -> None:
        self._rounds = True
        self._native.step()

    def _average(self, gradients: list[torch.Tensor], shadow: bool) -> None:
        """The round of a backward, or with `shadow` of others', to which this rank adds nothing."""
        self._tell()
        given = [] if shadow else self._oldest_unit("the hook")
        if given and self._in_part(given):
            self._refuse_batches(len(given))
        self._rounds = True
        self._native.average(gradients, 1.0, bool(given) and not given[0].repeats)
        if given:
            self._observed(given)
            self._batch = 2

    def _complain_of_unobserved(self) -> None:
        outstanding = sum(int(self._native.outstanding(worker)) for worker in self._hosted)
        if not (self._seen and 0 < self._batch <= outstanding and self._balances):
            return
        text = (
            f"epoch {self.epoch} ends with {outstanding} units handed out and not observed; they go to the middle of "
            "the next order. Observe every batch"
        )
        if self._strict:
            raise UserError(text)
        self._warn("unobserved", text)

    def _complain_of_unseen_passes(self) -> None:
        """One may be a peek at a loader that fetches everything ahead."""
        self._unseen_passes = self._unseen_passes + 1 if self._through and not (self._seen or self._rounds) else 0
        if self._unseen_passes == 2 and self._balances and self.num_samples:
            self._warn(
                "unseen",
                f"a second pass over epoch {self.epoch} has ended with nothing observed, and the order stays as it "
                "is; call observe(loss, batch_size) before every backward, or register_comm_hook(model)",
            )

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(f"cdgrab: {text}", stacklevel=3)


def with_observed(codes: torch.Tensor, count: int) -> torch.Tensor:
    """As if the `count` first units that are not observed were; for orders that look at no vector."""
    codes = codes.clone()
    codes[(codes == UNOBSERVED).nonzero()[:count]] = 0
    return codes


def count_as_observed(integers: Mapping[str, int], tensors: dict[str, torch.Tensor]) -> None:
    """What a state has handed out, of units of one example."""
    for key, value in integers.items():
        if key.startswith("worker.") and key.endswith(".handed_out"):
            codes = key.replace("handed_out", "codes")
            if codes in tensors:
                tensors[codes] = with_observed(tensors[codes], value)


def _padding(padding: str | None, drop_last: bool) -> str:
    if padding is None:
        return "drop" if drop_last else "pad"
    if padding not in _PADDINGS or (drop_last and padding != "drop"):
        allowed = "'drop' goes with drop_last=True" if drop_last else f"{', '.join(map(repr, _PADDINGS))} are allowed"
        raise UserError(f"padding is {padding!r}; {allowed}")
    return padding


def _milliseconds(timeout: float | datetime.timedelta) -> int:
    seconds = timeout.total_seconds() if isinstance(timeout, datetime.timedelta) else timeout
    if not isinstance(seconds, (int, float)) or not 0 < seconds < 1e9:
        raise UserError(f"timeout is {timeout!r}; seconds, more than 0 and finite, are needed")
    return max(1, round(1000 * seconds))
