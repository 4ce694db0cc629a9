"""A thing with plans tells of any of them, and says so where there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from checkmate import NoPlanError, PluginError, Problem, Solution, Timeline
from checkmate.report import Account, HasPlans, Kind, PieceOf, Pieces, explain, peak_report
from checkmate.units import format_bytes

from .judged import by_hand, large


@dataclass(frozen=True)
class Plan:
    solution: Solution
    account: Account
    modules: tuple[str, ...] = ()
    plain_peak: int | None = 1000
    remarks: tuple[str, ...] = ("a remark",)


@dataclass(frozen=True)
class Meter:
    peak: int


class Step(HasPlans[Plan]):
    def __init__(self, *timelines: Timeline) -> None:
        self._plans = tuple(
            Plan(
                solution=Solution.found(Problem(graph=t.graph, budget=t.peak), t.schedule),
                account=Account(kinds=(Kind.ACTIVATIONS,) * t.graph.n_tensors),
            )
            for t in timelines
        )

    @property
    def plans(self) -> tuple[Plan, ...]:
        return self._plans


def test_the_last_plan_or_another() -> None:
    step = Step(by_hand(), large(20))
    for k, other in ((0, -2), (1, -1)):
        plan = step.plans[k]
        expected = peak_report(plan.solution, plan.account, measured=3, plain_peak=1000, remarks=["a remark"])
        assert step.report(Meter(3), plan=k) == step.report(Meter(3), plan=other) == expected
        assert step.explain(plan=k) == explain(plan.solution)
    assert step.report() == step.report(plan=1)
    assert step.explain() == step.explain(plan=1)
    assert step.report().measured is None


def test_a_report_is_written_by_the_exporter_of_its_suffix(tmp_path: Path) -> None:
    assert Step(by_hand()).save_report(str(tmp_path / "step.html")) == tmp_path / "step.html"
    page = (tmp_path / "step.html").read_text()
    assert "<title>by hand</title>" in page
    assert "<dd>1000 B</dd>" in page
    assert "measured peak" not in page
    Step(by_hand()).save_report(tmp_path / "step.html", Meter(3))
    assert "<dt>measured peak</dt><dd>3 B</dd>" in (tmp_path / "step.html").read_text()
    with pytest.raises(TypeError, match="takes a memory meter"):
        Step(by_hand()).save_report(tmp_path / "step.html", 42)  # type: ignore[arg-type]
    with pytest.raises(PluginError, match="no exporter"):
        Step(by_hand()).save_report(tmp_path / "step.doc")


def test_before_the_first_plan() -> None:
    for ask in (Step().report, Step().explain, lambda: Step().save_report("step.html")):
        with pytest.raises(NoPlanError, match="nothing planned yet: run one training step first"):
            ask()


def test_its_repr_says_what_was_decided() -> None:
    assert repr(Step()) == "<Step: nothing planned yet, the first step with gradients plans>"
    plan = by_hand()
    for step, last in ((Step(plan), ""), (Step(large(20), plan), "the last of 2 plans: ")):
        size = format_bytes(plan.peak)
        cost = f"extra cost {plan.overhead:.1%}"
        assert repr(step) == f"<Step: {last}budget {size}, predicted peak {size}, {cost}>"


def test_its_repr_and_report_compare_with_the_step_without_pieces() -> None:
    step = Step(by_hand())
    of = tuple(PieceOf(name=name, index=0, count=1) for name in "abcd")
    cut = replace(step.plans[0].solution, pieces=Pieces(of=of, plain_cost=5.0))
    step._plans = (replace(step.plans[0], solution=cut),)
    assert "extra cost 100.0%>" in repr(step)
    assert step.report().overhead == 1.0


def test_what_is_no_meter_is_refused_with_the_way_out() -> None:
    with pytest.raises(TypeError, match=r"got 42: .*report\(meter\)\. A plan is chosen by plan="):
        Step(by_hand()).report(42)  # type: ignore[arg-type]
