"""FSDP2 as ``accelerate launch`` configures it: two ranks, each within one budget, to the same bits."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate")
pytest.importorskip("transformers")

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "how-to" / "train-on-several-devices.md"


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both ranks saw, under the configuration file that the how-to shows."""
    folder = tmp_path_factory.mktemp("ranks")
    shown = re.search(r"```yaml\n(distributed_type: FSDP.*?)```", PAGE.read_text(), re.DOTALL)
    assert shown
    (folder / "fsdp2.yaml").write_text(shown[1])
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", f"{folder}/fsdp2.yaml"]
    sizes = ["--num_processes=2", "--num_machines=1", "--mixed_precision=no", "--main_process_port=0"]
    command = [*launch, *sizes, str(HERE / "sharded_loop.py"), str(folder)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False, env=alone)
    assert run.returncode == 0, run.stderr[-4000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_a_loop_of_accelerate_is_within_one_budget_for_each_rank(ranks: list[dict[str, Any]]) -> None:
    for seen in (rank["accelerate"] for rank in ranks):
        assert seen["same"]
        assert seen["extra"] > 0
        assert seen["measured"] <= seen["budget"]
        assert seen["predicted"] == pytest.approx(seen["measured"], rel=0.02)


def test_the_callback_plans_a_trainer_that_shards(ranks: list[dict[str, Any]]) -> None:
    for seen in (rank["trainer"] for rank in ranks):
        assert seen["same"]
        assert seen["extra"] > 0
        assert "gathered parameters" in seen["kinds"]
