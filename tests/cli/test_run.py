from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ceb_gym.cli.main import main
from ceb_gym.evaluation.metrics import MetricSummary
from ceb_gym.evaluation.twin import TWIN
from ceb_gym.streams import RecordedEpisode, RecordedStep, StreamHeader, write_stream
from ceb_gym.streams.reward_rules import reward_level_labels

LIVE = ["--env", "FrozenLake-v1", "--env-arg", "is_slippery=false", "--agent", "planner:0.7"]
METRICS = {
    "n_episodes",
    "n_steps",
    "n_scored",
    "base_rate",
    "ece",
    "ece_15",
    "mce",
    "brier",
    "brier_skill",
    "auc",
}


def make_stream(path: Path, episodes: int = 12) -> Path:
    """Episodes of 1 to 4 steps with reward levels that rise, fall and stay."""
    recorded = []
    for number in range(episodes):
        rewards = [0.3, 0.3, 0.8, 0.6][: 1 + number % 4]
        labels = reward_level_labels(rewards, baseline=0)
        steps = tuple(
            RecordedStep(f"screen {step}", f"do {number % 3} {step}", f"screen {step + 1}", reward, label)
            for step, (reward, label) in enumerate(zip(rewards, labels, strict=True))
        )
        recorded.append(RecordedEpisode(f"e{number}", f"task {number % 5}", steps))
    write_stream(path, StreamHeader("toy", "reward_level?first_baseline=0"), recorded)
    return path


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    return make_stream(tmp_path / "toy.jsonl")


def result_of(arguments: list[str], path: Path) -> dict[str, Any]:
    assert main(["run", *arguments, "--json", str(path)]) == 0
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def test_json_holds_all_metrics_of_all_estimators_for_all_and_for_later_steps(
    stream: Path, tmp_path: Path
) -> None:
    result = result_of(["--stream", str(stream), "--resamples", "50"], tmp_path / "r.json")
    for estimator in ("critic", "base_rate_critic", "counts_critic"):
        assert result[estimator]["all"].keys() >= METRICS | {"ci"}
        assert result[estimator]["all"]["n_steps"] == 30
        assert result[estimator]["later_steps"]["n_steps"] == 18
    assert result["critic"]["all"]["n_episodes"] == 12
    assert result["bank_labels"] == "oracle"


def test_another_labeler_is_named_instead_of_oracle(stream: Path, tmp_path: Path) -> None:
    result = result_of(
        ["--stream", str(stream), "--labeler", "success?reward_above=0.5", "--resamples", "0"],
        tmp_path / "r.json",
    )
    assert result["bank_labels"] == "success?reward_above=0.5"
    assert result["evaluated_by"] == "reference labels (reward_level?first_baseline=0)"


