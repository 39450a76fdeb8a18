# SPDX-License-Identifier: Apache-2.0
"""The sampler in an ordinary PyTorch loop: what it hands out, what it refuses, what it says."""

import copy
import pickle
import subprocess
import sys
import textwrap
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler
from training import Task, flat

import cdgrab

ORDERS = ["pair", "mean", "batch", "recursive; depth=2", "recursive-pair; depth=2", "pair; sign=walk,c=30", "rr", "so"]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("workers", [0, 2])
def test_every_epoch_is_a_permutation_and_changes(order, workers):
    task = Task()
    sampler = cdgrab.Sampler(task.dataset, order=order, seed=3)
    loader = task.loader(sampler, num_workers=workers)
    epochs = [flat(task.epoch(sampler, loader)) for _ in range(3)]
    assert all(sorted(epoch) == list(range(23)) for epoch in epochs)
    assert (epochs[0] != epochs[1]) == (order != "so")
    assert sampler.epoch == 2
    assert len(loader) == 6
    assert not isinstance(sampler, RandomSampler)


@pytest.mark.parametrize("observed", [True, False])
def test_between_epochs_that_count_nothing_is_read_off_a_loss_and_the_order_is_kept(observed):
    task = Task()
    sampler = cdgrab.Sampler(23, "pair; every=2")
    loader = task.loader(sampler)
    epochs = []
    for number in range(4):
        epochs.append([])
        for indices, x, y in loader:
            assert sampler.needs_vectors == (number % 2 == 0)
            epochs[-1] += indices.tolist()
            if sampler.needs_vectors:
                task.step(sampler, (indices, x, y))
            elif observed:
                sampler.observe(torch.nn.functional.cross_entropy(task.model(x), y), len(x))  # and no backward
    assert epochs[1] != epochs[0]
    assert epochs[2] == epochs[1]
    assert epochs[3] != epochs[2]
    assert sampler.missed_backwards() == 0


def test_workers_and_chunks_do_not_change_the_order(monkeypatch):
    def run(workers, chunk):
        monkeypatch.setattr("cdgrab.sampler._CHUNK", chunk)
        task = Task()
        sampler = cdgrab.Sampler(23)
        loader = task.loader(sampler, num_workers=workers, persistent_workers=workers > 0)
        return [flat(task.epoch(sampler, loader)) for _ in range(3)]

    assert run(0, 1 << 16) == run(2, 3) == run(0, 1)


def test_named_batches_may_come_out_of_order():
    task, other = Task(lr=0.0), Task(lr=0.0)
    in_order, shuffled = cdgrab.Sampler(23, "mean"), cdgrab.Sampler(23, "mean")
    batches = list(task.loader(in_order))
    for batch in batches:
        task.step(in_order, batch)
    # mean centring with nothing seen before: only the order of arrival decides, so name them in the same order
    for batch in list(other.loader(shuffled)):
        other.step(shuffled, batch, named=True)
    assert in_order.next_order().tolist() == shuffled.next_order().tolist()

    sampler = cdgrab.Sampler(23)
    batches = list(task.loader(sampler))
    for batch in reversed(batches):
        task.step(sampler, batch, named=True)
    assert sampler.report()["observed"] == 23
    assert sorted(sampler.next_order().tolist()) == list(range(23))


def test_step_takes_what_torch_func_gives():
    task = Task()
    params = dict(task.model.named_parameters())

    def loss_of(p, x, y):
        out = torch.func.functional_call(task.model, p, (x.unsqueeze(0),))
        return torch.nn.functional.cross_entropy(out, y.unsqueeze(0))

    gradients = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))
    by_dict, by_matrix, by_loss = (cdgrab.Sampler(23, seed=5) for _ in range(3))
    list(by_matrix), list(by_loss)
    for indices, x, y in task.loader(by_dict):
        rows = gradients({k: v.detach() for k, v in params.items()}, x, y)
        by_dict.step(rows)
        by_matrix.step(torch.cat([r.flatten(1) for r in rows.values()], 1), indices=indices)
        loss = torch.nn.functional.cross_entropy(task.model(x), y)
        by_loss.observe(loss, len(x))
        loss.backward()
    assert by_dict.next_order().tolist() == by_matrix.next_order().tolist() == by_loss.next_order().tolist()


def test_a_microbatch_is_a_unit():
    task = Task(n=24)
    sampler = cdgrab.Sampler(24, "pair; unit=4")
    for _ in range(2):
        for _, x, y in task.loader(sampler):
            task.optimizer.zero_grad()
            torch.nn.functional.cross_entropy(task.model(x), y).backward()
            sampler.observe_microbatch(task.model.parameters())
            task.optimizer.step()
    assert sampler.report()["observed"] == 6


