"""The law of writes in place: whatever is recomputed, no op sees a parameter after its update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from checkmate import DFGraph, Op, Schedule, Tensor, simulate, solve
from checkmate.lower import planned_sequence
from checkmate_torch.overwrites import in_vain, late_reads, with_writes_settled


@dataclass(frozen=True, kw_only=True)
class Training:
    """A made-up training step: ``writes`` are updates at the end, each of one parameter."""

    graph: DFGraph
    writes: dict[int, int]


def random_training(seed: int) -> Training:
    """Layers that read earlier results and some parameters, at times one twice; backward in reverse.

    A backward op reads the gradient of what its layer made, a few forward results and its parameters, and
    adds to the gradients of all that the layer read. Some ops run once.
    """
    rng = np.random.default_rng(seed)
    n_parameters, n_layers = int(rng.integers(1, 5)), int(rng.integers(2, 7))
    tensors = [Tensor(name=f"p{k}", size=int(rng.integers(1, 5))) for k in range(n_parameters)]
    tensors.append(Tensor(name="batch", size=3))
    ops: list[Op] = []

    def run(name: str, reads: list[int], *, backward: bool, n_outputs: int = 1) -> list[int]:
        made = list(range(len(tensors), len(tensors) + n_outputs))
        tensors.extend(Tensor(name=f"{name}.{k}", size=int(rng.integers(1, 5))) for k in range(n_outputs))
        ops.append(
            Op(
                name=f"{name} {len(ops)}",
                inputs=tuple(dict.fromkeys(reads)),
                outputs=tuple(made),
                cost=float(rng.integers(1, 4)),
                recomputable=bool(rng.random() < 0.9),
                backward=backward,
            )
        )
        return made

    layers: list[tuple[int, list[int]]] = []
    results = [n_parameters]
    for _ in range(n_layers):
        parents = sorted({results[-1], int(rng.choice(results))})
        mine = [int(p) for p in rng.choice(n_parameters, int(rng.integers(0, 3)))]
        (made,) = run("forward", [*parents, *mine], backward=False)
        layers.append((made, [*parents, *dict.fromkeys(mine)]))
        results.append(made)
    (loss,) = run("loss", [results[-1]], backward=False)
    gradient = {results[-1]: run("tangent", [loss], backward=True)[0]}
    for made, reads in reversed(layers):
        if made not in gradient:
            continue
        saved = [t for t in reads if rng.random() < 0.8] + ([made] if rng.random() < 0.5 else [])
        wanted = [t for t in reads if t != n_parameters]
        if not wanted:
            continue
        parts = run("backward", [gradient[made], *saved], backward=True, n_outputs=len(wanted))
        for t, part in zip(wanted, parts, strict=True):
            gradient[t] = run("add", [gradient[t], part], backward=True)[0] if t in gradient else part
    tokens, writes = [], {}
    for p in range(n_parameters):
        if p in gradient:
            tokens.append(len(tensors))
            tensors.append(Tensor(name=f"p{p} updated", size=0))
            writes[len(ops)] = p
            ops.append(
                Op(
                    name=f"update {p}",
                    inputs=(p, gradient[p]),
                    outputs=(tokens[-1],),
                    cost=1.0,
                    recomputable=False,
                )
            )
    graph = DFGraph(
        ops=tuple(ops),
        tensors=tuple(tensors),
        inputs=tuple(range(n_parameters + 1)),
        outputs=(loss, *tokens),
    )
    return Training(graph=graph, writes=writes)


def settled(training: Training, in_sequence: Sequence[int] = ()) -> Training:
    graph, order = with_writes_settled(training.graph, training.writes, in_sequence)
    return Training(graph=graph, writes={order.index(u): s for u, s in training.writes.items()})


def careless_sequence(graph: DFGraph, seed: int, *, shuffled: bool = True) -> list[int]:
    """A valid sequence that forgets random tensors at random moments, first runs being in a random order."""
    rng = np.random.default_rng(seed)
    order = random_order(graph, rng) if shuffled else list(range(graph.n_ops))
    other = replace(graph, ops=tuple(graph.ops[v] for v in order))
    moments = rng.choice(graph.n_ops + 1, int(rng.integers(1, 5)))
    plan = {int(at): rng.random(graph.n_tensors) < 0.4 for at in moments}
    sequence = [order[v] for v in planned_sequence(other, plan)]
    simulate(graph, Schedule.from_sequence(graph, sequence))  # raises unless it is valid
    vain = set(in_vain(graph, sequence))
    return [v for k, v in enumerate(sequence) if k not in vain]


def random_order(graph: DFGraph, rng: np.random.Generator) -> list[int]:
    """Any order in which each op follows what it reads."""
    needs = {v: {int(graph.producer[t]) for t in op.inputs} - {-1} for v, op in enumerate(graph.ops)}
    order: list[int] = []
    while needs:
        ready = [v for v, found in needs.items() if found.issubset(order)]
        order.append(int(rng.choice(ready)))
        del needs[order[-1]]
    return order


def what_is_left(training: Training, sequence: list[int]) -> list[object]:
    """Outputs and parameters at the end of a sequence that is run on terms in the place of numbers."""
    graph = training.graph
    values: dict[int, object] = {t: graph.tensors[t].name for t in graph.inputs}
    for v in sequence:
        op = graph.ops[v]
        read = tuple(values[t] for t in op.inputs if graph.tensors[t].size)  # no tokens
        for k, t in enumerate(op.outputs):
            values[t] = hash((op.name, k, read))
        if v in training.writes:
            values[training.writes[v]] = hash(("new", read))
    return [values[t] for t in (*graph.outputs, *graph.inputs)]


@pytest.mark.parametrize("seed", range(60))
def test_no_read_comes_late_and_all_is_as_with_updates_at_the_end(seed: int) -> None:
    plain = random_training(seed)
    reference = what_is_left(plain, list(range(plain.graph.n_ops)))
    others = [v for v in range(plain.graph.n_ops) if v not in plain.writes]
    training = settled(plain, others[seed % 3 :: 3] if seed % 2 else ())
    assert what_is_left(training, list(range(training.graph.n_ops))) == reference
    for trial in range(20):
        sequence = careless_sequence(training.graph, trial)
        assert late_reads(training.graph, sequence, training.writes) == []
        assert what_is_left(training, sequence) == reference


def test_updates_right_behind_their_gradients_would_be_wrong() -> None:
    """The law says something: hoisted without care, updates are followed by reads of what they replaced."""
    wrong = 0
    for seed in range(60):
        plain = random_training(seed)
        graph = plain.graph
        after = {u: int(max(graph.producer[list(graph.ops[u].inputs)])) for u in plain.writes}
        order = sorted(range(graph.n_ops), key=lambda v: (after.get(v, v), v in after, v))
        hoisted = replace(graph, ops=tuple(graph.ops[v] for v in order))
        writes = {order.index(u): s for u, s in plain.writes.items()}
        for trial in range(20):
            wrong += bool(late_reads(hoisted, careless_sequence(hoisted, trial, shuffled=False), writes))
    assert wrong > 100


def chain(n: int) -> Training:
    """n layers y = f(x, p): backward needs x, p and the gradient of y, and gives those of x and p."""
    tensors = [Tensor(name=f"p{k}", size=4) for k in range(n)] + [Tensor(name="x0", size=4)]
    ops: list[Op] = []

    def made(name: str, size: int = 4) -> int:
        tensors.append(Tensor(name=name, size=size))
        return len(tensors) - 1

    x = [n]
    for k in range(n):
        x.append(made(f"x{k + 1}"))
        ops.append(Op(name=f"forward {k}", inputs=(x[k], k), outputs=(x[k + 1],), cost=1.0))
    g = made("g")
    ops.append(Op(name="loss", inputs=(x[n],), outputs=(g,), cost=1.0, backward=True))
    gradients = {}
    for k in reversed(range(n)):
        above, g, gradients[k] = g, made(f"g{k}"), made(f"dp{k}")
        name = f"backward {k}"
        ops.append(Op(name=name, inputs=(above, x[k], k), outputs=(g, gradients[k]), cost=1.0, backward=True))
    tokens, writes = [], {}
    for k in range(n):
        tokens.append(made(f"p{k} updated", 0))
        writes[len(ops)] = k
        name = f"update {k}"
        ops.append(
            Op(name=name, inputs=(k, gradients[k]), outputs=(tokens[k],), cost=1.0, recomputable=False)
        )
    graph = DFGraph(ops=tuple(ops), tensors=tuple(tensors), inputs=tuple(range(n + 1)), outputs=tuple(tokens))
    return Training(graph=graph, writes=writes)


def test_in_a_chain_each_update_follows_its_gradient_and_forward_stays_free() -> None:
    training = settled(chain(4))
    assert [op.name for op in training.graph.ops[4:]] == [
        "loss",
        *(name for k in (3, 2, 1, 0) for name in (f"backward {k}", f"update {k}")),
    ]
    assert training.graph.n_tensors == chain(4).graph.n_tensors  # what it reads is order enough
    assert all(op.recomputable for op in training.graph.ops[:4])


@pytest.mark.parametrize("solver", ["heuristics", "auto"])
def test_solvers_keep_the_law(solver: str) -> None:
    training = settled(chain(10))
    for budget in ("90%", "80%", "75%"):
        found = solve(training.graph, budget, solver=solver, time_limit=2)
        assert found.timeline.recomputes > 0
        assert late_reads(training.graph, found.schedule.sequence.tolist(), training.writes) == []


def test_ops_in_sequence_keep_their_order() -> None:
    graph = DFGraph.from_nodes(cost=[1.0] * 5, size=[4] * 5, deps=[[], [], [], [], [0, 1, 2, 3]])
    ordered, _ = with_writes_settled(graph, {}, in_sequence=[0, 2, 3])
    for seed in range(10):
        order = random_order(ordered, np.random.default_rng(seed))
        assert order.index(0) < order.index(2) < order.index(3)


def test_a_write_that_reads_what_another_overwrites_is_refused() -> None:
    training = chain(2)
    ops = list(training.graph.ops)
    ops[-1] = replace(ops[-1], inputs=(*ops[-1].inputs, 0))
    with pytest.raises(ValueError, match=r"update 1.* reads what .*update 0.* overwrites"):
        with_writes_settled(replace(training.graph, ops=tuple(ops)), training.writes)


def test_computes_in_vain_are_told_from_first_runs_and_from_those_that_are_read() -> None:
    graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 4, 4], deps=[[], [0], [0]], outputs=[2])
    assert in_vain(graph, [0, 1, 2]) == []
    assert in_vain(graph, [0, 1, 0, 2, 0, 1]) == [4, 5]
