"""Threads that a test runs a function in."""

import threading


def together(work, count=8) -> list:
    """Runs work(i) on `count` threads at the same moment; returns results and errors in order."""
    gate = threading.Barrier(count)
    results: list = [None] * count

    def run(i):
        gate.wait()
        try:
            results[i] = work(i)
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
