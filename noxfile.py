"""The jobs of the repository.

- .ci/run does ``nox -s tests``, ``lint``, ``types``, ``wheels`` and ``docs``;
- ``nightly`` does what takes too long for that, with ``coverage`` and ``laws``;
- ``tf`` is for what needs TensorFlow, ``torch``, ``tf_oldest`` and ``tests_on`` for other releases of the
  frameworks and of Python, ``trainers`` for training loops of other libraries, ``world`` for their models,
  ``databases`` for PyTorch's own, ``conformance`` for many schedules of the executors;
- ``offline`` packs all for a GPU machine without network; ``demo``, ``evaluate``, ``notebooks`` show results.

Most share one environment, ``.nox/dev``: PyTorch is large, install it once. TensorFlow is in ``.nox/tf``, so
that neither framework comes to need the other, and no process has both. Once they are made, ``nox -R -s tests
-- -k judge`` skips the installation; pytest gets ``-k judge``. Where uv is installed, it fills environments.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import nox

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "types", "tests"]

ROOT = Path(__file__).parent
CONSTRAINTS = ("-c", str(ROOT / "constraints.txt"))
PACKAGES = ROOT / "packages"
PARTS = ("core", "solvers", "tf", "torch")
GATE = ("-m", "not nightly")
PARALLEL = ("-n", "auto", "--maxprocesses=4", "--dist=worksteal")
SOURCES = (
    f"{PACKAGES}/checkmate-core[cli,plot,testing]",
    f"{PACKAGES}/checkmate-solvers[ortools]",
    f"{PACKAGES}/checkmate-tf",  # without TensorFlow: what lists, checks and packs it needs none
    f"{PACKAGES}/checkmate-torch[demo]",
    f"{ROOT}/tests/sample_plugin",
    f"{ROOT}/examples/tape",
)
TF_SOURCES = (
    f"{PACKAGES}/checkmate-core[cli,plot,testing]",
    f"{PACKAGES}/checkmate-solvers",
    f"{PACKAGES}/checkmate-tf[cpu]",
)
EDITABLE, TF_EDITABLE = (
    tuple(word for path in sources for word in ("-e", path)) for sources in (SOURCES, TF_SOURCES)
)
TESTING = ("distributed", "jsonschema", "jupytext", "pytest-timeout", "pytest-xdist", "transformers")
TRAINERS = ("accelerate", "lightning", "peft", "pytest-timeout", "pytest-xdist", "transformers")
WORLD = ("diffusers", "peft", "timm", "torch-geometric", "transformers", "trl")
TF_TESTING = ("pytest-timeout", "pytest-xdist")
OFFLINE_PARTS = ("core", "solvers", "torch")
OFFLINE = (  # what the parts and the tests need and a machine with PyTorch, NumPy and SciPy may lack
    *("click", "markdown-it-py", "mdurl", "msgspec", "platformdirs", "pluggy", "pygments", "rich"),
    *("hypothesis", "iniconfig", "packaging", "pytest", "pytest-timeout", "sortedcontainers"),
)
OFFLINE_BYTES = 2**26
MANYLINUX = tuple(f"--platform=manylinux{n}_x86_64" for n in ("_2_28", "_2_17", "2014"))
MOST_BRANCHES = 15
DENSE = "packages/checkmate-core/src/checkmate/simulate.py"  # the judge is one loop, read as a whole
SITE = ("furo", "myst-nb", "sphinx", "sphinx-copybutton", "sphinx-external-toc")
TF_PARALLEL = ("-n", "2", "--dist=worksteal")  # each process imports TensorFlow: 4 s, 600 MB
DEV, TF = (ROOT / ".nox" / name / ("Scripts" if os.name == "nt" else "bin") for name in ("dev", "tf"))


def _tell_uv() -> None:
    """Let uv find packages where pip does: PyTorch's CPU build, a mirror. It reads none of pip's settings."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    pip: dict[str, str] = {}
    for section in ("global.", "install.", ":env:."):  # later ones win
        for key, _, value in (line.partition("=") for line in listed.splitlines()):
            if key.startswith(section):
                pip[key.removeprefix(section)] = ast.literal_eval(value)
    for setting, variable, separator in (
        ("find-links", "UV_FIND_LINKS", ","),
        ("index-url", "UV_DEFAULT_INDEX", ""),
        ("extra-index-url", "UV_INDEX", " "),
        ("cert", "SSL_CERT_FILE", ""),
    ):
        if setting in pip:
            os.environ.setdefault(variable, separator.join(pip[setting].split()))
    os.environ.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")  # as pip: the newest of all places


