# SPDX-License-Identifier: Apache-2.0
"""Time and memory of training loops: in processes of their own, forked from one that has only imported things."""

from __future__ import annotations

import ctypes
import gc
import math
import multiprocessing
import re
import resource
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

T = TypeVar("T")
MEGABYTE = 1 << 20


class ChildFailed(RuntimeError):
    """It was killed, or took too long."""


def in_child(function: Callable[..., T], *args: Any, seconds: float | None = None) -> T:
    """What the function returns or raises there; ChildFailed where it does neither within that CPU time."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=answer, args=(sender, seconds, function, args), daemon=True)
    child.start()
    sender.close()
    try:
        returned, value = receiver.recv()
    except EOFError:
        child.join()
        slow = child.exitcode == -signal.SIGXCPU
        raise ChildFailed(f"more than {seconds:.0f} seconds" if slow else "the process was killed") from None
    finally:
        child.kill()
        child.join()
    if not returned:
        raise value
    return value  # type: ignore[no-any-return]


def answer(sender: Any, seconds: float | None, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if seconds is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), resource.RLIM_INFINITY))
    try:
        sender.send((True, function(*args)))
    except Exception as error:
        try:
            sender.send((False, error))
        except Exception:  # one that cannot be pickled
            sender.send((False, RuntimeError(f"{type(error).__name__}: {error}")))


def quietly() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")


def first_sentence(error: Exception) -> str:
    text = re.split(r"(?<=[.;])(?<!e\.g\.)\s|\n", str(error).strip())[0]
    return f"{type(error).__name__}: {text.rstrip('.;')}"


def cpu_seconds_of(run: Callable[[], object]) -> float:
    """Of all threads of this process."""
    start = time.process_time()
    run()
    return time.process_time() - start


def limit_memory(megabytes: float) -> None:
    """What would take more, on top of what there is now, is refused by the system."""
    status = Path("/proc/self/status").read_text()
    limit = int(status.split("VmData:")[1].split()[0]) * 1024 + int(megabytes * MEGABYTE)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def give_memory_back_at_once() -> None:
    """glibc's mallopt: M_TRIM_THRESHOLD and M_MMAP_THRESHOLD, so that what is freed does not hide what is needed."""
    libc = ctypes.CDLL(None)
    libc.mallopt(-1, 0)
    libc.mallopt(-3, 1 << 15)


def resident(field: str) -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{field}:")[1].split()[0]) / 1024


def peak(make_step: Callable[[int], Callable[[], object]], batch: int, steps: int = 3) -> float:
    """Megabytes of a loop that is past its first step, model included, and past what a process sets up once."""
    quietly()
    give_memory_back_at_once()
    small = make_step(2)
    for _ in range(2):
        small()
    del small
    gc.collect()
    before = resident("VmRSS")
    step = make_step(batch)
    step()
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    for _ in range(steps):
        step()
    return resident("VmHWM") - before
