"""Simulate TensorFlow's allocator, best fit with coalescing: the chunk that it gives out for each request.

    request    rounded up to multiples of 256 bytes
    chunk      the smallest free one that is large enough, in the lowest bin that has one; bin k holds free
               chunks of 256 · 2ᵏ … 256 · 2ᵏ⁺¹ − 1 bytes
    split      if the rest of the chunk is as large as the request, or 128 MiB
    release    joins the chunk with free neighbours in its region
    region     memory of the device: all of it at once, or, if it grows, twice the size of the last one

So a tensor may occupy nearly twice its bytes, and free bytes between tensors may be of no use. Source: the
documented behaviour of TensorFlow's ``BFCAllocator``; equal to it chunk by chunk (``tests/tf/test_bfc.py``).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Allocator", "OutOfMemoryError"]

GRANULE = 256
"""Bytes: chunks are multiples of it."""
_BINS = 21
_LARGEST_REST = 2**27
"""Bytes that a chunk may have beyond a request."""
_FIRST_REGION = 2**21
_APART = 2**48
"""Distance of the made-up addresses of two regions."""


class OutOfMemoryError(Exception):
    """No chunk is large enough, and the limit allows no region that is."""


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
        limit: bytes of all regions.
        reserved: bytes of the regions so far.
        in_use: bytes of the chunks that are given out.
        peak: the most of these.

    >>> allocator = Allocator(2**20)
    >>> a, b = allocator.allocate(1000), allocator.allocate(5000)
    >>> (a, b, allocator.in_use)
    (0, 1024, 6144)
    """

    def __init__(self, limit: int, *, grows: bool = False, place: Callable[[], int] | None = None) -> None:
        """Nothing is reserved before the first request.

        Args:
            limit: bytes of all regions.
            grows: whether regions are reserved when they are needed, from 2 MiB on, as on a CPU, and on a GPU
                with ``set_memory_growth``.
            place: the address of the next region; by default made up.
        """
        self.limit = limit
        self.reserved = self.in_use = self.peak = 0
        self._next_region = _rounded(min(limit, _FIRST_REGION) if grows else limit)
        self._regions = 0
        self._place = place or (lambda: self._regions * _APART)
        self._free: list[list[tuple[int, int]]] = [[] for _ in range(_BINS)]
        self._chunks: dict[int, _Chunk] = {}

    def allocate(self, size: int) -> int:
        """The address of a chunk for a request of ``size`` bytes, more than 0.

        Raises:
            OutOfMemoryError: if no chunk is large enough; nothing changes.
        """
        needed = _rounded(size)
        chunk = self._best_fit(needed)
        if chunk is None:
            self._extend(needed)
            chunk = self._best_fit(needed)
            assert chunk is not None
        self._free[_bin(chunk.size)].remove((chunk.size, chunk.address))
        if chunk.size >= 2 * needed or chunk.size - needed >= _LARGEST_REST:
            self._split(chunk, needed)
        chunk.used = True
        self.in_use += chunk.size
        self.peak = max(self.peak, self.in_use)
        return chunk.address

    def release(self, address: int) -> None:
        """Take back the chunk at an address."""
        chunk = self._chunks[address]
        chunk.used = False
        self.in_use -= chunk.size
        for first, second in ((chunk, chunk.after), (chunk.before, chunk)):
            if first is not None and second is not None and not first.used and not second.used:
                chunk = self._joined(first, second, chunk)
        self._add_free(chunk)

    def size_of(self, address: int) -> int:
        """Bytes of the chunk at an address."""
        return self._chunks[address].size

    def _best_fit(self, needed: int) -> _Chunk | None:
        for free in self._free[_bin(needed) :]:
            k = bisect_left(free, (needed, -1))
            if k < len(free):
                return self._chunks[free[k][1]]
        return None

    def _extend(self, needed: int) -> None:
        """Reserve one more region, large enough for a request."""
        available = (self.limit - self.reserved) // GRANULE * GRANULE
        if needed > available:
            raise OutOfMemoryError(f"no chunk of {needed} bytes, and {available} bytes left to reserve")
        doubled = self._next_region < needed
        while self._next_region < needed:
            self._next_region *= 2
        size = min(self._next_region, available)
        if not doubled:
            self._next_region *= 2
        chunk = _Chunk(self._place(), size)
        self._regions += 1
        self.reserved += size
        self._chunks[chunk.address] = chunk
        self._add_free(chunk)

    def _split(self, chunk: _Chunk, needed: int) -> None:
        rest = _Chunk(chunk.address + needed, chunk.size - needed, before=chunk, after=chunk.after)
        if rest.after is not None:
            rest.after.before = rest
        chunk.size, chunk.after = needed, rest
        self._chunks[rest.address] = rest
        self._add_free(rest)

    def _joined(self, first: _Chunk, second: _Chunk, released: _Chunk) -> _Chunk:
        """Two free neighbours as one; the one that is not ``released`` leaves its bin."""
        other = second if released is first else first
        self._free[_bin(other.size)].remove((other.size, other.address))
        first.size += second.size
        first.after = second.after
        if first.after is not None:
            first.after.before = first
        del self._chunks[second.address]
        return first

    def _add_free(self, chunk: _Chunk) -> None:
        insort(self._free[_bin(chunk.size)], (chunk.size, chunk.address))


def _rounded(size: int) -> int:
    return max(-(-size // GRANULE), 1) * GRANULE


def _bin(size: int) -> int:
    return min((size // GRANULE).bit_length() - 1, _BINS - 1)
