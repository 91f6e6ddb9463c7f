import argparse
import json
from pathlib import Path

import pytest

from ceb_gym.cli.import_streams import add_import_parser
from ceb_gym.errors import ConfigurationError, StreamError
from ceb_gym.streams import read_stream
from ceb_gym.streams.intercode import import_intercode_logs


def run(actions: list[object], observations: list[object], rewards: list[object], **more: object) -> dict:
    history = {"actions": actions, "observations": observations, "rewards": rewards, **more}
    return {"query": "count files", "turn_history": history}


def log(folder: Path, runs: object, name: str = "ic_bash_multiturn_m_10_turns_fs_3.json") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(json.dumps(runs), encoding="utf-8")
    return path


def command(*arguments: object) -> int:
    parser = argparse.ArgumentParser(prog="ceb")
    add_import_parser(parser.add_subparsers(required=True))
    args = parser.parse_args(["import", *map(str, arguments)])
    return args.run(args)


@pytest.mark.parametrize(
    ("model", "n_episodes", "n_steps", "n_productive", "n_productive_raw_floats"),
    [
        ("gpt-4", 200, 1_176, 277, 277),
        ("text-davinci-003", 199, 1_343, 287, 288),
        ("gpt-3.5", 147, 921, 252, 253),
    ],
)
def test_real_logs_import_completely(
    intercode_logs: Path,
    model: str,
    n_episodes: int,
    n_steps: int,
    n_productive: int,
    n_productive_raw_floats: int,
) -> None:
    runs = import_intercode_logs([intercode_logs / model])
    assert (len(runs.episodes), runs.n_steps) == (n_episodes, n_steps)
    assert runs.n_productive == n_productive
    told = f"{n_productive} steps are positive; with raw floats {n_productive_raw_floats} (--raw-rewards)."
    about = [note for note in runs.notes if "raw floats" in note]
    assert len(about) == (n_productive != n_productive_raw_floats)
    assert all(note.endswith(told) and "decides 1 label " in note for note in about)
    raw = import_intercode_logs([intercode_logs / model], decimals=None)
    assert not any("raw floats" in note for note in raw.notes)
    assert raw.n_productive == n_productive_raw_floats
    assert raw.header.label_rule == "reward_level?first_baseline=0&decimals=none"


