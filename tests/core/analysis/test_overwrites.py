"""The law of writes in place: under any recomputation, each op reads the right version of a parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from checkmate import DFGraph, Op, Schedule, Tensor, simulate, solve
from checkmate.analysis import in_vain, late_reads, sequence_to_run, with_writes_settled
from checkmate.model.lower import sequence_from_moments


@dataclass(frozen=True, kw_only=True)
class Training:
    """A random step: op → the tensors that it overwrites, and version → its parameter."""

    graph: DFGraph
    writes: dict[int, tuple[int, ...]]
    versions: dict[int, int] = field(default_factory=dict)


def random_training(seed: int) -> Training:
    """Layers that read earlier results and some parameters, one of them perhaps twice; backward in reverse.

    A backward op reads the gradient of what its layer made, a few forward results and its parameters, and
    adds to the gradients of all inputs of the layer. Some ops run once.
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
    tokens: list[int] = []
    writes: dict[int, tuple[int, ...]] = {}
    for p in range(n_parameters):
        if p in gradient:
            tokens.append(len(tensors))
            tensors.append(Tensor(name=f"p{p} updated", size=0))
            writes[len(ops)] = (p,)
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


def random_program(seed: int) -> Training:
    """Ops that read earlier results and current parameters; some overwrite one or two parameters.

    A write may read any other parameter, and make a result as well; it need not read what it overwrites.
    """
    rng = np.random.default_rng(seed)
    n_parameters, n_ops = int(rng.integers(1, 4)), int(rng.integers(4, 18))
    tensors = [Tensor(name=f"p{k}", size=4) for k in range(n_parameters)] + [Tensor(name="batch", size=3)]
    now = list(range(n_parameters))  # the version of each parameter
    versions, writes = {p: p for p in now}, dict[int, tuple[int, ...]]()
    results, ops = [n_parameters], list[Op]()

    def made(name: str, size: int) -> int:
        tensors.append(Tensor(name=name, size=size))
        return len(tensors) - 1

    for v in range(n_ops):
        reads = [int(t) for t in rng.choice(results, int(rng.integers(1, 3)))]
        reads += [now[p] for p in rng.choice(n_parameters, int(rng.integers(0, 3)))]
        outputs: list[int] = []
        if rng.random() < 0.4:
            written = [int(p) for p in rng.permutation(n_parameters)[: rng.integers(1, 3)]]
            writes[v] = tuple(now[p] for p in written)
            for p in written:
                outputs.append(made(f"p{p} after {v}", 0))
                now[p], versions[outputs[-1]] = outputs[-1], p
        if not outputs or rng.random() < 0.3:
            outputs.append(made(f"{v}", int(rng.integers(1, 5))))
        ops.append(
            Op(
                name=f"{v}",
                inputs=tuple(dict.fromkeys(reads)),
                outputs=tuple(outputs),
                cost=1.0,
                recomputable=bool(rng.random() < 0.9),
                backward=v > n_ops // 2 and bool(rng.random() < 0.7),
            )
        )
        results += [t for t in outputs if t not in versions]
    read = {t for op in ops for t in op.inputs}
    kept = [t for t in results[1:] if t not in read or rng.random() < 0.1]
    outputs_ = (*kept, *(t for t in now if t >= n_parameters))
    graph = DFGraph(
        ops=tuple(ops), tensors=tuple(tensors), inputs=tuple(range(n_parameters + 1)), outputs=outputs_
    )
    return Training(graph=graph, writes=writes, versions=versions)


def settled(training: Training, in_sequence: Sequence[int] = ()) -> Training:
    graph, order = with_writes_settled(training.graph, training.writes, in_sequence)
    return replace(training, graph=graph, writes={order.index(u): s for u, s in training.writes.items()})


def careless_sequence(graph: DFGraph, seed: int, *, shuffled: bool = True) -> list[int]:
    """A valid sequence that drops random tensors at random moments, with first runs in a random order."""
    rng = np.random.default_rng(seed)
    order = random_order(graph, rng) if shuffled else list(range(graph.n_ops))
    other = replace(graph, ops=tuple(graph.ops[v] for v in order))
    moments = rng.choice(graph.n_ops + 1, int(rng.integers(1, 5)))
    plan = {int(at): rng.random(graph.n_tensors) < 0.4 for at in moments}
    sequence = [order[v] for v in sequence_from_moments(other, plan)]
    simulate(graph, Schedule.from_sequence(graph, sequence))  # raises if it is invalid
    vain = set(in_vain(graph, sequence))
    return [v for k, v in enumerate(sequence) if k not in vain]


