"""Hypothesis strategies: random two-sided graphs, problems about them, and valid and invalid schedules.

All of them shrink towards few ops, sizes and costs of 0 and 1, and no special traits.
Needs hypothesis, of the extra ``checkmate-core[testing]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hypothesis import strategies as st

from checkmate.analysis import floor
from checkmate.model.graph import DFGraph, Op, Tensor
from checkmate.model.schedule import Compute, Free, Schedule, Step
from checkmate.problem.problem import Problem, keep_all_peak

__all__ = [
    "branches",
    "budgets",
    "dressed",
    "graphs",
    "problems",
    "schedules",
    "spread",
    "training_steps",
    "valid_schedules",
]

_SIZES = st.integers(0, 8)
_COSTS = st.sampled_from([0.0, 1.0, 2.0, 5.0, 0.25])


@st.composite
def graphs(draw: st.DrawFn, *, min_ops: int = 1, max_ops: int = 8, recomputable: bool = False) -> DFGraph:
    """Graphs of every kind.

    Ops with no, one or several outputs, with workspace, ops that reuse inputs, that run only once (unless
    ``recomputable``) or that no output needs; zero sizes and costs; graph inputs, which may be outputs too;
    fixed bytes.
    """
    n_ops = draw(st.integers(min_ops, max_ops))
    n_inputs = draw(st.integers(0, 2))
    turn = draw(st.integers(0, n_ops))
    sizes = [draw(_SIZES) for _ in range(n_inputs)]
    ops: list[Op] = []
    for i in range(n_ops):
        read = _some(draw, range(len(sizes)), 3)
        made = range(len(sizes), len(sizes) + draw(st.sampled_from([1, 1, 1, 2, 3, 0])))
        sizes += [draw(_SIZES) for _ in made]
        ops.append(
            Op(
                name=f"op{i}",
                inputs=read,
                outputs=tuple(made),
                cost=draw(_COSTS),
                workspace=draw(st.sampled_from([0, 0, 3])),
                recomputable=recomputable or draw(st.sampled_from([True, True, True, False])),
                backward=i >= turn,
                reuses=_some(draw, read, 2) if draw(st.sampled_from([False, False, True])) else (),
            )
        )
    return DFGraph(
        ops=tuple(ops),
        tensors=tuple(Tensor(name=f"t{t}", size=size) for t, size in enumerate(sizes)),
        inputs=tuple(range(n_inputs)),
        outputs=_some(draw, range(len(sizes)), 3),
        fixed_size=draw(st.sampled_from([0, 0, 5])),
        cost_unit=draw(st.sampled_from(["", "s"])),
        name=draw(st.sampled_from(["", "a graph"])),
    )


@st.composite
def training_steps(draw: st.DrawFn, *, min_layers: int = 2, max_layers: int = 4) -> DFGraph:
    """Chains of layers with mirrored backward and perhaps a skip edge; small budgets need recomputation.

    Layer i's gradient reads the gradient before it and the layer's output; one op makes one tensor.
    """
    layers = draw(st.integers(min_layers, max_layers))
    n = 2 * layers
    reads = [[i - 1] if i else [] for i in range(layers)] + [[j - 1, n - 1 - j] for j in range(layers, n)]
    for i in draw(st.sets(st.integers(2, layers), max_size=1)):
        reads[i] = sorted({*reads[i], draw(st.integers(0, i - 1))})
    numbers = st.lists(st.integers(1, 4), min_size=n, max_size=n)
    return DFGraph.from_nodes(
        cost=draw(numbers), size=draw(numbers), deps=reads, backward=[i >= layers for i in range(n)]
    )


@st.composite
def branches(draw: st.DrawFn) -> DFGraph:
    """A few parallel chains, listed in turns, and an op that joins their ends; here the order of ops matters.

    Finishing one branch before the next holds fewer bytes than taking turns; one op makes one tensor.
    """
    lengths = draw(st.lists(st.integers(1, 3), min_size=2, max_size=3))
    turns = draw(st.permutations([branch for branch, length in enumerate(lengths) for _ in range(length)]))
    ends: dict[int, int] = {}
    reads: list[list[int]] = []
    for i, branch in enumerate(turns):
        reads.append([ends[branch]] if branch in ends else [])
        ends[branch] = i
    reads.append(sorted(ends.values()))
    numbers = st.lists(st.integers(1, 6), min_size=len(reads), max_size=len(reads))
    return DFGraph.from_nodes(cost=draw(numbers), size=draw(numbers), deps=reads)


@st.composite
def dressed(draw: st.DrawFn, source: st.SearchStrategy[DFGraph]) -> DFGraph:
    """Graphs of ``source`` whose ops have traits that one op for one tensor does not show.

    Some ops get a workspace, reuse an input, run only once, or make a second tensor that a later op reads;
    there may be a parameter, fixed bytes, one more graph output, and a backward pass that begins anywhere.
    Most problems that needed recomputation still do.
    """
    graph = draw(source)
    ops, tensors = list(graph.ops), list(graph.tensors)
    inputs, outputs = graph.inputs, graph.outputs
    last = len(ops) - 1
    for i in range(len(ops)):
        match draw(st.sampled_from(["plain"] * 4 + ["workspace", "reuse", "once", "second"])):
            case "workspace":
                ops[i] = replace(ops[i], workspace=draw(st.integers(1, 3)))
            case "reuse":
                ops[i] = replace(ops[i], reuses=ops[i].inputs[:1])
            case "once":
                ops[i] = replace(ops[i], recomputable=False)
            case "second" if i < last:
                reader = draw(st.integers(i + 1, last))
                ops[i] = replace(ops[i], outputs=(*ops[i].outputs, len(tensors)))
                ops[reader] = replace(ops[reader], inputs=(*ops[reader].inputs, len(tensors)))
                tensors.append(Tensor(name=f"second{i}", size=draw(st.integers(0, 2))))
    turn = draw(st.integers(0, len(ops)))
    ops = [replace(op, backward=i >= turn) for i, op in enumerate(ops)]
    if draw(st.booleans()):
        inputs = (*inputs, len(tensors))
        for i in draw(st.sets(st.integers(0, last), max_size=2)):
            ops[i] = replace(ops[i], inputs=(*ops[i].inputs, len(tensors)))
        tensors.append(Tensor(name="parameter", size=draw(st.integers(1, 4))))
    if draw(st.integers(0, 3)) == 0:
        outputs = tuple(dict.fromkeys((*outputs, draw(st.integers(0, len(graph.tensors) - 1)))))
    return replace(
        graph,
        ops=tuple(ops),
        tensors=tuple(tensors),
        inputs=inputs,
        outputs=outputs,
        fixed_size=draw(st.sampled_from([0, 0, 5])),
    )


@st.composite
def spread(draw: st.DrawFn, source: st.SearchStrategy[DFGraph]) -> DFGraph:
    """Graphs of ``source``, some with costs of very unequal magnitude or sizes around a power of two.

    These reveal false proofs by rounded sizes and numerical tolerances.
    """
    graph = draw(source)
    magnitudes = draw(st.sampled_from([[1.0], [1e-9], [1e-7, 1.0], [1.0, 1e7], [1.0, 1e4, 1e10]]))
    unit = draw(st.sampled_from([0, 0, 2**29, 2**30, 2**40, 2**55]))
    if unit:
        sizes = [unit * (t.size > 2) + draw(st.integers(0, 2)) for t in graph.tensors]
        tensors = tuple(replace(t, size=size) for t, size in zip(graph.tensors, sizes, strict=True))
        graph = replace(graph, tensors=tensors)
    if len(magnitudes) == 1 and magnitudes[0] == 1.0:
        return graph
    ops = tuple(replace(op, cost=op.cost * draw(st.sampled_from(magnitudes))) for op in graph.ops)
    return replace(graph, ops=ops)


@st.composite
def budgets(draw: st.DrawFn, graph: DFGraph) -> int:
    """Budgets of ``graph``: from its proved floor to its peak without recomputation, rarely a byte below."""
    low, high = max(1, floor(graph).size), max(1, keep_all_peak(graph))
    if draw(st.integers(0, 9)) == 9:
        return max(1, low - 1)
    return draw(st.integers(low, max(low, high - 1)))


@st.composite
def problems(
    draw: st.DrawFn,
    source: st.SearchStrategy[DFGraph] | None = None,
    *,
    fixed_order: bool | None = None,
    time_limit: float = 10.0,
) -> Problem:
    """Problems: a graph, and a budget of it as in :func:`budgets`.

    Args:
        draw: given by Hypothesis.
        source: strategy of the graphs; default: tiny graphs of every kind, training steps and branches, with
            traits as in :func:`dressed`, costs and sizes as in :func:`spread`: small enough for the oracle.
        fixed_order: ``fixed_order`` of the problems; None = drawn.
        time_limit: ``time_limit`` of the problems.
    """
    graph = draw(_tiny() if source is None else source)
    return Problem(
        graph=graph,
        budget=draw(budgets(graph)),
        fixed_order=draw(st.booleans()) if fixed_order is None else fixed_order,
        time_limit=time_limit,
    )


def _tiny() -> st.SearchStrategy[DFGraph]:
    steps, beside = training_steps(min_layers=3), branches()
    return spread(st.one_of(dressed(steps), steps, dressed(beside), beside, graphs(max_ops=6)))


@st.composite
def valid_schedules(draw: st.DrawFn, graph: DFGraph, *, reorder: bool = False) -> Schedule:
    """Valid schedules: every op, with random frees and needless recomputations.

    Freed tensors are recomputed when they are read: only outputs of recomputable ops are freed before the
    end, and by induction those can always be recomputed from the rest.

    Args:
        draw: given by Hypothesis.
        graph: the graph.
        reorder: whether first runs may leave the base order.
    """
    steps: list[Step] = []
    resident = set(graph.inputs)
    mobile = {t for op in graph.ops if op.recomputable for t in op.outputs}

    def compute(v: int) -> None:
        for t in graph.ops[v].inputs:
            if t not in resident:
                compute(int(graph.producer[t]))
        resident.update(graph.ops[v].outputs)
        steps.append(Compute(v))

    def free(candidates: set[int]) -> None:
        if draw(st.booleans()) and candidates:
            t = draw(st.sampled_from(sorted(candidates)))
            resident.remove(t)
            steps.append(Free(t))

    for v in _orders(draw, graph) if reorder else range(graph.n_ops):
        compute(v)
        free(resident & mobile)
        free(resident & mobile)
        if graph.ops[v].recomputable and draw(st.integers(0, 4)) == 0:
            compute(v)
    for t in graph.outputs:
        if t not in resident:
            compute(int(graph.producer[t]))
    free(resident - set(graph.inputs) - set(graph.outputs))
    return Schedule.of(steps)


def _orders(draw: st.DrawFn, graph: DFGraph) -> Iterator[int]:
    """The ops in a random order, each after the producers of its inputs."""
    waits = [{int(graph.producer[t]) for t in op.inputs} - {-1} for op in graph.ops]
    left = list(range(graph.n_ops))
    while left:
        ready = [v for v in left if waits[v].isdisjoint(left)]
        v = draw(st.sampled_from(ready)) if draw(st.booleans()) else ready[0]
        left.remove(v)
        yield v


@st.composite
def schedules(draw: st.DrawFn, graph: DFGraph) -> Schedule:
    """Schedules of every kind: valid ones, valid ones with a few random edits, and noise.

    The edits drop, double, swap or insert steps, with indices that may be out of range; most of the
    results break exactly one rule of the judge.
    """
    steps = list(draw(valid_schedules(graph)))
    any_step = st.one_of(
        st.builds(Compute, st.integers(0, graph.n_ops)), st.builds(Free, st.integers(0, graph.n_tensors))
    )
    if draw(st.integers(0, 9)) == 0:
        return Schedule.of(draw(st.lists(any_step, max_size=12)))
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(steps)))
        match draw(st.sampled_from(["drop", "double", "swap", "insert"])):
            case "drop":
                del steps[at : at + 1]
            case "double":
                steps[at:at] = steps[at : at + 1]
            case "swap":
                steps[at : at + 2] = reversed(steps[at : at + 2])
            case _:
                steps.insert(at, draw(any_step))
    return Schedule.of(steps)


def _some(draw: st.DrawFn, pool: Sequence[int], most: int) -> tuple[int, ...]:
    if not pool:
        return ()
    return tuple(draw(st.lists(st.sampled_from(pool), max_size=min(most, len(pool)), unique=True)))
