"""The self-check passes on a healthy machine, and each of its slices reports what is broken."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from checkmate import UnsupportedModelError
from checkmate_torch import enable
from checkmate_torch.costs.meter import MemoryMeter, memory_meter
from checkmate_torch.selfcheck import bits, loop, register, slices, tools
from checkmate_torch.selfcheck.__main__ import main
from checkmate_torch.selfcheck.answers import Answer, Setup
from checkmate_torch.selfcheck.slices import SLICES, rows_of

CPU = torch.device("cpu")


def rows(slice_name: str, match: str, seconds: float = 600) -> list[Answer]:
    return list(rows_of(slice_name, CPU, seconds, match))


def test_a_healthy_machine_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    chosen = ["--only", "bits", "--match", "mlp, enable, 50%", "--device", "cpu", "--output", str(file)]
    assert main(chosen) == 0
    found = json.loads(file.read_text(encoding="utf-8"))
    (row,) = found["rows"]
    assert (row["passed"], row["verdict"], row["facts"]["difference"]) == (True, "equal", 0)
    assert found["machine"]["torch"] == torch.__version__
    assert "1 of   1 passed" in capsys.readouterr().out


def wrong_gradient(model: nn.Module, budget: Any, **settings: Any) -> Any:
    next(model.parameters()).register_hook(lambda gradient: gradient * 1.0001)
    return enable(model, budget, **settings)


@pytest.fixture
def growing_peaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each measured peak be 1 GiB more than the one before."""
    more = itertools.count(1)

    @contextmanager
    def growing(*resident: object) -> Iterator[MemoryMeter]:
        with memory_meter(*resident) as meter:
            yield meter
        meter.peak += next(more) * 2**30

    for module in (loop, tools):
        monkeypatch.setattr(module, "memory_meter", growing)


@pytest.mark.usefixtures("growing_peaks")
@pytest.mark.parametrize(
    ("slice_name", "match", "verdict"),
    [
        ("bits", "mlp, enable, 50%", "DIFFERENT"),
        ("truth", "mlp, enable, 50%", "OVER"),
        ("tools", "memory_meter", "WRONG"),
    ],
)
def test_each_slice_reports_what_is_broken(
    slice_name: str, match: str, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if slice_name == "bits":
        monkeypatch.setattr(loop, "enable", wrong_gradient)
    last = rows(slice_name, match)[-1]
    assert (last.passed, last.verdict) == (False, verdict)


@pytest.mark.parametrize(
    ("plain", "noise", "traced", "verdict"),
    [
        (1.0, 0.0, 1.0, "equal"),
        (1.001, 0.001, 1.0, "as far as plain from itself"),
        (1.2, 0.0, 1.0, "equal to aot_eager"),
        (1.2, 0.001, 1.001, "as far from aot_eager as plain from itself"),
        (1.2, 0.0, 1.001, "DIFFERENT"),
    ],
)
def test_bits_are_compared_with_what_the_same_kernels_give(
    plain: float, noise: float, traced: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def left(loss: float) -> loop.Outcome:
        return loop.Outcome(values={"loss": torch.tensor(loss)}, peak=0, live=0, reserved=0, device=CPU)

    planned = SimpleNamespace(solution=SimpleNamespace(problem=SimpleNamespace(budget=1), overhead=0.0))
    ours = SimpleNamespace(plan=lambda *_, **__: None, train=lambda: left(1.0), last_plan=planned)
    monkeypatch.setattr(bits, "Loop", lambda *_: ours)
    references: Any = SimpleNamespace(
        plain=lambda: left(plain), noise=lambda: noise, traced=lambda: left(traced)
    )
    network: Any = None
    answer = bits._compare(network, Setup(device=CPU), references, "enable", "50%")
    assert (answer.verdict, answer.passed) == (verdict, verdict != "DIFFERENT")


def test_rounding_alone_is_no_difference() -> None:
    """A gradient that would be zero in exact arithmetic says nothing; an integer must be equal."""

    def left(rounding: float, count: int = 1, weight: float = 1.0) -> loop.Outcome:
        values = {
            "loss 0": torch.tensor(1e6),  # of another kind
            "gradient of weight": torch.tensor([1.0, 2.0]),
            "gradient of bias": torch.tensor([rounding, 0.0]),
            "count": torch.tensor(count),
            "weight": torch.tensor(weight),
        }
        return loop.Outcome(values=values, peak=0, live=0, reserved=0, device=CPU)

    assert loop.difference(left(1e-8), left(3e-8)) == (pytest.approx(1e-5), "gradient of bias")
    assert loop.difference(left(0.5), left(0.25)) == (1.0, "gradient of bias")
    assert loop.difference(left(1e-8), left(1e-8)) == (0.0, "")
    assert loop.difference(left(1e-8), left(1e-8, 2)) == (math.inf, "count")
    assert loop.difference(left(1e-8), left(1e-8, weight=2.0)) == (0.5, "weight")


def test_an_exception_is_a_row_and_ends_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(loop, "enable", broken)
    found = rows("truth", "lstm, enable")
    assert [row.text for row in found] == ["RuntimeError: no such kernel"] * 3
    assert all("in broken" in row.facts["traceback"] and row.passed is False for row in found)


def test_checks_that_are_too_late_say_so() -> None:
    for name in SLICES:
        found = rows(name, "", seconds=-1)
        assert found
        assert {(row.passed, row.verdict) for row in found} == {(None, "not run")}


@pytest.mark.parametrize(
    ("code", "said"),
    [("import os; os.abort()", "ended with -6"), ("import time; time.sleep(60)", "killed after 1 s")],
)
def test_a_process_that_dies_is_a_failure(code: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "COMMAND", (sys.executable, "-c", code))
    (row,) = slices.rows_from_process("bits", [], 1.0)
    assert row.passed is False
    assert said in row.text


def test_nothing_passed_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"print({slices.END!r})"
    monkeypatch.setattr(slices, "COMMAND", (sys.executable, "-c", code))
    assert list(slices.rows_from_process("bits", [], 60.0)) == []
    assert main(["--only", "tools", "--device", "cpu"]) == 1


def test_a_match_with_no_check_lists_the_checks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "bits,tools", "--device", "cpu", "--match", "gtp"]) == 2
    said = capsys.readouterr().out
    assert "no check has 'gtp' in its name" in said
    assert "  mlp, enable, 50%\n" in said
    assert "memory_meter" in said


def test_help_has_the_name_of_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    group = click.Group("checkmate")
    register(group)
    said = CliRunner().invoke(group, ["selfcheck", "--help"]).output
    assert said.startswith("usage: checkmate selfcheck ")
    with pytest.raises(SystemExit):
        main(["--help"])
    assert capsys.readouterr().out.startswith("usage: python -m checkmate_torch.selfcheck ")


def test_capture_as_a_cuda_graph_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(4, 1)
    enable(model, "100%")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(UnsupportedModelError, match="CUDA graph"):
        model(torch.ones(2, 4))