def random_order(graph: DFGraph, rng: np.random.Generator) -> list[int]:
    """Any order in which each op follows the producers of its inputs."""
    needs = {v: {int(graph.producer[t]) for t in op.inputs} - {-1} for v, op in enumerate(graph.ops)}
    order: list[int] = []
    while needs:
        ready = [v for v, found in needs.items() if found.issubset(order)]
        order.append(int(rng.choice(ready)))
        del needs[order[-1]]
    return order


def what_is_left(training: Training, sequence: Sequence[int]) -> list[object]:
    """Outputs and parameters at the end of a sequence that runs on terms instead of numbers."""
    graph, home = training.graph, training.versions
    values: dict[int, object] = {t: graph.tensors[t].name for t in graph.inputs}
    for v in sequence:
        op = graph.ops[v]
        read = tuple(
            values[home.get(t, t)] for t in op.inputs if t in home or graph.tensors[t].size
        )  # no tokens
        for k, t in enumerate(op.outputs):
            if t not in home:
                values[t] = hash((op.name, k, read))
        for t in training.writes.get(v, ()):
            values[home.get(t, t)] = hash((op.name, "new", home.get(t, t), read))
    return [values[home.get(t, t)] for t in (*graph.outputs, *graph.inputs)]


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


@pytest.mark.parametrize("seed", range(150))
def test_each_op_sees_the_version_that_it_reads_however_often_parameters_are_written(seed: int) -> None:
    program = random_program(seed)
    reference = what_is_left(program, range(program.graph.n_ops))
    ordered = range(program.graph.n_ops)[seed % 3 :: 3] if seed % 2 else ()
    training = settled(program, ordered)
    assert what_is_left(training, range(training.graph.n_ops)) == reference
    for trial in range(10):
        sequence = careless_sequence(training.graph, trial)
        assert late_reads(training.graph, sequence, training.writes) == []
        assert what_is_left(training, sequence) == reference


def test_updates_right_behind_their_gradients_would_be_wrong() -> None:
    """A control: if updates are simply hoisted, ops read tensors after their overwrite."""
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


def layered(n: int) -> Training:
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
    tokens: list[int] = []
    writes: dict[int, tuple[int, ...]] = {}
    for k in range(n):
        tokens.append(made(f"p{k} updated", 0))
        writes[len(ops)] = (k,)
        name = f"update {k}"
        ops.append(
            Op(name=name, inputs=(k, gradients[k]), outputs=(tokens[k],), cost=1.0, recomputable=False)
        )
    graph = DFGraph(ops=tuple(ops), tensors=tuple(tensors), inputs=tuple(range(n + 1)), outputs=tuple(tokens))
    return Training(graph=graph, writes=writes)


def test_in_a_chain_each_update_follows_its_gradient_and_forward_stays_free() -> None:
    training = settled(layered(4))
    assert [op.name for op in training.graph.ops[4:]] == [
        "loss",
        *(name for k in (3, 2, 1, 0) for name in (f"backward {k}", f"update {k}")),
    ]
    assert training.graph.n_tensors == layered(4).graph.n_tensors  # its inputs already imply the order
    assert all(op.recomputable for op in training.graph.ops[:4])


@pytest.mark.parametrize("solver", ["heuristics", "auto"])
def test_solvers_keep_the_law(solver: str) -> None:
    training = settled(layered(10))
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


def momentum() -> Training:
    """m ← f(m, g), then p ← h(p, m), after a backward op that reads p; a meter then reads both."""
    names = ("p", "m", "g", "m1", "p1", "norm")
    ops = (
        Op(name="backward", inputs=(0,), outputs=(2,), cost=1.0, backward=True),
        Op(name="turn", inputs=(1, 2), outputs=(3,), cost=1.0),
        Op(name="move", inputs=(0, 3), outputs=(4,), cost=1.0),
        Op(name="meter", inputs=(3, 4), outputs=(5,), cost=1.0),
    )
    tensors = tuple(Tensor(name=name, size=0 if "1" in name else 4) for name in names)
    graph = DFGraph(ops=ops, tensors=tensors, inputs=(0, 1), outputs=(3, 4, 5))
    return Training(graph=graph, writes={1: (1,), 2: (0,)}, versions={0: 0, 1: 1, 3: 1, 4: 0})


