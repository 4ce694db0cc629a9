"""Fused kernels within a schedule: neighbouring element-wise ops and reductions run as one, by Inductor.

    schedule ↦ windows of ops that follow each other ↦ kernels ↦ a program that the simulator checks

A fused kernel reads its inputs once and writes only what outlives it. The order of kernels, recomputations
and frees stays the schedule's, so the budget bounds the program as it bounds the schedule.
"""

from checkmate_torch.running.fusing.chains import fuse_chains
from checkmate_torch.running.fusing.kernel import FusedKernel
from checkmate_torch.running.fusing.measuring import Measuring
from checkmate_torch.running.fusing.memory_format import in_plain_format, undo, with_channels_last
from checkmate_torch.running.fusing.program import Fusion, fused

__all__ = [
    "FusedKernel",
    "Fusion",
    "Measuring",
    "fuse_chains",
    "fused",
    "in_plain_format",
    "undo",
    "with_channels_last",
]
