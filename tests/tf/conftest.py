"""Reference runs: the ops of a step, each once, in no order other than that of the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from checkmate_tf.running.program import Program, program
from checkmate_tf.tracing.step_graph import TracedGraph


@pytest.fixture(scope="session")
def unscheduled() -> Callable[[TracedGraph], Program]:
    """(step) ↦ its ops without an order; branches run as TensorFlow gave them."""

    def once(traced: TracedGraph) -> Program:
        plain = program(traced, range(traced.graph.n_ops))
        copies = tuple(replace(copy, heavy=False, branches=()) for copy in plain.copies)
        return Program(copies=copies, outputs=plain.outputs)

    return once
