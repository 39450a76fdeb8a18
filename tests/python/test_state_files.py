# SPDX-License-Identifier: Apache-2.0
"""State files are data: written by hand from docs/format.md they load, foreign ones are refused by the field's name.

CDGRAB_GOLDEN=FOLDER writes the adapter's files of tests/golden anew, and prints their orders.
"""

import json
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import xxhash

import cdgrab

GOLDEN = Path(__file__).parent.parent / "golden"

# -- the document, and nothing of ours -----------------------------------------------------------------------------

BLANK = "0" * 16
FORMATS = {"U8": "B", "U16": "H", "U32": "I", "I64": "q", "F32": "f", "F64": "d"}


def scalar(value):
    return ("I64", [], struct.pack("<q", value))


def array(dtype, values):
    return (dtype, [len(values)], struct.pack(f"<{len(values)}{FORMATS[dtype]}", *values))


def file_of(texts, tensors, version="1"):
    """Length, header, data; the checksum is that of the file with zeros in its place."""
    metadata = {"format": "cdgrab.state", "version": version, "checksum": BLANK}
    metadata.update({f"text:{key}": value for key, value in texts.items()})
    header, data = {"__metadata__": metadata}, b""
    for key, (dtype, shape, content) in tensors.items():
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file = struct.pack("<Q", len(text)) + text + data
    checksum = xxhash.xxh3_64_hexdigest(file)
    return file.replace(f'"checksum":"{BLANK}"'.encode(), f'"checksum":"{checksum}"'.encode())


def a_pair_sampler():
    """Five examples, in the third epoch: two were observed and make a pair, one more was handed out."""
    texts = {"spec": "pair"}
    tensors = {
        "examples": scalar(5),
        "seed": scalar(7),
        "epoch": scalar(2),
        "begun": scalar(1),
        "handed_out": scalar(3),
        "observed": scalar(2),
        "order.current": array("U32", [4, 2, 0, 1, 3]),
        "codes": array("U16", [2, 0, 65535, 65535, 65535]),
        "balancer.seen": scalar(2),
        "balancer.waiting": array("I64", [-1]),
    }
    return texts, tensors


@pytest.fixture
def load(tmp_path):
    def load(content, sampler=None):
        path = tmp_path / "hand.state"
        path.write_bytes(content)
        sampler = sampler or cdgrab.Sampler(5, "pair")
        sampler.load(path)
        return sampler

    return load


def test_a_file_written_by_hand_from_the_document_goes_on(load):
    sampler = load(file_of(*a_pair_sampler()))
    assert sampler.epoch == 2
    assert sampler.current_order().tolist() == [4, 2, 0, 1, 3]
    assert list(sampler) == [0, 1, 3]  # what was handed out and not observed comes again
    assert sampler.next_order().tolist() == [2, 0, 1, 3, 4]  # +1 to the front, -1 to the back, the rest between


def changed(**changes):
    texts, tensors = a_pair_sampler()
    for key, value in changes.items():
        name = key.replace("_", ".", 1) if key.startswith(("order", "balancer")) else key
        del tensors[name]
        if value is not None:
            tensors[name] = value
    return file_of(texts, tensors)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("version", file_of(*a_pair_sampler(), version="2")),
        ("spec", file_of({"spec": "mean"}, a_pair_sampler()[1])),
        ("examples", changed(examples=scalar(6))),
        ("handed_out", changed(handed_out=scalar(6))),
        ("handed_out", changed(handed_out=scalar(-1))),
        ("epoch", changed(epoch=scalar(-1))),
        ("seed", changed(seed=("F64", [], struct.pack("<d", 7)))),
        ("order.current", changed(order_current=array("U32", [4, 2, 0, 1, 1]))),
        ("order.current", changed(order_current=array("U32", [4, 2, 0, 1]))),
        ("order.current", changed(order_current=array("I64", [4, 2, 0, 1, 3]))),
        ("codes", changed(codes=array("U16", [3, 0, 65535, 65535, 65535]))),
        ("codes", changed(codes=None)),
        ("balancer.seen", changed(balancer_seen=scalar(2**62))),
        ("balancer.waiting", changed(balancer_waiting=array("I64", [5]))),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(load, name, content):
    sampler = cdgrab.Sampler(5, "pair", seed=1)
    before = list(sampler)
    with pytest.raises(cdgrab.StateMismatch, match=name.replace(".", r"\.")):
        load(content, sampler)
    assert list(sampler) == before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04K\x01.",
        pickle.dumps({"spec": "pair"}),
        b"PK\x03\x04" + bytes(60),
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 2**60) + b"{}",
        file_of(*a_pair_sampler())[:-1],
        file_of(*a_pair_sampler()) + b"\0",
    ],
)
def test_a_foreign_or_cut_file_is_no_state(load, content):
    with pytest.raises(cdgrab.FileError, match="not a cdgrab state, or a damaged one"):
        load(content)


