"""The loader on real entry points: working plugins work; a broken one is dropped alone and reported."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from checkmate import DFGraph, PluginError, solve
from checkmate.heuristics import KeepAll
from checkmate.plugins import (
    SOLVERS,
    SolverSpec,
    hookimpl,
    installed_plugins,
    loader,
    register_commands,
    reset,
)

Run = Callable[..., str]

REPORT = """
import json
from checkmate.plugins import installed_plugins, SOLVERS
print(json.dumps({
    "plugins": {p.name: [p.distribution, p.error] for p in installed_plugins()},
    "solvers": [s.name for s in SOLVERS.specs()],
    "ambiguous": SOLVERS.ambiguous(),
}))
"""
ASK = """
from checkmate import PluginError
from checkmate.plugins import SOLVERS
try:
    print("loaded", SOLVERS.load({name!r}))
except PluginError as error:
    print(error)
"""


@pytest.fixture(autouse=True)
def forget_what_is_loaded() -> Iterator[None]:
    """Keep the plugins of one test out of the others."""
    reset()
    yield
    reset()


def test_a_third_party_solver_is_found_and_solves(run: Run) -> None:
    code = """
import checkmate
deps = [[], [0], [1], [2], [3], [2, 4], [1, 5], [0, 6]]
graph = checkmate.DFGraph.from_nodes(cost=[1] * 8, size=[1] * 8, deps=deps)
solution = checkmate.solve(graph, "80%", solver="luck")
print(solution.status, solution.peak <= 4, solution.solver)
"""
    assert run(code, "sample") == "feasible True luck"


def test_built_ins_come_first(run: Run) -> None:
    solvers = json.loads(run(REPORT, "sample"))["solvers"]
    assert solvers[0] == "heuristics"
    assert solvers[-1] == "luck"


def test_broken_plugins_are_dropped_alone_and_reported(run: Run) -> None:
    report = json.loads(run(REPORT, "sample", "raises", "misspelt"))
    assert "luck" in report["solvers"]
    assert "typo" not in report["solvers"]
    assert report["plugins"]["sample"] == ["checkmate-sample 1.0", None]
    assert report["plugins"]["raises"] == [
        "checkmate-raises 0.1",
        "RuntimeError: this plugin is broken on purpose",
    ]
    distribution, error = report["plugins"]["misspelt"]
    assert distribution == "checkmate-misspelt 0.1"
    assert "checkmate_register_solver" in error


def test_an_unknown_solver_lists_installed_names_and_failed_plugins(run: Run) -> None:
    message = run(ASK.format(name="lucky"), "sample", "raises")
    assert message.startswith("no solver 'lucky'; installed: ['heuristics',")
    assert "failed to load: ['raises']" in message
    assert "did you mean 'luck'?" in message


def test_without_solvers_one_hint_per_process(run: Run) -> None:
    code = """
import logging, sys, checkmate
logging.basicConfig(stream=sys.stdout)
graph = checkmate.DFGraph.from_nodes(cost=[1, 1], size=[4, 2], deps=[[], [0]])
print([checkmate.solve(graph, "100%").solver for _ in range(2)])
"""
    hint, answer = run(code, only="").splitlines()
    assert "planning with heuristics only; checkmate-solvers usually finds cheaper plans: pip install" in hint
    assert answer == "['heuristics', 'heuristics']"


def test_two_owners_of_a_name_are_both_named(run: Run) -> None:
    message = run(ASK.format(name="luck"), "sample", "duplicate")
    assert "'duplicate' (checkmate-duplicate 0.1) and by 'sample' (checkmate-sample 1.0)" in message
    report = json.loads(run(REPORT, "sample", "duplicate"))
    assert "own" in report["solvers"]
    assert "luck" not in report["solvers"]
    assert list(report["ambiguous"]) == ["luck"]


def test_a_solver_that_fails_to_load_names_its_owner_and_its_requirements(run: Run) -> None:
    message = run(ASK.format(name="absent"), "hostile")
    assert "solver 'absent' of 'hostile' (checkmate-hostile 0.1) failed to load" in message
    assert "No module named 'everest'; it needs: pip install everest" in message
    assert "it has no solve()" in run(ASK.format(name="nothing"), "hostile")


def test_a_solver_that_returns_nonsense_is_named(run: Run) -> None:
    code = """
