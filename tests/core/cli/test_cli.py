"""The command line: exit codes, JSON, and errors as one clear line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from checkmate import (
    CheckmateError,
    DFGraph,
    __version__,
    read_graph,
    read_schedule,
    simulate,
    write_graph,
    write_schedule,
)
from checkmate.cli import commands
from checkmate.cli.app import App, app
from checkmate.plugins import hookimpl, loader, reset
from checkmate.schedule import Compute, Free, Schedule

CHAIN = DFGraph.from_nodes(
    cost=[1] * 8,
    size=[8] * 8,
    deps=[[], [0], [1], [2], [3], [2, 4], [1, 5], [0, 6]],
    backward=[False] * 4 + [True] * 4,
    name="chain",
    cost_unit="s",
)


@pytest.fixture(autouse=True)
def only_built_in_plugins(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is installed beside core must not change these tests."""
    monkeypatch.setenv(loader.ENVIRONMENT_VARIABLE, "")
    monkeypatch.setattr(app, "_broken", None)
    reset()
    yield
    reset()


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "graph.json"
    write_graph(path, CHAIN)
    return path


def checkmate(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="checkmate")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_solve_writes_json_and_a_schedule_that_simulate_accepts(graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "schedule.json"
    solved = checkmate("solve", graph, "--budget", "80%", "--solver", "heuristics", "-o", out, "--json")
    assert solved.exit_code == 0
    facts = json.loads(solved.stdout)
    timeline = simulate(CHAIN, read_schedule(out, read_graph(graph)))
    expected = {"status": "feasible", "solver": "heuristics", "budget": 32, "ideal_cost": 8.0}
    assert expected.items() <= facts.items()
    assert (facts["peak"], facts["cost"], facts["overhead"]) == (
        timeline.peak,
        timeline.cost,
        timeline.overhead,
    )
    assert facts["gap"] == pytest.approx((facts["cost"] - facts["bound"]) / facts["cost"])
    assert facts["seconds"] >= 0
    meta = json.loads(out.read_text())["meta"]
    assert meta == {k: facts[k] for k in ("solver", "budget", "peak", "cost", "bound", "status")}

    judged = checkmate("simulate", graph, out, "--json")
    assert judged.exit_code == 0
    assert json.loads(judged.stdout) == {
        "valid": True,
        "reason": None,
        "peak": timeline.peak,
        "cost": timeline.cost,
        "overhead": timeline.overhead,
        "steps": len(timeline.schedule),
    }


def test_tables_for_people(graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "schedule.json"
    solved = checkmate("solve", graph, "--budget", "32B", "--solver", "evict-belady", "-o", out)
    assert solved.exit_code == 0
    for text in ("chain", "feasible", "32 B of 32 B (100.0%)", "overhead", "again"):
        assert text in solved.stdout
    judged = checkmate("simulate", graph, out)
    assert judged.exit_code == 0
    assert "32 B (32 bytes)" in judged.stdout


def test_auto_without_solvers_warns_and_answers(graph: Path) -> None:
    solved = checkmate("solve", graph, "--budget", "100%", "--json")
    assert json.loads(solved.stdout)["solver"] == "heuristics"
    assert solved.stderr.startswith("Warning: no solver 'auto' is loaded")


def test_infeasible_is_exit_1_with_advice_and_json(graph: Path) -> None:
    result = checkmate("solve", graph, "--budget", "23", "--json", "--solver", "heuristics")
    assert result.exit_code == 1
    facts = json.loads(result.stdout)
    assert (facts["status"], facts["cost"], facts["peak"], facts["gap"]) == ("infeasible", None, None, None)
    assert "the least budget known to work is 24 bytes" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_none_found_is_exit_1_and_no_proof(graph: Path) -> None:
    result = checkmate("solve", graph, "--budget", "24", "--json", "--solver", "keep-all")
    assert (result.exit_code, json.loads(result.stdout)["status"]) == (1, "unknown")
    assert "proved" not in result.stderr


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("{}", "missing required field `format`"),
        ('{"format": "checkmate.graph", "version": 9}', "version 9"),
        ('{"format": "checkmate.graph"', "truncated"),
        ("", "truncated"),
    ],
)
def test_a_bad_file_is_exit_2_and_one_line(tmp_path: Path, content: str, complaint: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    result = checkmate("solve", path, "--budget", "1GiB")
    assert result.exit_code == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert str(path) in line
    assert complaint in line


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--budget", "0"], "must be positive"),
        (["--budget", "-5"], "can't read '-5'"),
        (["--budget", "8 GB of RAM"], "can't read"),
        (["--budget", "nan"], "can't read"),
        (["--budget", "8GiB", "--solver", "everst"], "no solver 'everst'; installed: ['heuristics'"),
        (["--budget", "8GiB", "--time-limit", "0"], "--time-limit"),
        (["--budget", "8GiB", "--time-limit", "nan"], "--time-limit"),
        (["--budget", "8GiB", "--threads", "0"], "--threads"),
        (["--budget", "8GiB", "--solver", "keep-all", "-o", "/nonexistent/x.json"], "/nonexistent/x.json"),
        ([], "Missing option '--budget'"),
    ],
)
def test_bad_arguments_are_exit_2(graph: Path, arguments: list[str], complaint: str) -> None:
    result = checkmate("solve", graph, *arguments)
    assert result.exit_code == 2
    assert complaint in result.stderr
    assert "Traceback" not in result.stderr


