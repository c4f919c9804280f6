"""What tensorcx costs when there is much of it: a hundred thousand tensors, a thousand clients.

    make scale            all figures, and writes them into docs/benchmarks.md

Microseconds of the daemon's processor and of the client, for one operation, in columns from little
to much: what matters is whether a row grows. All on one core.
"""

import argparse
import os
import resource
import sys
import time
from pathlib import Path

import figures_bulk
import figures_ends
import figures_references
import figures_scale
from figures_scale import FULL, TINY
from harness import versions
from report import SCALE, machine, write

FIGURES = {
    figure.__name__: figure
    for module in (figures_scale, figures_references, figures_ends, figures_bulk)
    for figure in module.FIGURES
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="only whether it works")
    parser.add_argument("--figure", choices=FIGURES, nargs="*", default=list(FIGURES))
    parser.add_argument("--write", type=Path, metavar="FILE", help="the document to update")
    arguments = parser.parse_args()

    began = time.monotonic()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    sections = [machine(*versions(("reference", "tensorcx")))]
    print(sections[0], flush=True)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    for name in arguments.figure:
        figure = FIGURES[name](TINY if arguments.tiny else FULL)
        sections.append(figure.text())
        print(sections[-1], flush=True)
    if arguments.write:
        write(arguments.write, "\n".join(sections), SCALE)
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
