"""Checkmate for PyTorch: train any network within a byte budget.

>>> import torch, checkmate_torch
>>> model = checkmate_torch.compile(torch.nn.Linear(8, 8), budget="100%")
>>> model(torch.ones(2, 8)).sum().backward()

Importing this package does not import PyTorch; the first use of a name does. So the plugin that it holds
can be listed at no cost.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checkmate_torch.backend import Plan
    from checkmate_torch.compiled import CompiledModule, TooManyPlansError, compile
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

_HOMES = {
    "CompiledModule": "compiled",
    "MemoryMeter": "meter",
    "Plan": "backend",
    "TooManyPlansError": "compiled",
    "UnsupportedModelError": "trace",
    "compile": "compiled",
    "memory_meter": "meter",
}

if not TYPE_CHECKING:

    def __getattr__(name):
        """Import a public name from its module at its first use."""
        if name in _HOMES:
            return getattr(import_module(f"checkmate_torch.{_HOMES[name]}"), name)
        raise AttributeError(f"module 'checkmate_torch' has no attribute {name!r}")
