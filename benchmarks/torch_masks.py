"""Microseconds in which a planned call reads a padding mask and positions on a CPU, median of a thousand.

python benchmarks/torch_masks.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from checkmate_torch.capture.attention_masks import is_one_sequence, masks_nothing

SIZES = ((4, 128), (8, 512), (32, 512), (8, 2048), (32, 4096))


def microseconds(read: Callable[[torch.Tensor], bool], x: torch.Tensor, n: int = 1000) -> float:
    """The median of ``n`` reads, after some that are not counted."""
    times = []
    for _ in range(n + 10):
        start = time.perf_counter()
        read(x)
        times.append(time.perf_counter() - start)
    return statistics.median(times[10:]) * 1e6


def main() -> None:
    """Print one row for each size of a batch."""
    torch.set_num_threads(1)
    print("| batch | mask, int64 | mask, bool | positions | packed positions |\n|---|---|---|---|---|")
    for rows, length in SIZES:
        ones, positions = torch.ones(rows, length, dtype=torch.long), torch.arange(length).repeat(rows, 1)
        reads = [
            (masks_nothing, ones),
            (masks_nothing, ones.bool()),
            (is_one_sequence, positions),
            (is_one_sequence, positions % 100),
        ]
        cells = [f"{microseconds(read, x):.1f} µs" for read, x in reads]
        print(f"| {rows} × {length} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