import checkmate
try:
    checkmate.solve(checkmate.DFGraph.from_nodes(cost=[1], size=[1], deps=[[]]), 1, solver="liar")
except checkmate.SolverError as error:
    print(error)
"""
    assert run(code, "hostile") == "solver 'liar' returned a str, not a Solution"


def test_the_environment_restricts_the_plugins(run: Run) -> None:
    plugins = json.loads(run(REPORT, "sample", "raises", only=" sample , nix,"))["plugins"]
    assert set(plugins) == {"built-in", "sample", "nix"}
    assert "no installed distribution" in plugins["nix"][1]
    assert set(json.loads(run(REPORT, "sample", only=""))["plugins"]) == {"built-in"}


def test_a_plugin_that_is_not_wanted_is_not_imported(run: Run) -> None:
    code = """
import sys
from checkmate.plugins import SOLVERS
SOLVERS.specs()
print('checkmate_sample' in sys.modules)
"""
    assert run(code, "sample") == "True"
    assert run(code, "sample", only="") == "False"


def test_import_loads_no_plugin(run: Run) -> None:
    code = "import sys, checkmate; print('checkmate_sample' in sys.modules)"
    assert run(code, "sample") == "False"


def test_commands_of_a_broken_plugin_are_reported(run: Run) -> None:
    code = "from checkmate.plugins import register_commands; print(register_commands(None))"
    errors = run(code, "hostile")
    assert "'hostile' (checkmate-hostile 0.1)" in errors
    assert "KeyError" in errors


def test_auto_falls_back_with_a_warning(run: Run) -> None:
    code = """
