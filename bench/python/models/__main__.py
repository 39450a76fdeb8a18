# SPDX-License-Identifier: Apache-2.0
"""What observe() makes of some forty models, beside the other tools for per-example gradients (docs/models.md).

python -m bench.python.models [--only lenet,gpt2] [--fast] [--json] [--no-peers]

One thread. Peers that are not installed are left out: bench/python/requirements-peers.txt.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys

# Before torch is imported: threads that wait would count as work.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from .case import Entry
from .catalogue import CATALOGUE
from .contenders import installed_peers
from .measure import measure
from .table import markdown


def chosen(only: str | None) -> list[Entry]:
    if only is None:
        return CATALOGUE
    names = only.split(",")
    unknown = set(names) - {entry.name for entry in CATALOGUE}
    if unknown:
        allowed = ", ".join(entry.name for entry in CATALOGUE)
        sys.exit(f"--only: unknown {', '.join(sorted(unknown))}; allowed: {allowed}")
    return [entry for entry in CATALOGUE if entry.name in names]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", metavar="NAMES", help="separated by commas")
    arguments.add_argument("--fast", action="store_true", help="exactness only: no times, no memory, no peers")
    arguments.add_argument("--no-peers", action="store_true", help="cdgrab alone")
    arguments.add_argument("--json", action="store_true", help="all figures, instead of the table")
    args = arguments.parse_args()

    peers = [] if args.fast or args.no_peers else installed_peers()
    rows = []
    for entry in chosen(args.only):
        rows.append(measure(entry, ["cdgrab", *peers], args.fast))
        if not args.fast:
            print(entry.name, file=sys.stderr)
    print(json.dumps([dataclasses.asdict(row) for row in rows], indent=1) if args.json else markdown(rows, peers))


if __name__ == "__main__":
    main()
