"""The gaps of the paper, and the tables for a program that was not solved in time."""

from __future__ import annotations

import itertools

import pytest

from evaluation.integrality import EXPERIMENT, PUBLISHED
from evaluation.results import Results, Row

FORMS = ("unpartitioned", "partitioned", "strengthened")


def row(graph: str, form: str, time_limit: float = 60.0) -> Row:
    task = {"graph": graph, "budget": 4, "form": form, "time_limit": time_limit}
    return Row(task=task, result=dict(EXPERIMENT.measure(task)))


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], Row]:
    """A chain of 8 layers, whose optimum is known, with almost no time; one of 2 with plenty."""
    short = {("chain 8", form): row("chain 8", form, time_limit=0.05) for form in FORMS}
    return short | {("chain 2", form): row("chain 2", form) for form in FORMS}


@pytest.mark.parametrize("form", PUBLISHED)
def test_the_relaxation_is_as_far_from_26_as_in_the_paper(
    rows: dict[tuple[str, str], Row], form: str
) -> None:
    assert 26 / 17 / rows["chain 8", form]["lp"] == pytest.approx(PUBLISHED[form], abs=0.005)


def test_each_form_is_tighter_than_the_one_before(rows: dict[tuple[str, str], Row]) -> None:
    for graph, best in (("chain 8", 26 / 17), ("chain 2", 1.0)):
        relaxed = [rows[graph, form]["lp"] for form in FORMS]
        assert all(low <= high + 1e-9 for low, high in itertools.pairwise([*relaxed, best]))


def test_where_there_is_time_all_forms_agree(rows: dict[tuple[str, str], Row]) -> None:
    for form in FORMS:
        mine = rows["chain 2", form]
        assert (mine["finished"], mine["cost"], mine["bound"]) == (True, 1.0, pytest.approx(1.0, abs=1e-5))


def test_partitioning_halves_the_program(rows: dict[tuple[str, str], Row]) -> None:
    loose, tight = (rows["chain 8", form]["variables"] for form in FORMS[:2])
    assert tight < 0.6 * loose


def test_the_tables_mark_unsolved_programs(rows: dict[tuple[str, str], Row]) -> None:
    results = Results(experiment="integrality", rows=tuple(rows.values()))
    said = EXPERIMENT.markdown(results)
    assert "| unpartitioned | 21.56 |" in said
    assert "nothing found" in said
    assert EXPERIMENT.draw(results) is not None


def test_a_quick_run_asks_of_the_same_graphs() -> None:
    few, all_ = ({(t["graph"], t["budget"]) for t in EXPERIMENT.tasks(quick)} for quick in (True, False))
    assert few < all_