_tell_uv()


@nox.session(reuse_venv=True)
def dev(session: nox.Session) -> None:
    """Make the environment .nox/dev: the packages from the source tree, editable, with all extras."""
    session.install(*CONSTRAINTS, *EDITABLE, *TESTING, "basedpyright", "mypy", "pytest-cov")


@nox.session(venv_backend="none", requires=["dev"])
def demo(session: nox.Session) -> None:
    """Train a real network twice, plainly and within half its memory; compare."""
    session.run(str(DEV / "checkmate"), "demo", *session.posargs)


@nox.session(venv_backend="none", requires=["dev"])
def tests(session: nox.Session) -> None:
    """Run the tests and doctests that a merge needs; arguments after -- go to pytest, and leave out tf."""
    which = session.posargs
    if not which:
        which = GATE
        session.notify("tf")
    session.run(str(DEV / "pytest"), *PARALLEL, "--timeout=600", "--durations=10", *which)


@nox.session(venv_backend="none", requires=["dev"])
def evaluate(session: nox.Session) -> None:
    """Run the experiments, what needs TensorFlow last; arguments after -- go to benchmarks/evaluate.py."""
    command = (str(ROOT / "benchmarks" / "evaluate.py"), *session.posargs)
    needing = ("--needing", "tensorflow")
    session.run(str(DEV / "python"), *command)
    if session.run(str(DEV / "python"), *command, *needing, "--list", silent=True):
        # .nox/tf without its tests: given an argument, that session does nothing after what isn't run here.
        session.run(sys.executable, "-m", "nox", "-s", "tf", "--install-only", "--", "--version")
        session.run(str(TF / "python"), *command, *needing)


@nox.session(venv_backend="none", requires=["dev"])
def types(session: nox.Session) -> None:
    """Check the types of all packages, strictly, and what two type checkers see of the public surface."""
    session.run(str(DEV / "mypy"))
    session.run(str(DEV / "basedpyright"), "--pythonpath", str(DEV / "python"))


@nox.session(venv_backend="none", requires=["dev"])
def nightly(session: nox.Session) -> None:
    """Run what takes too long before each merge: deep tests, coverage, 500 random examples of each law."""
    session.notify("coverage")
    session.notify("laws")
    session.notify("tf", posargs=("-m", "nightly or law", "--hypothesis-profile=nightly"))
    session.run(str(DEV / "pytest"), *PARALLEL, "--timeout=3600", "--durations=20", "-m", "nightly")


@nox.session(venv_backend="none", requires=["dev"])
def laws(session: nox.Session) -> None:
    """Draw 500 random examples of each law, and 150 for each law of conformance; the tests draw 10 and 5.

    Hypothesis prints a failing example, and repeats it in the next run. ``nox -s conformance`` has executors.
    """
    many = ("--hypothesis-profile=nightly", "-p", "checkmate.testing.plugin", "--checkmate-examples=150")
    elsewhere = "--ignore=tests/torch/adapters/test_executor.py"
    session.run(
        str(DEV / "pytest"), *PARALLEL, "--timeout=14400", "-m", "law", *many, elsewhere, *session.posargs
    )


@nox.session(venv_backend="none", requires=["dev"])
def coverage(session: nox.Session) -> None:
    """Run core's own tests and doctests, and measure how much of it they reach, branches included.

    Tests that are marked as slow stay out: wrong plugins for the conformance kit, its many problems for
    heuristics and a tape, graphs of 50,000 ops, and commands that run in processes of their own.
    """
    where = ("tests/core", f"{PACKAGES}/checkmate-core", "-m", "not slow")
    report = ("--cov-report=term-missing:skip-covered", "--cov-fail-under=95")
    run = (str(DEV / "pytest"), *PARALLEL, "--timeout=600")
    session.run(*run, *where, "--cov=checkmate", "--cov-branch", *report, *session.posargs)