@pytest.mark.parametrize("batch_size", [2, 4])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_microbatch_is_credited_to_its_own_unit_whatever_is_left_over(batch_size, workers):
    def epochs(named):
        task = Task(n=22)
        sampler = cdgrab.Sampler(22, "pair; unit=4")
        for _ in range(4):
            accumulated = []
            for indices, x, y in task.loader(sampler, batch_size, num_workers=workers):
                accumulated += indices.tolist()
                torch.nn.functional.cross_entropy(task.model(x), y).backward()
                if len(accumulated) < 4 and 21 not in accumulated:
                    continue
                assert accumulated == list(range(accumulated[0], accumulated[-1] + 1)), "examples of one unit"
                if named:
                    rows = [p.grad.flatten() for p in task.model.parameters()]
                    sampler.step(torch.cat(rows).unsqueeze(0), indices=accumulated[:1])
                else:
                    sampler.observe_microbatch(task.model.parameters())
                task.optimizer.step()
                task.optimizer.zero_grad()
                accumulated = []
            assert sampler.report()["observed"] == 6
            yield sampler.next_order().tolist()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(epochs(named=False)) == list(epochs(named=True))


def test_units_that_nobody_observed_are_complained_of_and_a_dropped_short_one_is_not():
    def run(batch_size, **options):
        task = Task(n=22)
        sampler = cdgrab.Sampler(22, "pair; unit=4")
        for _ in range(2):
            for _, x, y in task.loader(sampler, batch_size, **options):
                torch.nn.functional.cross_entropy(task.model(x), y).backward()
                sampler.observe_microbatch(task.model.parameters())

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(4)
        run(4, drop_last=True)
    with pytest.warns(UserWarning, match="observe every unit"):
        run(8)
    with pytest.raises(cdgrab.UserError, match="batches of 6 and unit=4"):
        run(6)


def test_set_epoch_is_advisory():
    sampler = cdgrab.Sampler(8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler.set_epoch(0)
        sampler.set_epoch(1)
    with pytest.warns(UserWarning, match="changes nothing"):
        sampler.set_epoch(7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler.set_epoch(9)  # said once
    assert sampler.epoch == 0


def test_a_peek_costs_nothing_and_a_broken_off_epoch_counts():
    task = Task()
    sampler = cdgrab.Sampler(23)
    first = list(sampler)
    assert list(sampler) == first, "nothing was observed: another epoch, in the same order"
    assert sampler.epoch == 1
    sampler = cdgrab.Sampler(23)
    loader = task.loader(sampler)
    next(iter(loader))
    assert flat(task.epoch(sampler, loader)) == first

    for count, batch in enumerate(task.loader(sampler, num_workers=2)):
        task.step(sampler, batch)
        if count == 2:
            break
    with pytest.warns(UserWarning, match="not observed"):
        after = flat(task.epoch(sampler))
    assert sorted(after) == list(range(23))
    assert sampler.last_report()["observed"] == 12


def test_an_epoch_begun_ahead_of_its_feedback_is_diagnosed():
    def run(strict):
        task = Task()
        sampler = cdgrab.Sampler(23, strict=strict)
        batches = list(task.loader(sampler))
        task.step(sampler, batches[0])
        list(sampler)

    with pytest.warns(UserWarning, match="prefetches across epochs"):
        run(strict=False)
    with pytest.raises(cdgrab.UserError, match="prefetches across epochs"):
        run(strict=True)


def test_drop_last_is_quiet():
    task = Task()
    sampler = cdgrab.Sampler(23)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            task.epoch(sampler, task.loader(sampler, drop_last=True))
    assert sampler.last_report() == {"epoch": 1, "observed": 20, "not_finite": 0, "unpaired": 0, "unobserved": 3}


def test_an_old_iterator_is_refused():
    sampler = cdgrab.Sampler(8)
    old = iter(sampler)
    next(old)
    next(iter(sampler))
    with pytest.raises(cdgrab.UserError, match="newest"):
        next(old)


def test_samplers_pickle_and_copy():
    task = Task()
    sampler = cdgrab.Sampler(23, "mean", seed=4)
    task.epoch(sampler)
    for other in (pickle.loads(pickle.dumps(sampler)), copy.deepcopy(sampler)):
        assert other.next_order().tolist() == sampler.next_order().tolist()
        assert other.order == sampler.order
    with pytest.raises(cdgrab.UserError, match="state_dict"):
        pickle.dumps(cdgrab.Sampler(4, parameters=task.model))


def test_diagnostics():
    task = Task()
    sampler = cdgrab.Sampler(23, record_herding=True, record_norms=True, record_timings=True)
    for _ in range(2):
        task.epoch(sampler)
    bound = sampler.herding_bound()
    assert min(bound["next_l2"], bound["used_l2"], bound["next_linf"], bound["used_linf"]) > 0
    assert sampler.norms().isfinite().all()
    assert sampler.timings()["walk"] > 0
    assert cdgrab.Sampler(5).herding_bound() == {}


def test_sketches_and_greedy_orders_see_rows():
    for order in ("pair; sketch=gauss:16", "pair; sketch=kron:4", "pair; sketch=pca:4", "greedy"):
        task = Task()
        sampler = cdgrab.Sampler(23, order)
        epochs = [flat(task.epoch(sampler)) for _ in range(3)]
        assert all(sorted(epoch) == list(range(23)) for epoch in epochs)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: cdgrab.Sampler(5, "pairr"), "the nearest is `pair`"),
        (lambda: cdgrab.Sampler(-1), "0 or more"),
        (lambda: cdgrab.Sampler(5, initial_order=[0, 1, 2, 3, 3]), "initial_order"),
        (lambda: cdgrab.Sampler(5, reduction="max"), "'mean' and 'sum'"),
        (lambda: cdgrab.Sampler(5, pattern="*"), "pattern without parameters"),
        (lambda: cdgrab.Sampler(5, parameters=torch.nn.Linear(2, 2), pattern="w*t*x"), "matches none of 2"),
        (lambda: cdgrab.BatchSampler([1, 2], 2), "takes a cdgrab.Sampler"),
        (lambda: cdgrab.Sampler(5).observe(torch.ones(()), 3), "outstanding"),
        (lambda: cdgrab.Sampler(5).observe(torch.ones(())), "one of the two"),
        (lambda: cdgrab.gram(torch.ones(()), 3), "no graph"),
        (lambda: cdgrab.Sampler(5).load_state_dict({}), "version"),
    ],
)
def test_mistakes_are_explained(make, text):
    with pytest.raises(cdgrab.Error, match=text.replace("*", r"\*")):
        make()