import logging, checkmate
records = []
handler = logging.Handler()
handler.emit = records.append
logging.getLogger("checkmate").addHandler(handler)
graph = checkmate.DFGraph.from_nodes(cost=[1], size=[1], deps=[[]])
print(checkmate.solve(graph, 1).solver, [r.getMessage() for r in records if r.levelname == "WARNING"])
"""
    answer = run(code, "raises")
    assert answer.startswith("heuristics [")
    assert "checkmate-solvers" in answer
    assert "'raises' (checkmate-raises 0.1): RuntimeError" in answer


@pytest.mark.parametrize("offered", ["abc", 7, [None]])
def test_a_hook_must_return_specs_of_its_kind(plug: Callable[..., None], offered: object) -> None:
    class Wrong:
        @staticmethod
        @hookimpl
        def checkmate_register_solvers() -> object:
            return offered

    plug(("wrong", Wrong, "someone"))
    plugin = installed_plugins()[-1]
    assert plugin.error is not None
    assert plugin.error.startswith("PluginError: checkmate_register_solvers returned")
    assert plugin.offers == ()


def offering(*specs: SolverSpec) -> object:
    class Offers:
        @staticmethod
        @hookimpl
        def checkmate_register_solvers() -> tuple[SolverSpec, ...]:
            return specs

    return Offers


def spec(name: Any = "mine", load: Callable[[], Any] = KeepAll, summary: Any = "keeps all") -> SolverSpec:
    return SolverSpec(name=name, summary=summary, load=load)


NAMELESS = [spec(name=name) for name in (None, 7, "", " ", "red\x1b[31m")]


@pytest.mark.parametrize("wrong", [*NAMELESS, spec(summary=None), spec(summary="two\nlines")])
def test_a_spec_must_have_a_name_and_a_summary(plug: Callable[..., None], wrong: SolverSpec) -> None:
    plug(("wrong", lambda: offering(wrong), "someone"))
    plugin = installed_plugins()[-1]
    assert plugin.error is not None
    assert "whose name or summary is not one line of text" in plugin.error


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ((spec(), spec()), "two specs of the name 'mine'"),
        ((SolverSpec(name="x", summary="x", load=KeepAll, requires=("scipy")),), "is a comma missing"),  # type: ignore[arg-type]
    ],
)
def test_a_slip_in_a_spec_is_named(
    plug: Callable[..., None], wrong: tuple[SolverSpec, ...], complaint: str
) -> None:
    plug(("wrong", lambda: offering(*wrong), "someone"))
    plugin = installed_plugins()[-1]
    assert plugin.error is not None
    assert complaint in plugin.error


class Panic(BaseException):
    """An exception such as a library of another language raises."""


def test_any_failure_drops_one_plugin_except_ctrl_c(
    plug: Callable[..., None],
) -> None:
    def panic() -> object:
        raise Panic("core dumped")

    def interrupt() -> object:
        raise KeyboardInterrupt

    good = ("good", lambda: offering(spec(load=panic)), "someone")  # type: ignore[arg-type]
    plug(("bad", panic, "someone"), good)
    assert [plugin.error for plugin in installed_plugins()[1:]] == ["Panic: core dumped", None]
    with pytest.raises(PluginError, match=r"'mine' of 'good' .* failed to load: Panic: core dumped"):
        SOLVERS.load("mine")
    plug(("bad", interrupt, "someone"))
    with pytest.raises(KeyboardInterrupt):
        installed_plugins()


def test_malformed_metadata_of_any_distribution_leaves_the_built_ins(run: Run, tmp_path: Path) -> None:
    stray = tmp_path / "stray-1.0.dist-info"
    stray.mkdir()
    (stray / "entry_points.txt").write_text("[checkmate]\nno equals sign\n")
    report = json.loads(run(f"import sys; sys.path.insert(0, {str(tmp_path)!r})" + REPORT))
    assert report["plugins"]["built-in"][1] is None
    assert report["plugins"]["entry points"][0] == "malformed metadata"
    assert "keep-all" in report["solvers"]


def test_a_broken_twin_leaves_the_good_one_alone(plug: Callable[..., None]) -> None:
    class Good:
        @staticmethod
        @hookimpl
        def checkmate_register_commands(cli: list[str]) -> None:
            cli.append("climb")

    def broken() -> object:
        raise RuntimeError("\x1b[2Jcleared\x07")

    plug(("same", lambda: Good), ("same", broken))
    assert [plugin.error for plugin in installed_plugins()[1:]] == [None, r"RuntimeError: \x1b[2Jcleared\x07"]
    commands: list[str] = []
    assert register_commands(commands) == {}
    assert commands == ["climb"]


@pytest.mark.parametrize("exit_code", [SystemExit(3), ZeroDivisionError()])
def test_a_load_that_gives_up_is_a_plugin_error(plug: Callable[..., None], exit_code: BaseException) -> None:
    def give_up() -> object:
        raise exit_code

    plug(("quits", lambda: offering(spec(load=give_up)), "someone"))
    with pytest.raises(
        PluginError, match=r"solver 'mine' of 'quits' \(someone 1.0\) failed to load"
    ) as caught:
        SOLVERS.load("mine")
    assert caught.value.__cause__ is exit_code


def test_two_owners_of_auto_are_an_error_not_a_fallback(plug: Callable[..., None]) -> None:
    plug(*((name, lambda: offering(spec(name="auto"))) for name in ("ab", "cd")))
    with pytest.raises(PluginError, match=r"'auto' is offered by 'ab' \(ab 1.0\) and by 'cd' \(cd 1.0\)"):
        solve(DFGraph.from_nodes(cost=[1], size=[1], deps=[[]]), 1)


def test_lookup_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loader.ENVIRONMENT_VARIABLE, "")
    chen = SOLVERS.spec("chen-sqrt-n")
    assert isinstance(chen, SolverSpec)
    assert "Chen" in chen.cite
    assert chen in SOLVERS.specs()
    assert installed_plugins() is installed_plugins()
    with pytest.raises(PluginError, match="did you mean 'chen-sqrt-n'"):
        SOLVERS.spec("chen-sqrt")
