#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the instructions of the sorter and of observe(loss) with those on record (instructions.json).

instructions.py [--write] BUILD [sorter|observe ...]

Counts are valgrind's: no clock, so no noise of the machine. Counted are the instructions of our own objects (those
under BUILD; the code of torch and MKL depends on the processor) and, by name, the operators of torch that they call, so
that a matrix product more is seen too. --write puts what is counted on record.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

RECORD = Path(__file__).with_name("instructions.json")
PROGRAMS = ("sorter", "observe")
# One compiler counts the same to the instruction, run by run, rebuilt, and with several sources compiled as one; -O2 in
# place of -O3 moves the sorter by 13 to 129%, pairs taken one by one in place of two by 9%. So this is room for a patch
# release of the compiler that arranges a loop otherwise, and for nothing else; another major release is not compared.
MARGIN = 0.02
SKIPPED = 77
OPERATOR = re.compile(r"at::_ops::(\w+)::call\b")

Counts = dict[str, int]  # "instructions", and "operator X" for each


class CallgrindFile:
    """The lines of one dump, with names in place of the numbers that stand for them when they come again."""

    def __init__(self, path: Path) -> None:
        self.lines = path.read_text(errors="replace").splitlines()
        self.names: dict[tuple[str, str], str] = {}

    def section(self) -> str | None:
        """What the program called it; None for the dump at the end."""
        marked = [line for line in self.lines if line.startswith("desc: Trigger: Client Request: ")]
        return marked[0].split(": ")[-1] if marked else None

    def name(self, kind: str, text: str) -> str:
        number, _, name = text.partition(" ")
        if name:
            self.names[kind, number] = name
        return self.names[kind, number]

    def counts(self, folder: Path) -> Counts:
        """Of objects under `folder`."""
        found: Counter[str] = Counter()
        here = called = ""
        lines = iter(self.lines)
        for line in lines:
            key, _, value = line.partition("=")
            if key == "ob":
                here = self.name("ob", value)
            elif key == "cob":
                self.name("ob", value)
            elif key == "fn":
                self.name("fn", value)
            elif key == "cfn":
                called = self.name("fn", value)
            elif key == "calls":
                next(lines)  # what the callee took
                if here.startswith(f"{folder}/"):
                    found.update(operator_calls(called, int(value.split()[0])))
            elif line[:1] in "+-*0123456789" and line and here.startswith(f"{folder}/"):
                found["instructions"] += int(line.split()[1])
        return dict(found)


def operator_calls(function: str, calls: int) -> Counts:
    operator = OPERATOR.search(function)
    return {f"operator {operator[1]}": calls} if operator else {}


def count(build: Path, program: str) -> tuple[str, dict[str, Counts]]:
    """The compiler, and the counts of each section."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={out}"]
        command.append(str(build / "bin" / f"cost_{program}"))
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        run = subprocess.run(command, capture_output=True, text=True, env=environment)
        if run.returncode != 0:
            sys.exit(f"{' '.join(command)} failed:\n{run.stderr}")
        files = [CallgrindFile(path) for path in sorted(Path(folder).iterdir())]
        sections = {name: file.counts(build) for file in files if (name := file.section())}
    return run.stdout.removeprefix("compiler ").strip(), sections


def growth(name: str, recorded: Counts, found: Counts) -> Iterator[str]:
    before, now = recorded["instructions"], found["instructions"]
    if abs(now / before - 1) > MARGIN:
        yield f"{name}: {now:,} instructions, {before:,} on record: {100 * (now / before - 1):+.1f}%"
    for key in sorted((recorded.keys() | found.keys()) - {"instructions"}):
        if recorded.get(key, 0) != found.get(key, 0):
            yield f"{name}: torch's {key} is called {found.get(key, 0)} times, {recorded.get(key, 0)} on record"


def processor_is_the_recorded_one() -> bool:
    """Where there is no AVX2 the kernels are others; valgrind shows no more than that."""
    return " avx2 " in Path("/proc/cpuinfo").read_text()


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--write", action="store_true", help="put what is counted on record")
    arguments.add_argument("build", type=Path)
    arguments.add_argument("programs", nargs="*", default=PROGRAMS, metavar="sorter|observe")
    args = arguments.parse_args()
    if not processor_is_the_recorded_one():
        print("skipped: counts are of AVX2, which this processor has not")
        return SKIPPED

    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"compiler": "", "counts": {}}
    complaints: list[str] = []
    for program in args.programs:
        compiler, sections = count(args.build.resolve(), program)
        if args.write:
            record["compiler"] = compiler
            record["counts"].update({f"{program}: {name}": counts for name, counts in sections.items()})
        elif compiler.split(".")[0] != record["compiler"].split(".")[0]:
            print(f"skipped: counts on record are those of {record['compiler']}, this is {compiler}")
            return SKIPPED
        else:
            for name, counts in sections.items():
                complaints += growth(f"{program}: {name}", record["counts"][f"{program}: {name}"], counts)
    if args.write:
        RECORD.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    for line in complaints:
        print(line, file=sys.stderr)
    if complaints:
        print(
            f"More than {100 * MARGIN:.0f}% either way, or another operator. If it is meant, write the counts anew and "
            f"say why in the commit:\n  python3 tests/cost/instructions.py --write build/release",
            file=sys.stderr,
        )
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
