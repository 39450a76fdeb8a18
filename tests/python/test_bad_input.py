# SPDX-License-Identifier: Apache-2.0
"""Whatever is given, the outcome is the right order or an exception of docs/errors.md: no crash, no hang, no reshuffle.

CDGRAB_BAD_INPUT=long looks longer (`make torture`).
"""

import contextlib
import copy
import os
import pickle
import re
import subprocess
import sys
import textwrap
import threading
import warnings

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cdgrab

LONG = os.environ.get("CDGRAB_BAD_INPUT") == "long"
EXAMPLES = 2000 if LONG else 40
several = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=not LONG,
    database=None,
    suppress_health_check=list(HealthCheck),
)
pytestmark = pytest.mark.filterwarnings("ignore")

ORDERS = ["pair", "mean", "batch", "recursive; depth=1", "recursive-pair; depth=1", "greedy", "rr", "swr", "score"]
COUNT = 9

anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.lists(st.integers(-2, 9), max_size=4),
    st.lists(st.floats(), max_size=3),
    st.just(torch.ones(2, 3)),
    st.just(torch.ones(2).to_sparse()),
    st.just(torch.ones(2, device="meta")),
    st.just(torch.ones(3, dtype=torch.complex64)),
    st.just(object()),
    st.just({}),
    st.just({"a": 1}),
)


def is_order(order, count=COUNT):
    return sorted(order.tolist()) == list(range(count))


def expect_orders(sampler, count=COUNT):
    """It goes on, and each order is one."""
    for _ in range(2):
        seen = list(sampler)
        order = sampler.current_order()
        if not sampler.order.startswith("swr"):
            assert sorted(seen) == list(range(count))
            assert is_order(order, len(order))
        assert len(seen) == count


def begun(order="pair", handed=6, **options):
    """In the middle of its first epoch."""
    sampler = cdgrab.Sampler(COUNT, order, seed=3, **options)
    iterator = iter(sampler)
    for _ in range(handed):
        next(iterator)
    return sampler


@contextlib.contextmanager
def allowed_to_refuse(sampler=None):
    """Nothing but one of our exceptions, which is no broken invariant and leaves the sampler as it was."""
    before = sampler.state_dict() if sampler is not None else {}
    try:
        yield
    except cdgrab.InvariantError:
        raise
    except cdgrab.Error:
        if sampler is not None:
            assert_same(sampler.state_dict(), before)


def value_or_error(call, *args, **kwargs):
    """None if it was refused."""
    with allowed_to_refuse():
        return call(*args, **kwargs)


# -- arguments of a wrong kind -----------------------------------------------------------------------------------

SAMPLER = ["examples", "order", "seed", "initial_order", "parameters", "pattern", "reduction", "batch_axis", "budget"]
SAMPLER += ["shapes", "strict", "record_herding", "record_norms", "record_timings"]


@several
@given(st.sampled_from(SAMPLER), anything)
def test_a_sampler_is_made_or_its_argument_refused(name, value):
    if name == "examples" and isinstance(value, int) and 10**5 < value < 2**32:
        value = 10**5  # what is allowed may be large
    sampler = value_or_error(cdgrab.Sampler, **{"examples": COUNT, name: value})
    if sampler is not None:
        expect_orders(sampler, len(sampler))


DISTRIBUTED = ["dataset", "num_replicas", "rank", "seed", "drop_last", "order", "workers", "shares", "padding"]
DISTRIBUTED += [
    "overlap",
    "timeout",
    "hold_limit",
    "parameters",
    "pattern",
    "reduction",
    "batch_axis",
    "budget",
    "shapes",
]


@several
@given(st.sampled_from(DISTRIBUTED), anything)
def test_a_sampler_of_workers_is_made_or_its_argument_refused(name, value):
    if name in ("dataset", "workers") and isinstance(value, int) and 10**4 < value < 2**63:
        value = 100
    sampler = value_or_error(cdgrab.DistributedSampler, **{"dataset": COUNT, name: value})
    if sampler is not None:
        assert set(sampler) <= set(range(len(sampler.dataset)))


@several
@given(anything, anything, anything, st.booleans())
def test_batches_are_made_or_refused(sampler, size, drop_last, right):
    batches = value_or_error(cdgrab.BatchSampler, begun() if right else sampler, size, drop_last)
    if batches is not None:
        assert sum(map(len, batches)) <= COUNT


METHODS = [
    "observe",
    "observe_named",
    "step",
    "step_named",
    "observe_microbatch",
    "set_scores",
    "load",
    "load_state_dict",
]


