"""The command ``checkmate judge``."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner
from torch import Tensor, nn

import checkmate
import checkmate.torch
from checkmate_torch.policies.command import register


class Stack(nn.Module):
    """Layers, and the mean of what they make."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.mean()


def factory(batch: int) -> tuple[nn.Module, Tensor]:
    return Stack(), torch.zeros(batch, 64)


@pytest.fixture
def cli() -> click.Group:
    group = click.Group()
    register(group)
    return group


def run(cli: click.Group, *words: str) -> str:
    program = ["--torch", f"{__name__}:factory", "--batch", "256", "--time-limit", "0.2"]
    result = CliRunner().invoke(cli, ["judge", *program, *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_has_a_row_for_each_policy(cli: click.Group) -> None:
    facts = json.loads(run(cli, "--json", "--policy", "layers.?", "--policy", "layers.?/2"))
    names = [row["policy"] for row in facts["policies"]]
    assert names == ["plain", "checkpoint layers.?", "checkpoint layers.?, every 2"]
    assert facts["best"]
    assert facts["policies"][1]["peak"] < facts["policies"][0]["peak"]


def test_without_a_policy_the_layers_are_checkpointed(cli: click.Group, tmp_path: Path) -> None:
    picture = tmp_path / "judged.png"
    text = run(cli, "--output", str(picture))
    assert "checkpoint 4 modules: " in text
    assert "is possible" in text
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_schedule_of_a_file_is_judged_on_its_graph(cli: click.Group, tmp_path: Path) -> None:
    traced = checkmate.torch.trace(*factory(256), cost_model="flops")
    solution = checkmate.solve(traced.graph, "70%", fixed_order=True, time_limit=0.2)
    checkmate.write_schedule(tmp_path / "schedule.json", solution.schedule, traced.graph)
    words = ["--cost-model", "flops", "--policy", str(tmp_path / "schedule.json"), "--json"]
    row = json.loads(run(cli, *words))["policies"][1]
    assert row["policy"] == "schedule schedule.json"
    assert (row["peak"], row["overhead"]) == (solution.peak, solution.overhead)
    assert row["best_overhead"] <= row["overhead"]


@pytest.mark.parametrize(("batch", "message"), [(128, "of another graph.*the same model"), (None, "No such")])
def test_a_file_that_has_no_such_schedule_is_refused(
    cli: click.Group, tmp_path: Path, batch: int | None, message: str
) -> None:
    if batch is not None:
        graph = checkmate.torch.trace(*factory(batch), cost_model="flops").graph
        schedule = checkmate.solve(graph, "100%", solver="keep-all").schedule
        checkmate.write_schedule(tmp_path / "schedule.json", schedule, graph)
    with pytest.raises(checkmate.torch.PolicyError, match=message):
        run(cli, "--cost-model", "flops", "--policy", str(tmp_path / "schedule.json"))


def test_a_policy_is_exported_as_code_and_as_json(cli: click.Group, tmp_path: Path) -> None:
    program = ["export", "--torch", f"{__name__}:factory", "--batch", "1024", "--time-limit", "0.2"]
    file = tmp_path / "policy.py"
    words = [*program, "--budget", "80%", "--as", "modules", "--output", str(file)]
    result = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert result.exit_code == 0
    assert "our own schedule" in result.stderr
    assert "PLAN = [" in file.read_text()
    result = CliRunner().invoke(cli, [*program, "--budget", "100%", "--as", "torchtitan", "--json"])
    assert json.loads(result.stdout)["text"] == "none"
