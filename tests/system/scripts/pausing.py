"""Trains quick batches around one pause: of which kind is its argument, and for how many seconds."""

import sys
import threading
import time

from malletrain.client import phase, report


def train() -> None:
    for _ in range(40):
        time.sleep(0.02)
        report(8)


def work(seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))


kind, seconds = sys.argv[1], float(sys.argv[2])
if kind == "loads":  # before the first batch
    time.sleep(seconds)
train()
if kind == "evaluates":
    time.sleep(seconds)
elif kind == "compiles":
    work(seconds)
elif kind == "declares":
    with phase("evaluate"):
        time.sleep(seconds)
elif kind == "deadlocks":
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
train()