@several
@given(st.sampled_from(METHODS), st.sampled_from(["pair", "mean; unit=3", "score"]), anything, anything)
def test_a_method_does_as_it_says_or_refuses(method, order, value, other):
    sampler = begun(order)
    loss = torch.nn.Linear(3, 1)(torch.ones(3, 3)).mean()
    calls = {
        "observe": lambda: sampler.observe(loss if other is None else value, value),
        "observe_named": lambda: sampler.observe(loss, indices=value),
        "step": lambda: sampler.step(value),
        "step_named": lambda: sampler.step(torch.ones(3, 4), indices=value),
        "observe_microbatch": lambda: sampler.observe_microbatch(value),
        "set_scores": lambda: sampler.set_scores(value),
        "load": lambda: sampler.load(value),
        "load_state_dict": lambda: sampler.load_state_dict(value),
    }
    with allowed_to_refuse(sampler):
        calls[method]()
    expect_orders_from_here(sampler)


def assert_same(state, before):
    assert state.keys() == before.keys()
    for key, value in state.items():
        same = torch.equal(value, before[key]) if isinstance(value, torch.Tensor) else value == before[key]
        assert same, key


def expect_orders_from_here(sampler):
    """What was observed makes an order, and so on."""
    sampler._native.end_epoch()
    expect_orders(sampler)


@several
@given(st.sampled_from(["compute", "observe", "cross", "inner", "weighted_sum", "part"]), anything, anything)
def test_a_geometry_answers_or_refuses(method, value, other):
    model = torch.nn.Linear(3, 1)
    loss = model(torch.ones(4, 3)).mean()
    geometry = cdgrab.GradientGeometry(parameters=model).compute(loss, 4)
    calls = {
        "compute": lambda: geometry.compute(loss if other is None else value, value),
        "observe": lambda: geometry.observe(loss if other is None else value, value),
        "cross": lambda: geometry.cross(value),
        "inner": lambda: geometry.inner(value),
        "weighted_sum": lambda: geometry.weighted_sum(value),
        "part": lambda: geometry.part(value),
    }
    value_or_error(calls[method])


# -- vectors of any shape, type and layout -----------------------------------------------------------------------

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
DTYPES += [torch.complex64]


@st.composite
def rows(draw):
    """B x .. numbers, some of them not finite, laid out in any way."""
    shape = draw(st.lists(st.integers(0, 4), min_size=0, max_size=4))
    dtype = draw(st.sampled_from(DTYPES))
    tensor = (torch.arange(float(torch.Size(shape).numel())) % 5 - 2).reshape(shape).to(dtype)
    if tensor.is_floating_point() and tensor.numel() and draw(st.booleans()):
        at = draw(st.integers(0, tensor.numel() - 1))
        tensor.view(-1)[at] = draw(st.sampled_from([float("nan"), float("inf"), -float("inf")]))
    layout = draw(st.sampled_from(["plain", "transposed", "expanded", "strided", "grad", "sparse", "meta"]))
    if layout == "transposed" and tensor.dim() >= 2:
        tensor = tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "expanded" and tensor.dim() >= 1 and len(tensor):
        tensor = tensor[:1].expand(shape)
    if layout == "strided":
        tensor = torch.stack([tensor, tensor], -1)[..., 0]
    if layout == "grad" and tensor.is_floating_point():
        tensor = tensor.requires_grad_()
    if layout == "sparse":
        tensor = tensor.to_sparse()
    if layout == "meta":
        tensor = tensor.to("meta")
    return tensor


@several
@given(st.sampled_from(ORDERS), st.lists(rows(), min_size=1, max_size=3), st.booleans())
def test_given_vectors_make_the_order_of_their_plain_copies(order, tensors, named):
    given_to, plain = begun(order), begun(order)
    if not all(len(tensor) <= 3 for tensor in tensors if tensor.dim()):
        return
    for _ in range(2):
        count = len(tensors[0]) if tensors[0].dim() else 0
        indices = given_to.current_order()[:count].tolist() if named and count else None
        if indices and given_to.report()["observed"]:
            indices = None
        with allowed_to_refuse(given_to):
            given_to.step(tensors, indices=indices)
            plain.step([copied(tensor) for tensor in tensors], indices=indices)
    assert torch.equal(given_to.next_order(), plain.next_order())
    expect_orders_from_here(given_to)


def copied(tensor):
    """The same numbers, one after the other, as float32 or float64."""
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return tensor.detach().to(wide).clone(memory_format=torch.contiguous_format)


@several
@given(
    st.sampled_from(ORDERS),
    st.lists(st.sampled_from([0.0, 1.0, float("nan"), float("inf"), 1e38]), min_size=9, max_size=9),
)
def test_losses_that_are_not_finite_leave_an_order(order, inputs):
    sampler = cdgrab.Sampler(COUNT, order, seed=1)
    model = torch.nn.Linear(2, 1)
    for batch in torch.utils.data.BatchSampler(sampler, 4, False):
        x = torch.tensor([[inputs[i], 1.0] for i in batch])
        loss = model(x).square().mean()
        sampler.observe(loss, len(batch))
        loss.backward()
    report = sampler.report()
    assert report["observed"] == COUNT
    expect_orders_from_here(sampler)


