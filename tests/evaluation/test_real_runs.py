"""The main job on the real recorded runs; skipped where the shared data is missing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ceb_gym.cli.main import main

SHARED = Path(os.environ.get("CEB_SHARED", Path(__file__).parents[2].parent / "shared"))
LOGS = SHARED / "data" / "intercode" / "logs"

needs_logs = pytest.mark.skipif(not LOGS.is_dir(), reason=f"no InterCode logs in {LOGS} (set CEB_SHARED)")


@pytest.fixture(scope="module")
def gpt4(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("gpt4")
    stream = folder / "gpt4.jsonl"
    assert main(["import", "intercode-logs", str(LOGS / "gpt-4"), "--out", str(stream)]) == 0
    arguments = ["--stream", str(stream), "--critic", "neighbors", "--resamples", "200"]
    assert main(["run", *arguments, "--json", str(folder / "result.json")]) == 0
    loaded: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return loaded


@needs_logs
def test_counts_reaches_the_reference_figures_on_gpt4(gpt4: dict[str, Any]) -> None:
    everything, later = gpt4["counts_critic"]["all"], gpt4["counts_critic"]["later_steps"]
    assert everything["ece"] == pytest.approx(0.020, abs=0.01)
    assert everything["auc"] == pytest.approx(0.888, abs=0.01)
    assert everything["brier_skill"] == pytest.approx(0.65, abs=0.01)
    assert later["auc"] == pytest.approx(0.60, abs=0.01)


@needs_logs
def test_all_steps_of_gpt4_are_judged_and_labelled(gpt4: dict[str, Any]) -> None:
    metrics = gpt4["critic"]["all"]
    assert (metrics["n_episodes"], metrics["n_steps"], metrics["n_scored"]) == (200, 1176, 1176)
    assert round(metrics["base_rate"] * 1176) == 277
    assert gpt4["critic"]["later_steps"]["n_steps"] == 976


@needs_logs
def test_intervals_hold_their_estimates(gpt4: dict[str, Any]) -> None:
    for estimator in ("critic", "base_rate_critic", "counts_critic"):
        metrics = gpt4[estimator]["all"]
        for name in ("brier", "brier_skill", "auc"):
            low, high = metrics["ci"][name]
            assert low <= metrics[name] <= high