def test_real_logs_survive_the_file(intercode_logs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert command("intercode-logs", intercode_logs / "gpt-4", "--out", out) == 0
    stream = read_stream(out)
    assert (len(stream), stream.n_steps, stream.has_initial_rewards) == (200, 1_176, True)
    initial = {i.split("_fs_")[1][0]: stream[n].initial_reward for n, i in enumerate(stream.episode_ids)}
    assert initial == {"1": 0.67, "2": 0.67, "3": 0.39, "4": 0.34}
    assert list(initial) == ["1", "2", "3", "4"]


def test_real_react_logs_are_left_out_by_name(intercode_logs: Path) -> None:
    notes = import_intercode_logs([intercode_logs / "gpt-3.5"]).notes
    assert sum("react" in note and "left out" in note for note in notes) == 4


def test_real_react_log_given_itself_is_imported_with_a_warning(intercode_logs: Path) -> None:
    runs = import_intercode_logs([intercode_logs / "gpt-3.5" / "ic_bash_react_10_turns_fs_1.json"])
    assert len(runs.episodes) == 60
    assert any("is a ReAct log" in note for note in runs.notes)


def test_state_is_the_observation_before(tmp_path: Path) -> None:
    path = log(tmp_path, {"0": run(["a", "b", "c"], ["1", "2", "3"], [0.1, 0.2, 1.0])})
    episode = import_intercode_logs([path]).episodes[0]
    assert [step.state for step in episode.steps] == ["", "1", "2"]
    assert [step.outcome for step in episode.steps] == ["1", "2", "3"]
    assert episode.success is True


def test_blocked_actions_without_an_observation_are_left_out_and_counted(tmp_path: Path) -> None:
    runs = {
        "0": run(["ls", "blocked"], ["x"], [0.8, 0]),
        "1": run(["ls", "blocked"], ["x", None], [0.8, 0]),
        "2": run(["blocked"], [], [0]),
        "3": run(["blocked", "ls"], ["blocked: not found", "x"], [0.1, 0.8]),
    }
    found = import_intercode_logs([log(tmp_path, runs)])
    assert [len(episode.steps) for episode in found.episodes] == [1, 1, 2]
    assert found.episodes[0].steps[0].label is True
    assert '"blocked" actions without an observation or reward, left out: 3.' in found.notes
    assert "Episodes left out because they have no whole step: 1." in found.notes


def test_actions_that_are_no_text_become_json(tmp_path: Path) -> None:
    path = log(tmp_path, {"0": run(["ls", ["ls", "-a"], 7, None], ["", "x", "y", 3], [0, 0, 0, 0])})
    found = import_intercode_logs([path])
    assert [step.action for step in found.episodes[0].steps] == ["ls", '["ls", "-a"]', "7", ""]
    assert found.episodes[0].steps[3].outcome == "3"
    assert "Actions that were no text, written as JSON: 3." in found.notes


def test_episodes_come_in_the_order_of_file_systems_and_task_numbers(tmp_path: Path) -> None:
    one = {"10": run(["a"], ["o"], [1]), "9": run(["a"], ["o"], [1]), "x": run(["a"], ["o"], [1])}
    for number in (10, 2, 1):
        log(tmp_path, one, f"multiturn_fs_{number}.json")
    ids = [episode.episode_id for episode in import_intercode_logs([tmp_path]).episodes]
    assert ids == [f"multiturn_fs_{n}/{task}" for n in (1, 2, 10) for task in ("9", "10", "x")]


def test_gold_answers_are_not_imported(tmp_path: Path) -> None:
    runs = {"0": {**run(["a"], ["o"], [1]), "info": [{"corrupt_gold": "SECRET"}]}}
    assert command("intercode-logs", log(tmp_path, runs), "--out", tmp_path / "out") == 0
    assert "SECRET" not in (tmp_path / "out").read_text()


def test_first_baseline_is_used_and_recorded(tmp_path: Path) -> None:
    path = log(tmp_path, {"0": run(["a", "b"], ["x", "y"], [0.39, 0.3])})
    for baseline, label in (("0", True), ("initial", False)):
        out = tmp_path / baseline
        assert command("intercode-logs", path, "--out", out, "--first-baseline", baseline) == 0
        stream = read_stream(out)
        assert stream.header.label_rule == f"reward_level?first_baseline={baseline}"
        assert stream[0].steps[0].label is label


def test_a_label_that_rounding_decides_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = log(tmp_path, {"0": run(["a", "b", "c"], ["x", "y", "z"], [0.83, 0.88, 0.1])})
    assert command("intercode-logs", path, "--out", tmp_path / "rounded") == 0
    (told,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("note:"))
    assert "decides 1 label " in told
    assert told.endswith("1 steps are positive; with raw floats 2 (--raw-rewards).")
    assert command("intercode-logs", path, "--out", tmp_path / "raw", "--raw-rewards") == 0
    assert "raw floats" not in capsys.readouterr().out
    assert read_stream(tmp_path / "rounded")[0].steps[1].label is False
    assert read_stream(tmp_path / "raw")[0].steps[1].label is True


def test_labels_that_rounding_decides_both_ways_are_told_though_the_numbers_are_equal(tmp_path: Path) -> None:
    rewards = [0.83, 0.88, 0.69996]  # rounding takes one step away and adds another, 0.69996 to 0.7
    runs = {
        "0": run(["a", "b", "c"], ["x", "y", "z"], rewards),
        "1": run(["a", "b"], ["x", "y"], [0.66, 0.69996]),
    }
    (note,) = import_intercode_logs([log(tmp_path, runs)]).notes
    assert "decides 2 labels " in note
    assert note.endswith("3 steps are positive; with raw floats 3 (--raw-rewards).")


def test_no_note_on_rounding_where_it_decides_nothing(tmp_path: Path) -> None:
    path = log(tmp_path, {"0": run(["a", "b"], ["x", "y"], [0.3, 0.9])})
    assert import_intercode_logs([path]).notes == ()


def test_unknown_file_system_has_no_initial_reward(tmp_path: Path) -> None:
    path = log(tmp_path, {"0": run(["a"], ["x"], [0.39])}, "multiturn.json")
    found = import_intercode_logs([path])
    assert found.episodes[0].initial_reward is None
    assert any("no initial reward" in note for note in found.notes)
    with pytest.raises(ConfigurationError, match="tells no file system"):
        import_intercode_logs([path], first_baseline="initial")


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        ([1], "not an InterCode log"),
        ({"0": 1}, "not an InterCode log"),
        ({"7": {"query": "q"}}, "task 7 has no query or no turn_history"),
        ({"7": {"query": "q", "turn_history": {"actions": []}}}, "task 7 lacks the list"),
        ({"7": run(["a"], ["x"], [None])}, r"task 7: rewards\[0\] must be a number, got None"),
        ({"7": run(["a"], ["x"], [float("nan")])}, r"task 7: rewards\[0\] must be finite"),
    ],
)
def test_broken_log_is_refused_with_file_and_task(tmp_path: Path, runs: object, reason: str) -> None:
    path = log(tmp_path, runs)
    with pytest.raises(StreamError, match=reason) as caught:
        import_intercode_logs([path])
    assert str(path) in str(caught.value)


def test_log_that_is_no_json_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "multiturn_fs_1.json"
    path.write_text('{\n"0": oops}')
    with pytest.raises(StreamError, match=r"multiturn_fs_1.json:2: not valid JSON"):
        import_intercode_logs([path])


def test_paths_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such file or folder"):
        import_intercode_logs([tmp_path / "nothing"])
    with pytest.raises(ConfigurationError, match=r"no \*multiturn\*.json"):
        import_intercode_logs([tmp_path])
    path = log(tmp_path, {"0": run(["a"], ["x"], [1])})
    with pytest.raises(ConfigurationError, match="is a folder"):
        command("intercode-logs", path, "--out", tmp_path)


def test_file_given_twice_is_taken_once(tmp_path: Path) -> None:
    path = log(tmp_path, {"0": run(["a"], ["x"], [1])})
    found = import_intercode_logs([path, tmp_path])
    assert len(found.episodes) == 1
    assert any("given twice" in note for note in found.notes)


def test_log_without_any_whole_step_writes_nothing(tmp_path: Path) -> None:
    path = log(tmp_path, {"0": run(["blocked"], [], [0])})
    with pytest.raises(StreamError, match="no episode"):
        command("intercode-logs", path, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_command_prints_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log(tmp_path, {"0": run(["a", "b"], ["x", "y"], [0.5, 0.5])})
    log(tmp_path, {"0": run(["a"], ["x"], [0])}, "ic_bash_react_fs_1.json")
    assert command("intercode-logs", tmp_path, "--out", tmp_path / "out") == 0
    text = capsys.readouterr().out
    assert "1 episodes, 2 steps" in text
    assert "1 steps (50.0%) are productive by reward_level?first_baseline=0" in text
    assert "ic_bash_react_fs_1.json is left out: a ReAct log" in text


@pytest.mark.parametrize("arguments", [[], ["intercode-logs"], ["nonsense"], ["intercode-logs", "x"]])
def test_wrong_arguments_exit_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command(*arguments)
    assert caught.value.code == 2
