"""Checkmate for TensorFlow and Keras: train any network within a byte budget.

Users import ``checkmate.tf2``, which has the same names; the distribution is ``checkmate-tf``. The 2 is for
TensorFlow 2, whose functions and variables are planned.

Importing this package does not import TensorFlow; the first use of a name does. So listing plugins is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from checkmate.errors import ProfilerBusyError, UnsupportedModelError

if TYPE_CHECKING:
    from checkmate.framework import ProgramError, TracedStep
    from checkmate_tf.api.bind import BoundStep, TracedFunction, bind
    from checkmate_tf.api.callback import Budget
    from checkmate_tf.api.compile import CompiledIteration, compile
    from checkmate_tf.api.enable import PlannedTraining, disable, enable, planned_training
    from checkmate_tf.api.function import PlannedFunction, function
    from checkmate_tf.api.trace import plan, trace
    from checkmate_tf.capture.function_capture import UnsupportedFunctionError
    from checkmate_tf.capture.losses import LossError
    from checkmate_tf.costs.meter import MemoryMeter, NoStatisticsError, memory_meter
    from checkmate_tf.planning.step_plan import StepPlan
    from checkmate_tf.policies.export import Exported, Judged, export, judge
    from checkmate_tf.policies.remat import RematError

__all__ = [
    "BoundStep",
    "Budget",
    "CompiledIteration",
    "Exported",
    "Judged",
    "LossError",
    "MemoryMeter",
    "NoStatisticsError",
    "PlannedFunction",
    "PlannedTraining",
    "ProfilerBusyError",
    "ProgramError",
    "RematError",
    "StepPlan",
    "TracedFunction",
    "TracedStep",
    "UnsupportedFunctionError",
    "UnsupportedModelError",
    "bind",
    "compile",
    "disable",
    "enable",
    "export",
    "function",
    "judge",
    "memory_meter",
    "plan",
    "planned_training",
    "trace",
]

_HOMES = {
    "BoundStep": "api.bind",
    "Budget": "api.callback",
    "CompiledIteration": "api.compile",
    "Exported": "policies.export",
    "Judged": "policies.export",
    "LossError": "capture.losses",
    "MemoryMeter": "costs.meter",
    "NoStatisticsError": "costs.meter",
    "RematError": "policies.remat",
    "StepPlan": "planning.step_plan",
    "PlannedFunction": "api.function",
    "PlannedTraining": "api.enable",
    "ProgramError": "adapters.frontend",
    "TracedFunction": "api.bind",
    "TracedStep": "api.bind",
    "UnsupportedFunctionError": "capture.function_capture",
    "bind": "api.bind",
    "compile": "api.compile",
    "disable": "api.enable",
    "enable": "api.enable",
    "export": "policies.export",
    "function": "api.function",
    "judge": "policies.export",
    "memory_meter": "costs.meter",
    "plan": "api.trace",
    "planned_training": "api.enable",
    "trace": "api.trace",
}

if not TYPE_CHECKING:

    def __getattr__(name):
        """Import a public name from its module at its first use."""
        if name in _HOMES:
            import_module("checkmate_tf.releases").check_installed()
            return getattr(import_module(f"checkmate_tf.{_HOMES[name]}"), name)
        raise AttributeError(f"module 'checkmate_tf' has no attribute {name!r}")
