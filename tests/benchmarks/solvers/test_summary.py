"""What is read from rows: times, gaps, and whether goals are reached; answers known by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from solvers.records import GraphFacts, Moment, Results, Row, Settings, thinned
from solvers.summary import Finding, findings, layered_table, ratios_table

FACTS = GraphFacts(
    ops=100, tensors=100, training=True, ideal_cost=10.0, keep_all_peak=100, floor=20, digest="d"
)


def row(
    solver: str, *moments: tuple[float, float | None, float], graph: str = "g", share: float = 0.5
) -> Row:
    """A row whose last moment is what it found."""
    seconds, cost, bound = moments[-1]
    return Row(
        graph=graph,
        share=share,
        budget=50,
        solver=solver,
        seed=0,
        outcome="unknown" if cost is None else "feasible",
        cost=cost,
        bound=bound,
        seconds=seconds,
        moments=tuple(Moment(*moment) for moment in moments),
    )


def results(*rows: Row, known: dict[str, float] | None = None) -> Results:
    graphs = {each.graph: FACTS for each in rows}
    return Results(settings=Settings(time_limit=10.0), graphs=graphs, rows=rows, known=known or {})


def finding(found: Results, words: str) -> Finding:
    (one,) = [each for each in findings(found) if words in each.goal]
    return one


def test_times_are_those_of_the_first_moment_that_is_good_enough() -> None:
    one = row(
        "auto", (0.1, None, 8.0), (0.2, 12.0, 8.0), (0.5, 10.4, 8.0), (1.0, 10.0, 9.0), (2.0, 10.0, 9.99)
    )
    assert one.first_s == 0.2
    assert one.within_s(0.05) == 0.5
    assert one.within_s(0.01) == 1.0
    assert one.final_s == 1.0
    assert one.cost_s(9.9) is None
    assert one.gap_s(0.1) == 1.0
    assert one.gap_s(0.0011) == 2.0
    assert one.gap_s(0.0001) is None


moments = st.lists(
    st.tuples(st.floats(0, 10), st.none() | st.floats(1, 100), st.floats(0, 100)).map(lambda t: Moment(*t)),
    max_size=30,
)


@given(moments=moments)
def test_thinning_keeps_the_ends_and_the_order(moments: list[Moment]) -> None:
    kept = thinned(moments)
    assert list(kept[:1]) == moments[:1]
    assert list(kept[-1:]) == moments[-1:]
    rest = iter(moments)
    assert all(any(moment is one for one in rest) for moment in kept)


@given(moments=moments, cost=st.floats(1, 100))
def test_thinning_moves_no_cost_by_more_than_a_thousandth_of_a_percent(
    moments: list[Moment], cost: float
) -> None:
    best = float("inf")
    falling = []
    for moment in moments:  # as solvers report: costs fall
        best = min(best, moment.cost or float("inf"))
        falling.append(Moment(moment.seconds, None if best == float("inf") else best, 0.0))
    costs = [m.cost for m in falling if m.cost is not None]
    kept = [m.cost for m in thinned(falling) if m.cost is not None]
    reached = [c for c in costs if c <= cost]
    if reached:
        assert any(c <= cost * (1 + 2e-5) for c in kept)


def test_against_another_solver_cost_and_time_to_its_final_cost_count() -> None:
    ours = row("auto", (0.01, 12.0, 10.0), (0.02, 11.0, 10.0), (5.0, 10.5, 10.0))
    theirs = row("checkmate-milp", (0.5, 12.0, 10.0), (4.0, 11.0, 10.0))
    assert finding(results(ours, theirs), "worse cost than checkmate-milp").reached is True
    assert finding(results(ours, theirs), "faster than checkmate-milp").reached is True  # 4 / 0.02 = 200
    slow = row("auto", (0.2, 11.0, 10.0))
    assert finding(results(slow, theirs), "faster than checkmate-milp").reached is False  # 20
    dear = row("auto", (0.01, 11.5, 10.0))
    assert finding(results(dear, theirs), "worse cost than checkmate-milp").reached is False
    assert "never" in finding(results(dear, theirs), "faster than checkmate-milp").misses[0]


def test_a_solver_that_found_nothing_proves_nothing_about_time() -> None:
    nothing = row("checkmate-milp", (10.0, None, 10.0))
    found = results(row("auto", (0.01, 12.0, 10.0)), nothing)
    assert finding(found, "worse cost than checkmate-milp").reached is None
    assert finding(found, "faster than checkmate-milp").reached is None


def test_the_best_known_cost_is_relative_to_every_op_once() -> None:
    ours = row("auto", (0.01, 12.0, 10.0))
    assert finding(results(ours, known={"g:0.5": 1.2}), "best known").reached is True
    assert finding(results(ours, known={"g:0.5": 1.19}), "best known").reached is False
    assert results(ours, known={"g:0.5": 1.19}).best("g", 0.5) == 1.19


def test_certificates_count_within_their_time_only() -> None:
    words = "at most 400 ops, f ≥ 0.4"
    assert finding(results(row("auto", (0.9, 10.005, 10.0))), words).reached is True
    assert finding(results(row("auto", (1.1, 10.005, 10.0))), words).reached is False
    assert finding(results(row("auto", (0.9, 10.02, 10.0))), words).reached is False
    assert finding(results(row("auto", (0.9, 10.02, 10.0), share=0.3)), words).reached is None


def test_layered_graphs_stand_beside_what_is_published() -> None:
    found = results(row("auto", (1.0, 10.01, 10.0), graph="rl1", share=0.9))
    ((graph, kind, share, percent, theirs),) = layered_table(found)
    assert (graph, kind, share, round(percent or 0, 6)) == ("rl1", "RL1", 0.9, 0.1)
    assert theirs == {"FastSA": "0 % in 12 s", "MOCCASIN": "0.8 % in 9 s"}
    assert finding(found, "RL1").reached is True
    over = results(row("auto", (1.0, 10.02, 10.0), graph="rl1", share=0.9))
    assert finding(over, "RL1").reached is False


def test_ratios_are_over_the_best_of_the_case() -> None:
    found = results(row("auto", (1.0, 10.0, 10.0)), row("chen-greedy-ap", (1.0, 12.0, 10.0)))
    mine, theirs = ratios_table(found)
    assert mine[:4] == ("auto", 1, 1, 1.0)
    assert theirs[1:3] == (1, 1)
    assert round(theirs[3] or 0, 9) == 1.2
    assert "1.06–1.39" in theirs[5]


def test_a_crash_is_a_miss() -> None:
    died = Row(graph="g", share=0.5, budget=50, solver="x", seed=0, outcome="crashed", note="signal SIGSEGV")
    assert "SIGSEGV" in finding(results(died), "answers").misses[0]
