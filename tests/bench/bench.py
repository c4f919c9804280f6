"""What tensorcx costs, beside the limits of the machine and beside others, in the same run.

    make bench            all figures, and writes them into docs/benchmarks.md
    make bench QUICK=1    four minutes, only prints

Limits: RT, a round trip over a bare Unix socket between two Python processes; memcpy, a warm
np.copyto of the same size. Every contender runs in processes of its own, on one core or on two.
"""

import argparse
import sys
import time
from pathlib import Path

from figures_channels import figures_channels
from figures_exchange import figures_exchange
from figures_memory import figures_memory
from figures_names import figures_names
from figures_torch import figures_torch
from harness import FULL, QUICK, STORES, TINY, Run, choose_cores, versions
from report import BENCH, machine, write

GROUPS = {
    "names": figures_names,
    "memory": figures_memory,
    "exchange": figures_exchange,
    "channels": figures_channels,
    "torch": figures_torch,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    scale = parser.add_mutually_exclusive_group()
    scale.add_argument("--quick", dest="scale", action="store_const", const=QUICK, default=FULL)
    scale.add_argument("--tiny", dest="scale", action="store_const", const=TINY)
    parser.add_argument("--group", choices=GROUPS, nargs="*", default=list(GROUPS))
    parser.add_argument("--store", choices=STORES, nargs="*", default=STORES, help="who")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the document to update")
    arguments = parser.parse_args()

    began = time.monotonic()
    stores = dict.fromkeys(("tensorcx", *arguments.store, "shared_memory"))
    if not arguments.scale.patient:
        stores.pop("Ray", None)
    found, missing = versions(("reference", *stores))
    installed = tuple(store for store in stores if store in found)
    run = Run(arguments.scale, installed, choose_cores(arguments.scale.cores))
    sections = [machine(found, missing)]
    print(sections[0], flush=True)
    for group in arguments.group:
        if group == "torch" and "torch" not in found:
            continue
        for figure in GROUPS[group](run):
            sections.append(figure.text())
            print(sections[-1], flush=True)
    if arguments.write:
        write(arguments.write, "\n".join(sections), BENCH)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
