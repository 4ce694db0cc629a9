"""Ratios: a geometric mean over the budgets at which a method has a schedule, and their number."""

from __future__ import annotations

from evaluation import ratios
from evaluation.results import Results, Row

GB = 10**9
BEST = {8: 1.0, 6: 1.0, 4: 1.2, 2: 1.5}
"""By gigabytes, the optimum; no schedule exists with less."""


def rows(network: str, level: str, costs: dict[str, dict[int, float]]) -> list[Row]:
    about = {"network": network, "level": level, "batch": 8, "small": False}
    graph = {"keep_all": 8 * GB, "fixed": 0, "ops": 43, "status": "feasible"}
    return [
        Row(
            task={**about, "solver": solver},
            result={**graph, "budget": size * GB, "cost": cost, "bound": BEST[size], "peak": size * GB},
        )
        for solver, line in costs.items()
        for size, cost in line.items()
    ]


def cells(network: str, level: str, **costs: dict[int, float]) -> dict[str, list[str]]:
    named = {name.replace("_", "-"): line for name, line in costs.items()}
    text = ratios.EXPERIMENT.markdown(Results(experiment="overhead", rows=(*rows(network, level, named),)))
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return {f"{line[0]} {k}": line for k, line in enumerate(lines)}


def test_the_mean_is_geometric_and_counts_the_budgets_that_have_a_schedule_and_need_one() -> None:
    table = cells("vgg19", "layer", auto=BEST, chen_sqrt_n_ap={8: 1.0, 6: 1.21, 4: 1.2})
    head, ours = table["network 0"], table["VGG19, batch 8, 43 ops 2"]
    assert ours[head.index("auto")] == "1.000 (3/3)", "of four budgets, one has room for everything"
    assert ours[head.index("chen-sqrt-n-ap")] == "1.100 (2/3)"
    assert ours[head.index("optimum known")] == "3 of 3"


def test_the_paper_stands_beside_its_networks_layer_by_layer() -> None:
    layers = cells("vgg19", "layer", auto=BEST, chen_greedy_ap={4: 1.5})
    beside = layers["VGG19, batch 8, 43 ops 5"]
    assert beside[1:] == ["1.54 / –", "1.39 / 1.250 (1/3)", "1.75 / –", "1.00 / –"]
    assert not [
        name for name in cells("resnet50", "op", auto=BEST) if name.startswith("ResNet50") and "5" in name[-1]
    ]


def test_where_the_optimum_is_open_it_says_how_far() -> None:
    table = cells("vgg19", "layer", auto={**BEST, 2: 1.65})
    assert table["VGG19, batch 8, 43 ops 2"][1] == "2 of 3; else within 10.0%"
