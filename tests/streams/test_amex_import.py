import json
import os
from pathlib import Path
from typing import Any

import pytest

from ceb_gym.cli.main import main
from ceb_gym.errors import ConfigurationError, StreamError
from ceb_gym.streams import read_stream
from ceb_gym.streams.amex import import_amex_decisions
from ceb_gym.streams.values import SOURCE_EPISODE


@pytest.fixture(scope="session")
def decisions() -> Path:
    root = Path(os.environ.get("CEB_SHARED", Path(__file__).parents[3] / "shared"))
    path = root / "data" / "amex_decisions" / "decisions.jsonl"
    if not path.is_file():
        pytest.skip(f"the real AMEX decisions are not at {path}; set CEB_SHARED to the shared folder")
    return path


def decision(**changes: Any) -> dict[str, Any]:
    value = {
        "episode_id": "a",
        "step": 2,
        "instruction": "Find a cream.",
        "history": ["Step 1: Open the app.", "Step 2: Tap on search."],
        "action": {"action": "click", "coordinate": [207, 1646]},
        "correct": True,
        "screenshot": "a.png",
    }
    return {key: item for key, item in {**value, **changes}.items() if item != "LEFT OUT"}


def write(folder: Path, *values: Any) -> Path:
    path = folder / "decisions.jsonl"
    lines = (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values)
    path.write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    return path


def test_real_decisions_import_completely(
    decisions: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "amex.jsonl"
    assert main(["import", "amex-decisions", str(decisions), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "327 decisions on 98 AMEX episodes" in printed and "165 decisions (50.5%) are correct" in printed
    stream = read_stream(out)
    assert (len(stream), stream.header.label_rule, stream.header.env_id) == (327, None, "amex")
    labels = [[step.label for step in episode.steps] for episode in stream]
    assert all(set(earlier) <= {None} and last is not None for *earlier, last in labels)
    assert sum(last for *_, last in labels if last) == 165
    assert len({episode.metadata[SOURCE_EPISODE] for episode in stream}) == 98


def test_history_becomes_earlier_steps_without_outcome_reward_or_label(tmp_path: Path) -> None:
    (episode,) = import_amex_decisions(write(tmp_path, decision())).episodes
    assert (episode.episode_id, episode.task) == ("a/2", "Find a cream.")
    assert [(step.state, step.action, step.outcome, step.reward, step.label) for step in episode.steps] == [
        ("", "Open the app.", "", 0.0, None),
        ("Open the app.", "Tap on search.", "", 0.0, None),
        ("Tap on search.", "click (207, 1646)", "", 0.0, True),
    ]
    assert episode.metadata == {SOURCE_EPISODE: "a", "step": 2, "screenshot": "a.png"}


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (
            {"action": "swipe", "coordinate": [1, 2], "coordinate2": [3.5, 4]},
            "swipe (1, 2) (3.5, 4)",
        ),
        ({"action": "type", "text": 's toys"\u2028)'}, 'type s toys"\u2028)'),
        ({"action": "terminate", "status": "success"}, "terminate success"),
        ({"action": "wait", "for": {"seconds": 2}}, 'wait {"seconds": 2}'),
        ({"action": "type", "text": "a\x00\ud800b"}, "type a\ufffd\ufffdb"),
    ],
)
def test_actions_become_text(action: dict[str, Any], text: str, tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_text(json.dumps(decision(action=action)))
    (episode,) = import_amex_decisions(path).episodes
    assert episode.steps[-1].action == text


def test_several_decisions_on_one_step_stay_episodes_of_their_own(tmp_path: Path) -> None:
    other = decision(action={"action": "terminate", "status": "success"}, correct=False)
    runs = import_amex_decisions(write(tmp_path, decision(), other, decision(episode_id="b")))
    assert [episode.episode_id for episode in runs.episodes] == ["a/2", "a/2.2", "b/2"]


def test_the_same_decision_twice_is_taken_once_and_noted(tmp_path: Path) -> None:
    runs = import_amex_decisions(write(tmp_path, decision(), decision()))
    assert len(runs.episodes) == 1 and runs.notes == (
        "Decisions that stand in the file twice, taken once: 1.",
    )


def test_the_same_decision_with_both_labels_is_refused_with_both_lines(tmp_path: Path) -> None:
    path = write(tmp_path, decision(), "", decision(correct=False))
    with pytest.raises(StreamError, match=r"decisions\.jsonl:3: the same decision as in line 1"):
        import_amex_decisions(path)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"episode_id": "a", "correct": true, "correct": false}', "the key 'correct' is given twice"),
        ("{nonsense", "not valid JSON"),
        ("[1, 2]", "must be a JSON object"),
        ("[" * 100_000, "recursion|not valid JSON"),
        ('{"step": NaN}', "NaN is no JSON number"),
        ('{"step": ' + "9" * 5_000 + "}", "decisions.jsonl:2"),
        (decision(correct="yes"), "correct must be true or false, got 'yes'"),
        (decision(correct="LEFT OUT"), "correct is missing"),
        (decision(step=True), "step must be a whole number from 0"),
        (decision(step=-1), "step must be a whole number from 0"),
        (decision(episode_id=""), "episode_id is empty"),
        (decision(history=["x", 3]), "history must be a list of texts"),
        (decision(history="x"), "history must be a list of texts"),
        (decision(action="click"), "action must be an object"),
        (decision(action={"coordinate": [1, 2]}), "action.action must be a text"),
        (decision(instruction=None), "instruction must be text, got None"),
    ],
)
def test_broken_lines_are_refused_with_their_number(line: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(StreamError, match=sentence) as error:
        import_amex_decisions(write(tmp_path, decision(), line))
    assert "decisions.jsonl:2: " in str(error.value) and len(str(error.value)) < 500


def test_text_that_is_no_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(json.dumps(decision()).encode() + b"\n\xff\xfe{}\n")
    with pytest.raises(StreamError, match=r":2: not UTF-8"):
        import_amex_decisions(path)


def test_a_byte_order_mark_windows_lines_and_blank_lines_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(decision()).encode() + b"\r\n\r\n")
    assert len(import_amex_decisions(path).episodes) == 1


def test_an_empty_file_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StreamError, match="holds no decision"):
        import_amex_decisions(write(tmp_path))
    with pytest.raises(ConfigurationError, match="no such file"):
        import_amex_decisions(tmp_path / "none.jsonl")
    with pytest.raises(ConfigurationError, match="not a regular file"):
        import_amex_decisions(tmp_path)


def test_the_input_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, decision())
    assert main(["import", "amex-decisions", str(path), "--out", str(path)]) == 2
    assert "would be overwritten" in capsys.readouterr().err