@nox.session(reuse_venv=True)
@nox.parametrize(
    "release", ["2.11.0", "2.12.0", "2.14.1", "2.15.0"], ids=["2.11.0", "2.12.0", "2.14.1", "2.15.0"]
)
def torch(session: nox.Session, release: str) -> None:
    """Test checkmate-torch on another release of PyTorch; on Linux that takes gigabytes, and no GPU."""
    session.install(*_constraints(session, "torch"), f"torch=={release}", *EDITABLE, *TESTING)
    session.run("pytest", *PARALLEL, "--timeout=600", "tests/torch", *(session.posargs or GATE))


@nox.session(python=["3.12", "3.13"], reuse_venv=True)
def tests_on(session: nox.Session) -> None:
    """Run the tests on another Python, without TensorFlow's; on Linux, PyTorch takes gigabytes."""
    session.install(*CONSTRAINTS, *EDITABLE, *TESTING)
    session.run("pytest", *PARALLEL, "--timeout=600", *(session.posargs or GATE))


@nox.session(reuse_venv=True)
def trainers(session: nox.Session) -> None:
    """Train in the loops of transformers, accelerate, peft and lightning; arguments after -- go to pytest."""
    session.install(*CONSTRAINTS, *EDITABLE, *TRAINERS)
    where = nox.project.load_toml(ROOT / "pyproject.toml")["tool"]["checkmate"]["needs-trainers"]
    session.run("pytest", *TF_PARALLEL, "--timeout=600", "--durations=10", *where, *session.posargs)


@nox.session(reuse_venv=True)
def world(session: nox.Session) -> None:
    """Train models of other libraries and loops as people write them; hours, or the arguments after --."""
    session.install(*CONSTRAINTS, *EDITABLE, *WORLD)
    session.run("python", "benchmarks/torch_world.py", *session.posargs)


@nox.session(reuse_venv=True)
def databases(session: nox.Session) -> None:
    """Train PyTorch's own modules and operators within the least budget, half an hour; posargs are names."""
    session.install(*CONSTRAINTS, *EDITABLE, "expecttest")  # which PyTorch's databases import
    session.run("python", "benchmarks/torch_databases.py", *session.posargs)


@nox.session(reuse_venv=True)
def tf(session: nox.Session) -> None:
    """Make the environment .nox/tf and run in it what needs TensorFlow; arguments after -- go to pytest."""
    session.install(*CONSTRAINTS, *TF_EDITABLE, *TF_TESTING)
    if session.posargs:
        _test_tf(session, *session.posargs)
        return
    _test_tf(session, *GATE)

    # A first step once more, with the wheels, which go before what is editable, away from the source tree.
    scratch = Path(session.create_tmp()).resolve()
    shutil.rmtree(scratch / "site", ignore_errors=True)
    wheels = _wheels(session, scratch, ("core", "tf")).values()
    session.install("--no-deps", "--target", f"{scratch}/site", *wheels)
    shutil.copy(ROOT / "tests" / "tf" / "test_first_step.py", scratch)
    session.chdir(scratch)
    run = ("pytest", "-c", f"{ROOT}/pyproject.toml", "--rootdir=.", "test_first_step.py")
    where = {"PYTHONPATH": f"{scratch}/site", "CHECKMATE_SITE": f"{scratch}/site"}
    session.run(*run, env={**where, "TF_ENABLE_ONEDNN_OPTS": "1"})  # as in conftest.py


@nox.session(venv_backend="none")
def conformance(session: nox.Session) -> None:
    """Draw 300 schedules for every trial of both executors, half an hour; and compare the allocators."""
    plugin = ("-p", "checkmate.testing.plugin")
    suite = (*plugin, "--pyargs", "checkmate.testing.suite", "--checkmate-examples=300", "-v")
    session.run(str(DEV / "pytest"), *suite, "--checkmate-executor=torch", *session.posargs)
    session.run(str(TF / "pytest"), *suite, "--checkmate-executor=tf", *session.posargs)
    networks = ("vgg", "resnet", "densenet", "efficientnet", "unet", "transformer")
    own = {"TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPU_BFC_MEM_LIMIT_IN_MB": "3072", "PYTHONPATH": "benchmarks"}
    session.run(str(TF / "python"), "tests/tf/memory/chunks.py", "10000", *networks, env=own)


