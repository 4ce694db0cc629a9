"""Settings: read as users write them, with one list of names and one set of errors for every entry point."""

from __future__ import annotations

from dataclasses import fields
from typing import get_type_hints

import pytest

from checkmate import BudgetError, CostError, PluginError
from checkmate.framework import Options, Settings, TracingSettings


def test_every_setting_is_an_option_and_documented() -> None:
    names = {field.name for field in fields(Options)} - {"budget"}
    assert names == set(get_type_hints(Settings))
    tracing = set(get_type_hints(TracingSettings))
    for kind, own in ((TracingSettings, tracing), (Settings, names - tracing)):
        assert [name for name in own if f"    {name}: " not in (kind.__doc__ or "")] == []


def test_sizes_are_read_as_users_write_them() -> None:
    options = Options.parse(budget="8GiB", reserve="1KiB", time_limit=3.0)
    assert (options.budget, options.reserve, options.time_limit) == ("8GiB", 1024, 3.0)


@pytest.mark.parametrize(("model", "expected"), [("profiled", True), ("flops", False)])
def test_workspaces_may_hang_on_the_cost_model(model: str, expected: bool) -> None:
    assert Options.parse(cost_model=model, workspaces=None).workspaces is expected
    assert Options.parse(cost_model=model).workspaces is True


def test_a_mistake_shows_at_once_and_names_the_way_out() -> None:
    with pytest.raises(TypeError, match=r"no setting 'solvr': did you mean 'solver'\?"):
        Options.parse(solvr="auto")
    with pytest.raises(TypeError, match=r"no setting 'xyzzy': the settings are \['budget'"):
        Options.parse(xyzzy=1)
    with pytest.raises(BudgetError):
        Options.parse(budget="many")
    for bare in (60, "60"):
        with pytest.raises(BudgetError, match=r"60 bytes\? Write '60%' for a share"):
            Options.parse(budget=bare)
    with pytest.raises(BudgetError):
        Options.parse(reserve="many")
    with pytest.raises(TypeError, match="must be 'profiled'"):
        Options.parse(cost_model=3.0)
    with pytest.raises(PluginError, match="no solver 'everst'"):
        Options.parse(solver="everst")
    for name, error, said in (
        ("flopss", PluginError, "no cost model 'flopss'.*'flops'"),
        ("roofline-A100-81GB", CostError, "did you mean 'A100-80GB'"),
    ):
        with pytest.raises(error, match=said):
            Options.parse(cost_model=name)
    with pytest.raises(TypeError, match="solver is 3, must be a name or an object"):
        Options.parse(solver=3)
    with pytest.raises(ValueError, match="time_limit is '3', must be > 0 seconds"):
        Options.parse(time_limit="3")
