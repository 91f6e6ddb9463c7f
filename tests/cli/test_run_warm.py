from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ceb_gym.bank.store import SqlBank
from ceb_gym.cli.main import main
from ceb_gym.critics.simple import CountsCritic, NeighborsCritic
from ceb_gym.evaluation.evaluate import evaluate_rollout
from ceb_gym.evaluation.given import GivenLabels
from ceb_gym.evaluation.rollout import RAW, EpisodeRow, RolloutResult, StepRow
from ceb_gym.evaluation.warm import Unscored, bank_stream
from ceb_gym.features import FEATURES_VERSION, query_features
from ceb_gym.protocols import LearningCritic
from ceb_gym.streams import RecordedEpisode, RecordedStep, StreamHeader, write_stream
from ceb_gym.streams.reward_rules import reward_level_labels
from ceb_gym.streams.values import SOURCE_EPISODE
from ceb_gym.types import Precedents, Query

RULE = "reward_level?first_baseline=0"


def make_stream(path: Path, episodes: int = 12, *, offset: int = 0, rule: str | None = RULE) -> Path:
    recorded = []
    for number in range(offset, offset + episodes):
        rewards = [0.3, 0.3, 0.8, 0.6][: 1 + number % 4]
        labels = reward_level_labels(rewards, baseline=0)
        steps = tuple(
            RecordedStep(f"screen {step}", f"do {number % 3} {step}", f"screen {step + 1}", reward, label)
            for step, (reward, label) in enumerate(zip(rewards, labels, strict=True))
        )
        recorded.append(RecordedEpisode(f"e{number}", f"task {number % 5}", steps))
    write_stream(path, StreamHeader("toy", rule), recorded)
    return path


def make_decisions(path: Path, sources: list[str]) -> Path:
    """Episodes of a history step without label and a labelled decision."""
    recorded = [
        RecordedEpisode(
            f"d{number}",
            "buy a cream",
            (
                RecordedStep("", "open the shop", "", 0.0),
                RecordedStep("shop", f"press button {number}", "", 0.0, number % 2 == 0),
            ),
            metadata={SOURCE_EPISODE: source} if source else {},
        )
        for number, source in enumerate(sources)
    ]
    write_stream(path, StreamHeader("toy", None), recorded)
    return path


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    return make_stream(tmp_path / "own.jsonl")


@pytest.fixture
def others(tmp_path: Path) -> Path:
    return make_stream(tmp_path / "others.jsonl", 9, offset=2)


def run(*arguments: Any) -> int:
    return main(["run", *map(str, arguments), "--resamples", "0"])


def result_of(path: Path, *arguments: Any) -> dict[str, Any]:
    assert run(*arguments, "--json", path) == 0
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def open_bank(path: Path) -> SqlBank:
    return SqlBank(f"sqlite:///{path}", read_only=True)


def test_warm_runs_serve_the_first_step_and_count_in_no_metric(
    stream: Path, others: Path, tmp_path: Path
) -> None:
    cold = result_of(tmp_path / "cold.json", "--stream", stream)
    report = tmp_path / "report"
    warm = result_of(tmp_path / "warm.json", "--stream", stream, "--warm", others, "--report", report)
    assert warm["critic"]["all"]["n_steps"] == cold["critic"]["all"]["n_steps"] == 30
    assert warm["first_revision"] == 0 and warm["settings"]["warm"] == ["others.jsonl"]
    first = json.loads((report / "steps.jsonl").read_text().splitlines()[0])
    assert first["productive_precedents"] > 0 and first["confidence"]["base_rate"] != 0.5


def test_what_is_banked_warm_is_unscored_but_has_features_and_labels(
    stream: Path, others: Path, tmp_path: Path
) -> None:
    bank = tmp_path / "bank.db"
    assert run("--stream", stream, "--warm", others, "--bank", bank, "--critic", "precedent") == 0
    opened = open_bank(bank)
    warm, own = opened.records("warm/others"), opened.records("toy")
    opened.close()
    assert len(warm) == 23 and len(own) == 30
    assert {(record.confidence, record.critic, record.labeler) for record in warm} == {
        (None, "unscored", RULE)
    }
    assert all(record.features.keys() == own[0].features.keys() for record in warm)
    assert warm[-1].features["features_version"] == FEATURES_VERSION
    assert all(record.confidence is not None for record in own)


