"""From samples to Markdown, on the terminal and in docs/benchmarks.md."""

import datetime
import os
import platform
import re
from dataclasses import dataclass, field
from pathlib import Path

from harness import GIB, KIB, MIB, Sample, Samples

LIMITS = {"RT", "memcpy"}
END = "<!-- the end of it -->"
BENCH, SCALE = "<!-- what make bench measured -->", "<!-- what make scale measured -->"


def time_text(nanoseconds: float) -> str:
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if nanoseconds >= size * 0.9995:  # else 999.6 is 1e+03
            return f"{nanoseconds / size:.3g} {unit}"
    return f"{nanoseconds:.0f} ns"


def size_text(nbytes: float) -> str:
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes:.0f} B"


def number(value: float) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def bold(who: str) -> str:
    return f"**{who}**" if who.startswith("tensorcx") else who


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


@dataclass
class Facts:
    """A table of what was counted."""

    title: str
    must: str
    header: list[str]
    rows: list[list[str]] = field(default_factory=list)

    def text(self) -> str:
        return f"### {self.title}\n\nGoal: {self.must}.\n\n{table(self.header, self.rows)}\n"


@dataclass
class Figure:
    """One action by all contenders: minimum and median, and these as multiples of a row.

    With `base`, the multiple is of what goes beyond that row.
    """

    title: str
    must: str
    unit: str
    base: str = ""
    samples: dict[str, Samples] = field(default_factory=dict)  # cores -> who -> times

    def add(self, cores: str, samples: Samples):
        """Takes the samples on these cores; of the machine's limits, those it is compared with."""
        others = LIMITS - {self.unit, self.base}
        self.samples[cores] = {who: one for who, one in samples.items() if who not in others}

    def ratio(self, samples: Samples, sample: Sample, which: str) -> float:
        base = getattr(samples[self.base], which) if self.base else 0
        return (getattr(sample, which) - base) / getattr(samples[self.unit], which)

    def cells(self, samples: Samples, who: str) -> list[str]:
        if who not in samples:
            return ["", ""]
        sample = samples[who]
        times = f"{time_text(sample.minimum)}, {time_text(sample.median)}"
        low, middle = (self.ratio(samples, sample, which) for which in ("minimum", "median"))
        is_limit = who == self.base or (self.base and who == self.unit)
        return [times, "" if is_limit else f"{number(low)}, **{number(middle)}**"]

    def text(self) -> str:
        unit = f"{self.unit} beyond {self.base}" if self.base else self.unit
        header = [""]
        for cores in self.samples:
            header += [f"{cores}: minimum, median", unit]
        names = dict.fromkeys(who for samples in self.samples.values() for who in samples)
        rows = [
            [bold(who)]
            + [cell for samples in self.samples.values() for cell in self.cells(samples, who)]
            for who in names
        ]
        return f"### {self.title}\n\nGoal: {self.must}.\n\n{table(header, rows)}\n"


def machine(found: dict[str, str], missing: list[str]) -> str:
    """Where and when this was measured, with what."""
    cpuinfo = Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", cpuinfo)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    lines = [
        f"{datetime.date.today()}: {model[1] if model else platform.machine()}, "
        f"{os.cpu_count()} cores, {size_text(memory)}, Linux {platform.release()}. "
        + ", ".join(f"{name} {version}" for name, version in found.items() if name != "reference")
        + f", {found['reference']}. Load at the start: {os.getloadavg()[0]:.1f}."
    ]
    return "\n".join(lines + [f"Not measured: {line}." for line in missing]) + "\n"


def write(path: Path, body: str, begin: str):
    """Replaces what an earlier run has written into the document, from the line `begin` on."""
    text = path.read_text()
    before, _, rest = text.partition(begin)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"{path}: no lines {begin!r} and {END!r}")
    path.write_text(f"{before}{begin}\n\n{body}\n{END}{after}")
