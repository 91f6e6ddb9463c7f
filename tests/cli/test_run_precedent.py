"""What `ceb run` reports of the `precedent` critic alone: its twin, and the weights of its features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ceb_gym.cli.main import main
from ceb_gym.evaluation.feature_weights import REPEATS
from ceb_gym.evaluation.twin import TWIN
from ceb_gym.features import feature_groups

LIVE = ["--env", "FrozenLake-v1", "--env-arg", "is_slippery=false", "--agent", "planner:0.7"]
LIVE += ["--labeler", "success?reward_above=0"]


def report_of(folder: Path, *arguments: str, episodes: int = 40) -> tuple[dict[str, Any], str]:
    command = ["run", *LIVE, "--episodes", str(episodes), "--resamples", "40", "--report", str(folder)]
    assert main([*command, *arguments]) == 0
    loaded: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return loaded, (folder / "report.md").read_text()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Path]:
    folder = tmp_path_factory.mktemp("report")
    return *report_of(folder), folder


def test_the_critic_without_precedents_has_a_row_and_a_gap(report: tuple[dict[str, Any], str, Path]) -> None:
    found, text, folder = report
    for part in ("all", "later_steps"):
        assert found[TWIN][part]["n_steps"] == found["critic"][part]["n_steps"]
        gap = found["gap_to_precedent_without_precedents"][part]["brier"]
        expected = found["critic"][part]["brier"] - found[TWIN][part]["brier"]
        assert gap["difference"] == pytest.approx(expected) and len(gap["ci"]) == 2
    assert "| precedent (no precedents) |" in text
    assert "## Critic minus precedent (no precedents), on the same steps" in text
    row = json.loads((folder / "steps.jsonl").read_text().splitlines()[0])
    assert set(row["confidence"]) == {"critic", TWIN, "base_rate", "counts"}


def test_feature_weights_are_in_the_report(report: tuple[dict[str, Any], str, Path]) -> None:
    found, text, _ = report
    weights = found["feature_weights"]
    assert set(weights["groups"]) == set(feature_groups()) and weights["repeats"] == REPEATS
    assert weights["n_learned"] + weights["n_judged"] == found["run"]["n_executed"]
    shown = text.partition("## Feature weights")[2].partition("## Settings")[0]
    assert "pseudo-labels" in shown and shown.count("\n| all of ") == 5
    assert shown.count("\n| ") == 1 + 5 + 10


def test_same_seed_gives_the_same_report(report: tuple[dict[str, Any], str, Path], tmp_path: Path) -> None:
    again = report_of(tmp_path)
    assert again == report[:2]


@pytest.mark.parametrize("critic", ["neighbors", "precedent | counts", "precedent?precedents=false"])
def test_other_critics_have_no_row_without_precedents(critic: str, tmp_path: Path) -> None:
    found, text = report_of(tmp_path, "--critic", critic, episodes=5)
    assert TWIN not in found and f"gap_to_{TWIN}" not in found and "no precedents)" not in text
    assert ("feature_weights" in found) == critic.startswith("precedent?")


def test_recalibration_keeps_the_row_and_compares_raw_scores(tmp_path: Path) -> None:
    found, text = report_of(tmp_path, "--recalibrate", "beta", episodes=60)
    own = found.get("critic_raw", found["critic"])
    gap = found[f"gap_to_{TWIN}"]["all"]["brier"]["difference"]
    assert gap == pytest.approx(own["all"]["brier"] - found[TWIN]["all"]["brier"])
    assert "feature_weights" in found and "precedent (no precedents)" in text


def test_a_short_run_says_why_it_has_no_weights(tmp_path: Path) -> None:
    found, text = report_of(tmp_path, episodes=2)
    assert "at least 40 records" in found["feature_weights"]["left_out"]
    assert "Left out. They need at least 40 records" in text


def test_without_a_report_no_weights_are_computed(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    assert main(["run", *LIVE, "--episodes", "20", "--resamples", "0", "--json", str(path)]) == 0
    assert "feature_weights" not in json.loads(path.read_text())


def test_the_printed_table_fits_into_80_characters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *LIVE, "--episodes", "30", "--resamples", "40"]) == 0
    printed = capsys.readouterr().out
    assert "…" not in printed and max(map(len, printed.splitlines())) <= 80
    assert "no precedents" in " ".join(printed.replace("│", " ").split())