def test_gram_leaves_everything_as_it_was():
    task = Task()
    loss = torch.nn.functional.cross_entropy(task.model(task.x), task.y)
    gram = cdgrab.gram(loss, 23)
    assert all(p.grad is None for p in task.model.parameters())
    rows = []
    for i in range(23):
        one = torch.nn.functional.cross_entropy(task.model(task.x[i : i + 1]), task.y[i : i + 1])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(one, list(task.model.parameters()))]))
    rows = torch.stack(rows)
    torch.testing.assert_close(gram, rows @ rows.T)
    torch.testing.assert_close(cdgrab.norms(loss, 23), rows.norm(dim=1))
    loss.backward()  # the graph is still there, and no hook of ours objects
    weights = cdgrab.GradientGeometry(parameters=task.model, pattern="*.weight")
    again = torch.nn.functional.cross_entropy(task.model(task.x), task.y)
    assert len(weights.compute(again, 23).parameters()) == 2


def test_the_module_explains_the_installation():
    out = subprocess.run([sys.executable, "-m", "cdgrab"], capture_output=True, text=True, check=True).stdout
    assert "torch" in out
    assert "works" in out


def test_another_torch_is_named(monkeypatch):
    code = (
        "import torch; torch.__version__ = '2.12.1'\n"
        "try:\n    import cdgrab\n"
        "except ImportError as error:\n    print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert f"built for torch {cdgrab.TORCH_VERSION}, but torch 2.12.1 is installed" in out


def test_a_patch_release_of_torch_is_taken():
    major, minor, _ = cdgrab.TORCH_VERSION.split(".")
    code = f"import torch; torch.__version__ = '{major}.{minor}.99+cpu'; import cdgrab"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_loader_takes_the_batch_sampler():
    task = Task()
    sampler = cdgrab.Sampler(23)
    loader = DataLoader(task.dataset, batch_sampler=cdgrab.BatchSampler(sampler, 4, drop_last=False), num_workers=2)
    assert sorted(flat(task.epoch(sampler, loader))) == list(range(23))
    assert len(loader) == 6


def test_torch_is_all_that_it_needs():
    """In a process in which nothing else that the tests install can be imported."""
    script = """
        import sys

        class Absent:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in sys.argv[1:]:
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        sys.meta_path.insert(0, Absent())
        import torch, cdgrab
        model, x, y = torch.nn.Linear(3, 2), torch.randn(8, 3), torch.randint(2, (8,))
        for make in cdgrab.Sampler, cdgrab.DistributedSampler:
            sampler = make(8)
            for _ in range(2):
                for batch in cdgrab.BatchSampler(sampler, 4) if make is cdgrab.Sampler else [list(sampler)]:
                    loss = torch.nn.functional.cross_entropy(model(x[batch]), y[batch])
                    sampler.observe(loss, len(batch))
                    loss.backward()
            other = make(8)
            other.load_state_dict(sampler.state_dict())
            assert sampler.report()["observed"] == 8 and sampler.epoch == 1, sampler.report()
        assert not set(sys.modules) & set(sys.argv[1:])
        for framework in "accelerate", "lightning", "transformers":
            try:
                __import__("cdgrab." + framework)
            except ModuleNotFoundError as error:
                assert error.name.partition(".")[0] == framework, error
            else:
                raise AssertionError(framework)
    """
    absent = ["accelerate", "hypothesis", "lightning", "numpy", "peft", "pytest", "torchdata", "transformers", "xxhash"]
    command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), *absent]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