@nox.session(reuse_venv=True)
def tf_oldest(session: nox.Session) -> None:
    """Do the same on the oldest TensorFlow that checkmate-tf works with, and the Keras of its time."""
    limits = _constraints(session, "keras", "numpy", "tensorflow-cpu")  # it needs numpy < 2
    session.install(*limits, "tensorflow-cpu==2.16.2", "keras==3.3.3", *TF_EDITABLE, *TF_TESTING)
    _test_tf(session, *(session.posargs or GATE))


def _test_tf(session: nox.Session, *arguments: str) -> None:
    where = nox.project.load_toml(ROOT / "pyproject.toml")["tool"]["checkmate"]["needs-tensorflow"]
    session.run("pytest", *TF_PARALLEL, "--timeout=600", "--durations=10", *where, *arguments)


def _constraints(session: nox.Session, *free: str) -> tuple[str, str]:
    """The constraints without those of some distributions, as arguments to pip."""
    limits = Path(session.create_tmp()) / "constraints.txt"
    pins = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    limits.write_text("".join(pin for pin in pins if pin.split("==")[0] not in free))
    return "-c", str(limits)


@nox.session(reuse_venv=True)
def lint(session: nox.Session) -> None:
    """Check style, format, density, plain words, and the floors (which package may import which)."""
    session.install(*CONSTRAINTS, "ruff", "import-linter", "radon")
    session.install("--no-deps", *(x for part in PARTS for x in ("-e", f"{PACKAGES}/checkmate-{part}")))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")
    session.run("python", "docs/words.py")
    _check_density(session)


def _check_density(session: nox.Session) -> None:
    """Fail if a function of the packages has a cyclomatic number, as radon counts it, above MOST_BRANCHES.

    Radon counts boolean operators and comprehensions, too, which ruff's C901 does not.
    """
    report: dict[str, list[dict[str, Any]]] = json.loads(
        session.run("radon", "cc", "--json", "packages", silent=True)
    )
    dense = [
        f"{file}:{block['lineno']} {block['name']} ({block['complexity']})"
        for file, blocks in report.items()
        for block in blocks
        if block["type"] != "class" and block["complexity"] > MOST_BRANCHES and file != DENSE
    ]
    if dense:
        session.error(f"split these functions into named steps: {', '.join(dense)}")


@nox.session(reuse_venv=True)
@nox.parametrize("framework", ["pytorch", "keras"], ids=["pytorch", "keras"])
def notebooks(session: nox.Session, framework: str) -> None:
    """Execute a tutorial, and keep it with what it shows: the site and code hosts show that file."""
    sources = EDITABLE if framework == "pytorch" else TF_EDITABLE
    session.install(*CONSTRAINTS, *sources, "ipykernel", "jupytext", "nbclient")
    session.run("python", "docs/execute.py", f"docs/tutorial/five-minutes-with-{framework}.py")


@nox.session(reuse_venv=True)
def docs(session: nox.Session) -> None:
    """Build the documentation site, build/site; a broken link is an error."""
    session.install(*CONSTRAINTS, "-e", f"{PACKAGES}/checkmate-core[testing]", *SITE)
    # Read without their frameworks, which docs/conf.py replaces.
    session.install(
        "--no-deps", *(x for part in ("tf", "torch") for x in ("-e", f"{PACKAGES}/checkmate-{part}"))
    )
    session.run("sphinx-build", "-qEW", "--keep-going", "-d", "build/doctrees", "docs", "build/site")


