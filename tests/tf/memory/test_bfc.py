"""The simulated allocator gives out the chunks of TensorFlow's own."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkmate_tf.memory.bfc import GRANULE, Allocator, OutOfMemoryError

SCRIPT = Path(__file__).with_name("chunks.py")
MIB = 2**20
SIZES = st.integers(1, 64 * GRANULE)
REQUESTS = st.lists(st.tuples(st.booleans(), SIZES), max_size=60)


def test_every_chunk_is_where_tensorflow_has_it() -> None:
    """In 200 random sequences of allocations and 4 steps; ``nox -s conformance`` compares 10,000 and 24."""
    run = subprocess.run(
        [sys.executable, str(SCRIPT), "200", "transformer"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),  # the networks are in benchmarks/
            "TF_CPU_ALLOCATOR_USE_BFC": "1",
            "TF_CPU_BFC_MEM_LIMIT_IN_MB": "3072",
            "TF_NUM_INTEROP_THREADS": "1",
        },
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    allocations, differences = map(int, run.stdout.split())
    assert allocations > 20_000
    assert differences == 0


def test_a_request_takes_the_smallest_chunk_that_is_large_enough() -> None:
    allocator = Allocator(MIB)
    addresses = [allocator.allocate(size) for size in (1000, 256, 512, 256)]
    assert addresses == [0, 1024, 1280, 1792]
    allocator.release(0)
    allocator.release(1280)
    assert allocator.allocate(300) == 1280
    assert allocator.allocate(300) == 0


def test_a_chunk_is_split_if_the_rest_is_as_large() -> None:
    allocator = Allocator(1024)
    assert allocator.chunks[allocator.allocate(600)].size == 1024
    allocator.release(0)
    assert allocator.chunks[allocator.allocate(512)].size == 512


def test_a_large_chunk_is_split_if_the_rest_is_128_mib() -> None:
    allocator = Allocator(512 * MIB)
    assert allocator.chunks[allocator.allocate(384 * MIB)].size == 384 * MIB
    assert Allocator(511 * MIB).allocate(384 * MIB) == 0


def test_free_neighbours_are_joined() -> None:
    allocator = Allocator(1024)
    addresses = [allocator.allocate(256) for _ in range(4)]
    for k in (0, 2, 1, 3):
        allocator.release(addresses[k])
    assert allocator.allocate(1024) == 0


def test_what_finds_no_room_is_refused_and_changes_nothing() -> None:
    allocator = Allocator(1000)
    with pytest.raises(OutOfMemoryError, match="no chunk of 1024 bytes"):
        allocator.allocate(1000)
    allocator = Allocator(2048)
    addresses = [allocator.allocate(512) for _ in range(4)]
    allocator.release(addresses[0])
    allocator.release(addresses[2])
    with pytest.raises(OutOfMemoryError):  # the gaps are apart
        allocator.allocate(1024)
    assert allocator.in_use == 1024
    assert allocator.allocate(512) == 0


@given(REQUESTS)
def test_chunks_never_overlap_and_hold_their_requests(requests: list[tuple[bool, int]]) -> None:
    allocator, live = Allocator(256 * GRANULE), dict[int, int]()
    for is_release, size in requests:
        if is_release and live:
            address = sorted(live)[size % len(live)]
            allocator.release(address)
            del live[address]
            continue
        try:
            address = allocator.allocate(size)
        except OutOfMemoryError:
            continue
        live[address] = size
        ends = [(a, a + allocator.chunks[a].size) for a in sorted(live)]
        assert all(end <= start for (_, end), (start, _) in pairwise(ends))
        assert all(allocator.chunks[a].size >= size for a, size in live.items())
        assert allocator.in_use == sum(end - start for start, end in ends) <= 256 * GRANULE
    for address in live:
        allocator.release(address)
    assert allocator.allocate(256 * GRANULE) == 0
