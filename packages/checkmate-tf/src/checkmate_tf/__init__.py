"""Checkmate for TensorFlow and Keras: train any network within a byte budget.

Importing this package does not import TensorFlow; the first use of a name does. So listing its plugin is
fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from checkmate.errors import ProfilerBusyError, UnsupportedModelError

if TYPE_CHECKING:
    from checkmate.framework import TracedStep
    from checkmate_tf.ahead import ProgramError, plan, trace
    from checkmate_tf.bound import BoundStep, TracedFunction, bind
    from checkmate_tf.callback import Budget
    from checkmate_tf.capture import UnsupportedFunctionError
    from checkmate_tf.compiled import CompiledIteration, compile
    from checkmate_tf.functions import PlannedFunction, function
    from checkmate_tf.keras_fit import PlannedTraining, disable, enable, planned_training
    from checkmate_tf.losses import LossError
    from checkmate_tf.meter import MemoryMeter, NoStatisticsError, memory_meter
    from checkmate_tf.step_plan import StepPlan

__all__ = [
    "BoundStep",
    "Budget",
    "CompiledIteration",
    "LossError",
    "MemoryMeter",
    "NoStatisticsError",
    "PlannedFunction",
    "PlannedTraining",
    "ProfilerBusyError",
    "ProgramError",
    "StepPlan",
    "TracedFunction",
    "TracedStep",
    "UnsupportedFunctionError",
    "UnsupportedModelError",
    "bind",
    "compile",
    "disable",
    "enable",
    "function",
    "memory_meter",
    "plan",
    "planned_training",
    "trace",
]

_HOMES = {
    "BoundStep": "bound",
    "Budget": "callback",
    "CompiledIteration": "compiled",
    "LossError": "losses",
    "MemoryMeter": "meter",
    "NoStatisticsError": "meter",
    "StepPlan": "step_plan",
    "PlannedFunction": "functions",
    "PlannedTraining": "keras_fit",
    "ProgramError": "ahead",
    "TracedFunction": "bound",
    "TracedStep": "bound",
    "UnsupportedFunctionError": "capture",
    "bind": "bound",
    "compile": "compiled",
    "disable": "keras_fit",
    "enable": "keras_fit",
    "function": "functions",
    "memory_meter": "meter",
    "plan": "ahead",
    "planned_training": "keras_fit",
    "trace": "ahead",
}

if not TYPE_CHECKING:

    def __getattr__(name):
        """Import a public name from its module at its first use."""
        if name in _HOMES:
            import_module("checkmate_tf.releases").check_installed()
            return getattr(import_module(f"checkmate_tf.{_HOMES[name]}"), name)
        raise AttributeError(f"module 'checkmate_tf' has no attribute {name!r}")
