"""Simulate TensorFlow's allocator, best fit with coalescing: the chunk that it gives out for each request.

    request    rounded up to multiples of 256 bytes
    chunk      the smallest free one that is large enough, in the lowest bin that has one; bin k holds free
               chunks of 256 · 2ᵏ … 256 · 2ᵏ⁺¹ − 1 bytes
    split      if the rest of the chunk is at least as large as the request, or at least 128 MiB
    release    joins the chunk with free neighbours in its region
    region     memory of the device, reserved at once

So a tensor may occupy nearly twice its bytes, and free bytes between tensors may be of no use. Source: the
documented behaviour of TensorFlow's ``BFCAllocator``; ``tests/tf/memory/test_bfc.py`` compares both, chunk by
chunk.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

__all__ = ["Allocator", "OutOfMemoryError"]

GRANULE = 256
"""Bytes: chunks are multiples of it."""
_BINS = 21
_LARGEST_REST = 2**27
"""Bytes: a chunk is split if at least this rest remains beyond the request."""


class OutOfMemoryError(Exception):
    """No chunk is large enough."""


@dataclass(slots=True, eq=False)
class _Chunk:
    """A piece of a region; free, or given out for one request."""

    address: int
    size: int
    used: bool = False
    before: _Chunk | None = field(default=None, repr=False)
    after: _Chunk | None = field(default=None, repr=False)


class Allocator:
    """A simulated allocator.

    Attributes:
        in_use: bytes of the chunks that are given out.
        chunks: address → chunk, free or not.

    >>> allocator = Allocator(2**20)
    >>> a, b = allocator.allocate(1000), allocator.allocate(5000)
    >>> (a, b, allocator.in_use)
    (0, 1024, 6144)
    """

    def __init__(self, limit: int) -> None:
        """Reserve one region of ``limit`` bytes, rounded down to whole granules."""
        self.in_use = 0
        self.chunks: dict[int, _Chunk] = {}
        self._free: list[list[tuple[int, int]]] = [[] for _ in range(_BINS)]
        if size := limit // GRANULE * GRANULE:
            self.add_region(0, size)

    def add_region(self, address: int, size: int) -> None:
        """Reserve one more region; its chunks are never joined with those of others."""
        self.chunks[address] = _Chunk(address, size)
        self._add_free(self.chunks[address])

    def allocate(self, size: int) -> int:
        """The address of a chunk for a request of ``size`` bytes, more than 0.

        Raises:
            OutOfMemoryError: if no chunk is large enough; nothing changes.
        """
        needed = _rounded(size)
        chunk = self._best_fit(needed)
        if chunk is None:
            raise OutOfMemoryError(f"no chunk of {needed} bytes")
        self._free[_bin(chunk.size)].remove((chunk.size, chunk.address))
        if chunk.size >= 2 * needed or chunk.size - needed >= _LARGEST_REST:
            self._split(chunk, needed)
        chunk.used = True
        self.in_use += chunk.size
        return chunk.address

    def release(self, address: int) -> None:
        """Take back the chunk at an address."""
        chunk = self.chunks[address]
        chunk.used = False
        self.in_use -= chunk.size
        for first, second in ((chunk, chunk.after), (chunk.before, chunk)):
            if first is not None and second is not None and not first.used and not second.used:
                chunk = self._joined(first, second, chunk)
        self._add_free(chunk)

    def _best_fit(self, needed: int) -> _Chunk | None:
        for free in self._free[_bin(needed) :]:
            k = bisect_left(free, (needed, -1))
            if k < len(free):
                return self.chunks[free[k][1]]
        return None

    def _split(self, chunk: _Chunk, needed: int) -> None:
        rest = _Chunk(chunk.address + needed, chunk.size - needed, before=chunk, after=chunk.after)
        if rest.after is not None:
            rest.after.before = rest
        chunk.size, chunk.after = needed, rest
        self.chunks[rest.address] = rest
        self._add_free(rest)

    def _joined(self, first: _Chunk, second: _Chunk, released: _Chunk) -> _Chunk:
        """Two free neighbours as one; the one that is not ``released`` leaves its bin."""
        other = second if released is first else first
        self._free[_bin(other.size)].remove((other.size, other.address))
        first.size += second.size
        first.after = second.after
        if first.after is not None:
            first.after.before = first
        del self.chunks[second.address]
        return first

    def _add_free(self, chunk: _Chunk) -> None:
        insort(self._free[_bin(chunk.size)], (chunk.size, chunk.address))


def _rounded(size: int) -> int:
    return max(-(-size // GRANULE), 1) * GRANULE


def _bin(size: int) -> int:
    return min((size // GRANULE).bit_length() - 1, _BINS - 1)
