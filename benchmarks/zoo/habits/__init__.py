"""Training loops of a few steps that many people write, by name and by group, in the order of the table."""

from __future__ import annotations

from zoo.habits import around, backward, inputs, loops, modules
from zoo.habits.habit import HABITS
from zoo.habits.trl_trainers import VARYING

__all__ = ["GROUPS", "HABITS", "VARYING"]

_MODULES = {
    "the loop": loops,
    "inputs and outputs": inputs,
    "inside of the model": modules,
    "backward pass and hooks": backward,
    "around the training": around,
}
GROUPS = {
    title: [name for name, function in HABITS.items() if function.__module__ == module.__name__]
    for title, module in _MODULES.items()
}
"""Heading → the names of its habits."""
