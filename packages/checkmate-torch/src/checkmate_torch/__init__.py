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
    from checkmate import NoPlanError, UnsupportedModelError
    from checkmate.report import Explanation, PeakReport
    from checkmate_torch.ahead import TracedModel, plan, trace
    from checkmate_torch.backend import last_plan
    from checkmate_torch.batches import LargestBatch, max_batch_size
    from checkmate_torch.capture import TooManyPlansError
    from checkmate_torch.compiled import CompiledModule, compile
    from checkmate_torch.distributed import RankError
    from checkmate_torch.enabled import disable, enable, planned_training
    from checkmate_torch.executor import bind
    from checkmate_torch.fitting.cells import fit
    from checkmate_torch.fitting.table import Fit, FitTable
    from checkmate_torch.meter import MemoryMeter, memory_meter
    from checkmate_torch.separable import UnsupportedOptimizerError
    from checkmate_torch.snapshot import measured_snapshot, predicted_snapshot
    from checkmate_torch.step import CompiledStep, compile_step
    from checkmate_torch.step_ahead import TracedTraining, plan_step, trace_step
    from checkmate_torch.step_plan import StepPlan
    from checkmate_torch.training import PlannedTraining

__all__ = [
    "CompiledModule",
    "CompiledStep",
    "Explanation",
    "Fit",
    "FitTable",
    "LargestBatch",
    "MemoryMeter",
    "NoPlanError",
    "PeakReport",
    "PlannedTraining",
    "RankError",
    "StepPlan",
    "TooManyPlansError",
    "TracedModel",
    "TracedTraining",
    "UnsupportedModelError",
    "UnsupportedOptimizerError",
    "bind",
    "compile",
    "compile_step",
    "disable",
    "enable",
    "fit",
    "last_plan",
    "max_batch_size",
    "measured_snapshot",
    "memory_meter",
    "plan",
    "plan_step",
    "planned_training",
    "predicted_snapshot",
    "trace",
    "trace_step",
]

_HOMES = {
    "CompiledModule": ".compiled",
    "CompiledStep": ".step",
    "Explanation": "checkmate.report",
    "Fit": ".fitting.table",
    "FitTable": ".fitting.table",
    "LargestBatch": ".batches",
    "MemoryMeter": ".meter",
    "NoPlanError": "checkmate",
    "PeakReport": "checkmate.report",
    "PlannedTraining": ".training",
    "StepPlan": ".step_plan",
    "RankError": ".distributed",
    "TooManyPlansError": ".capture",
    "TracedModel": ".ahead",
    "TracedTraining": ".step_ahead",
    "UnsupportedModelError": "checkmate",
    "UnsupportedOptimizerError": ".separable",
    "bind": ".executor",
    "checkmate_backend": ".backend",
    "compile": ".compiled",
    "compile_step": ".step",
    "disable": ".enabled",
    "enable": ".enabled",
    "fit": ".fitting.cells",
    "last_plan": ".backend",
    "max_batch_size": ".batches",
    "measured_snapshot": ".snapshot",
    "memory_meter": ".meter",
    "plan": ".ahead",
    "plan_step": ".step_ahead",
    "planned_training": ".enabled",
    "predicted_snapshot": ".snapshot",
    "trace": ".ahead",
    "trace_step": ".step_ahead",
}

if not TYPE_CHECKING:

    def __getattr__(name):
        """Import a public name from its module at its first use."""
        if name in _HOMES:
            import_module("checkmate_torch.releases").check_installed()
            return getattr(import_module(_HOMES[name], __name__), name)
        raise AttributeError(f"module 'checkmate_torch' has no attribute {name!r}")