@several
@given(
    st.lists(
        st.sampled_from(["next", "observe", "twice", "backward", "drop", "end", "late", "peek", "state"]), max_size=30
    )
)
def test_any_sequence_of_calls_ends_in_an_order(calls):
    sampler = cdgrab.Sampler(COUNT, "pair", seed=1)
    model = torch.nn.Linear(2, 1)
    iterator, losses, state = iter(sampler), [], sampler.state_dict()

    def observe(count=2):
        loss = model(torch.ones(count, 2) * len(losses)).square().mean()
        sampler.observe(loss, count)
        losses.append(loss)

    actions = {
        "next": lambda: [next(iterator, None) for _ in range(2)],
        "observe": observe,
        "twice": lambda: (observe(), sampler.observe(losses[-1], 2)),
        "backward": lambda: losses and losses.pop().backward(),
        "drop": lambda: losses and losses.pop(),
        "end": lambda: list(sampler),
        "late": lambda: sampler.observe(model(torch.ones(1, 2)).mean(), indices=[0]),
        "peek": lambda: next(iter(sampler)),
        "state": lambda: sampler.load_state_dict(state),
    }
    for call in calls:
        try:
            with allowed_to_refuse():
                actions[call]()
        except RuntimeError as error:  # a backward passes on what the sampler says as torch's own
            if not re.match(r"\[[\w:]+\] ", str(error)) and "backward through the graph a second time" not in str(
                error
            ):
                raise
        assert is_order(sampler.next_order())
    losses.clear()
    expect_orders_from_here(sampler)


# -- states ------------------------------------------------------------------------------------------------------


def trained(order, kind):
    """A sampler in the middle of its second epoch."""
    sampler = (
        cdgrab.Sampler(COUNT, order, seed=3) if kind == 1 else cdgrab.DistributedSampler(COUNT, order=order, seed=3)
    )
    model = torch.nn.Linear(2, 1)
    left = 5
    for _ in range(2):
        for batch in torch.utils.data.BatchSampler(sampler, 3, False):
            loss = model(torch.tensor([[float(i), 1.0] for i in batch])).square().mean()
            sampler.observe(loss, len(batch))
            loss.backward()
            left -= 1
            if left == 0:
                return sampler
    raise AssertionError


KINDS = [("pair", 1), ("mean", 1), ("recursive-pair; depth=1", 1), ("greedy", 1), ("rr", 1)]
KINDS += [("cd-pair", 2), ("id-pair", 2), ("d-rr", 2)]
STATES = {}

replacements = st.one_of(
    anything,
    st.sampled_from([0, -1, 1, 2**31, 2**62, 2**63 - 1]),
    st.sampled_from([torch.uint8, torch.int16, torch.int32, torch.int64, torch.float32, torch.float64]),
    st.sampled_from(["shorter", "longer", "dropped", "zeros", "ones", "flat", "nan"]),
)


def mangled(value, how):
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_meta:
        return how
    if isinstance(how, torch.dtype):
        return value.to(how)
    if how == "shorter":
        return value.reshape(-1)[:-1]
    if how == "longer":
        return torch.cat([value.reshape(-1), value.reshape(-1)])
    if how == "flat":
        return value.reshape(1, -1)
    if how in ("zeros", "ones"):
        return torch.full_like(value, how == "ones")
    if how == "nan":
        return torch.full_like(value, float("nan")) if value.is_floating_point() else value
    return how


@settings(several, max_examples=20 * EXAMPLES if LONG else 3 * EXAMPLES)
@given(st.sampled_from(KINDS), st.lists(st.tuples(st.integers(0, 200), replacements), min_size=1, max_size=3))
def test_a_mangled_state_is_refused_or_makes_orders(kind, changes):
    if kind not in STATES:
        STATES[kind] = trained(*kind).state_dict()
    state = dict(STATES[kind])
    for which, how in changes:
        key = sorted(state, key=str)[which % len(state)]
        if how == "dropped":
            del state[key]
        else:
            state[key] = mangled(state[key], how)
        if not state:
            return
    order, workers = kind
    sampler = trained(order, workers)
    with allowed_to_refuse(sampler):
        sampler.load_state_dict(state)
    handed = list(sampler)
    assert len(set(handed)) == len(handed) <= COUNT
    (sampler.end_epoch if workers == 2 else sampler._native.end_epoch)()
    assert sorted(sampler) == list(range(COUNT))


@pytest.mark.parametrize("codes", [torch.ones(2, device="meta"), torch.ones(2).to_sparse()])
def test_tensors_without_numbers_are_no_part_of_a_state(codes):
    sampler = trained("d-rr", 2)
    with pytest.raises(cdgrab.StateMismatch, match=r"'worker.0.codes'"):
        sampler.load_state_dict({**sampler.state_dict(), "worker.0.codes": codes})


