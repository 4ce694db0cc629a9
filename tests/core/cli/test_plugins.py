"""``checkmate plugins``: all offers, all failures, all ambiguous names."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click
import pytest
from click.testing import Result

from checkmate.plugins import (
    CostModelSpec,
    ExecutorSpec,
    ExporterSpec,
    FrontendSpec,
    SolverSpec,
    hookimpl,
    loader,
    reset,
)

Checkmate = Callable[..., Result]
KINDS = ["solvers", "cost_models", "frontends", "executors", "exporters"]


def never() -> None:
    pytest.fail("a listing loads nothing")


class Generous:
    """Offers one of each kind, and a command."""

    @staticmethod
    @hookimpl
    def checkmate_register_solvers() -> list[SolverSpec]:
        return [SolverSpec(name="my-solver", summary="solves", load=never, cite="me 2020")]

    @staticmethod
    @hookimpl
    def checkmate_register_cost_models() -> list[CostModelSpec]:
        return [CostModelSpec(name="my-costs", summary="costs", load=never)]

    @staticmethod
    @hookimpl
    def checkmate_register_frontends() -> list[FrontendSpec]:
        return [FrontendSpec(name="my-frontend", summary="traces", load=never)]

    @staticmethod
    @hookimpl
    def checkmate_register_executors() -> list[ExecutorSpec]:
        features = frozenset({"reorders", "flies"})
        return [ExecutorSpec(name="my-executor", summary="runs", load=never, features=features)]

    @staticmethod
    @hookimpl
    def checkmate_register_exporters() -> list[ExporterSpec]:
        return [ExporterSpec(name="my-exporter", summary="writes", suffix=".mine", load=never)]

    @staticmethod
    @hookimpl
    def checkmate_register_commands(cli: click.Group) -> None:
        cli.add_command(click.Command("climb", callback=never, help="Go up."))


class Clashing:
    """Offers names of other plugins, and an existing command."""

    @staticmethod
    @hookimpl
    def checkmate_register_solvers() -> list[SolverSpec]:
        return [SolverSpec(name="my-solver", summary="solves, too", load=never)]

    @staticmethod
    @hookimpl
    def checkmate_register_exporters() -> list[ExporterSpec]:
        return [ExporterSpec(name="my-exporter", summary="writes, too", suffix=".mine", load=never)]

    @staticmethod
    @hookimpl
    def checkmate_register_commands(cli: click.Group) -> None:
        cli.add_command(click.Command("solve", callback=never))


@pytest.fixture
def install(plug: Callable[..., None]) -> Callable[..., None]:
    return lambda *plugins: plug(*((p.__name__, lambda p=p: p, "some") for p in plugins))


def test_the_built_in_plugin_is_listed(checkmate: Checkmate) -> None:
    table = checkmate("plugins").stdout
    facts = json.loads(checkmate("plugins", "--json").stdout)
    assert [plugin["name"] for plugin in facts["plugins"]] == ["built-in"]
    assert facts["plugins"][0]["error"] is None
    assert facts["ambiguous"] == []
    assert {"heuristics", "keep-all"} <= {solver["name"] for solver in facts["solvers"]}
    for solver in facts["solvers"]:
        assert set(solver) == {"name", "summary", "guarantee", "cite"}
        assert solver["name"] in table
    offered = [spec["name"] for kind in KINDS for spec in facts[kind]]
    assert facts["plugins"][0]["offers"] == offered
    commands = {command["name"]: command["plugin"] for command in facts["commands"]}
    assert commands == dict.fromkeys(
        ["cache", "doctor", "plugins", "run", "show", "simulate", "solve", "sweep", "trace"]
    )


def test_all_five_kinds_and_commands(checkmate: Checkmate, install: Callable[..., None]) -> None:
    install(Generous)
    facts = json.loads(checkmate("plugins", "--json").stdout)
    mine: dict[str, Any] = {
        "name": "Generous",
        "distribution": "some 1.0",
        "error": None,
        "offers": ["my-solver", "my-costs", "my-frontend", "my-executor", "my-exporter"],
        "commands": ["climb"],
    }
    assert facts["plugins"][1] == mine
    assert [facts[kind][-1]["name"] for kind in KINDS] == mine["offers"]
    assert facts["executors"] == [
        {"name": "my-executor", "summary": "runs", "features": ["flies", "reorders"]}
    ]
    assert facts["exporters"][-1] == {"name": "my-exporter", "summary": "writes", "suffix": ".mine"}
    assert {"name": "climb", "summary": "Go up.", "plugin": "'Generous' (some 1.0)"} in facts["commands"]
    table = checkmate("plugins").stdout
    for text in (*mine["offers"], ".mine", "climb", "flies, reorders"):
        assert text in table


def test_a_plugin_whose_commands_failed_is_not_ok(checkmate: Checkmate, install: Callable[..., None]) -> None:
    install(Clashing)
    listed = json.loads(checkmate("plugins", "--json").stdout)["plugins"][1]
    assert listed["error"] == "its commands failed: PluginError: there is already a command 'solve'"
    assert listed["offers"] == ["my-solver", "my-exporter"]
    assert listed["commands"] == []
    assert "its commands failed" in checkmate("plugins").stdout


def test_ambiguous_names_of_any_kind(checkmate: Checkmate, install: Callable[..., None]) -> None:
    install(Generous, Clashing)
    owners = ["'Clashing' (some 1.0)", "'Generous' (some 1.0)"]
    assert json.loads(checkmate("plugins", "--json").stdout)["ambiguous"] == [
        {"kind": "solver", "name": "my-solver", "owners": owners},
        {"kind": "exporter", "name": "my-exporter", "owners": owners},
    ]
    table = checkmate("plugins").stdout
    assert f"Solver 'my-solver' can't be used: it is offered by {' and by '.join(owners)}." in table
    assert "Exporter 'my-exporter' can't be used" in table


def test_a_plugin_that_is_missing_is_listed_with_its_error(
    checkmate: Checkmate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(loader.ENVIRONMENT_VARIABLE, "everest")
    reset()
    result = checkmate("plugins", "--json")
    assert result.exit_code == 0
    assert "no installed distribution" in json.loads(result.stdout)["plugins"][1]["error"]
