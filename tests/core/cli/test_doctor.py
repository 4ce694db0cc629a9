"""``checkmate doctor``: each fault of an installation is made and found."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from checkmate.cli import findings as findings_module
from checkmate.errors import install_hint
from checkmate.plugins import SolverSpec, hookimpl, loader, reset

Checkmate = Callable[..., Result]
Install = Callable[..., None]


@pytest.fixture(autouse=True)
def outcomes(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Replace the loads in processes: these programs fail, all others load."""
    said: dict[str, list[str]] = {}
    monkeypatch.setattr(findings_module, "load_errors", lambda program: said.get(program, []))
    return said


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a distribution on the path: its metadata, and its import names."""
    site = tmp_path / "site"

    def install(name: str, version: str = "1.0", *packages: str) -> None:
        metadata = site / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (metadata / "top_level.txt").write_text("\n".join(packages))
        importlib.invalidate_caches()

    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    yield install
    importlib.invalidate_caches()


def found(checkmate: Checkmate, subject: str) -> dict[str, Any]:
    """The one finding about this subject; the exit code agrees with the findings."""
    result = checkmate("doctor", "--json")
    facts = json.loads(result.stdout)
    problems = [f for f in facts["findings"] if f["level"] == "problem"]
    assert facts["ok"] == (not problems)
    assert result.exit_code == bool(problems)
    (finding,) = (f for f in facts["findings"] if f["subject"] == subject)
    assert bool(finding["advice"]) or finding["level"] != "problem"
    return finding


def test_a_table_for_people(checkmate: Checkmate) -> None:
    result = checkmate("doctor")
    assert "python" in result.stdout
    assert "checkmate-core" in result.stdout
    assert result.stdout.rstrip().endswith("found.")


def test_versions_are_shown_without_imports(checkmate: Checkmate, install: Install) -> None:
    install("tensorflow", "99.1")
    facts = json.loads(checkmate("doctor", "--json").stdout)
    assert facts["versions"]["tensorflow"] == "99.1"
    assert facts["versions"]["highspy"] is None
    assert found(checkmate, "tensorflow") == {
        "level": "ok",
        "subject": "tensorflow",
        "text": "99.1",
        "advice": "",
    }


def test_parts_of_different_releases_are_noted(checkmate: Checkmate, install: Install) -> None:
    install("checkmate-tf", "99.0")
    finding = found(checkmate, "versions")
    assert finding["level"] == "note"
    assert "checkmate-tf 99.0" in finding["text"]
    assert "./packages/checkmate-core ./packages/checkmate" in finding["advice"]


def test_a_load_failure_is_a_problem_unless_the_library_is_absent(
    checkmate: Checkmate, outcomes: dict[str, list[str]]
) -> None:
    assert "matplotlib" in found(checkmate, "loading")["text"]
    thing = "import matplotlib.figure"
    outcomes[thing] = ["RuntimeError: no"]
    finding = found(checkmate, thing)
    assert (finding["level"], finding["text"]) == ("problem", "fails to load: RuntimeError: no")
    outcomes[thing] = ["ModuleNotFoundError: no"]
    assert found(checkmate, thing)["level"] == "note"


def test_a_library_that_several_solvers_lack_is_one_note(
    checkmate: Checkmate, outcomes: dict[str, list[str]]
) -> None:
    text = "not installed (optional): OR-Tools (checkmate-solvers[ortools])"
    outcomes["import matplotlib.figure"] = [text, text]
    finding = found(checkmate, "import matplotlib.figure")
    assert (finding["level"], finding["text"], finding["advice"]) == ("note", text, "")


def test_two_owners_of_the_import_name_are_a_problem(checkmate: Checkmate, install: Install) -> None:
    assert found(checkmate, "import checkmate")["level"] == "ok"
    install("checkmate", "0.2.0", "checkmate")
    finding = found(checkmate, "import checkmate")
    assert finding["level"] == "problem"
    assert finding["advice"].startswith("pip uninstall checkmate checkmate-core, then")


def test_highspy_beside_ortools_is_a_problem(checkmate: Checkmate, install: Install) -> None:
    install("ortools")  # may be installed
    subjects = [f["subject"] for f in json.loads(checkmate("doctor", "--json").stdout)["findings"]]
    assert "highspy, ortools" not in subjects
    install("highspy")
    finding = found(checkmate, "highspy, ortools")
    assert (finding["level"], finding["advice"][:21]) == ("problem", "pip uninstall highspy")


def test_checkmate_tf_without_tensorflow_is_noted(
    checkmate: Checkmate, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("checkmate-tf")
    finding = found(checkmate, "framework")
    assert finding["level"] == "note"
    assert finding["advice"].startswith(install_hint("checkmate-tf[cpu]"))
    (tmp_path / "tensorflow.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    subjects = [f["subject"] for f in json.loads(checkmate("doctor", "--json").stdout)["findings"]]
    assert "framework" not in subjects


def test_without_auto_there_is_a_note(checkmate: Checkmate) -> None:
    assert found(checkmate, "solvers")["advice"] == install_hint("checkmate-solvers")
    assert found(checkmate, "plugins")["level"] == "note"


class Auto:
    @staticmethod
    @hookimpl
    def checkmate_register_solvers() -> list[SolverSpec]:
        return [SolverSpec(name=name, summary="does", load=lambda: None) for name in ("auto", "keep-all")]


def test_ambiguous_names_are_a_problem(checkmate: Checkmate, plug: Callable[..., None]) -> None:
    plug(("other", lambda: Auto))
    assert found(checkmate, "solvers")["level"] == "ok"
    finding = found(checkmate, "solver 'keep-all'")
    assert finding["level"] == "problem"
    assert "'built-in' (checkmate-core) and by 'other' (other 1.0)" in finding["text"]


def test_a_plugin_that_failed_is_a_problem(checkmate: Checkmate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loader.ENVIRONMENT_VARIABLE, "everest")
    reset()
    finding = found(checkmate, "plugin 'everest'")
    assert finding["level"] == "problem"
    assert "no installed distribution" in finding["text"]
    assert "1 problem found." in checkmate("doctor").stdout