@pytest.mark.parametrize("order", ["cd-pair", "id-pair", "d-rr"])
def test_a_state_without_any_one_of_its_entries_leaves_the_sampler_as_it_was_or_loads(order):
    state = trained(order, 2).state_dict()
    for key in state:
        sampler = trained(order, 2)
        with allowed_to_refuse(sampler):
            sampler.load_state_dict({name: value for name, value in state.items() if name != key})
        handed = list(sampler)
        assert len(set(handed)) == len(handed) <= COUNT
        sampler.end_epoch()
        assert sorted(sampler) == list(range(COUNT))


def test_a_refused_state_leaves_the_vectors_that_wait_as_they_were():
    sampler = trained("cd-pair", 2)
    before = sampler.state_dict()
    with pytest.raises(cdgrab.StateMismatch, match="slices"):
        sampler.load_state_dict({**before, "slice.accumulator": torch.ones(2, 3)})
    assert_same(sampler.state_dict(), before)


# -- copies ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["pair", "recursive-pair; depth=1", "greedy", "rr"])
@pytest.mark.parametrize("copy_of", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_a_copy_goes_on_as_the_original_does(order, copy_of):
    sampler = trained(order, 1)
    other = copy_of(sampler)
    assert torch.equal(other.next_order(), sampler.next_order())
    assert list(other) == sampler.current_order()[sampler.state_dict()["trained"] :].tolist()
    other._native.end_epoch(), sampler._native.end_epoch()
    assert list(other) == list(sampler)


def test_a_sampler_of_workers_refuses_to_be_copied():
    sampler = trained("cd-pair", 2)
    for copy_of in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(cdgrab.UserError, match="state_dict"):
            copy_of(sampler)


def in_a_process(program):
    """What it prints. A crash is a failure of this test and no more."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_forked_sampler_goes_on_in_parent_and_child_or_says_why_not():
    out = in_a_process("""
        import os, torch, cdgrab
        torch.set_num_threads(1)
        def epoch(sampler, model):
            handed = []
            for batch in torch.utils.data.BatchSampler(sampler, 4, False):
                loss = model(torch.tensor([[float(i), 1.0] for i in batch])).square().mean()
                sampler.observe(loss, len(batch))
                loss.backward()
                handed += batch
            assert sorted(handed) == list(range(9)), handed
        for sampler in cdgrab.Sampler(9), cdgrab.DistributedSampler(9), cdgrab.DistributedSampler(9, overlap=True):
            model = torch.nn.Linear(2, 1)
            epoch(sampler, model)
            if (child := os.fork()) == 0:
                try:
                    epoch(sampler, model)
                    os._exit(1)
                except cdgrab.UserError as error:
                    os._exit(2 if "forked" in str(error) else 3)
                finally:
                    os._exit(4)
            epoch(sampler, model)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert out.split() == ["1", "1", "2"]  # a thread of its own does not come along


@pytest.mark.parametrize("order", ["pair", "mean; sketch=sparse:4"])
def test_threads_that_share_a_sampler_are_refused_or_take_turns(order):
    out = in_a_process(f"""
        import threading, warnings, torch, cdgrab
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        sampler = cdgrab.Sampler(2000, {order!r}, seed=1)
        foreign = []
        def work(k):
            model = torch.nn.Linear(8, 2)
            for i in range({400 if LONG else 60}):
                try:
                    sampler._native.hand_out(16)
                    loss = model(torch.ones(16, 8)).square().mean()
                    sampler.observe(loss, 16)
                    loss.backward()
                    sampler.report(), sampler.next_order()
                    if i % 7 == 0:
                        sampler._native.begin()
                    if i % 9 == 0:
                        sampler.load_state_dict(sampler.state_dict())
                except cdgrab.InvariantError as error:
                    foreign.append(error)
                except (cdgrab.Error, RuntimeError) as error:
                    if "[" not in str(error):
                        foreign.append(error)
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert not foreign, foreign
        assert sorted(sampler.next_order().tolist()) == list(range(2000))
        print("order")
    """)
    assert out.split() == ["order"]


def test_a_second_thread_is_told_so():
    sampler = begun(handed=4)
    model = torch.nn.Linear(2, 1)
    heard = []

    def meanwhile(gradient):
        def call():
            try:
                sampler.report()
                heard.append("answered")
            except cdgrab.UserError as error:
                heard.append(str(error))

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return gradient

    loss = model(torch.ones(4, 2)).square().mean()
    loss.register_hook(meanwhile)
    sampler.observe(loss, 4)
    loss.backward()
    assert heard == ["answered"]  # while torch computes, nobody is inside
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expect_orders_from_here(sampler)