@nox.session
def offline(session: nox.Session) -> None:
    """Pack dist/checkmate-offline-py312.tar.gz for a GPU machine without network; -- 3.13 is its Python.

    One command there unpacks, installs, checks the machine and runs the tests that need a GPU:
    ``tar xzf checkmate-offline-py312.tar.gz && sh checkmate-offline/check.sh``.
    """
    python = session.posargs[0] if session.posargs else "3.12"
    scratch = Path(session.create_tmp()).resolve()
    folder = scratch / "checkmate-offline"
    shutil.rmtree(scratch, ignore_errors=True)
    source = folder / "source"
    for kept in ("tests/torch", "tests/trainers", "benchmarks/zoo"):
        shutil.copytree(ROOT / kept, source / kept, ignore=shutil.ignore_patterns("__pycache__"))
    for kept in ("pyproject.toml", "conftest.py", "tests/conftest.py", "tests/nightly.txt"):
        shutil.copy(ROOT / kept, source / kept)
    shutil.copy(ROOT / ".ci" / "check-offline.sh", folder / "check.sh")
    session.install("pip")
    session.run(
        *("python", "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", *CONSTRAINTS),
        *("--implementation", "cp", "--python-version", python, *MANYLINUX),
        *("-d", str(folder / "wheels"), *OFFLINE),
    )
    for wheel in _wheels(session, scratch, OFFLINE_PARTS).values():
        shutil.copy(wheel, folder / "wheels")
    name = ROOT / "dist" / f"checkmate-offline-py{python.replace('.', '')}"
    packed = Path(shutil.make_archive(str(name), "gztar", scratch, folder.name))
    session.log(f"{packed}: {packed.stat().st_size / 1e6:.1f} MB")
    if packed.stat().st_size > OFFLINE_BYTES:
        session.error(f"more than {OFFLINE_BYTES} bytes")


@nox.session
def wheels(session: nox.Session) -> None:
    """Build wheels, install them in a fresh environment, and test what was installed; dist/ gets what passed.

    First all together, with every extra but those of checkmate-tf: without TensorFlow it must import, be
    listed, and say what lacks. What it does with TensorFlow is tested in .nox/tf; both frameworks once more,
    here, would take minutes and show nothing new. Then each alone, with what it requires and nothing else.
    """
    scratch = Path(session.create_tmp()).resolve()
    found = _wheels(session, scratch, PARTS)
    extras = {"core": "[cli,plot,testing]", "solvers": "[ortools]", "torch": "[demo]"}
    wanted = [wheel + extras.get(part, "") for part, wheel in found.items()]
    session.install(*CONSTRAINTS, *wanted, "pip", "pytest")
    session.run("python", "-m", "pip", "check")

    # The tests run on a copy outside the source tree: only what was installed can be imported.
    outside = scratch / "outside"
    outside.mkdir(exist_ok=True)
    shutil.copy(ROOT / "tests" / "integration" / "test_installed.py", outside)
    session.chdir(outside)
    settings = ("-c", f"{ROOT}/pyproject.toml", "--rootdir=.", "--confcutdir=.")
    tests = ("-m", "pytest", *settings, "test_installed.py", *session.posargs)
    cache = {"CHECKMATE_CACHE_DIR": str(scratch / "cache")}
    session.run("python", *tests, env=cache | {"CHECKMATE_INSTALLED": "all"})
    for part in PARTS:
        shutil.rmtree(alone := scratch / part, ignore_errors=True)
        session.run("python", f"{ROOT}/tests/integration/alone.py", str(alone), f"checkmate-{part}", "pytest")
        python = alone / ("Scripts" if os.name == "nt" else "bin") / "python"
        session.run(str(python), *tests, env=cache | {"CHECKMATE_INSTALLED": part}, external=True)
    for old in (ROOT / "dist").glob("checkmate_*"):
        old.unlink()
    shutil.copytree(scratch / "wheels", ROOT / "dist", dirs_exist_ok=True)


def _wheels(session: nox.Session, scratch: Path, parts: Iterable[str]) -> dict[str, str]:
    """Build a source distribution of each part, and from it a wheel; the paths of the wheels."""
    shutil.rmtree(scratch / "wheels", ignore_errors=True)
    session.install("build", "hatchling")
    for part in parts:
        source = f"{PACKAGES}/checkmate-{part}"
        session.run("python", "-m", "build", "-n", "-o", f"{scratch}/wheels", source, silent=True)
    return {part: str(next(scratch.glob(f"wheels/checkmate_{part}-*.whl"))) for part in parts}