@pytest.mark.parametrize("source", ["stream", "live"])
def test_same_seed_gives_the_same_bytes(source: str, stream: Path, tmp_path: Path) -> None:
    arguments = ["--stream", str(stream), "--shuffle"] if source == "stream" else [*LIVE, "--episodes", "15"]
    if source == "live":
        arguments += ["--labeler", "success?reward_above=0"]
    files: list[dict[str, bytes]] = []
    for attempt in ("first", "second"):
        folder = tmp_path / attempt
        assert main(["run", *arguments, "--seed", "3", "--resamples", "40", "--report", str(folder)]) == 0
        files.append({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
    assert list(files[0]) == [
        "curve.png",
        "reliability.png",
        "reliability_later_steps.png",
        "report.md",
        "results.json",
        "steps.jsonl",
    ]
    assert files[0] == files[1]


def test_another_seed_shuffles_otherwise(stream: Path, tmp_path: Path) -> None:
    tasks = []
    for seed in ("1", "2"):
        folder = tmp_path / seed
        arguments = ["--stream", str(stream), "--shuffle", "--seed", seed, "--resamples", "0"]
        assert main(["run", *arguments, "--report", str(folder)]) == 0
        rows = (folder / "steps.jsonl").read_text().splitlines()
        tasks.append([json.loads(row)["task"] for row in rows])
    assert tasks[0] != tasks[1] and sorted(tasks[0]) == sorted(tasks[1])


def test_a_row_is_written_for_each_step(stream: Path, tmp_path: Path) -> None:
    assert main(["run", "--stream", str(stream), "--resamples", "0", "--report", str(tmp_path / "r")]) == 0
    rows = [json.loads(line) for line in (tmp_path / "r" / "steps.jsonl").read_text().splitlines()]
    assert len(rows) == 30
    assert set(rows[0]["confidence"]) == {"critic", TWIN, "base_rate", "counts"}
    assert [row["label"] for row in rows[:3]] == [True, True, False]


def test_live_run_prints_the_table_with_later_steps_apart(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*LIVE, "--labeler", "success?reward_above=0", "--episodes", "12", "--resamples", "20"]
    assert main(["run", *arguments, "--show-last"]) == 0
    printed = capsys.readouterr().out
    for expected in ("All steps", "Steps after the first", "precedent", "base_rate", "counts", "Episode 11"):
        assert expected in printed


def test_a_bank_file_grows_from_run_to_run(stream: Path, tmp_path: Path) -> None:
    bank = str(tmp_path / "bank.db")
    for expected in (30, 60):
        assert main(["run", "--stream", str(stream), "--bank", bank, "--resamples", "0"]) == 0
        assert main(["bank", "export", "--bank", bank, "--out", str(tmp_path / "out.jsonl")]) == 0
        assert len((tmp_path / "out.jsonl").read_text().splitlines()) == expected + 1


def test_deferred_steps_of_a_replay_stay_unlabelled(stream: Path, tmp_path: Path) -> None:
    arguments = ["--stream", str(stream), "--critic", "constant:0.2", "--policy", "defer_below:0.5"]
    with pytest.warns(RuntimeWarning, match="gave no label in 5 episodes.*Was every action deferred"):
        result = result_of([*arguments, "--resamples", "0"], tmp_path / "r.json")
    assert result["run"]["n_executed"] == 0 and result["run"]["n_deferred"] == 24
    assert result["critic"]["all"]["n_steps"] == 0 and result["critic"]["all"]["auc"] is None


def test_labels_that_come_later_leave_no_metric_and_no_crash(tmp_path: Path) -> None:
    arguments = [*LIVE, "--labeler", "none", "--episodes", "3", "--bank", str(tmp_path / "b.db")]
    result = result_of(arguments, tmp_path / "r.json")
    assert result["critic"]["all"]["n_steps"] == 0
    assert (
        main(["bank", "label", "--bank", str(tmp_path / "b.db"), "--labeler", "success?reward_above=0"]) == 0
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--env", "FrozenLake-v1", "--labeler", "success"], "--env needs --agent"),
        (["--env", "NoSuchEnv-v0", "--agent", "random", "--labeler", "success"], "NoSuchEnv-v0"),
        (["--env", "FrozenLake-v1", "--agent", "random"], "never guessed"),
        (["--env", "FrozenLake-v1", "--agent", "nobody", "--labeler", "success"], "no agent 'nobody'"),
        (["--env", "CartPole-v1", "--agent", "planner", "--labeler", "success"], "transition table"),
        (["--env", "CartPole-v1", "--agent", "recorded", "--labeler", "success"], "replays no recording"),
        (
            ["--env", "CartPole-v1", "--agent", "random", "--labeler", "success", "--episodes", "0"],
            "episodes",
        ),
        (["--env", "CartPole-v1", "--agent", "random", "--env-arg", "x"], "KEY=VALUE"),
        (["--env", "CartPole-v1", "--agent", "random", "--shuffle"], "--shuffle goes with --stream"),
        (["--stream", "STREAM", "--critic", "nonsense"], "no critic 'nonsense'"),
        (["--stream", "STREAM", "--episodes", "99"], "the stream has 12"),
        (["--stream", "STREAM", "--resamples", "-1"], "--resamples is -1"),
        (["--stream", "STREAM", "--report", "STREAM/sub"], "cannot be written"),
        (["--stream", "STREAM", "--bank", "b.db?scope=x", "--scope", "y"], "twice"),
    ],
)
def test_wrong_arguments_exit_2_with_a_sentence(
    arguments: list[str], sentence: str, stream: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *(text.replace("STREAM", str(stream)) for text in arguments)]) == 2
    assert sentence in capsys.readouterr().err


def test_broken_stream_exits_1_with_its_line_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_stream(tmp_path / "toy.jsonl")
    lines = path.read_text().splitlines()
    lines[5] = lines[5][:40]
    path.write_text("\n".join(lines))
    assert main(["run", "--stream", str(path)]) == 1
    assert f"{path}:6" in capsys.readouterr().err


def test_missing_sub_command_exits_2() -> None:
    with pytest.raises(SystemExit) as exit_code:
        main([])
    assert exit_code.value.code == 2


def settled_steps(bank: Path) -> int:
    """How many steps a run has banked, those of its newest episode aside, which may not count as played yet.

    The size of the file would say little: SQLite writes beside it for long.
    """
    newest = "SELECT episode_id FROM record ORDER BY sequence DESC LIMIT 1"
    try:
        with closing(sqlite3.connect(f"file:{bank}?mode=ro", uri=True)) as connection:
            found = connection.execute(f"SELECT count(*) FROM record WHERE episode_id <> ({newest})")
            return int(found.fetchone()[0])
    except sqlite3.OperationalError:  # not there yet, or its tables are being made
        return 0


