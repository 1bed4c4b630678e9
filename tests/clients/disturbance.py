"""Processes of a cluster that are killed and paused at random, one after the other."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.clients.cluster import EskerCluster


@contextmanager
def disturbed(cluster: EskerCluster, seed: int) -> Iterator[None]:
    """Kill or pause one process after the other within the block; all run after it.

    Which process is hit, when and how, follows from the seed. A majority of the quorum, and one
    broker, run at any time.
    """
    is_over = threading.Event()
    faults = threading.Thread(target=_disturb, args=(cluster, seed, is_over))
    faults.start()
    try:
        yield
    finally:
        is_over.set()
        faults.join()


def _disturb(cluster: EskerCluster, seed: int, is_over: threading.Event) -> None:
    chance = random.Random(seed)
    while not is_over.wait(chance.uniform(1, 4)):
        node = chance.choice(list(cluster.ports))
        if chance.random() < 2 / 3:
            cluster.kill(node)
            is_over.wait(chance.uniform(0, 2))
            cluster.launch(node)
        else:
            cluster.signal(node, signal.SIGSTOP)
            is_over.wait(chance.uniform(0.5, 5))
            cluster.signal(node, signal.SIGCONT)
        is_over.wait(3)
