"""The evaluation is a package beside the scripts, not an installed one: it is found as it is when it runs."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
