"""The packages after ``pip install``, tested from outside, in processes of their own.

``CHECKMATE_INSTALLED`` names the packages that must be installed, and no others of ours may be: ``core``,
``solvers``, ``tf`` or ``torch`` (with core), or ``all`` with every extra but TensorFlow, which is never
there. Unset, as in the development environment: all, editable.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from importlib import metadata, util
from pathlib import Path

import pytest

from checkmate.errors import install_hint

INSTALLED = os.environ.get("CHECKMATE_INSTALLED", "all")
PARTS = {"core", "solvers", "tf", "torch"} if INSTALLED == "all" else {"core", INSTALLED}
FROM_WHEELS = "CHECKMATE_INSTALLED" in os.environ
PACKAGES = {
    "core": "checkmate",
    "solvers": "checkmate_solvers",
    "tf": "checkmate_tf",
    "torch": "checkmate_torch",
}
FACES = [
    pytest.param(face, f"checkmate-{part}", id=face)
    for face, part in {"tf2": "tf", "torch": "torch"}.items()
    if part not in PARTS
]
HEAVY = [
    "torch",
    "tensorflow",
    "scipy",
    "matplotlib",
    "click",
    "rich",
    "hypothesis",
    "sklearn",
    "keras",
    "checkmate_tf",
    "checkmate_torch",
]

needs_all = pytest.mark.skipif(INSTALLED != "all", reason="needs all distributions, with extras")


def python(code: str, *flags: str) -> str:
    """The output of an isolated interpreter, without the working directory and PYTHONPATH on its path."""
    done = subprocess.run(
        [sys.executable, "-I", *flags, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def checkmate(*arguments: str | Path, exit_code: int = 0) -> str:
    """The output of the installed command."""
    command = Path(sysconfig.get_path("scripts")) / "checkmate"
    done = subprocess.run([command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == exit_code, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout if exit_code == 0 else done.stderr


def chain(n: int) -> dict[str, object]:
    """Wire format of a training step: n forward ops in a row, then n backward ops that read them back."""
    forward = [{"name": f"f{i}", "inputs": [i], "outputs": [i + 1], "cost": 1.0} for i in range(n)]
    backward = [
        {"name": f"b{i}", "inputs": [i, 2 * n - i - 1], "outputs": [2 * n - i], "cost": 1.0, "backward": True}
        for i in range(n - 1, -1, -1)
    ]
    backward[0]["inputs"] = [n - 1, n]
    return {
        "format": "checkmate.graph", "version": 1, "name": "chain",
        "tensors": [{"name": str(i), "size": 64} for i in range(2 * n + 1)],
        "ops": [*forward, *backward],
        "inputs": [0], "outputs": [2 * n],
    }  # fmt: skip


def test_only_named_distributions_are_installed() -> None:
    present = {part for part, package in PACKAGES.items() if util.find_spec(package) is not None}
    assert present == PARTS


@pytest.mark.skipif(not FROM_WHEELS, reason="the packages are editable here")
def test_the_source_tree_is_not_used() -> None:
    for part in PARTS:
        file = Path(python(f"import {PACKAGES[part]} as p; print(p.__file__)"))
        assert file.is_relative_to(sysconfig.get_path("purelib")), file
        assert (file.parent / "py.typed").is_file()


@pytest.mark.skipif(not FROM_WHEELS, reason="the metadata may be older than the packages here")
def test_an_index_shows_what_each_package_is() -> None:
    for part in PARTS:
        told = metadata.metadata(f"checkmate-{part}")
        assert "Typing :: Typed" in told.get_all("Classifier")
        assert told.get_all("Project-URL")
        assert "▼" in str(told.get_payload())  # a picture that needs no link
    for part in PARTS & {"tf", "torch"}:
        extras = metadata.metadata(f"checkmate-{part}").get_all("Provides-Extra")
        assert {"all", "solvers"} <= set(extras)


def test_each_package_imports_and_knows_its_version() -> None:
    for part in PARTS:
        version = python(
            f"import {PACKAGES[part]}; import checkmate; print(checkmate.__version__)", "-Werror"
        )
        assert version == metadata.version(f"checkmate-{part}")


def test_import_checkmate_loads_no_framework() -> None:
    loaded = python(f"import sys, checkmate; print(sorted(set({HEAVY}) & set(sys.modules)))")
    assert loaded == "[]"


def test_listing_solvers_loads_no_framework() -> None:
    code = f"""
import sys
from checkmate.plugins import SOLVERS
assert len(SOLVERS.specs()) > 1
print(sorted((set({HEAVY}) - {{"checkmate_tf", "checkmate_torch"}}) & set(sys.modules)))
"""
    assert python(code) == "[]"


def test_no_plugin_is_broken() -> None:
    broken = python(
        "from checkmate.plugins import installed_plugins; print([p for p in installed_plugins() if p.error])"
    )
    assert broken == "[]"


@pytest.mark.parametrize(("face", "distribution"), FACES)
@pytest.mark.parametrize("access", ["import checkmate.{face}", "import checkmate; checkmate.{face}.compile"])
def test_a_missing_distribution_is_named(face: str, distribution: str, access: str) -> None:
    code = f"""