def test_ctrl_c_keeps_what_is_done(tmp_path: Path) -> None:
    report, bank = tmp_path / "report", tmp_path / "bank.db"
    command = [sys.executable, "-m", "ceb_gym.cli.main", "run", *LIVE, "--labeler", "success?reward_above=0"]
    command += ["--episodes", "100000", "--bank", str(bank), "--report", str(report), "--resamples", "10"]
    # where these tests run in a shell's background, Ctrl-C is ignored, and every child would inherit that
    ours = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, ours)
    try:
        deadline = time.monotonic() + 150  # as a busy machine may need: usually it takes 3 s
        while (
            (settled := settled_steps(bank)) <= 10 and process.poll() is None and time.monotonic() < deadline
        ):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        printed, errors = process.communicate(timeout=100)
    finally:
        process.kill()  # or one that does not end would play on beside all later tests
    assert settled > 10, f"the run was over, or too slow, before it could be interrupted: {errors}"
    assert process.returncode == 1, errors
    assert "interrupted after" in printed and "All steps" in printed
    rows = (report / "steps.jsonl").read_text().splitlines()
    assert len(rows) >= settled
    assert main(["bank", "stats", "--bank", str(bank)]) == 0


def test_output_into_a_closed_pipe_is_no_traceback(stream: Path) -> None:
    command = f"{sys.executable} -m ceb_gym.cli.main run --stream {stream} --resamples 0 | head -c 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ,
    )
    assert "Traceback" not in done.stderr and "SystemExit" not in done.stderr


def test_json_on_standard_output_is_only_json(stream: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--stream", str(stream), "--resamples", "0", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["source"] == "toy.jsonl"


def test_agents_by_import_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_agents.py").write_text(
        "def left(observation, info):\n    return 0\n\n"
        "class Fixed:\n"
        "    def __init__(self, action=1): self.action = action\n"
        "    def begin(self, env): pass\n"
        "    def act(self, observation, info): return self.action\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for agent, action in (("my_agents:left", "action_00"), ("my_agents:Fixed?action=2", "action_02")):
        folder = tmp_path / action
        arguments = ["--env", "FrozenLake-v1", "--agent", agent, "--labeler", "success?reward_above=0"]
        assert main(["run", *arguments, "--episodes", "2", "--resamples", "0", "--report", str(folder)]) == 0
        rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
        assert {row["action"] for row in rows} == {action}


def test_every_metric_of_the_summary_is_in_the_json() -> None:
    assert MetricSummary.of_no_steps().to_json().keys() >= METRICS


def test_a_bank_that_has_seen_the_stream_is_pointed_out(
    stream: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--stream", str(stream), "--bank", str(tmp_path / "b.db"), "--resamples", "0"]
    assert result_of(arguments, tmp_path / "first.json")["first_revision"] == 0
    assert "knows the answers" not in capsys.readouterr().out
    assert result_of(arguments, tmp_path / "second.json")["first_revision"] == 12
    assert "The bank was at revision 12 before the first episode" in " ".join(capsys.readouterr().out.split())


def test_the_scope_may_be_given_with_the_bank(stream: Path, tmp_path: Path) -> None:
    bank = f"{tmp_path}/b.db?scope=mine"
    assert main(["run", "--stream", str(stream), "--bank", bank, "--resamples", "0"]) == 0
    for command in (["stats"], ["search", "do"], ["export", "--out", str(tmp_path / "o.jsonl")]):
        assert main(["bank", *command, "--bank", bank]) == 0
    assert len((tmp_path / "o.jsonl").read_text().splitlines()) == 31


def test_what_the_agent_achieved_is_reported(tmp_path: Path) -> None:
    arguments = [*LIVE, "--labeler", "success?reward_above=0", "--episodes", "20", "--resamples", "0"]
    run = result_of(arguments, tmp_path / "r.json")["run"]
    assert run["n_episodes"] == 20 and 0 < run["mean_return"] < 1 and run["success_rate"] is None


def test_json_is_whole_when_the_reader_of_the_table_has_gone(stream: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    command = f"{sys.executable} -m ceb_gym.cli.main run --stream {stream} --resamples 0 --json {path} | true"
    subprocess.run(["bash", "-c", command], capture_output=True, timeout=60, check=True)
    assert json.loads(path.read_text())["critic"]["all"]["n_steps"] == 30


def test_modules_of_the_current_folder_are_found(
    tmp_path: Path, stream: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_critics.py").write_text("from ceb_gym.critics.simple import ConstantCritic as Mine\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    arguments = ["--stream", str(stream), "--critic", "my_critics:Mine?confidence=0.25", "--resamples", "0"]
    assert result_of(arguments, tmp_path / "r.json")["critic"]["all"]["auc"] == 0.5


def test_a_report_without_matplotlib_says_what_is_missing(
    stream: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ceb_gym.evaluation.report.has_matplotlib", lambda: False)
    assert main(["run", "--stream", str(stream), "--resamples", "0", "--report", str(tmp_path / "r")]) == 0
    assert sorted(path.name for path in (tmp_path / "r").iterdir()) == [
        "report.md",
        "results.json",
        "steps.jsonl",
    ]
    assert "pip install 'ceb-gym[plots]'" in (tmp_path / "r" / "report.md").read_text()


@pytest.mark.parametrize(("method", "code"), [("beta", 0), ("isotonic", 0), ("sharpen", 2)])
def test_recalibration_can_be_asked_for(method: str, code: int, stream: Path) -> None:
    assert main(["run", "--stream", str(stream), "--recalibrate", method, "--resamples", "0"]) == code
