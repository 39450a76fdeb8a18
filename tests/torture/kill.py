#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills programs that save, at random moments and in the middle of writing, and goes on with what they left.

kill.py train CDGRAB SHIM             cdgrab train, one process
kill.py ranks CDGRAB SHIM MPIEXEC     the same on four ranks, of which a random one is killed
kill.py example EXAMPLE SHIM          examples/python/resume.py, with the Python that runs this

After every kill: the checkpoint is whole, no older than the last one that got its name, and at most one half file of
each kind lies beside it. A run that comes to its end has the weights and figures of one that was never stopped, and no
half file is left. --trials says how many faults are to hit.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

FAULTS = ("moment", "moment", "byte", "call", "full")


class Broken(Exception):
    """A promise that was not kept."""


def require(held: bool, said: object) -> None:
    if not held:
        raise Broken(said)


class Train:
    """cdgrab train; a checkpoint when it starts, after every EVERY-th step and at the end."""

    every = 3
    steps = 600
    settings = ("--examples", "160", "--batch", "8", "--epochs", "30", "--json", "--quiet")
    halves = (".cdgrab-0.tmp", ".cdgrab-metrics.tmp")
    removed_at = None
    killed = (-signal.SIGKILL,)

    def __init__(self, cdgrab: str) -> None:
        self.cdgrab = cdgrab

    def command(self, folder: Path) -> list[str]:
        words = ["--resume", "run", "--json", "--quiet"] if self.checkpoint(folder).exists() else self.fresh(folder)
        return [self.cdgrab, "train", *words, "--checkpoint-every", str(self.every)]

    def fresh(self, folder: Path) -> list[str]:
        shutil.rmtree(folder / "run", ignore_errors=True)  # a run that has saved nothing may have written figures
        return [*self.settings, "--out", "run"]

    def checkpoint(self, folder: Path) -> Path:
        return folder / "run" / "checkpoint.safetensors"

    def beside(self, folder: Path) -> set[str]:
        expected = {"checkpoint.safetensors", "metrics.jsonl"}
        return {path.name for path in (folder / "run").glob("*")} - expected

    def step(self, folder: Path) -> int:
        """Of the checkpoint, as the program's own reader sees it."""
        read = subprocess.run(
            [self.cdgrab, "inspect", self.checkpoint(folder)], capture_output=True, text=True, timeout=60
        )
        require(read.returncode == 0, f"the checkpoint cannot be read: {read.stderr}")
        return safetensors_integer(self.checkpoint(folder), "steps")

    def saved(self, before: int | None, names: int) -> tuple[int, int] | None:
        """The step of the last checkpoint, at least and at most, when so many have got their name in a run that began
        there. One that begins at the beginning may save that twice: before and after it is evaluated."""
        if names == 0:
            return None if before is None else (before, before)
        begin = before or 0
        first, later = (begin // self.every + max(names - k, 0) for k in (2, 1))
        least = max(begin, (later if begin else first) * self.every)
        return min(least, self.steps), min(max(begin, later * self.every), self.steps)

    def end(self, folder: Path, out: str) -> object:
        """What must be the same whatever happened on the way."""
        found = re.findall(r'"weights_hash":"([0-9a-f]+)"', out)
        require(len(found) == 1, f"no hash of weights in: {out[-500:]}")
        figures = (folder / "run" / "metrics.jsonl").read_text().splitlines()
        return found[0], [re.sub(r',"seconds":.*', "", line) for line in figures]

    def victim(self, process: subprocess.Popen, dice: random.Random) -> int | None:
        return process.pid

    def remove(self, folder: Path) -> None:
        shutil.rmtree(folder / "run")


class Ranks(Train):
    """The same on four ranks. The launcher lives, and ends the other three."""

    steps = 150
    settings = (*Train.settings, "--order", "cd-pair", "--workers", "4")
    killed = (128 + signal.SIGKILL,)

    def __init__(self, cdgrab: str, mpiexec: str) -> None:
        super().__init__(cdgrab)
        self.mpiexec = mpiexec

    def command(self, folder: Path) -> list[str]:
        return [self.mpiexec, "-n", "4", *super().command(folder)]

    def victim(self, process: subprocess.Popen, dice: random.Random) -> int | None:
        listed = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout
        ranks = [pid for pid in map(int, listed.split()) if b"--checkpoint-every" in command_line(pid)]
        return dice.choice(ranks) if ranks else None


class Example:
    """examples/python/resume.py; a checkpoint after every EVERY-th step, removed at the end."""

    every = 3
    halves = ("checkpoint.pt.part",)
    steps = 90
    removed_at = (steps, steps)
    killed = (-signal.SIGKILL,)

    def __init__(self, example: str) -> None:
        self.example = Path(example)

    def command(self, folder: Path) -> list[str]:
        words = ["--examples", "101", "--batch", "8", "--steps", str(self.steps), "--workers", "1"]
        return [sys.executable, str(self.example), *words, "--every", str(self.every), "--checkpoint", "checkpoint.pt"]

    def checkpoint(self, folder: Path) -> Path:
        return folder / "checkpoint.pt"

    def beside(self, folder: Path) -> set[str]:
        return {path.name for path in folder.glob("checkpoint.pt*")} - {"checkpoint.pt"}

    def step(self, folder: Path) -> int:
        import torch  # the other subjects need none

        try:
            return torch.load(self.checkpoint(folder), weights_only=True)["step"]
        except Exception as error:
            raise Broken(f"the checkpoint cannot be read: {error}") from None

    def saved(self, before: int | None, names: int) -> tuple[int, int] | None:
        if names == 0:
            return None if before is None else (before, before)
        step = ((before or 0) // self.every + names) * self.every
        return step, step

    def end(self, folder: Path, out: str) -> object:
        found = re.findall(r"sha256 +([0-9a-f]{16})$", out, re.MULTILINE)
        require(len(found) == 2, f"no hashes in: {out[-500:]}")
        return found

    def victim(self, process: subprocess.Popen, dice: random.Random) -> int | None:
        return process.pid

    def remove(self, folder: Path) -> None:
        for path in folder.glob("checkpoint.pt*"):
            path.unlink()


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def safetensors_integer(path: Path, key: str) -> int:
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    found = re.search(rf'"{key}":{{[^}}]*"data_offsets":\[(\d+),', data[8 : 8 + length].decode())
    require(found is not None, f"{path} has no {key}")
    return struct.unpack_from("<q", data, 8 + length + int(found[1]))[0]


@dataclass
class Outcome:
    code: int
    out: str
    err: str
    names: int  # how often the checkpoint got its name
    bytes: int  # written beside, as far as a name followed
    calls: int
    seconds: float


class Torturer:
    def __init__(self, subject: Train | Example, shim: str, dice: random.Random, folder: Path) -> None:
        self.subject, self.shim, self.dice, self.folder = subject, shim, dice, folder
        self.whole: Outcome | None = None
        self.end: object = None
        self.counts: Counter[str] = Counter()

    def start(self, fault: str | None) -> Outcome:
        """One process, killed at a random moment if the fault is `moment`."""
        log = self.folder / "names"
        log.unlink(missing_ok=True)
        env = {**os.environ, "LD_PRELOAD": self.shim, "CDGRAB_FAULT_LOG": str(log), "OMP_NUM_THREADS": "1", **MPI}
        if fault and fault != "moment":
            env["CDGRAB_FAULT"] = fault
        begin = time.monotonic()
        with (self.folder / "out").open("w+") as out, (self.folder / "err").open("w+") as err:
            process = subprocess.Popen(
                self.subject.command(self.folder),
                env=env, cwd=self.folder, stdout=out, stderr=err, start_new_session=True,
            )  # fmt: skip
            try:
                if fault == "moment":
                    self.kill_at_a_moment(process)
                process.wait(timeout=300)
            finally:
                end_group(process.pid)
        lines = [line.split() for line in log.read_text().splitlines()] if log.exists() else []
        return Outcome(
            process.returncode,
            (self.folder / "out").read_text(),
            (self.folder / "err").read_text(),
            names=sum(name == self.subject.checkpoint(self.folder).name for name, *_ in lines),
            bytes=int(lines[-1][1]) if lines else 0,
            calls=int(lines[-1][2]) if lines else 0,
            seconds=time.monotonic() - begin,
        )

    def kill_at_a_moment(self, process: subprocess.Popen) -> None:
        """Mostly while it trains: to load torch takes as long, and there is nothing to break."""
        log = self.folder / "names"
        if self.dice.random() < 0.8:
            while process.poll() is None and not log.exists():
                time.sleep(0.01)
        time.sleep(self.dice.random() * self.whole.seconds * 0.5)
        victim = self.subject.victim(process, self.dice)
        if process.poll() is None and victim is not None:
            os.kill(victim, signal.SIGKILL)

    def draw(self) -> str:
        kind = self.dice.choice(FAULTS)
        if kind == "moment":
            return kind
        most = self.whole.calls if kind == "call" else self.whole.bytes
        # What is left of a run is shorter than all of it: early places are tried more often.
        return f"{kind}:{int(most * self.dice.random() ** 2)}"

    def run_whole(self) -> None:
        self.whole = self.start(None)
        require(self.whole.code == 0, f"the whole run: {self.whole.err}")
        self.end = self.subject.end(self.folder, self.whole.out)
        self.check_tidy()
        self.subject.remove(self.folder)

    def trial(self) -> bool:
        """One fault. True if it hit; a run that came to its end before is looked at, and another one begun."""
        path = self.subject.checkpoint(self.folder)
        before = self.subject.step(self.folder) if path.exists() else None
        fault = self.draw()
        outcome = self.start(fault)
        kind = fault.split(":")[0]
        try:
            if outcome.code == 0:
                self.check_end(outcome)
                return False
            self.check_stopped(kind, outcome)
            self.check_left(before, outcome)
        except Broken as error:
            raise Broken(f"{fault}, from step {before}: {error}\n{outcome.err[-2000:]}") from None
        self.counts[kind] += 1
        return True

    def check_stopped(self, kind: str, outcome: Outcome) -> None:
        if kind != "full":
            require(outcome.code in self.subject.killed, f"not killed, but ended with {outcome.code}")
            return
        require(outcome.code > 0, f"no space left ends it with {outcome.code}")
        require(outcome.err != "", "no space left, and nothing said")

    def check_left(self, before: int | None, outcome: Outcome) -> None:
        path = self.subject.checkpoint(self.folder)
        saved = self.subject.saved(before, outcome.names)
        if path.exists():
            step = self.subject.step(self.folder)
            require(saved is None or step >= saved[0], f"the checkpoint is of step {step}, and {saved} was saved")
            # Killed between the name and its line in the log.
            require(step <= self.subject.saved(before, outcome.names + 1)[1], f"step {step} was never saved")
        else:
            require(saved in (None, self.subject.removed_at), f"no checkpoint, and that of step {saved} was there")
        beside = self.subject.beside(self.folder)
        require(beside <= set(self.subject.halves), f"these lie beside: {sorted(beside)}")

    def check_end(self, outcome: Outcome) -> None:
        require(self.subject.end(self.folder, outcome.out) == self.end, f"another end: {outcome.out[-500:]}")
        self.check_tidy()
        self.counts["ends"] += 1
        self.subject.remove(self.folder)

    def check_tidy(self) -> None:
        require(not self.subject.beside(self.folder), f"at the end lie beside: {self.subject.beside(self.folder)}")

    def finish(self) -> None:
        outcome = self.start(None)
        require(outcome.code == 0, f"it does not go on: {outcome.err}")
        self.check_end(outcome)


MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
}


def end_group(pid: int) -> None:
    """Loader workers of a killed process, and what a launcher has left: the session that was started for it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("subject", choices=("train", "ranks", "example"))
    arguments.add_argument("words", nargs="+", metavar="PATH")
    arguments.add_argument("--trials", type=int, default=5)
    arguments.add_argument("--seed", type=int, default=1)
    args = arguments.parse_args()
    program, shim, *rest = (path if os.sep not in path else str(Path(path).absolute()) for path in args.words)
    subject = {"train": Train, "ranks": Ranks, "example": Example}[args.subject](program, *rest)
    with tempfile.TemporaryDirectory(prefix="cdgrab_kill_") as name:
        torturer = Torturer(subject, shim, random.Random(args.seed), Path(name))
        try:
            torturer.run_whole()
            hits = 0
            while hits < args.trials:
                hit = torturer.trial()
                hits += hit
                if hit and hits % 20 == 0:
                    print(f"{args.subject}: {hits} of {args.trials}, {dict(torturer.counts)}", flush=True)
            torturer.finish()
        except Broken as error:
            sys.exit(f"{args.subject}, seed {args.seed}, after {dict(torturer.counts)}: {error}")
    print(f"{args.subject}: {hits} faults, 0 failures; {dict(sorted(torturer.counts.items()))}")


if __name__ == "__main__":
    main()
