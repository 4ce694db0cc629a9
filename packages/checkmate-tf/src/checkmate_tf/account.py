"""What the bytes of a traced step are held for."""

from __future__ import annotations

from collections.abc import Collection

from checkmate import DFGraph
from checkmate.report import Kind
from checkmate_tf.reading import Buffer
from checkmate_tf.tracing import TracedGraph

__all__ = ["kinds_of"]


def kinds_of(traced: TracedGraph, graph: DFGraph, optimizer: Collection[int] = ()) -> tuple[Kind, ...]:
    """The kind of each tensor.

    Args:
        traced: the step.
        graph: its graph, or that with further tensors, which are of no bytes.
        optimizer: ids of the handles of an optimizer's variables.
    """
    captured, of_op = traced.captured, traced.graph
    trained = {id(v.handle) for v in captured.variables if v.trainable}
    handles = (
        {
            t.op.name: h
            for t, h in zip(captured.inputs[-len(captured.captured) :], captured.captured, strict=True)
        }
        if captured.captured
        else {}
    )
    kinds = [Kind.UPDATES] * graph.n_tensors
    for v in of_op.ops:
        for t in v.outputs:
            kinds[t] = Kind.ACTIVATION_GRADIENTS if v.backward else Kind.ACTIVATIONS
    for u in traced.writes:
        for t in of_op.ops[u].inputs:
            made = of_op.producer[t]
            if made >= 0 and of_op.ops[made].backward and of_op.tensors[t].size:
                kinds[t] = Kind.GRADIENTS
    for t in of_op.outputs:
        kinds[t] = Kind.OUTPUTS
    for b, t in traced.tensor_of.items():
        if b.kind != "output":
            kinds[t] = Kind.UPDATES
        if b == Buffer(b.maker, "version", 0):
            handle = id(handles.get(b.maker))
            kinds[t] = (
                Kind.OPTIMIZER
                if handle in optimizer
                else Kind.PARAMETERS
                if handle in trained
                else Kind.VARIABLES
            )
        elif t in of_op.inputs:
            kinds[t] = Kind.BATCH
    return tuple(kinds)
