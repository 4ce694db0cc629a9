"""Keep the order in which ``AddN`` adds up three or more tensors, although it depends on what is held.

    AddN(x₀, x₁, x₂ …) = x₀ + x₁ + x₂ + …, or xᵢ + x₁ + … + x₀ + … with the first xᵢ that nothing else needs

The kernel writes over that xᵢ, and so swaps it with x₀. Rounding makes the two sums differ, unless i ≤ 1.
Every schedule must give the bits of the traced order, so the i of that order is kept: xᵢ is passed first, and
an input after the second one, with which the kernel would start, is held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from checkmate_tf.running.program import Hold, Program, program, roots_of
from checkmate_tf.tracing.step_graph import TracedGraph

__all__ = ["addn_holds", "addn_starts"]


def addn_starts(traced: TracedGraph) -> Mapping[str, int]:
    """Name of an ``AddN`` → the input it starts with in the traced order, if that is its third or later."""
    if not any(op.type == "AddN" and len(op.inputs) > 2 for op in traced.captured.ops):
        return {}
    plain = program(traced, range(traced.graph.n_ops))
    return {plain.copies[k].op.name: min(dying) for k, dying in _late_starts(plain)}


def addn_holds(program: Program) -> Iterator[Hold]:
    """The inputs to hold, so that no ``AddN`` of a program starts after its second input."""
    for k, dying in _late_starts(program):
        yield from (Hold(program.copies[k].inputs[i], k) for i in dying)


def _late_starts(program: Program) -> Iterator[tuple[int, list[int]]]:
    """Each copy of an ``AddN`` that starts after its second input, and the inputs it may write over."""
    root = roots_of(program.copies)
    last = {root(v): k for k, copy in enumerate(program.copies) for v in copy.inputs}
    last |= {root(v): len(program.copies) for v in program.outputs}
    for hold in program.holds:
        last[root(hold.value)] = max(last.get(root(hold.value), 0), hold.until + 1)
    for k, copy in enumerate(program.copies):
        if copy.op.type == "AddN" and len(copy.inputs) > 2:
            read = [root(v) for v in copy.inputs]
            dying = [i for i, v in enumerate(read) if v.copy >= 0 and last[v] == k and read.count(v) == 1]
            if dying and dying[0] > 1:
                yield k, dying