def test_writes_run_once_even_if_recomputable() -> None:
    training = settled(momentum())
    assert [op.recomputable for op in training.graph.ops if op.name in ("turn", "move")] == [False, False]


def test_a_reader_that_could_be_needed_after_the_write_runs_once() -> None:
    """y = f(p); p ← h(p); z = g(y, p): a second f would read the new p, and no order of the write helps."""
    names = ("p", "y", "p1", "z")
    ops = (
        Op(name="f", inputs=(0,), outputs=(1,), cost=1.0),
        Op(name="h", inputs=(0,), outputs=(2,), cost=1.0),
        Op(name="g", inputs=(1, 2), outputs=(3,), cost=1.0),
    )
    tensors = tuple(Tensor(name=name, size=0 if name == "p1" else 4) for name in names)
    graph = DFGraph(ops=ops, tensors=tensors, inputs=(0,), outputs=(2, 3))
    late, _ = with_writes_settled(graph, {1: [0]})
    assert [(op.name, op.recomputable) for op in late.ops] == [("f", False), ("h", False), ("g", False)]
    free, _ = with_writes_settled(replace(graph, ops=(*ops[:2], replace(ops[2], inputs=(1,)))), {1: [0]})
    assert [(op.name, op.recomputable) for op in free.ops] == [("f", True), ("g", False), ("h", False)]


def test_a_write_waits_for_the_unread_version_that_it_overwrites() -> None:
    ops = (
        Op(name="first", inputs=(), outputs=(1,), cost=1.0),
        Op(name="second", inputs=(), outputs=(2,), cost=1.0),
    )
    tensors = (Tensor(name="p", size=4), Tensor(name="p1", size=0), Tensor(name="p2", size=0))
    graph = DFGraph(ops=ops, tensors=tensors, inputs=(0,), outputs=(2,))
    ordered, _ = with_writes_settled(graph, {0: [0], 1: [1]})
    for seed in range(5):
        assert random_order(ordered, np.random.default_rng(seed)) == [0, 1]


def test_an_order_that_reads_too_late_is_refused() -> None:
    training = layered(2)
    ops = list(training.graph.ops)
    ops[-1] = replace(ops[-1], inputs=(*ops[-1].inputs, 0))
    with pytest.raises(ValueError, match=r"update 1.* reads a tensor that .*update 0.* has overwritten"):
        with_writes_settled(replace(training.graph, ops=tuple(ops)), training.writes)


def test_two_writes_of_one_tensor_are_refused_and_so_is_one_of_a_version_to_come() -> None:
    graph = momentum().graph
    with pytest.raises(ValueError, match=r"'turn' and .*'move' overwrite tensor 1 'm': .* a version"):
        with_writes_settled(graph, {1: [1], 2: [0, 1]})
    with pytest.raises(ValueError, match=r"'turn' overwrites tensor 4 'p1' before it is made"):
        with_writes_settled(graph, {1: [4]})


def test_computes_in_vain_are_neither_first_runs_nor_read() -> None:
    graph = DFGraph.from_nodes(cost=[1, 1, 1], size=[4, 4, 4], deps=[[], [0], [0]], outputs=[2])
    assert in_vain(graph, [0, 1, 2]) == []
    assert in_vain(graph, [0, 1, 0, 2, 0, 1]) == [4, 5]


def test_the_sequence_to_run_is_checked() -> None:
    """forward 0, forward 1, loss, backward 1, backward 0, update 0, update 1."""
    plain = layered(2)
    order = list(range(plain.graph.n_ops))
    assert sequence_to_run(plain.graph, [*order, 1, 2], plain.writes) == order  # no op reads that loss
    with pytest.raises(RuntimeError, match=r"runs .*'forward 1' after .*'update 1'"):
        sequence_to_run(plain.graph, [0, 1, 2, 3, 6, 1, 2, 3, 4, 5], plain.writes)
