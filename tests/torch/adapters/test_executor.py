"""The executor follows any schedule to the letter; wrong ones are caught by the law that they break."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node

import checkmate
from checkmate import InvalidScheduleError, Schedule, UnsupportedScheduleError
from checkmate.framework import ProgramError
from checkmate.plugins import EXECUTORS, StepReport
from checkmate.testing import ExecutorConformance
from checkmate.testing.conformance import harness
from checkmate_torch import UnsupportedModelError, bind, compile_step, memory_meter, trace, trace_step
from checkmate_torch.adapters.executor import Executor
from checkmate_torch.adapters.trials import TRIALS
from checkmate_torch.ops.recompute_rules import is_batch_norm_training, is_random
from checkmate_torch.running import emit
from checkmate_torch.running.graph_writer import GraphWriter
from zoo.small_torch import perceptron


class TestTorch(ExecutorConformance):
    """The suite, with few schedules; ``nox -s conformance`` draws 300 for each trial."""

    executor_name = "torch"
    examples = 1  # beside those of the heuristics


class FreesTooLate(GraphWriter):
    """Holds the inputs of each op until the next one is over."""

    before: Sequence[Node] = ()

    def compute(self, run: Any) -> None:
        made = set(self.graph.nodes)
        super().compute(run)
        held = [node for node in self.before if not self._is_dead(node)]
        self.hold(held)
        new = [node for node in self.graph.nodes if node not in made and node.op == "call_function"]
        self.before = [n for node in new for n in node.all_input_nodes if _is_tensor(n)]

    def _is_dead(self, node: Node) -> bool:
        return node.op == "placeholder"


class ForgetsAFree(GraphWriter):
    """Holds the output of its second op to the end of the pass."""

    kept: Sequence[Node] = ()
    count = 0

    def compute(self, run: Any) -> None:
        super().compute(run)
        self.count += 1
        if self.count == 2:
            self.kept = [value for value in self.values.values() if value.op == "call_function"][-1:]

    def mark(self, op: int) -> None:
        super().mark(op)
        if self.traced.boundary == op or op == self.traced.graph.n_ops:
            self.hold([node for node in self.kept if _is_tensor(node)])


class SkipsAnOp(GraphWriter):
    """Does not compute again what has a value."""

    def compute(self, run: Any) -> None:
        if run.op in self.done and self.traced.nodes[run.op] in self.values:
            self.mark(run.op)
        else:
            super().compute(run)


class ReadsAStaleCopy(GraphWriter):
    """Computes again, and goes on reading the first copy."""

    def compute(self, run: Any) -> None:
        node = self.traced.nodes[run.op]
        old = self.values.get(node) if run.op in self.done else None
        super().compute(run)
        if old is not None:
            self.values[node] = old


class ForgetsTheRandomState(GraphWriter):
    """Draws other random numbers in each run."""

    def __init__(self, traced: Any, repeated: frozenset[int], *args: Any, **kwargs: Any) -> None:
        super().__init__(traced, frozenset(), *args, **kwargs)


class UpdatesAStatisticTwice(GraphWriter):
    """Lets each further run of a batch norm update the running statistics too."""

    def _run(self, op: int, node: Node, *reused: Any) -> Node:
        made = super()._run(op, node, *reused)
        if op in self.done and is_batch_norm_training(node):
            mean = next(n for n in self.graph.nodes if n.op == "placeholder" and n.name == node.args[3].name)
            self.graph.call_function(torch.ops.aten.add_.Scalar, (mean, 1.0))
        return made


class AliasesAnOutput(GraphWriter):
    """Writes a hyperbolic tangent over its input."""

    def _run(self, op: int, node: Node, *reused: Any) -> Node:
        made = super()._run(op, node, *reused)
        if made.target is torch.tanh:
            made.target = torch.tanh_
        return made


class SwapsRecomputations(GraphWriter):
    """Puts each further run of an op before the run before, if it can."""

    last: Any = None

    def compute(self, run: Any) -> None:
        again = run.op in self.done
        if self.last is not None:
            first, self.last = self.last, None
            node = self.traced.nodes[first.op]
            if again and node not in self.traced.nodes[run.op].all_input_nodes:
                super().compute(run)
                super().compute(first)
                return
            super().compute(first)
        if again:
            self.last = run
        else:
            super().compute(run)

    def mark(self, op: int) -> None:
        if self.last is not None and op == self.traced.graph.n_ops:
            first, self.last = self.last, None
            super().compute(first)
        super().mark(op)


class LeaksATensor(GraphWriter):
    """Keeps one tensor of each step for ever."""

    leaked: ClassVar[list[Tensor]] = []

    def mark(self, op: int) -> None:
        super().mark(op)
        if op == self.traced.graph.n_ops:
            made = [node for node in self.graph.nodes if node.op == "call_function" and _is_tensor(node)]
            self.graph.call_function(_leak, (made[-1],))


class TakesAWrongWorkspace(GraphWriter):
    """Allocates a megabyte while each op runs."""

    def _run(self, op: int, node: Node, *reused: Any) -> Node:
        self.graph.call_function(torch.empty, (2**18,))
        return super()._run(op, node, *reused)


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), Tensor)


def _leak(value: Tensor) -> None:
    LeaksATensor.leaked.append(value.clone())


HOLDS, RESULTS = "holds_what_the_simulator_counts", "results_are_those_of_the_program"
WRONG: list[tuple[type, str, str]] = [
    (FreesTooLate, "loss-outside", HOLDS),
    (ForgetsAFree, "loss-outside", HOLDS),
    (SkipsAnOp, "loss-outside", HOLDS),
    (ReadsAStaleCopy, "loss-outside", HOLDS),
    (ForgetsTheRandomState, "dropout", RESULTS),
    (UpdatesAStatisticTwice, "convolution", RESULTS),
    (AliasesAnOutput, "loss-outside", RESULTS),
    (SwapsRecomputations, "loss-outside", "runs_the_schedule"),
    (LeaksATensor, "loss-outside", "leaves_nothing"),
    (TakesAWrongWorkspace, "loss-outside", "needs_no_more_while_an_op_runs"),
]


@pytest.mark.parametrize(("wrong", "trial", "law"), WRONG, ids=[wrong.__name__ for wrong, *_ in WRONG])
def test_a_wrong_executor_is_caught_by_the_law_that_it_breaks(
    monkeypatch: pytest.MonkeyPatch,
    failing: Callable[..., dict[str, str]],
    wrong: type,
    trial: str,
    law: str,
) -> None:
    monkeypatch.setattr(harness, "SHRINKING_S", 0.0)
    case = TestTorch()
    case.examples, case.trial = 20, next(t for t in TRIALS if t.name == trial)
    assert case.trial.traced().graph.n_ops  # before the fault
    monkeypatch.setattr(emit, "GraphWriter", wrong)
    assert set(failing(case, only=law)) == {law}
    monkeypatch.undo()


def network() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return perceptron(16, 64, 16), torch.randn(8, 16)


def mean_square(y: Tensor) -> Tensor:
    return y.square().mean()


def test_a_schedule_from_a_file_trains_with_the_same_gradients(tmp_path: Path) -> None:
    model, x = network()
    traced = trace(model, x, loss=mean_square, cost_model="flops")
    found = checkmate.solve(traced.graph, checkmate.minimum_budget(traced.graph).peak or 0)
    assert found.schedule is not None
    checkmate.write_schedule(tmp_path / "s.json", found.schedule, traced.graph)
    step = bind(traced, checkmate.read_schedule(tmp_path / "s.json", traced.graph))
    step(x).backward()
    seen = [p.grad for p in model.parameters()]
    model.zero_grad(set_to_none=True)
    mean_square(model(x)).backward()
    for one, p in zip(seen, model.parameters(), strict=True):
        assert one is not None
        assert torch.equal(one, p.grad)
    assert step.plans[0].solution.schedule == found.schedule


def test_any_callable_can_watch_the_ops_run() -> None:
    model, x = network()
    traced = trace(model, x, loss=mean_square, cost_model="flops")
    ran: list[int] = []
    schedule = Schedule.from_sequence(traced.graph, range(traced.graph.n_ops))
    step = Executor().bind(traced, schedule, watch=lambda op: ran.append(op))
    step(x).backward()
    assert ran == [*schedule.sequence.tolist(), traced.graph.n_ops]


def test_what_the_simulator_rejects_is_not_run() -> None:
    model, x = network()
    with pytest.raises(InvalidScheduleError):
        bind(trace(model, x, cost_model="flops"), Schedule.of([]))


class TwoDraws(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        dropout = nn.functional.dropout
        return dropout(x.cos(), 0.5) + dropout(x.sin(), 0.5)


def test_another_order_of_random_numbers_is_refused() -> None:
    traced = trace(TwoDraws(), torch.randn(4, 8, requires_grad=True), loss=mean_square, cost_model="flops")
    graph = traced.graph
    first, second = traced.traced.in_sequence
    assert [node and is_random(node) for node in traced.traced.nodes][first : second + 1] == [1, 0, 1]
    swapped = [second - 1, second, *(k for k in range(graph.n_ops) if k not in (second - 1, second))]
    schedule = Schedule.from_sequence(graph, swapped)
    checkmate.simulate(graph, schedule)
    with pytest.raises(UnsupportedScheduleError, match="runs before op"):
        bind(traced, schedule)


def test_a_model_without_memory_can_not_be_bound() -> None:
    with torch.device("meta"):
        model = nn.Linear(4, 4)
    traced = trace(model, torch.empty(2, 4, device="meta"), cost_model="flops")
    schedule = Schedule.from_sequence(traced.graph, range(traced.graph.n_ops))
    with pytest.raises(UnsupportedModelError, match="traced without memory"):
        bind(traced, schedule)


def test_inputs_of_another_shape_are_refused_with_the_difference() -> None:
    model, x = network()
    traced = trace(model, x, loss=mean_square, cost_model="flops")
    step = bind(traced, Schedule.from_sequence(traced.graph, range(traced.graph.n_ops)))
    step(x).backward()
    with pytest.raises(UnsupportedModelError, match="has 1024 bytes, not 512"):
        step(torch.randn(16, 16))


def test_a_whole_step_is_bound_as_compile_step_plans_it() -> None:
    model, x = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return mean_square(model(x))

    traced = trace_step(model, loss, optimizer, (x,), cost_model="flops", workspaces=True)
    compiled = compile_step(model, loss, optimizer, "100%", cost_model="flops")
    compiled(x)
    assert traced.graph == compiled.plans[0].traced.graph
    schedule = compiled.plans[0].solution.schedule
    assert schedule is not None
    start = {name: value.clone() for name, value in model.state_dict().items()}
    compiled(x)
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(start)
    bind(traced, schedule)(x)
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name])


def test_a_program_from_a_factory_is_run_and_measured() -> None:
    executor = EXECUTORS.load("torch")
    assert isinstance(executor, Executor)
    runnable = executor.prepare(lambda: (*network(), mean_square), cost_model="profiled")
    graph = runnable.traced.graph
    schedule = Schedule.from_sequence(graph, range(graph.n_ops))
    report = runnable.step(executor.bind(runnable.traced, schedule))
    second = runnable.step(executor.bind(runnable.traced, schedule))  # not the time of capturing it
    assert isinstance(report, StepReport)
    model, x = network()
    with memory_meter(model, x) as meter:
        loss = mean_square(model(x))
        loss.backward()
    assert report.loss == second.loss == float(loss.detach())
    assert second.peak is not None
    assert second.peak <= checkmate.simulate(graph, schedule).peak
    assert second.peak <= meter.peak


def test_a_program_without_a_loss_is_refused() -> None:
    executor = Executor()
    runnable = executor.prepare(network, cost_model="flops")
    graph = runnable.traced.graph
    bound = executor.bind(runnable.traced, Schedule.from_sequence(graph, range(graph.n_ops)))
    with pytest.raises(ProgramError, match="let the factory return"):
        runnable.step(bound)
    with pytest.raises(ProgramError, match="give a factory"):
        executor.prepare(nn.Linear(2, 2))