def test_a_claim_of_much_takes_no_memory(tmp_path):
    """In a process that may have 64 MB more than it has: a length, a shape and a vector that would be terabytes."""
    claims = {
        "length": struct.pack("<Q", 2**40) + b"{}",
        "shape": file_of({}, {"a": ("F64", [2**40, 2**10], b"")}),
        "register": changed_for_geometry(2**40),
        "record": file_of({"spec": "greedy"}, {**a_pair_sampler()[1], "record.dim": scalar(2**40)}),
    }
    for name, content in claims.items():
        (tmp_path / name).write_bytes(content)
    program = """if True:
        import resource, sys, cdgrab
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (64 << 20), resource.RLIM_INFINITY))
        for name in sys.argv[2:]:
            order = {"record": "greedy", "register": "cd-pair"}.get(name, "pair")
            sampler = cdgrab.DistributedSampler(5, order=order) if order == "cd-pair" else cdgrab.Sampler(5, order)
            try:
                sampler.load(f"{sys.argv[1]}/{name}")
            except cdgrab.FileError as error:
                print(name, "refused")
        """
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path), *claims],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.splitlines() == [f"{name} refused" for name in claims], done.stderr


def changed_for_geometry(dim):
    """Of one worker, with vectors of so many numbers, which are not there."""
    texts, tensors = a_pair_sampler()
    codes, order = tensors.pop("codes"), tensors.pop("order.current")
    for key in ("balancer.seen", "balancer.waiting", "observed", "handed_out"):
        tensors.pop(key)
    tensors |= {"workers": scalar(1), "step": scalar(0), "worker.0.codes": codes, "worker.0.order.current": order}
    tensors |= {"worker.0.handed_out": scalar(3), "worker.0.observed": scalar(2), "worker.0.waiting": scalar(-1)}
    tensors |= {"lanes.turn": scalar(0), "lanes.to_come": array("I64", [3]), "lanes.carries": array("I64", [-1])}
    tensors |= {"lanes.pairs": ("I64", [0, 3], b""), "carries.sliced": scalar(0)}
    tensors |= {"input_dim": scalar(dim), "geometry.dim": scalar(dim), "accumulator": array("F32", [])}
    return file_of({**texts, "spec": "cd-pair", "input_dtype": "F32", "geometry.dtype": "F32"}, tensors)


# -- files of the adapter, of every version --------------------------------------------------------------------------

COUNT = 11
ORDERS = {
    "torch-pair.1.state": [[10, 7, 9, 0, 2, 3, 1, 4, 5, 6, 8], [10, 9, 3, 1, 6, 8, 5, 4, 2, 0, 7]],
    "torch-mean.1.state": [[10, 2, 7, 4, 1, 3, 6, 5, 9, 0, 8], [10, 2, 4, 6, 0, 8, 9, 5, 3, 1, 7]],
    "torch-cd-pair.1.state": [[10, 7, 9, 0, 2, 3, 1, 4, 5, 6, 8], [10, 9, 3, 1, 6, 8, 5, 4, 2, 0, 7]],
    "torch-id-pair.1.state": [[10, 7, 9, 0, 2, 3, 1, 4, 5, 6, 8], [10, 9, 3, 1, 6, 8, 5, 4, 2, 0, 7]],
}


def make(file):
    order = file.removeprefix("torch-").split(".")[0]
    if order.endswith("d-pair"):
        return cdgrab.DistributedSampler(COUNT, order=order, seed=5, reduction="sum")
    return cdgrab.Sampler(COUNT, "mean; centring=none" if order == "mean" else order, seed=5, reduction="sum")


def train(model, sampler, batches):
    """Gradients are the examples themselves, whole numbers: everything is exact."""
    for count, batch in enumerate(torch.utils.data.BatchSampler(sampler, 3, False), start=1):
        loss = model(torch.tensor([[float(i * i % 7 - 3), float(i % 3 - 1), float(i % 5)] for i in batch])).sum()
        sampler.observe(loss, len(batch))
        loss.backward()
        if count == batches:
            return


@pytest.mark.parametrize("file", ORDERS)
def test_a_golden_file_of_the_adapter_goes_on_to_the_same_orders(file):
    folder = os.environ.get("CDGRAB_GOLDEN")
    model = torch.nn.Linear(3, 1)
    if folder:
        sampler = make(file)
        train(model, sampler, 99)
        train(model, sampler, 2)
        sampler.save(Path(folder) / file)
    sampler = make(file)
    sampler.load(Path(folder or GOLDEN) / file)
    assert sampler.epoch == 1
    train(model, sampler, 99)
    orders = [list(sampler)]
    train(model, sampler, 99)
    orders.append(list(sampler))
    if folder:
        print(f'    "{file}": {orders},')
        return
    assert orders == ORDERS[file]
    assert all(sorted(order) == list(range(COUNT)) for order in orders)
