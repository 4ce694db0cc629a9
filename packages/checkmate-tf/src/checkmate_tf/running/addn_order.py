"""Sums of three and more tensors, which TensorFlow adds up in an order that depends on what is held.

    AddN(x₀, x₁, x₂ …) = x₀ + x₁ + x₂ + …, or xᵢ + x₁ + … + x₀ + … with the first xᵢ that nothing else needs

It writes over that xᵢ, and exchanges it with x₀. Rounding makes the two sums differ, unless i ≤ 1. So that
every schedule gives the bits of the traced order, the i of that order is kept: xᵢ is passed first, and inputs
after the second one are held where the kernel would start with one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from checkmate_tf.ops.storages import aliased_input
from checkmate_tf.running.program import Copy, Hold, Program, Value, program
from checkmate_tf.tracing.step_graph import TracedGraph

__all__ = ["roots_of", "starts_of", "steady_sums"]


def starts_of(traced: TracedGraph) -> Mapping[str, int]:
    """Name of a sum → the input it starts with in the traced order, if that is not one of the first two."""
    if not any(op.type == "AddN" and len(op.inputs) > 2 for op in traced.captured.ops):
        return {}
    plain = program(traced, range(traced.graph.n_ops))
    return {plain.copies[k].op.name: min(dying) for k, dying in _late_starts(plain)}


def steady_sums(program: Program) -> Iterator[Hold]:
    """The inputs of sums to hold, so that no sum starts after its second input."""
    for k, dying in _late_starts(program):
        yield from (Hold(program.copies[k].inputs[i], k) for i in dying)


def _late_starts(program: Program) -> Iterator[tuple[int, list[int]]]:
    """Each sum that starts after its second input, and the inputs that it may write over."""
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


def roots_of(copies: Sequence[Copy]) -> Callable[[Value], Value]:
    """Value ↦ the first value in the same buffer."""
    known: dict[Value, Value] = {}
    for k, copy in enumerate(copies):
        for t in copy.op.outputs:
            source = aliased_input(copy.op, t.value_index)
            if source is not None and copy.inputs:
                known[Value(k, t.value_index)] = known.get(copy.inputs[source], copy.inputs[source])
    return lambda v: known.get(v, v)
