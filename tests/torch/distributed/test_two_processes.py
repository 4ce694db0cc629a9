"""Two processes that train together: one plan for both, the same gradients, and never a hang.

Both ranks run ``training_ranks.py`` once, and the laws are about the results of its scenes.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

SCRIPT = Path(__file__).with_name("training_ranks.py")
LONGEST_S = 480.0
"""No scene waits longer than a minute for the other rank, unless something hangs."""

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this PyTorch comes without gloo"
)
Seen = list[dict[str, Any]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    """The results of each rank, by scene."""
    folder = tmp_path_factory.mktemp("ranks")
    logs = [(folder / f"{rank}.log").open("w") for rank in range(2)]
    ranks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), str(rank), str(folder)],
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        for rank, log in enumerate(logs)
    ]
    try:
        codes = [process.wait(LONGEST_S) for process in ranks]
    finally:
        for process, log in zip(ranks, logs, strict=True):
            process.kill()
            log.close()
    assert codes == [0, 0], "\n".join((folder / f"{rank}.log").read_text()[-4000:] for rank in range(2))
    both = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    return {scene: [of_rank[scene] for of_rank in both] for scene in both[0]}


PLANNED = (
    "ddp_around_compiled",
    "compiled_around_ddp",
    "sharded_blocks",
    "collectives_in_the_graph",
    "uneven_batches_below_a_maximum",
    "different_budgets",
)


@pytest.mark.parametrize("scene", PLANNED)
def test_the_ranks_follow_one_schedule_with_the_costs_of_rank_0(seen: dict[str, Seen], scene: str) -> None:
    first, second = seen[scene]
    for key in ("graph", "schedule", "cost", "peak", "budget"):
        assert first[key] == second[key], key
    assert first["recomputes"] > 0
    assert first["peak"] <= first["budget"]


def test_only_rank_0_times_ops_and_solves(seen: dict[str, Seen]) -> None:
    assert [each["worked"] for each in seen["ddp_around_compiled"]] == [True, False]


@pytest.mark.parametrize(
    "scene", [*PLANNED[:5], "accumulation_under_no_sync", "settings_of_ddp", "uneven_batches_alone"]
)
def test_gradients_are_those_of_the_plain_wrapper_to_the_bit(seen: dict[str, Seen], scene: str) -> None:
    assert [each["same"] for each in seen[scene]] == [True, True]


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_the_ranks_fuse_the_same_ops(seen: dict[str, Seen]) -> None:
    first, second = seen["fused_inside_ddp"]
    assert first == second
    assert first["kernels"]
    assert first["far"] < 1e-5


@pytest.mark.parametrize("scene", ["compiled_around_ddp", "sharded_blocks"])
def test_gradients_are_those_of_one_process_up_to_the_order_of_sums(
    seen: dict[str, Seen], scene: str
) -> None:
    assert max(each["far"] for each in seen[scene]) < 1e-5


def test_the_measured_peak_is_within_the_budget_on_each_rank_buckets_included(
    seen: dict[str, Seen],
) -> None:
    for each in seen["ddp_around_compiled"]:
        assert 0.8 * each["budget"] < each["measured"] <= each["budget"]
        assert each["plans"] == 1


def test_a_compiled_ddp_module_keeps_its_own_module(seen: dict[str, Seen]) -> None:
    assert [each["inner"] for each in seen["compiled_around_ddp"]] == ["Net", "Net"]


def test_blocks_stay_sharded_and_each_has_one_plan(seen: dict[str, Seen]) -> None:
    for each in seen["sharded_blocks"]:
        assert each["sharded"]
        assert each["plans"] == [1, 1, 1]


def test_recompute_repeats_no_collective(seen: dict[str, Seen]) -> None:
    for each in seen["collectives_in_the_graph"]:
        assert each["emitted"] == each["traced"] == 6
        assert each["ran"] == each["ran_plain"]
        assert len(each["ran"]) == 6


def test_ranks_with_different_graphs_get_an_error_that_names_them_and_the_way_out(
    seen: dict[str, Seen],
) -> None:
    first, second = seen["uneven_batches"]
    assert first == second
    assert first["error"] == "RankError"
    for part in ("rank 0 and rank 1 differ", "pad batches", "process_group='alone'"):
        assert part in first["says"]


@pytest.mark.parametrize(("scene", "rank"), [("only_rank_0_plans", 0), ("only_rank_1_plans", 1)])
def test_a_rank_that_plans_alone_gets_an_error(seen: dict[str, Seen], scene: str, rank: int) -> None:
    alone, other = seen[scene][rank], seen[scene][1 - rank]
    assert alone["error"] == "RankError"
    assert f"rank {1 - rank} asked for nothing within" in alone["says"]
    assert other["error"] is None


def test_below_a_declared_maximum_ranks_share_one_plan(seen: dict[str, Seen]) -> None:
    assert [each["plans"] for each in seen["uneven_batches_below_a_maximum"]] == [1, 1]


def test_an_infeasible_budget_is_the_same_error_on_every_rank(seen: dict[str, Seen]) -> None:
    first, second = seen["hopeless_budget"]
    assert first == second
    assert first["error"] == "InfeasibleBudgetError"
    assert first["minimum"] > 1000


def test_the_smallest_budget_counts(seen: dict[str, Seen]) -> None:
    asked = [each["asked"] for each in seen["different_budgets"]]
    assert asked[0] > asked[1]
    assert seen["different_budgets"][0]["budget"] == pytest.approx(asked[1], abs=1)


def test_an_error_on_rank_0_reaches_the_others(seen: dict[str, Seen]) -> None:
    first, second = seen["rank_0_fails"]
    assert "ValueError: no such device" in first["says"]
    assert second["error"] == "RankError"
    why = "CostError: cost model 'Broken' failed: ValueError: no such device"
    assert f"rank 0 failed to plan for all ranks: {why}" in second["says"]


def test_a_graph_that_dynamo_splits_is_refused_with_the_setting(seen: dict[str, Seen]) -> None:
    for each in seen["split_by_dynamo"]:
        assert "torch._dynamo.config.optimize_ddp = False" in each["says"]


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("part", "fully_shard was applied to part 'blocks.1' of this module"),
        ("whole", "compile each block first"),
        ("threads", "this module is a DataParallel"),
        ("step", "this module is a DistributedDataParallel"),
    ],
)
def test_wrappers_in_the_wrong_order_are_refused_with_the_way_out(
    seen: dict[str, Seen], kind: str, says: str
) -> None:
    for each in seen["wrapped_the_other_way"]:
        assert each[kind]["error"] == "UnsupportedModelError"
        assert says in each[kind]["says"]


def test_a_sharded_model_is_within_one_budget_for_each_rank(seen: dict[str, Seen]) -> None:
    for each in seen["whole_model_sharded"]:
        assert each["measured"] <= each["budget"] < each["plain"]
        assert abs(each["peak"] / each["measured"] - 1) < 0.02
        assert each["extra"] > 0
        assert each["plans"] == 1


def test_the_ranks_of_a_sharded_model_follow_one_plan(seen: dict[str, Seen]) -> None:
    first, second = seen["whole_model_sharded"]
    assert first["parts"] == second["parts"] == ["blocks.0", "blocks.1"]
    assert first["schedules"] == second["schedules"]


def test_what_sharding_holds_is_in_the_account(seen: dict[str, Seen]) -> None:
    for each in seen["whole_model_sharded"]:
        assert each["sum"] == each["peak"]
        for kind in ("parameters", "gathered parameters", "buffers of all-gathers", "optimizer state"):
            assert kind in each["kinds"]


def test_settings_of_a_sharded_model_change_no_bit(seen: dict[str, Seen]) -> None:
    for each in seen["sharded_with_settings"]:
        assert min(each["extra"]) > 0


def test_a_sharded_model_resumes_to_the_bit(seen: dict[str, Seen]) -> None:
    assert [each["same"] for each in seen["sharded_and_resumed"]] == [True, True]


def test_errors_of_a_sharded_model_are_errors_on_every_rank(seen: dict[str, Seen]) -> None:
    assert [each["error"] for each in seen["sharded_and_uneven"]] == ["RankError"] * 2
    assert [each["error"] for each in seen["sharded_and_hopeless"]] == ["InfeasibleBudgetError"] * 2
    first, second = seen["sharded_and_rank_0_fails"]
    assert "no such device" in first["says"]
    assert second["error"] == "RankError"
    assert "no such device" in second["says"]


def test_ranks_of_a_sharded_model_may_plan_alone(seen: dict[str, Seen]) -> None:
    assert [each["same"] for each in seen["sharded_and_alone"]] == [True, True]
    assert [each["plans"] for each in seen["sharded_and_alone"]] == [1, 2]
