"""Peaks of some devices: FLOP/s for each number format, bytes/s of their memory, and its bytes.

Figures are dense: datasheets often print twice the value, for matrices with 2:4 sparsity. ``fp32`` is
ordinary arithmetic; ``tf32``, ``bf16`` and ``fp16`` are the tensor cores'. Which of ``fp32`` and ``tf32`` a
matmul or convolution of float32 tensors uses is a setting of the framework.

A driver keeps a part of the memory that the label states. Our bytes of memory are the total in PyTorch's
out-of-memory messages ("GPU 0 has a total capacity of 79.11 GiB"): the lowest found in public reports of each
device (November 2026), rounded down to a tenth of a GiB. Drivers differ by half a GiB. GeForce cards add
products of 16-bit numbers at full speed only in 16 bits; frameworks add in 32 bits, which is the figure here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from checkmate.errors import CostError

__all__ = ["DEVICES", "Device", "device_in_table", "device_named"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Device:
    """The peaks of one device.

    Attributes:
        flops_per_s: number format → dense FLOP/s.
        bytes_per_s: memory bandwidth.
        memory_bytes: capacity, as a driver reports it; other processes and the CUDA context use a part.
        capability: CUDA compute capability, (major, minor), or what PyTorch reports in its place on ROCm; it
            decides which kernels a framework picks.
        source: the datasheet, or whitepaper, with the figures.
    """

    flops_per_s: Mapping[str, float]
    bytes_per_s: float
    memory_bytes: int
    capability: tuple[int, int]
    source: str


def _device(
    source: str, capability: tuple[int, int], *, gib: float, gigabytes_per_s: float, **teraflops: float
) -> Device:
    return Device(
        flops_per_s=MappingProxyType({dtype: rate * 1e12 for dtype, rate in teraflops.items()}),
        bytes_per_s=gigabytes_per_s * 1e9,
        memory_bytes=int(gib * 2**30),
        capability=capability,
        source=source,
    )


_V100 = "NVIDIA V100 datasheet (January 2020), SXM2"
_A100 = "NVIDIA A100 datasheet (June 2021), SXM"
_H100 = "NVIDIA H100 datasheet (2023), SXM; half of the figures with sparsity"
_H200 = "NVIDIA H200 datasheet (2023), SXM; half of the figures with sparsity"
_B200 = "NVIDIA HGX B200 datasheet (2025), an eighth of it; half of the figures with sparsity"
_MI300X = "AMD Instinct MI300X datasheet (2023)"
_T4 = "NVIDIA T4 datasheet (March 2019); bandwidth of the product brief"
_A10G = "NVIDIA A10G datasheet (February 2022); half of the figures with sparsity"
_L4 = "NVIDIA L4 datasheet (2023); half of the figures with sparsity"
_L40S = "NVIDIA L40S datasheet (2023); half of the figures with sparsity"
_GA102 = "NVIDIA Ampere GA102 GPU architecture whitepaper (2021)"
_ADA = "NVIDIA Ada GPU architecture whitepaper (2023)"
_BLACKWELL = "NVIDIA RTX Blackwell GPU architecture whitepaper (2025)"

DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        "V100-16GB": _device(_V100, (7, 0), gib=15.7, gigabytes_per_s=900, fp32=15.7, fp16=125),
        "V100-32GB": _device(_V100, (7, 0), gib=31.7, gigabytes_per_s=900, fp32=15.7, fp16=125),
        "A100-40GB": _device(
            _A100, (8, 0), gib=39.3, gigabytes_per_s=1555, fp32=19.5, tf32=156, bf16=312, fp16=312
        ),
        "A100-80GB": _device(
            _A100, (8, 0), gib=79.1, gigabytes_per_s=2039, fp32=19.5, tf32=156, bf16=312, fp16=312
        ),
        "H100-80GB": _device(
            _H100, (9, 0), gib=79.1, gigabytes_per_s=3350, fp32=67, tf32=494.5, bf16=989.5, fp16=989.5
        ),
        "H200-141GB": _device(
            _H200, (9, 0), gib=139.7, gigabytes_per_s=4800, fp32=67, tf32=494.5, bf16=989.5, fp16=989.5
        ),
        "B200-180GB": _device(
            _B200, (10, 0), gib=178.3, gigabytes_per_s=7700, fp32=75, tf32=1125, bf16=2250, fp16=2250
        ),
        "MI300X-192GB": _device(
            _MI300X, (9, 4), gib=191.6, gigabytes_per_s=5300, fp32=163.4, tf32=653.7, bf16=1307.4, fp16=1307.4
        ),
        "T4-16GB": _device(_T4, (7, 5), gib=14.5, gigabytes_per_s=320, fp32=8.1, fp16=65),
        "A10G-24GB": _device(
            _A10G, (8, 6), gib=22.0, gigabytes_per_s=600, fp32=35, tf32=35, bf16=70, fp16=70
        ),
        "L4-24GB": _device(
            _L4, (8, 9), gib=22.0, gigabytes_per_s=300, fp32=30.3, tf32=60, bf16=121, fp16=121
        ),
        "L40S-48GB": _device(
            _L40S, (8, 9), gib=44.3, gigabytes_per_s=864, fp32=91.6, tf32=183, bf16=362, fp16=362
        ),
        "A6000-48GB": _device(
            _GA102, (8, 6), gib=47.4, gigabytes_per_s=768, fp32=38.7, tf32=77.4, bf16=154.8, fp16=154.8
        ),
        "RTX3090-24GB": _device(
            _GA102, (8, 6), gib=23.5, gigabytes_per_s=936, fp32=35.6, tf32=35.6, bf16=71, fp16=71
        ),
        "RTX4090-24GB": _device(
            _ADA, (8, 9), gib=23.5, gigabytes_per_s=1008, fp32=82.6, tf32=82.6, bf16=165.2, fp16=165.2
        ),
        "RTX5090-32GB": _device(
            _BLACKWELL,
            (12, 0),
            gib=31.3,
            gigabytes_per_s=1792,
            fp32=104.8,
            tf32=104.8,
            bf16=209.5,
            fp16=209.5,
        ),
    }
)
"""Name → :class:`Device`. PCIe cards with the same chip are slower: for them, make a Roofline of your own."""

_VARIANTS = {"Ti", "D", "Laptop"}
"""Words in the names of other cards with the same number."""


def device_named(name: str, *, otherwise: str) -> str:
    """The spelling of a name in the table, whatever its case.

    Args:
        name: a device's name, in any case.
        otherwise: advice for a device that the table lacks; a part of the error.

    Raises:
        CostError: if the table lacks the device; names the nearest.

    >>> device_named("h100-80gb", otherwise="")
    'H100-80GB'
    """
    names = {known.lower(): known for known in DEVICES}
    if name.lower() in names:
        return names[name.lower()]
    close = [names[known] for known in difflib.get_close_matches(name.lower(), names)]
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    raise CostError(f"no device {name!r} in the table {list(DEVICES)}; {hint}For others {otherwise}")


def device_in_table(name: str, gigabytes: float) -> str:
    """The table's name of a device that the driver names; of several entries, the nearest in memory.

    >>> device_in_table("NVIDIA A100-SXM4-80GB", 79.3), device_in_table("NVIDIA GeForce RTX 4090", 23.6)
    ('A100-80GB', 'RTX4090-24GB')

    Raises:
        CostError: if no entry matches.
    """
    chip = {entry: entry.partition("-") for entry in DEVICES}
    words = name.replace("RTX ", "RTX").replace("RTXA", "A").replace("-", " ").split()
    found = [entry for entry, (model, _, _) in chip.items() if model in words and not _VARIANTS & {*words}]
    if not found:
        raise CostError(
            f"no roofline is known for {name!r}: name one of {[f'roofline-{entry}' for entry in DEVICES]}, "
            "pass checkmate.cost.Roofline(flops_per_s=…, bytes_per_s=…), or use cost_model='profiled'"
        )
    return min(found, key=lambda entry: abs(float(chip[entry][2].removesuffix("GB")) - gigabytes))
