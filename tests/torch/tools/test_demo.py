"""A small demo: its data, its comparison, its verdicts and exit codes."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner

from checkmate import InfeasibleBudgetError
from checkmate.errors import BudgetError, MissingDistributionError
from checkmate_torch.tools import demo
from checkmate_torch.tools.commands import register
from checkmate_torch.tools.demo import Comparison, compare, digits, network

small_network = partial(network, width=4, stages=(3, 2))


@pytest.fixture(scope="module")
def result() -> Comparison:
    runs: list[str] = []
    comparison = compare(small_network(), digits(4, image=32), 0.6, advance=runs.append)
    assert runs == ["plain"] * 4 + ["checkmate"] * 4
    return comparison


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> click.Group:
    """The command line, with the demo on a small network and small images."""
    monkeypatch.setattr(demo, "network", small_network)
    monkeypatch.setattr(demo, "digits", partial(digits, image=32))
    group = click.Group()
    register(group)
    return group


def test_listing_the_command_imports_no_torch() -> None:
    code = "import sys; from checkmate.cli import main; main()"
    check = f"import atexit; atexit.register(lambda: print('torch' in sys.modules)); {code}"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {check}", "--help"], capture_output=True, text=True, check=True
    )
    assert "demo" in done.stdout
    assert done.stdout.endswith("False\n")


def test_batches_are_real_digits_seeded_and_distinct() -> None:
    batches = digits(3, batch=8, image=16)
    assert [(x.shape, y.shape) for x, y in batches] == [((8, 1, 16, 16), (8,))] * 3
    assert all(x.min() >= 0 and 0.5 < x.max() <= 1 and set(y.tolist()) <= set(range(10)) for x, y in batches)
    assert torch.equal(batches[0][0], digits(1, batch=8, image=16)[0][0])
    assert not torch.equal(batches[0][0], batches[1][0])
    assert not torch.equal(batches[0][0], digits(1, batch=8, image=16, seed=1)[0][0])


def test_more_steps_than_one_epoch_has() -> None:
    batches = digits(5, batch=600, image=8)  # 1797 images: two batches in an epoch
    assert len(batches) == 5
    assert not torch.equal(batches[0][1], batches[2][1])


def test_the_second_run_is_the_first_in_less_memory(result: Comparison) -> None:
    assert result.checkmate.losses == pytest.approx(result.plain.losses, rel=1e-5)
    assert result.plain.losses[0] != result.plain.losses[-1]
    assert result.checkmate.peak <= result.budget == int(0.6 * result.plain.peak)
    assert abs((result.solution.peak or 0) - result.checkmate.peak) <= 0.02 * result.checkmate.peak
    assert result.within_budget
    assert result.same_losses


def test_the_verdicts_can_fail(result: Comparison) -> None:
    over = dataclasses.replace(result, budget=result.checkmate.peak - 1)
    assert not over.within_budget
    losses = (*result.plain.losses[:-1], result.plain.losses[-1] * 1.001)
    other = dataclasses.replace(result, checkmate=dataclasses.replace(result.checkmate, losses=losses))
    assert not other.same_losses


def test_the_command_draws_a_picture_and_exits_0(cli: click.Group, tmp_path: Path) -> None:
    picture = tmp_path / "memory.png"
    done = CliRunner().invoke(cli, ["demo", "--steps", "3", "--budget", "60%", "--output", str(picture)])
    assert done.exit_code == 0, done.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    for row in ("measured peak", "predicted peak", "budget", "step time", "loss, step 3", "memory.png"):
        assert row in done.output


def test_json_has_the_same_facts(cli: click.Group, tmp_path: Path) -> None:
    arguments = ["demo", "--steps=3", "--budget=60%", "--json", f"--output={tmp_path / 'memory.png'}"]
    done = CliRunner().invoke(cli, arguments)
    facts = json.loads(done.stdout)
    assert done.exit_code == 0
    assert facts["checkmate"]["peak"] <= facts["budget"] == int(0.6 * facts["plain"]["peak"])
    assert facts["within_budget"]
    assert facts["same_losses"]
    assert len(facts["plain"]["losses"]) == 3


@pytest.mark.parametrize(
    ("fault", "message"), [("within_budget", "budget was exceeded"), ("same_losses", "losses of both runs")]
)
def test_a_failed_verdict_exits_1(
    cli: click.Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, message: str
) -> None:
    monkeypatch.setattr(Comparison, fault, property(lambda _: False))
    arguments = ["demo", "--steps", "3", "--budget", "80%", "--output", str(tmp_path / "memory.png")]
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 1
    assert message in done.output


def test_bad_budgets_stop_before_any_work(cli: click.Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "compare", None)
    for budget in ("much", "0", "-5"):
        done = CliRunner().invoke(cli, ["demo", f"--budget={budget}"])
        assert done.exit_code != 0
        assert isinstance(done.exception, BudgetError)


def test_an_impossible_budget_is_reported() -> None:
    with pytest.raises(InfeasibleBudgetError):
        compare(small_network(), digits(2, image=16), "64KiB", advance=lambda _: None)


def test_without_its_data_the_demo_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(MissingDistributionError, match=r"checkmate-torch\[demo\].* clone"):
        digits(1)