def test_a_warm_scope_is_not_banked_twice_and_that_is_said(
    stream: Path, others: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bank = tmp_path / "bank.db"
    results = []
    for scope in ("first", "second"):
        results.append(
            result_of(
                tmp_path / f"{scope}.json",
                *("--stream", stream, "--warm", others, "--bank", bank, "--scope", scope),
            )
        )
    said = capsys.readouterr().err
    assert "banked 9 episodes" in said and said.count("not banked twice") == 1
    assert results[0]["critic"] == results[1]["critic"]
    opened = open_bank(bank)
    assert len(opened.records("warm/others")) == 23
    opened.close()


@pytest.mark.parametrize("labeler", [RULE, "given"])
def test_a_warm_pass_that_was_cut_short_goes_on_where_it_stopped(
    labeler: str, others: Path, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/bank.db"
    seen = 0

    def interrupt() -> None:
        nonlocal seen
        seen += 1
        if seen == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bank_stream(others, bank=url, labeler=labeler, critic="neighbors", on_episode=interrupt)
    assert bank_stream(others, bank=url, labeler=labeler, critic="neighbors").n_banked == 5
    assert bank_stream(others, bank=url, labeler=labeler, critic="neighbors").n_banked == 0
    whole = f"sqlite:///{tmp_path}/whole.db"
    bank_stream(others, bank=whole, labeler=labeler, critic="neighbors")
    found = [
        [(record.task, record.action, record.step_index, record.label) for record in opened]
        for opened in (open_bank(tmp_path / name).records("warm/others") for name in ("bank.db", "whole.db"))
    ]
    assert found[0] == found[1] and len(found[0]) == 23


def test_given_labels_of_a_warm_pass_cut_short_between_storing_and_labelling_are_caught_up(
    tmp_path: Path,
) -> None:
    path = make_decisions(tmp_path / "warm.jsonl", ["x", "y", "x", "y"])
    url = f"sqlite:///{tmp_path}/bank.db"
    calls = 0

    def interrupt() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:  # x is over and labelled; the first half of y waits
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bank_stream(path, bank=url, labeler="given", critic="neighbors", on_episode=interrupt)
    opened = open_bank(tmp_path / "bank.db")
    assert len(opened.pending("warm/warm")) == 1
    opened.close()
    assert bank_stream(path, bank=url, labeler="given", critic="neighbors").n_banked == 1
    opened = open_bank(tmp_path / "bank.db")
    labels = {record.action: record.label for record in opened.records("warm/warm")}
    opened.close()
    assert labels == {f"press button {number}": number % 2 == 0 for number in range(4)}


def test_an_episode_that_a_killed_pass_holds_is_waited_for_and_labelled_later(
    others: Path, tmp_path: Path
) -> None:
    bank = tmp_path / "bank.db"
    url = f"sqlite:///{bank}"

    def killed_before_labelling(trajectory: Any) -> list[bool]:
        raise KeyboardInterrupt

    killed_before_labelling.__qualname__ = "same"
    with pytest.raises(KeyboardInterrupt):
        bank_stream(others, bank=url, labeler=killed_before_labelling, critic="neighbors")
    holder = SqlBank(url)
    claim = holder.claim(holder.pending("warm/others")[0])
    assert claim is not None

    def same(trajectory: Any) -> list[bool]:
        return [True] * len(trajectory.steps)

    same.__qualname__ = "same"
    first = bank_stream(others, bank=url, labeler=same, critic="neighbors")
    assert (first.n_banked, first.n_waiting) == (8, 1)
    holder.release(claim)
    holder.close()
    second = bank_stream(others, bank=url, labeler=same, critic="neighbors")
    assert (second.n_banked, second.n_waiting) == (0, 0)
    opened = open_bank(bank)
    assert len(opened.records("warm/others")) == 23
    opened.close()


def test_another_stream_or_labeler_under_the_same_name_is_refused(
    stream: Path, others: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bank = tmp_path / "bank.db"
    assert run("--stream", stream, "--warm", others, "--bank", bank) == 0
    arguments = ("--stream", stream, "--warm", others, "--bank", bank)
    assert run(*arguments, "--labeler", "success?reward_above=0.5") == 2
    make_stream(others, 5, offset=1)
    assert run(*arguments) == 2
    assert capsys.readouterr().err.count("was made from another stream or by another labeler") == 2


def test_read_scopes_of_the_bank_are_kept_beside_the_warm_ones(
    stream: Path, others: Path, tmp_path: Path
) -> None:
    bank = tmp_path / "bank.db"
    third = make_stream(tmp_path / "third, {odd}.jsonl", 6, offset=5)
    assert run("--stream", others, "--bank", f"{bank}?scope=mine") == 0
    report = tmp_path / "report"
    place = f"{bank}?read_scopes=mine"
    assert run("--stream", stream, "--bank", place, "--warm", third, "--report", report) == 0
    opened = open_bank(bank)
    assert len(opened.records("warm/third_ {odd}")) > 0
    known = len(opened.records("mine")) + len(opened.records("warm/third_ {odd}"))
    productive = sum(
        record.label for scope in ("mine", "warm/third_ {odd}") for record in opened.records(scope)
    )
    opened.close()
    first = json.loads((report / "steps.jsonl").read_text().splitlines()[0])
    assert first["confidence"]["base_rate"] == pytest.approx((productive + 0.5) / (known + 1), abs=0.05)


def test_same_seed_gives_the_same_bytes_with_a_warm_bank(stream: Path, others: Path, tmp_path: Path) -> None:
    files = []
    for attempt in ("first", "second"):
        folder = tmp_path / attempt
        assert run("--stream", stream, "--shuffle", "--warm", others, "--report", folder) == 0
        files.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert files[0] == files[1] and "curve.png" in files[0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--warm", "OWN"], "is the stream that is judged"),
        (["--warm", "COPY"], "is the stream that is judged"),
        (["--warm", "OTHERS", "SUB"], "would share the scope warm/others"),
        (["--warm", "OTHERS", "--labeler", "none"], "--warm needs a labeler"),
        (["--warm", "OTHERS", "--scope", "warm/others"], "is one of the warm ones"),
        (["--warm", "OTHERS", "--json", "OTHERS"], "is an input and would be overwritten"),
        (["--warm", "OTHERS", "--bank", "memory:?scope=a", "--scope", "b"], "twice"),
    ],
)
def test_warm_arguments_that_cannot_work_exit_2_with_a_sentence(
    arguments: list[str], sentence: str, stream: Path, others: Path, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "sub").mkdir()
    places = {
        "OWN": stream,
        "OTHERS": others,
        "COPY": tmp_path / "copy.jsonl",
        "SUB": make_stream(tmp_path / "sub" / "others.jsonl", 3),
    }
    places["COPY"].write_bytes(stream.read_bytes())
    assert run("--stream", stream, *(places.get(text, text) for text in arguments)) == 2
    assert sentence in capsys.readouterr().err


def test_a_broken_warm_stream_is_refused_before_anything_is_banked(
    stream: Path, others: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others.write_text(others.read_text()[:-20])
    assert run("--stream", stream, "--warm", others, "--bank", tmp_path / "bank.db") == 1
    assert f"{others}:10" in capsys.readouterr().err and not (tmp_path / "bank.db").exists()


def test_a_warm_bank_can_be_judged_by_without_learning(stream: Path, others: Path, tmp_path: Path) -> None:
    report = tmp_path / "r"
    assert run("--stream", stream, "--warm", others, "--learn", "off", "--report", report) == 0
    rows = [json.loads(line) for line in (report / "steps.jsonl").read_text().splitlines()]
    assert len({row["confidence"]["base_rate"] for row in rows}) == 1 and rows[0]["productive_precedents"] > 0


def test_unscored_looks_up_as_many_precedents_and_gives_features_without_learning() -> None:
    unscored: Any = Unscored(NeighborsCritic(k=7))
    assert unscored.k == 7 and not isinstance(unscored, LearningCritic)
    query = Query("e", "s", 0, "i", "t", "s", "a", (), False, 0)
    (verdict,) = unscored.judge([query], [Precedents()])
    assert (verdict.confidence, verdict.source) == (None, "unscored")
    assert verdict.features == query_features(query, Precedents(), "neighbors")
    assert Unscored(CountsCritic()).judge([query], [Precedents()])[0].features == {}


def test_given_learns_from_the_streams_labels_after_each_episode(tmp_path: Path) -> None:
    path = make_decisions(tmp_path / "d.jsonl", [""] * 6)
    report, bank = tmp_path / "r", tmp_path / "bank.db"
    result = result_of(
        tmp_path / "r.json",
        *("--stream", path, "--labeler", "given", "--bank", bank, "--report", report),
    )
    assert (result["bank_labels"], result["evaluated_by"]) == ("oracle", "reference labels (annotated)")
    assert result["critic"]["all"]["n_steps"] == 6 and result["n_unlabelled"] == 6
    rows = [json.loads(line) for line in (report / "steps.jsonl").read_text().splitlines()]
    assert [row["bank_revision"] for row in rows] == [n for n in range(6) for _ in range(2)]
    opened = open_bank(bank)
    assert [(record.label, record.labeler) for record in opened.records("toy")] == [
        (number % 2 == 0, "given") for number in range(6)
    ]
    opened.close()


def test_given_labels_of_one_run_are_learned_when_the_last_of_its_episodes_was_played(tmp_path: Path) -> None:
    path = make_decisions(tmp_path / "d.jsonl", ["a", "b", "a", "", "b", "b"])
    report = tmp_path / "r"
    assert run("--stream", path, "--labeler", "given", "--report", report) == 0
    rows = [json.loads(line) for line in (report / "steps.jsonl").read_text().splitlines()]
    assert [row["bank_revision"] for row in rows[::2]] == [0, 0, 0, 2, 3, 3]


def test_episodes_of_one_run_are_resampled_together(tmp_path: Path) -> None:
    path = make_decisions(tmp_path / "d.jsonl", ["a", "b", "a", "", "b", "b"])
    result = result_of(tmp_path / "r.json", "--stream", path, "--labeler", "given")
    assert (result["run"]["n_episodes"], result["critic"]["all"]["n_episodes"]) == (6, 3)


def test_what_waits_for_the_rest_of_its_run_is_labelled_at_the_end(tmp_path: Path) -> None:
    path = make_decisions(tmp_path / "d.jsonl", ["a", "a", "a", "a"])
    bank = tmp_path / "bank.db"
    assert run("--stream", path, "--labeler", "given", "--episodes", 2, "--bank", bank) == 0
    opened = open_bank(bank)
    assert len(opened.records("toy")) == 2 and opened.pending() == []
    opened.close()


def test_a_stream_without_a_rule_asks_for_a_labeler_and_names_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--stream", make_decisions(tmp_path / "d.jsonl", [""])) == 2
    assert "--labeler given" in capsys.readouterr().err


def test_given_is_refused_where_nothing_gives_labels(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--env", "FrozenLake-v1", "--agent", "random", "--labeler", "given") == 2
    assert "has no reference labels" in capsys.readouterr().err


def test_an_episode_that_was_cut_short_does_not_keep_the_others_of_its_run_waiting(tmp_path: Path) -> None:
    class Nothing:
        def pending(self) -> list[Any]:
            self.asked = True
            return []

    bank: Any = Nothing()
    given = GivenLabels({"e0": "a", "e1": "a"})
    given.episode_ended(bank, "x", "e0", [True])
    assert not hasattr(bank, "asked")
    given.episode_ended(bank, "y", "e1", None)
    assert bank.asked


def rollout_of(make_confidence: Callable[[int], dict[str, float | None]]) -> RolloutResult:
    rows = [
        StepRow(
            episode=number // 2,
            step_index=number % 2,
            task="",
            action="",
            confidence=make_confidence(number),
            executed=True,
            decision="execute",
            reason="",
            repeated=False,
            productive_precedents=0,
            unproductive_precedents=0,
            bank_revision=0,
            reward=0.0,
            label=number % 3 == 0,
        )
        for number in range(40)
    ]
    episodes = [EpisodeRow(number, f"e{number}", 0.0, 2, 0, True) for number in range(20)]
    return RolloutResult(rows, episodes, "reference")


def test_raw_confidences_have_a_row_of_their_own() -> None:
    result = rollout_of(lambda number: {"critic": 0.4, RAW: 0.9, "counts": 0.5})
    evaluation = evaluate_rollout(result, labeler="x", label_rule=None, resamples=0)
    found = evaluation.to_json()
    assert found["critic_raw"]["all"]["ece"] > found["critic"]["all"]["ece"]
    assert found["curve"]["estimators"].keys() == {"critic", RAW, "counts"}


def test_report_and_json_hold_gap_and_curve(stream: Path, tmp_path: Path) -> None:
    arguments = ["run", "--stream", str(stream), "--resamples", "30", "--report", str(tmp_path / "r")]
    assert main(arguments) == 0
    result = json.loads((tmp_path / "r" / "results.json").read_text())
    for part in ("all", "later_steps"):
        gap = result["gap_to_counts"][part]["brier"]
        expected = result["critic"][part]["brier"] - result["counts_critic"][part]["brier"]
        assert gap["difference"] == pytest.approx(expected) and len(gap["ci"]) == 2
    assert result["curve"]["episodes"][-1] == 12
    last = result["curve"]["estimators"]["critic"]["cumulative"]["ece"][-1]
    assert last == pytest.approx(result["critic"]["all"]["ece"])
    text = (tmp_path / "r" / "report.md").read_text()
    assert "Critic minus counts" in text and "(curve.png)" in text


def test_the_curves_place_is_checked_before_the_run(
    stream: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "r" / "curve.png").mkdir(parents=True)
    assert run("--stream", stream, "--report", tmp_path / "r") == 2
    assert "curve.png is a folder" in capsys.readouterr().err
