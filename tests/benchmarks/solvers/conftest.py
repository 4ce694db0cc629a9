"""The benchmark is a folder of scripts, not a package: its modules are found as they are when it runs."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "benchmarks" / "solvers"
sys.path.insert(0, str(FOLDER))
