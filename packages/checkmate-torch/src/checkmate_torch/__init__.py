"""Checkmate for PyTorch: train any network within a byte budget.

>>> import torch, checkmate_torch
>>> model = checkmate_torch.compile(torch.nn.Linear(8, 8), budget="100%")
>>> model(torch.ones(2, 8)).sum().backward()
"""

from checkmate_torch.backend import Plan
from checkmate_torch.compile import CompiledModule, TooManyPlansError, compile
from checkmate_torch.meter import MemoryMeter, memory_meter
from checkmate_torch.trace import UnsupportedModelError

__all__ = [
    "CompiledModule",
    "MemoryMeter",
    "Plan",
    "TooManyPlansError",
    "UnsupportedModelError",
    "compile",
    "memory_meter",
]
