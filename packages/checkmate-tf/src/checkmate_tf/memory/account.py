"""Say what each tensor of a traced step is for: parameters, activations, gradients and so on."""

from __future__ import annotations

from collections.abc import Collection

from checkmate import DFGraph
from checkmate.report import Kind
from checkmate_tf.capture.function_capture import Captured
from checkmate_tf.tracing.needs import Buffer
from checkmate_tf.tracing.step_graph import TracedGraph

__all__ = ["kinds_of"]


def kinds_of(traced: TracedGraph, graph: DFGraph, optimizer: Collection[int] = ()) -> tuple[Kind, ...]:
    """The kind of each tensor of a step.

    ``graph`` is the graph of the step, which may have further tensors of 0 bytes; ``optimizer`` has the ids
    of the variable handles of an optimizer.
    """
    kinds = [Kind.UPDATES] * graph.n_tensors
    for op in traced.graph.ops:
        for t in op.outputs:
            kinds[t] = Kind.ACTIVATION_GRADIENTS if op.backward else Kind.ACTIVATIONS
    for t in _gradients(traced):
        kinds[t] = Kind.GRADIENTS
    for t in traced.graph.outputs:
        kinds[t] = Kind.OUTPUTS
    variables = _kinds_of_variables(traced.captured, optimizer)
    for b, t in traced.tensor_of.items():
        if b == Buffer(b.maker, "version", 0):
            kinds[t] = variables.get(b.maker, Kind.VARIABLES)
        elif t in traced.graph.inputs:
            kinds[t] = Kind.BATCH
        elif b.kind != "output":
            kinds[t] = Kind.UPDATES
    return tuple(kinds)


def _gradients(traced: TracedGraph) -> set[int]:
    """The tensors that updates read from backward ops."""
    graph = traced.graph
    read = {t for v in traced.writes for t in graph.ops[v].inputs if graph.tensors[t].size}
    return {t for t in read if graph.producer[t] >= 0 and graph.ops[graph.producer[t]].backward}


def _kinds_of_variables(captured: Captured, optimizer: Collection[int]) -> dict[str, Kind]:
    """Placeholder of a captured handle → the kind of its variable."""
    trained = {id(v.handle) for v in captured.variables if v.trainable}
    kinds = dict.fromkeys(trained, Kind.PARAMETERS) | dict.fromkeys(optimizer, Kind.OPTIMIZER)
    return {name: kinds[handle] for name, handle in captured.handles.items() if handle in kinds}
