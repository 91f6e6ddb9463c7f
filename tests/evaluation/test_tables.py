from __future__ import annotations

import pytest

from ceb_gym.evaluation.bootstrap import PairedDifference
from ceb_gym.evaluation.evaluate import Evaluation, evaluate_rollout
from ceb_gym.evaluation.gaps import GAP_METRICS, Gap
from ceb_gym.evaluation.rollout import RAW, EpisodeRow, RolloutResult, StepRow
from ceb_gym.evaluation.tables import gap_tables, table_rows
from ceb_gym.evaluation.twin import TWIN

BETTER, NEITHER, WORSE = (-0.02, -0.01), (-0.01, 0.01), (0.01, 0.02)


def rollout_of(*names: str) -> RolloutResult:
    """Twenty episodes of two steps; estimators later in the names say less."""
    rows = []
    for number in range(40):
        label = number % 3 == 0
        scores = {name: 0.5 + (0.4 if label else -0.4) / (1 + place) for place, name in enumerate(names)}
        rows.append(
            StepRow(
                episode=number // 2,
                step_index=number % 2,
                task="",
                action="",
                confidence=dict(scores),
                executed=True,
                decision="execute",
                reason="",
                repeated=False,
                productive_precedents=0,
                unproductive_precedents=0,
                bank_revision=0,
                reward=0.0,
                label=label,
            )
        )
    episodes = [EpisodeRow(number, f"e{number}", 0.0, 2, 0, True) for number in range(20)]
    return RolloutResult(rows, episodes, "reference")


def evaluation_of(*names: str, resamples: int = 30) -> Evaluation:
    return evaluate_rollout(rollout_of(*names), labeler="x", label_rule=None, resamples=resamples)


def gap(brier: tuple[float, float] | None) -> Gap:
    return {name: PairedDifference(0.0, brier if name == "brier" else None) for name in GAP_METRICS}


def sentence(
    every: tuple[float, float] | None, later: tuple[float, float] | None, monkeypatch: pytest.MonkeyPatch
) -> str:
    evaluation = evaluation_of("critic", TWIN)
    gaps = {"all": gap(every), "later_steps": gap(later)}
    monkeypatch.setitem(evaluation.gaps, TWIN, gaps)  # type: ignore[arg-type]
    return gap_tables(evaluation)[0].sentence


def test_each_gap_has_a_table_and_json_of_its_own() -> None:
    evaluation = evaluation_of("critic", "counts", TWIN)
    titles = [table.title for table in gap_tables(evaluation)]
    assert titles == [
        "Critic minus counts, on the same steps",
        "Critic minus precedent (no precedents), on the same steps",
    ]
    found = evaluation.to_json()
    for other in ("counts", TWIN):
        assert set(found[f"gap_to_{other}"]) == {"all", "later_steps"}
    name = {"counts": "counts_critic", TWIN: TWIN}
    for other, own in name.items():
        expected = found["critic"]["all"]["brier"] - found[own]["all"]["brier"]
        assert found[f"gap_to_{other}"]["all"]["brier"]["difference"] == pytest.approx(expected)


def test_a_run_without_the_twin_says_nothing_of_it() -> None:
    evaluation = evaluation_of("critic", "counts")
    assert f"gap_to_{TWIN}" not in evaluation.to_json() and len(gap_tables(evaluation)) == 1
    assert evaluation_of("critic").to_json()["gap_to_counts"] == {}


def test_a_recalibrated_critic_is_compared_by_its_raw_scores() -> None:
    evaluation = evaluation_of("critic", RAW, TWIN)
    found = evaluation.to_json()
    expected = found[RAW]["all"]["brier"] - found[TWIN]["all"]["brier"]
    assert found[f"gap_to_{TWIN}"]["all"]["brier"]["difference"] == pytest.approx(expected)
    assert gap_tables(evaluation)[0].title.startswith("Critic before recalibration minus")


def test_the_twin_is_named_in_plain_words() -> None:
    rows = table_rows(evaluation_of("critic", TWIN), "precedent", "all")
    assert [row[0] for row in rows] == ["precedent", "precedent (no precedents)"]


@pytest.mark.parametrize(
    ("every", "later", "said"),
    [
        (NEITHER, NEITHER, "did not help over all steps and over the later steps here"),
        (WORSE, WORSE, "made it worse over all steps and over the later steps here"),
        (WORSE, NEITHER, "made it worse over all steps, and did not help over the later steps here"),
        (BETTER, NEITHER, "Precedents did not help over the later steps here"),
        ((0.0, 0.0), BETTER, "Precedents did not help over all steps here"),
    ],
)
def test_precedents_of_no_use_are_said_plainly(
    every: tuple[float, float], later: tuple[float, float], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said in sentence(every, later, monkeypatch)


def test_nothing_is_said_where_precedents_helped_or_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sentence(BETTER, BETTER, monkeypatch) == ""
    assert sentence(None, None, monkeypatch) == ""


def test_only_the_twins_table_has_a_sentence() -> None:
    tables = gap_tables(evaluation_of("critic", "counts", TWIN))
    assert tables[0].sentence == ""
