"""The largest batch: bounds from one answer agree with solving for every batch."""

from __future__ import annotations

import dataclasses

import pytest

from checkmate import DFGraph, generators, keep_all_peak, solve
from evaluation import largest_batch
from evaluation.largest_batch import Search
from evaluation.results import Results, Row

CHAIN = generators.chain(12)
ROOMS = [3 * keep_all_peak(CHAIN), 40 * keep_all_peak(CHAIN) + 17]


def of_batch(graph: DFGraph, batch: int) -> DFGraph:
    tensors = tuple(dataclasses.replace(tensor, size=batch * tensor.size) for tensor in graph.tensors)
    return dataclasses.replace(graph, tensors=tensors)


def asked_of_every_batch(search: Search, room: int) -> int:
    batch = 0
    while True:
        found = solve(of_batch(CHAIN, batch + 1), room, solver=search.solver, throw=False)
        if found.schedule is None or found.cost > search.most_cost:
            return batch
        batch += 1


@pytest.mark.parametrize("solver", ["keep-all", "chen-greedy", "chen-sqrt-n"])
def test_it_is_the_one_that_asking_about_every_batch_finds(solver: str) -> None:
    search = Search(graph=CHAIN, solver=solver, time_limit=10.0)
    for room in ROOMS:
        best, impossible = search.largest(room)
        assert best == asked_of_every_batch(search, room)
        assert best < impossible
    solves = search.solves
    assert [search.largest(room)[0] for room in ROOMS][-1] == best
    assert search.solves == solves, "nothing is asked twice"


def test_more_than_one_forward_pass_is_too_dear() -> None:
    search = Search(graph=CHAIN, solver="auto", time_limit=2.0)
    best, impossible = search.largest(ROOMS[1])
    assert impossible == best + 1, "proved, on a chain"
    deeper = solve(of_batch(CHAIN, impossible), ROOMS[1], solver="auto", time_limit=2.0, throw=False)
    assert deeper.schedule is None or deeper.cost > search.most_cost


@pytest.fixture(scope="module")
def results() -> Results:
    pytest.importorskip("torch")
    tasks = [task for task in largest_batch.EXPERIMENT.tasks(True) if task["network"] == "vgg19"]
    rows = [
        Row(task=dict(task), result=dict(largest_batch.measure(task)))
        for task in tasks
        if task["solver"] in ("keep-all", "chen-greedy")
    ]
    return Results(experiment="largest-batch", rows=(*rows, Row(task=dict(tasks[-1]), error="it was late")))


def test_a_batch_fits_its_device_within_one_forward_pass_and_recomputation_makes_it_larger(
    results: Results,
) -> None:
    batches: dict[str, list[int]] = {}
    for row in results.where():
        for found in row["batches"]:
            assert found["peak"] <= found["gigabytes"] * 10**9
            assert 0 <= found["overhead"] <= row["most_overhead"] + 1e-9
            assert found["batch"] < found["impossible"]
            batches.setdefault(row["solver"], []).append(found["batch"])
        assert batches[row["solver"]] == sorted(batches[row["solver"]])
    assert all(map(int.__lt__, batches["keep-all"], batches["chen-greedy"]))


def test_the_page_has_the_papers_figures_beside_ours_and_says_what_is_missing(results: Results) -> None:
    (line,) = [one for one in largest_batch.markdown(results).splitlines() if one.startswith("| VGG19 |")]
    cells = line.strip("| ").split(" | ")
    ours = {row["solver"]: row["batches"][0]["batch"] for row in results.where()}
    assert cells[1] == f"167 / {ours['keep-all']} (+0.0 %)"
    assert cells[2:] == ["197 / –", f"266 / {cells[3].split(' / ')[1]}", "289 / –", "–", "–"]
    figure = largest_batch.draw(results)
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["VGG19"]
