"""Compares the simulated allocator with TensorFlow's, in a process: ``python chunks.py 200 vgg resnet``.

The process records every allocation from its first one: random sequences of allocations and releases, then
stock and planned steps of networks. Writes the numbers of allocations and of chunks that differ, and fails if
one does. The environment must have TF_CPU_ALLOCATOR_USE_BFC=1 and TF_CPU_BFC_MEM_LIMIT_IN_MB=3072.
"""

from __future__ import annotations

import random
import sys

import tensorflow as tf

import checkmate.tf2
from checkmate_tf.costs.events import Allocation, TraceRecorder
from checkmate_tf.memory.bfc import Allocator, OutOfMemoryError
from zoo.small_keras import CASES

LIMIT = 3 * 2**30
FIRST_REGION = 2**21
MOST_BYTES = 2**30
"""Live at once in a random sequence."""


class Growing(Allocator):
    """Reserves regions when they are needed, each twice as large as the last, as TensorFlow on a CPU."""

    def __init__(self) -> None:
        super().__init__(0)
        self.next_region, self.left = FIRST_REGION, LIMIT

    def allocate_at(self, size: int, address: int) -> int:
        """As :meth:`allocate`; a region that is needed begins at an address."""
        try:
            return self.allocate(size)
        except OutOfMemoryError:
            doubled = self.next_region < size
            while self.next_region < size:
                self.next_region *= 2
            reserved = min(self.next_region, self.left)
            self.add_region(address, reserved)
            self.left -= reserved
            if not doubled:
                self.next_region *= 2
            return self.allocate(size)


def random_sequences(count: int) -> None:
    """Allocate and release tensors from a byte to some tens of megabytes; some outlive their sequence."""
    rng = random.Random(0)
    live: list[tf.Tensor] = []
    for _ in range(count):
        largest = rng.choice([10**2, 10**4, 10**6, 3 * 10**7])
        for _ in range(rng.randint(5, 60)):
            if live and rng.random() < 0.5:
                del live[rng.randrange(len(live))]
            else:
                live.append(tf.raw_ops.Empty(shape=[rng.randint(1, largest)], dtype=tf.uint8))
            while sum(x.shape[0] for x in live) > MOST_BYTES:
                del live[0]
        if rng.random() < 0.3:
            live.clear()


def steps(networks: list[str]) -> None:
    """Each network's step, twice stock and twice planned."""
    settings = {"solver": "heuristics", "cost_model": "flops", "workspaces": False, "cache": False}
    for network in networks:
        case = CASES[network]()
        for step in (tf.function(case.step), checkmate.tf2.function(case.step, budget="85%", **settings)):
            for _ in range(2):
                float(step(*case.batch))


def compared(events: list[Allocation]) -> tuple[int, int]:
    """The number of allocations, and of those that the simulated allocator serves elsewhere.

    The simulated one learns only where a new region begins, from the first allocation in it.
    """
    simulated = Growing()
    differences = 0
    for event in events:
        if event.delta > 0:
            address = simulated.allocate_at(event.delta, event.address)
            differences += address != event.address or simulated.in_use != event.held
        else:
            simulated.release(event.address)
    return sum(event.delta > 0 for event in events), differences


def main() -> None:
    """Record, compare, and write the numbers."""
    with TraceRecorder() as recorder:
        random_sequences(int(sys.argv[1]))
        steps(sys.argv[2:])
    allocations, differences = compared(list(recorder.trace.on("CPU:0")))
    sys.stdout.write(f"{allocations} {differences}")
    sys.exit(differences > 0)


if __name__ == "__main__":
    main()
