# SPDX-License-Identifier: Apache-2.0
"""What ordering costs, beside what one would use in its place (docs/benchmark.md).

python -m bench.python.cost [--quick] [--only mlp,lenet] [--batch 16,64] [--contenders exact,fused] [--seconds 3]

Prints tables, and writes results.json and page.html into --out. What is in results.json is not measured again.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

# Before torch is imported: threads that wait would count as work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from . import programs
from .cells import measure_row, parameter_count
from .contenders import Contender, by_spec, ours, peers
from .growth import SERIES, points_of, simulated_points
from .models import MODELS
from .page import page
from .results import Results
from .tables import all_tables

PARTS = ("models", "growth", "programs")
QUICK_MODELS = "logistic,mlp,lenet,lstm,gpt"
GROWING = ("exact", "fused", "pca", "kron")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help=f"some minutes: {QUICK_MODELS}, B = 16 and 64, fewer rounds"
    )
    parser.add_argument("--only", metavar="MODELS", help=", ".join(entry.name for entry in MODELS))
    parser.add_argument("--batch", metavar="SIZES", help="16,64,256 unless told otherwise")
    parser.add_argument("--contenders", metavar="NAMES", help="as the heads of the table")
    parser.add_argument("--spec", action="append", default=[], metavar="ORDER", help="one more order of cdgrab")
    parser.add_argument("--rank", type=int, default=8, help="of the sketches")
    parser.add_argument("--seconds", type=float, help="of timing for a contender on a model")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument("--out", type=Path, help="build/bench unless told otherwise, build/bench/quick with --quick")
    parser.add_argument("--programs", type=Path, default=Path("build/release/bin"), help="where bench_sorter is")
    parser.add_argument("--json", action="store_true", help="results.json in place of the tables")
    parser.add_argument("--markdown", action="store_true", help="the tables as docs/benchmark.md has them")
    parser.add_argument("--show", action="store_true", help="measure nothing, show what there is")
    args = parser.parse_args()
    args.out = args.out or Path("build/bench/quick" if args.quick else "build/bench")
    return args


def chosen(flag: str, asked: str | None, known: list[str]) -> list[str]:
    if asked is None:
        return known
    names = [name.strip() for name in asked.split(",")]
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"{flag}: unknown {', '.join(unknown)}; allowed: {', '.join(known)}")
    return names


def sizes(text: str) -> list[int]:
    numbers = [int(word) if word.strip().isdigit() else 0 for word in text.split(",")]
    if any(number < 2 or number % 2 for number in numbers):
        sys.exit(f"--batch: {text!r}; even numbers of 2 or more are allowed, since pairs are made, separated by commas")
    return numbers


def measure_models(
    results: Results, names: list[str], batches: list[int], who: list[Contender], seconds: float
) -> None:
    for entry in (entry for entry in MODELS if entry.name in names):
        if entry.name not in results.entries["models"]:
            results.add("models", entry.name, parameter_count(entry))
        for batch in batches:
            missing = [one for one in who if results.lacks(entry.name, batch, one.name, seconds)]
            if missing:
                print(f"{entry.name}, B = {batch}: {', '.join(one.name for one in missing)}", file=sys.stderr)
                results.add_row(entry.name, batch, measure_row(entry, batch, missing, seconds))


def measure_growth(results: Results, who: list[Contender], seconds: float, largest: int) -> None:
    growing = [one for one in who if one.ours and one.name.split(":")[0] in GROWING]
    for series in SERIES if growing else []:
        known = results.entries["growth"].get(series.name, {})
        missing = [one for one in growing if one.name not in known]
        if missing:
            print(f"growth with {series.name}", file=sys.stderr)
            results.add("growth", series.name, {**known, **points_of(series, missing, seconds)})
    known_largest = max((point["at"] for point in results.entries["growth"].get("n", [])), default=0)
    if known_largest < largest:
        print("growth with n", file=sys.stderr)
        results.add("growth", "n", simulated_points(largest))


def run_programs(results: Results, folder: Path, quick: bool) -> None:
    known = results.entries["programs"]
    if "sorter" not in known:
        print("bench_sorter", file=sys.stderr)
        results.add("programs", "sorter", programs.sorter(folder, quick))
    for name in programs.PRINTING if not quick else ():
        if name not in known:
            print(f"bench_{name}", file=sys.stderr)
            results.add("programs", name, programs.output_of(folder, name))


def main() -> None:
    args = arguments()
    everyone = [*ours(args.rank), *(by_spec(spec, spec) for spec in args.spec), *peers()]
    names = chosen("--contenders", args.contenders, [contender.name for contender in everyone])
    contenders = [contender for contender in everyone if contender.name in names]
    models = chosen("--only", args.only or (QUICK_MODELS if args.quick else None), [entry.name for entry in MODELS])
    parts = [] if args.show else chosen("--parts", args.parts, list(PARTS))
    batches = sizes(args.batch or ("16,64" if args.quick else "16,64,256"))
    seconds = args.seconds if args.seconds is not None else (0.5 if args.quick else 4.0)

    results = Results(args.out / "results.json")
    if "models" in parts:
        measure_models(results, models, batches, contenders, seconds)
    if "growth" in parts:
        measure_growth(results, contenders, seconds, 1_000_000 if args.quick else 10_000_000)
    if "programs" in parts:
        run_programs(results, args.programs, args.quick)
    results.save()
    command = "python -m bench.python.cost " + shlex.join(sys.argv[1:])
    (args.out / "page.html").write_text(page(results, contenders, command))
    if args.json:
        print(results.path.read_text(), end="")
    else:
        for table in all_tables(results, contenders):
            print(table.markdown() if args.markdown else table.plain())
    print(f"{results.path}  {args.out / 'page.html'}", file=sys.stderr)


if __name__ == "__main__":
    main()
