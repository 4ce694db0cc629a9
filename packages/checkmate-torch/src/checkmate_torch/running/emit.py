"""Turn a schedule into two FX graphs, forward and backward, that follow its recomputations and frees.

Generated FX code drops a value right after its last use, and a schedule made by liveness frees a tensor
right after its last read. So the order of the nodes is the schedule, frees included; where a schedule frees
later, a node that does nothing uses the value until then. An op that reuses an operand that dies with it runs
in place. A read uses the latest copy, and views are made again from it. A value that forward makes and
backward uses is saved: it is an output of the forward graph and an input of the backward graph.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from checkmate import Schedule, simulate
from checkmate.framework import late_frees
from checkmate_torch.ops.recompute_rules import as_copy
from checkmate_torch.ops.sizes import is_symbol
from checkmate_torch.private import SavedForBackwardsAOTOutput
from checkmate_torch.running.cuda_graph import RandomPoints
from checkmate_torch.running.fusing import FusedKernel
from checkmate_torch.running.graph_writer import GraphWriter, ScheduledRun, Watch
from checkmate_torch.tracing.traced_graph import TracedGraph

__all__ = ["emit", "emit_unbroken"]


def emit(
    traced: TracedGraph,
    schedule: Schedule,
    watch: Watch | None = None,
    kernels: Mapping[int, FusedKernel] | None = None,
) -> tuple[GraphModule, GraphModule]:
    """The forward and the backward graph that execute a valid schedule of ``traced.graph``.

    ``watch`` is called with each op. ``kernels`` maps the number of a run to the kernel that computes this
    run and some that follow it.
    """
    if traced.boundary is None:
        raise ValueError("a graph without a boundary is not split: use emit_unbroken")
    *runs, end = _runs(traced, schedule)
    split = schedule.sequence.tolist().index(traced.boundary)
    early, late = runs[:split], runs[split + 1 :]

    forward = GraphWriter(traced, schedule, watch, kernels)
    for primal in traced.primals:
        forward.add_placeholder(primal)
    forward.follow(early)
    forward.write_inputs()
    returned = [forward.value(x) for x in traced.returned]
    forward.mark(traced.boundary)

    backward = GraphWriter(traced, schedule, watch, kernels, before=forward)
    saved, sizes = _saved_sources(traced, [*runs[split:], end], forward)
    replayed = sorted(forward.states.keys() & {run.op for run in late})
    for size in sizes:
        backward.add_placeholder(size)
    for op in replayed:
        backward.add_state(op, forward.states[op])
    for source in (*saved, *traced.tangents):
        backward.add_placeholder(source)
    backward.hold(backward.copies(runs[split].held))
    backward.follow(late)
    backward.mark(end.op)
    backward.hold(backward.copies(end.held))
    backward.graph.output([backward.value(x) for x in traced.gradients])

    kept = [*(forward.states[op] for op in replayed), *(forward.value(s) for s in (*saved, *sizes))]
    forward.graph.output([*returned, *kept])
    roles = list(traced.joint.graph.output_node().meta["desc"])
    gradient_roles = roles[len(traced.forward_outputs) :]
    saved_roles = [SavedForBackwardsAOTOutput(k) for k in range(len(kept))]
    return (
        forward.module([*roles[: len(returned)], *saved_roles]),
        backward.module(gradient_roles),
    )


def emit_unbroken(
    traced: TracedGraph,
    schedule: Schedule,
    watch: Watch | None = None,
    kernels: Mapping[int, FusedKernel] | None = None,
    points: RandomPoints | None = None,
) -> GraphModule:
    """The one graph that executes a valid schedule of a ``traced.graph`` without a boundary.

    The graph returns the forward outputs. The arguments are the same as for :func:`emit`; with ``points``,
    random states stay on their device, so that the graph can be captured.
    """
    whole = GraphWriter(traced, schedule, watch, kernels, points=points)
    for primal in traced.primals:
        whole.add_placeholder(primal)
    *runs, end = _runs(traced, schedule)
    whole.follow(runs)
    whole.mark(end.op)
    whole.hold(whole.copies(end.held))
    whole.write_inputs()
    whole.graph.output([whole.value(x) for x in traced.returned])
    roles = list(traced.joint.graph.output_node().meta["desc"])
    return whole.module(roles[: len(traced.returned)])


def _runs(traced: TracedGraph, schedule: Schedule) -> list[ScheduledRun]:
    """The runs of a schedule, then one more run for its end, whose op is the number of ops.

    No run holds new values of inputs: they are dropped by the end of forward.
    """
    late, timeline = late_frees(traced.graph, schedule), simulate(traced.graph, schedule)
    sources = {t: n for t, n in traced.source_of.items() if n not in traced.new_values}
    steps = [step for step, code in enumerate(schedule.codes.tolist()) if code >= 0]
    reused = map(timeline.reused_at, steps)
    ops = [*zip(schedule.sequence.tolist(), reused, strict=True), (traced.graph.n_ops, frozenset[int]())]
    return [
        ScheduledRun(k, op, tuple(sources[t] for t in late.get(k, ()) if t in sources), over)
        for k, (op, over) in enumerate(ops)
    ]


def _saved_sources(
    traced: TracedGraph, runs: Sequence[ScheduledRun], forward: GraphWriter
) -> tuple[list[Node], list[Node]]:
    """Joint nodes whose forward values are read from the boundary on, in the order that AOTAutograd needs.

    Tensors that an ``autograd.Function`` put on its ctx, without a version check, are last. Symbolic sizes
    are returned apart: saving one keeps no tensor alive.
    """
    made: set[Node] = set(traced.tangents)
    saved: dict[Node, None] = {}

    def read(node: Node) -> None:
        for source in traced.sources(node):
            if is_symbol(source) and not forward.is_known(source):
                map_arg((source.args, source.kwargs), read)
            elif source not in made:
                saved[source] = None

    for _, op, held, _ in runs:
        node = traced.nodes[op] if op < len(traced.nodes) else None
        if node is not None:
            map_arg((as_copy(node)[1] if op in forward.done else node.args, node.kwargs), read)
        map_arg(held, read)
        if node is not None:
            made.update((node, *(user for user in node.users if user.target is operator.getitem)))
    map_arg(traced.gradients, read)
    shown = [(source, source.meta.get("val")) for source in saved if source.op != "get_attr"]
    tensors = [source for source, value in shown if isinstance(value, torch.Tensor)]
    sizes = [source for source, value in shown if isinstance(value, torch.SymInt)]
    return sorted(tensors, key=lambda s: bool(s.meta.get("saved_tensor_with_no_vc_check"))), sizes