from checkmate import MissingDistributionError
try:
    {access.format(face=face)}
except MissingDistributionError as error:
    print(error)
"""
    message = f"'checkmate.{face}' needs the '{distribution}' distribution: {install_hint(distribution)}"
    assert python(code) == message


@pytest.mark.skipif("tf" not in PARTS, reason="needs checkmate-tf")
@pytest.mark.parametrize(
    ("use", "error"),
    [
        ("checkmate.plugins.FRONTENDS.load('tf')", "PluginError"),
        ("checkmate.tf2", "MissingDistributionError"),
        ("import checkmate_tf; checkmate_tf.memory_meter", "MissingDistributionError"),
    ],
)
def test_checkmate_tf_is_listed_without_tensorflow_and_asks_for_it_at_first_use(use: str, error: str) -> None:
    code = f"""
import checkmate
assert "tf" in [spec.name for spec in checkmate.plugins.FRONTENDS.specs()]
try:
    {use}
except checkmate.{error} as error:
    print(error)
"""
    said = python(code)
    assert "checkmate-tf[cpu]" in said
    assert "checkmate-tf[gpu]" in said


@pytest.mark.skipif("torch" not in PARTS, reason="needs checkmate-torch")
@pytest.mark.parametrize(
    "access",
    [
        "import checkmate; f = checkmate.torch.compile",
        "import checkmate.torch; f = checkmate.torch.compile",
        "from checkmate import torch as face; f = face.compile",
    ],
)
def test_the_face_of_torch_has_three_doors(access: str) -> None:
    code = f"{access}; import checkmate_torch; print(f is checkmate_torch.compile)"
    assert python(code) == "True"


@pytest.mark.skipif("torch" not in PARTS, reason="needs checkmate-torch")
def test_torch_compile_lists_the_backend() -> None:
    assert python("import torch; print('checkmate' in torch._dynamo.list_backends())") == "True"


def test_a_graph_is_solved_within_its_budget(tmp_path: Path) -> None:
    file = tmp_path / "graph.json"
    file.write_text(json.dumps(chain(8)))
    code = f"""
import checkmate
graph = checkmate.read_graph({str(file)!r})
solution = checkmate.solve(graph, "60%")
judged = checkmate.simulate(graph, solution.schedule)
print(judged.peak <= 0.6 * checkmate.keep_all_peak(graph), judged.recomputes > 0)
"""
    assert python(code) == "True True"


@pytest.mark.skipif(INSTALLED == "all", reason="the extra 'cli' is installed")
def test_the_command_names_the_missing_extra() -> None:
    assert "checkmate-core[cli]" in checkmate("plugins", exit_code=2)


@needs_all
def test_the_command_lists_solvers() -> None:
    listed = json.loads(checkmate("plugins", "--json"))
    assert {"auto", "keep-all"} <= {solver["name"] for solver in listed["solvers"]}


@needs_all
def test_the_command_solves_and_judges(tmp_path: Path) -> None:
    graph, schedule = tmp_path / "graph.json", tmp_path / "schedule.json"
    graph.write_text(json.dumps(chain(8)))
    solved = json.loads(checkmate("solve", graph, "--budget", "60%", "-o", schedule, "--json"))
    judged = json.loads(checkmate("simulate", graph, schedule, "--json"))
    assert solved["status"] in {"optimal", "feasible"}
    assert solved["solver"] == "auto"
    assert judged["valid"]
    assert (judged["peak"], judged["cost"]) == (solved["peak"], solved["cost"])
    assert judged["peak"] <= solved["budget"]
    assert solved["ideal_cost"] == 16.0
    assert solved["bound"] <= solved["cost"]


@needs_all
def test_the_command_writes_a_page_of_its_own(tmp_path: Path) -> None:
    graph, schedule, page = tmp_path / "graph.json", tmp_path / "schedule.json", tmp_path / "report.html"
    graph.write_text(json.dumps(chain(8)))
    checkmate("solve", graph, "--budget", "60%", "-o", schedule)
    checkmate("show", graph, schedule, "-o", page)
    assert "<svg" in page.read_text()  # the parts of the page are in the package


@needs_all
def test_a_solver_is_checked_without_any_file(tmp_path: Path) -> None:
    suite = (
        "-p",
        "checkmate.testing.plugin",
        "--pyargs",
        "checkmate.testing.suite",
        "--checkmate-solver",
        "keep-all",
        "--checkmate-examples",
        "9",
    )
    done = subprocess.run(
        [sys.executable, "-I", "-m", "pytest", *suite],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


@needs_all
def test_the_command_tells_failures_apart(tmp_path: Path) -> None:
    graph = tmp_path / "graph.json"
    graph.write_text(json.dumps(chain(8)))
    infeasible = checkmate("solve", graph, "--budget", "100B", exit_code=1)
    assert "sets that floor" in infeasible
    graph.write_text('{"format": "checkmate.graph", "version": 99}')
    assert "version 99" in checkmate("solve", graph, "--budget", "60%", exit_code=2)
    assert "no-such.json" in checkmate("solve", tmp_path / "no-such.json", "--budget", "60%", exit_code=2)
