"""Checkmate for PyTorch: train any network within a byte budget.

>>> import torch, checkmate_torch
>>> model = checkmate_torch.compile(torch.nn.Linear(8, 8), budget="100%")
>>> model(torch.ones(2, 8)).sum().backward()

Importing this package does not import PyTorch; the first use of a name does. So listing plugins, which
imports this package, stays fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checkmate import NoPlanError, UnsupportedModelError
    from checkmate.report import Explanation, PeakReport
    from checkmate_torch.api.backend import last_plan
    from checkmate_torch.api.bind import bind
    from checkmate_torch.api.capturable import capturable
    from checkmate_torch.api.compile import CompiledModule, compile
    from checkmate_torch.api.compile_step import CompiledStep, compile_step
    from checkmate_torch.api.enable import disable, enable, planned_training
    from checkmate_torch.api.trace import TracedModel, plan, trace
    from checkmate_torch.api.trace_step import TracedTraining, plan_step, trace_step
    from checkmate_torch.capture.dynamo_capture import TooManyPlansError
    from checkmate_torch.costs.meter import MemoryMeter, memory_meter
    from checkmate_torch.distributed.ranks import RankError
    from checkmate_torch.memory.snapshot import measured_snapshot, predicted_snapshot
    from checkmate_torch.ops.capturable import Capturable
    from checkmate_torch.optimizer.separable import UnsupportedOptimizerError
    from checkmate_torch.planning.step_plan import StepPlan
    from checkmate_torch.planning.training import PlannedTraining
    from checkmate_torch.policies.export import Exported, checkpoint, export
    from checkmate_torch.policies.judge import Judged, Judgement, judge
    from checkmate_torch.policies.policy import LibraryDefault, MemoryBudget, PolicyError, Recompute, Save
    from checkmate_torch.tools.batches import LargestBatch, max_batch_size
    from checkmate_torch.tools.fit.predict import fit
    from checkmate_torch.tools.fit.table import Fit, FitTable

__all__ = [
    "Capturable",
    "CompiledModule",
    "CompiledStep",
    "Explanation",
    "Exported",
    "Fit",
    "FitTable",
    "Judged",
    "Judgement",
    "LargestBatch",
    "LibraryDefault",
    "MemoryBudget",
    "MemoryMeter",
    "NoPlanError",
    "PeakReport",
    "PlannedTraining",
    "PolicyError",
    "RankError",
    "Recompute",
    "Save",
    "StepPlan",
    "TooManyPlansError",
    "TracedModel",
    "TracedTraining",
    "UnsupportedModelError",
    "UnsupportedOptimizerError",
    "bind",
    "capturable",
    "checkpoint",
    "compile",
    "compile_step",
    "disable",
    "enable",
    "export",
    "fit",
    "judge",
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
    "Capturable": ".ops.capturable",
    "CompiledModule": ".api.compile",
    "CompiledStep": ".api.compile_step",
    "Explanation": "checkmate.report",
    "Exported": ".policies.export",
    "Fit": ".tools.fit.table",
    "FitTable": ".tools.fit.table",
    "Judged": ".policies.judge",
    "Judgement": ".policies.judge",
    "LargestBatch": ".tools.batches",
    "LibraryDefault": ".policies.policy",
    "MemoryBudget": ".policies.policy",
    "MemoryMeter": ".costs.meter",
    "NoPlanError": "checkmate",
    "PeakReport": "checkmate.report",
    "PlannedTraining": ".planning.training",
    "Recompute": ".policies.policy",
    "Save": ".policies.policy",
    "StepPlan": ".planning.step_plan",
    "PolicyError": ".policies.policy",
    "RankError": ".distributed.ranks",
    "TooManyPlansError": ".capture.dynamo_capture",
    "TracedModel": ".api.trace",
    "TracedTraining": ".api.trace_step",
    "UnsupportedModelError": "checkmate",
    "UnsupportedOptimizerError": ".optimizer.separable",
    "bind": ".api.bind",
    "capturable": ".api.capturable",
    "checkmate_backend": ".api.backend",
    "checkpoint": ".policies.export",
    "compile": ".api.compile",
    "compile_step": ".api.compile_step",
    "disable": ".api.enable",
    "enable": ".api.enable",
    "export": ".policies.export",
    "fit": ".tools.fit.predict",
    "judge": ".policies.judge",
    "last_plan": ".api.backend",
    "max_batch_size": ".tools.batches",
    "measured_snapshot": ".memory.snapshot",
    "memory_meter": ".costs.meter",
    "plan": ".api.trace",
    "plan_step": ".api.trace_step",
    "planned_training": ".api.enable",
    "predicted_snapshot": ".memory.snapshot",
    "trace": ".api.trace",
    "trace_step": ".api.trace_step",
}

if not TYPE_CHECKING:

    def __getattr__(name):
        """Import a public name from its module at its first use."""
        if name in _HOMES:
            import_module("checkmate_torch.releases").check_installed()
            return getattr(import_module(_HOMES[name], __name__), name)
        raise AttributeError(f"module 'checkmate_torch' has no attribute {name!r}")