def test_any_time_limit_that_is_a_number_is_fine(graph: Path) -> None:
    solved = checkmate("solve", graph, "--budget", "80%", "--solver", "heuristics", "--time-limit", "inf")
    assert solved.exit_code == 0


def test_the_graph_is_not_overwritten(graph: Path, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to(graph)
    before = graph.read_bytes()
    for output in (graph, tmp_path / "link.json"):
        result = checkmate("solve", graph, "--budget", "80%", "--solver", "heuristics", "-o", output)
        assert result.exit_code == 2
        assert "is the graph itself" in result.stderr
    assert graph.read_bytes() == before


def test_a_missing_file_is_exit_2(tmp_path: Path) -> None:
    result = checkmate("solve", tmp_path / "none.json", "--budget", "1")
    assert result.exit_code == 2
    assert "none.json" in result.stderr


def test_an_invalid_schedule_is_exit_1_and_says_why(graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "schedule.json"
    write_schedule(out, Schedule.of([Compute(0), Compute(1), Free(1), Compute(2)]), CHAIN)
    result = checkmate("simulate", graph, out, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout) == {
        "valid": False,
        "reason": "MISSING_INPUT",
        "peak": None,
        "cost": None,
        "overhead": None,
        "steps": 4,
        "step": 3,
        "subject": "op 2 '2', input tensor 1 '1'",
    }
    assert result.stderr.startswith("Not valid: step 3")


def test_a_schedule_of_another_graph_is_exit_2(graph: Path, tmp_path: Path) -> None:
    out = tmp_path / "schedule.json"
    other = DFGraph.from_nodes(cost=[1], size=[1], deps=[[]])
    write_schedule(out, Schedule.of([Compute(0)]), other)
    result = checkmate("simulate", graph, out)
    assert result.exit_code == 2
    assert "of another graph" in result.stderr


def test_plugins_are_listed() -> None:
    table = checkmate("plugins")
    facts = json.loads(checkmate("plugins", "--json").stdout)
    assert [plugin["name"] for plugin in facts["plugins"]] == ["built-in"]
    assert facts["plugins"][0]["error"] is None
    assert facts["ambiguous"] == {}
    for solver in facts["solvers"]:
        assert set(solver) == {"name", "summary", "guarantee", "cite"}
        assert solver["name"] in table.stdout


def test_a_broken_plugin_is_listed_with_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loader.ENVIRONMENT_VARIABLE, "everest")
    reset()
    result = checkmate("plugins", "--json")
    assert result.exit_code == 0
    assert "no installed distribution" in json.loads(result.stdout)["plugins"][1]["error"]


def test_demo_says_which_distribution_it_needs() -> None:
    result = checkmate("demo")
    assert result.exit_code == 2
    assert result.stderr == (
        "Error: 'checkmate demo' needs the 'checkmate-torch' distribution: "
        "pip install 'checkmate-torch[demo]'\n"
    )


def test_demo_of_a_broken_distribution_shows_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = loader.LoadedPlugin(
        name="torch", distribution="checkmate-torch 0.1.0", error="OSError: libfoo.so"
    )
    monkeypatch.setattr("checkmate.cli.app.installed_plugins", lambda: (broken,))
    result = checkmate("demo")
    assert result.exit_code == 2
    assert "'torch' (checkmate-torch 0.1.0), which failed: OSError: libfoo.so" in result.stderr


def test_commands_of_plugins_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    group = App(name="checkmate")

    def register(cli: click.Group) -> dict[str, str]:
        cli.add_command(click.Command("climb", callback=lambda: click.echo("up")))
        return {"'k2' (k2 1.0)": "KeyError: oxygen"}

    monkeypatch.setattr("checkmate.cli.app.register_commands", register)
    runner = CliRunner()
    assert runner.invoke(group, ["climb"]).stdout == "up\n"
    listed = runner.invoke(group, ["--help"])
    assert "climb" in listed.stdout
    assert "plugin 'k2' (k2 1.0) failed to add its commands: KeyError: oxygen" in listed.stderr


def test_a_plugin_can_not_replace_a_built_in_command(monkeypatch: pytest.MonkeyPatch) -> None:
    class Usurper:
        @staticmethod
        @hookimpl
        def checkmate_register_commands(cli: click.Group) -> None:
            cli.add_command(click.Command("solve", callback=lambda: click.echo("mine now")))

    candidate = loader._Candidate("usurper", "someone 1", lambda: Usurper)
    monkeypatch.setattr(loader, "_candidates", lambda: iter([candidate]))
    reset()
    listed = checkmate("--help")
    assert listed.exit_code == 0
    assert "'usurper' (someone 1) failed to add its commands: PluginError: there is" in listed.stderr
    assert "mine now" not in checkmate("solve", "--help").stdout
    assert app.commands["solve"] is commands.solve


def test_errors_of_a_plugins_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def register(cli: click.Group) -> dict[str, str]:
        @cli.command()
        @click.argument("kind")
        def fall(kind: str) -> None:
            raise CheckmateError("no rope") if kind == "ours" else ZeroDivisionError

        return {}

    monkeypatch.setattr("checkmate.cli.app.register_commands", register)
    group = App(name="checkmate")
    ours = CliRunner().invoke(group, ["fall", "ours"])
    assert (ours.exit_code, ours.stderr) == (2, "Error: no rope\n")
    assert isinstance(CliRunner().invoke(group, ["fall", "its"]).exception, ZeroDivisionError)


def test_a_terminal_without_our_characters_is_fine() -> None:
    code = """
import sys, click, rich
from checkmate.cli import app, main
app.app.add_command(click.Command("root", callback=lambda: rich.print("√n")))
sys.argv = ["checkmate", sys.argv[1]]
main()
"""
    environment = os.environ | {"PYTHONIOENCODING": "ascii", loader.ENVIRONMENT_VARIABLE: ""}
    for command, expected in (("root", "?n"), ("plugins", "sqrt(n)")):
        done = subprocess.run(
            [sys.executable, "-c", code, command],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout


def test_an_unknown_command_is_exit_2() -> None:
    result = checkmate("slove")
    assert result.exit_code == 2
    assert "No such command 'slove'" in result.stderr


def test_version() -> None:
    assert checkmate("--version").stdout == f"checkmate, version {__version__}\n"


@pytest.mark.parametrize("absent", ["click", "rich"])
def test_without_the_extra_it_says_how_to_get_it(absent: str) -> None:
    code = f"""
import sys
sys.modules[{absent!r}] = None
from checkmate.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "Error: the command line needs click and rich: pip install 'checkmate-core[cli]'\n"
