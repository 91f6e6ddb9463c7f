import copy
import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ceb_gym.errors import StreamError
from ceb_gym.streams import RecordedEpisode, RecordedStep, StreamHeader, read_stream, write_stream

HEADER = {"format": "ceb-stream", "version": 1, "env_id": "e", "label_rule": None, "provenance": {}}
STEP = {"state": "s", "action": "a", "outcome": "o", "reward": 0.5}


def episode(episode_id: str = "one", **fields: object) -> dict[str, object]:
    return {"episode_id": episode_id, "task": "q", "steps": [STEP], **fields}


def with_step(**fields: object) -> dict[str, object]:
    return episode(steps=[STEP, {**STEP, **fields}])


def written(folder: Path, *lines: object) -> Path:
    path = folder / "stream.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    return path


def recorded(episode_id: str = "one", **fields: object) -> RecordedEpisode:
    return RecordedEpisode(episode_id, "q", (RecordedStep("s", "a", "o", 0.5),), **fields)


def test_written_stream_reads_back_equal(tmp_path: Path) -> None:
    header = StreamHeader("env", "reward_level?first_baseline=0", {"files": ["a", "b"]})
    step = RecordedStep("s", "a", "o", 1, label=True, logprobs=(-0.5, -1.25), metadata={"x": [1, None]})
    runs = [
        RecordedEpisode("1", "q", (step, RecordedStep("", "", "", -2.0)), 0.34, False, {"seed": 7}),
        RecordedEpisode("2", "", (RecordedStep("line\u2028sep\x85", "é 🙂", "\r\n", 0.0, label=False),)),
    ]
    assert write_stream(tmp_path / "f.jsonl", header, runs) == 2
    stream = read_stream(tmp_path / "f.jsonl")
    assert stream.header == header
    assert list(stream) == runs
    assert (len(stream), stream.n_steps, stream.episode_ids) == (2, 3, ("1", "2"))


@given(
    st.lists(
        st.tuples(st.text(), st.text(), st.floats(allow_nan=False, allow_infinity=False)),
        min_size=1,
        max_size=3,
    )
)
def test_any_text_and_finite_reward_survives_a_round_trip(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, float]]
) -> None:
    path = tmp_path_factory.mktemp("round") / "f.jsonl"
    steps = tuple(RecordedStep(state, action, "", reward) for state, action, reward in rows)
    write_stream(path, StreamHeader("e"), [RecordedEpisode("1", "q", steps)])
    back = read_stream(path)[0].steps
    assert [step.reward for step in back] == [reward for _, _, reward in rows]
    assert [step.state for step in back] == [state.replace("\0", "\ufffd") for state, _, _ in rows]


def test_random_access_reads_one_episode_by_position_and_id(tmp_path: Path) -> None:
    stream = read_stream(written(tmp_path, HEADER, episode("a"), "", episode("b"), episode("c")))
    assert [stream[i].episode_id for i in (2, 0, -2)] == ["c", "a", "b"]
    assert stream.index_of("b") == 1
    with pytest.raises(IndexError):
        stream[3]
    with pytest.raises(StreamError, match="no episode 'zz'"):
        stream.index_of("zz")


def test_stream_can_be_pickled_and_copied(tmp_path: Path) -> None:
    stream = read_stream(written(tmp_path, HEADER, episode("a"), episode("b")))
    for twin in (pickle.loads(pickle.dumps(stream)), copy.deepcopy(stream)):
        assert list(twin) == list(stream)


def test_facts_that_only_some_episodes_state_do_not_count_for_the_stream(tmp_path: Path) -> None:
    some = read_stream(
        written(tmp_path, HEADER, episode("a", initial_reward=0.5), episode("b", success=True))
    )
    assert (some.has_initial_rewards, some.has_successes) == (False, False)
    every = read_stream(written(tmp_path, HEADER, episode("a", initial_reward=0.5, success=False)))
    assert (every.has_initial_rewards, every.has_successes) == (True, True)


@pytest.mark.parametrize(
    ("lines", "line", "reason"),
    [
        ([HEADER, episode(), '{"episode_id": "two", "ta'], 3, "not valid JSON"),
        ([HEADER, episode(), "}{", episode("two")], 3, "not valid JSON"),
        ([HEADER, episode(), episode("two"), episode()], 4, "'one' was already used in line 2"),
        ([HEADER], 2, "holds no episode"),
        (["hello"], 1, "not valid JSON"),
        (["[1]"], 1, "not a recorded stream"),
        ([{"format": "other", "version": 1}, episode()], 1, "not a recorded stream"),
        ([{**HEADER, "version": 2, "new": 1}, episode()], 1, "version 2.*upgrade ceb-gym"),
        ([{**HEADER, "version": "1"}, episode()], 1, "version must be"),
        ([{**HEADER, "labelrule": "x"}, episode()], 1, "unknown field 'labelrule'"),
        ([{**HEADER, "env_id": ""}, episode()], 1, "env_id must not be empty"),
        ([HEADER, with_step(reward=float("nan"))], 2, "NaN is no JSON number"),
        ([HEADER, with_step(reward=float("-inf"))], 2, "-Infinity is no JSON number"),
        ([HEADER, json.dumps(with_step(reward=12345)).replace("12345", "1e999")], 2, "must be finite"),
        ([HEADER, json.dumps(with_step(reward=12345)).replace("12345", "9" * 400)], 2, "must be finite"),
        ([HEADER, json.dumps(with_step(reward=12345)).replace("12345", "9" * 5000)], 2, "cannot be read"),
        ([HEADER, "[" * 100_000], 2, "cannot be read"),
        ([HEADER, with_step(reward=True)], 2, r"steps\[1\].reward must be a number, got True"),
        ([HEADER, with_step(reward="1")], 2, r"steps\[1\].reward must be a number"),
        ([HEADER, with_step(reward=None)], 2, r"steps\[1\].reward must be a number"),
        ([HEADER, episode(steps=[{"state": "", "action": "", "outcome": ""}])], 2, "reward is missing"),
        ([HEADER, with_step(action=["ls"])], 2, r"steps\[1\].action must be a string"),
        ([HEADER, with_step(label=1)], 2, r"steps\[1\].label must be true, false or null"),
        ([HEADER, with_step(logprobs=[-1, "x"])], 2, r"logprobs\[1\] must be a number"),
        ([HEADER, with_step(logprobs=-1.0)], 2, "logprobs must be a list"),
        ([HEADER, with_step(lable=True)], 2, r"steps\[1\] has the unknown field 'lable'.*metadata"),
        ([HEADER, episode(gold="x")], 2, "unknown field 'gold'"),
        ([HEADER, episode(steps=[])], 2, "steps is empty"),
        ([HEADER, episode(steps={})], 2, "steps must be a list"),
        ([HEADER, episode(steps=["x"])], 2, r"steps\[0\] must be a JSON object"),
        ([HEADER, episode("")], 2, "episode_id must not be empty"),
        ([HEADER, episode(7)], 2, "episode_id must be a string, got 7"),
        ([HEADER, episode(task=None)], 2, "task must be a string"),
        ([HEADER, episode(metadata=[])], 2, "metadata must be a JSON object"),
        ([HEADER, "[]"], 2, "an episode must be a JSON object"),
    ],
)
def test_broken_stream_is_refused_with_file_line_and_reason(
    tmp_path: Path, lines: list[object], line: int, reason: str
) -> None:
    path = written(tmp_path, *lines)
    with pytest.raises(StreamError, match=reason) as caught:
        read_stream(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.touch()
    with pytest.raises(StreamError, match=r"empty.jsonl:1: the file is empty"):
        read_stream(path)


def test_line_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(json.dumps(HEADER).encode() + b'\n{"episode_id": "\xe9"}\n')
    with pytest.raises(StreamError, match=r"latin.jsonl:2: not UTF-8"):
        read_stream(path)


def test_missing_file_folder_and_pipe_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StreamError, match="No such file"):
        read_stream(tmp_path / "nothing")
    with pytest.raises(StreamError, match="not a regular file"):
        read_stream(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StreamError, match="not a regular file"):
        read_stream(tmp_path / "pipe")


def test_byte_order_mark_and_crlf_are_read(tmp_path: Path) -> None:
    path = tmp_path / "windows.jsonl"
    path.write_bytes("\r\n".join([json.dumps(HEADER), json.dumps(episode()), ""]).encode("utf-8-sig"))
    assert read_stream(path)[0].episode_id == "one"


def test_nul_and_lone_surrogates_are_replaced_when_read(tmp_path: Path) -> None:
    path = written(tmp_path, HEADER, with_step(action="a\0b", outcome="\ud800x"))
    step = read_stream(path)[0].steps[1]
    assert (step.action, step.outcome) == ("a\ufffdb", "\ufffdx")


def test_nul_and_lone_surrogates_are_replaced_when_written(tmp_path: Path) -> None:
    run = RecordedEpisode("1", "q\0", (RecordedStep("\udfff", "a", "o", 0.0),), metadata={"k\0": ["\ud800"]})
    write_stream(tmp_path / "f.jsonl", StreamHeader("e"), [run])
    back = read_stream(tmp_path / "f.jsonl")[0]
    assert (back.task, back.steps[0].state, back.metadata) == ("q\ufffd", "\ufffd", {"k\ufffd": ["\ufffd"]})


def test_million_character_observation_survives(tmp_path: Path) -> None:
    huge = "0123456789äß" * 100_000
    run = RecordedEpisode("1", "q", (RecordedStep("", "cat", huge, 0.0), RecordedStep(huge, "ls", "", 0.0)))
    write_stream(tmp_path / "f.jsonl", StreamHeader("e"), [recorded("0"), run])
    assert read_stream(tmp_path / "f.jsonl")[1] == run


def test_episode_that_changed_on_disk_is_noticed(tmp_path: Path) -> None:
    stream = read_stream(written(tmp_path, HEADER, episode("one")))
    written(tmp_path, HEADER, episode("two"))
    with pytest.raises(StreamError, match=r"stream.jsonl:2: the file changed"):
        stream[0]


@pytest.mark.parametrize(
    ("runs", "reason"),
    [
        ([recorded("a"), recorded("a")], "f.jsonl:3: episode id 'a' was already used in line 2"),
        (
            [recorded("a"), recorded("b", initial_reward=float("nan"))],
            "f.jsonl:3: initial_reward must be fin",
        ),
        ([recorded("a", metadata={"x": object()})], "f.jsonl:2: metadata.x cannot be written"),
        ([recorded("a", metadata={1: 2})], "f.jsonl:2: metadata has the key 1"),
        ([RecordedEpisode("a", "q", ())], "f.jsonl:2: steps is empty"),
        ([], "no episode to write"),
    ],
)
def test_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, runs: list[RecordedEpisode], reason: str
) -> None:
    path = tmp_path / "f.jsonl"
    write_stream(path, StreamHeader("e"), [recorded("old")])
    with pytest.raises(StreamError, match=reason):
        write_stream(path, StreamHeader("e"), runs)
    assert read_stream(path).episode_ids == ("old",)
    assert os.listdir(tmp_path) == ["f.jsonl"]


def test_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    def interrupted():
        yield recorded("new")
        raise KeyboardInterrupt

    path = tmp_path / "f.jsonl"
    write_stream(path, StreamHeader("e"), [recorded("old")])
    with pytest.raises(KeyboardInterrupt):
        write_stream(path, StreamHeader("e"), interrupted())
    assert read_stream(path).episode_ids == ("old",)
    assert os.listdir(tmp_path) == ["f.jsonl"]


def test_write_refuses_places_that_hold_no_file(tmp_path: Path) -> None:
    for place, reason in ((tmp_path, "no regular file"), (tmp_path / "no" / "f", "cannot be written")):
        with pytest.raises(StreamError, match=reason):
            write_stream(place, StreamHeader("e"), [recorded()])
    with pytest.raises(StreamError, match="no regular file"):
        write_stream("/dev/null", StreamHeader("e"), [recorded()])


def test_write_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_stream(tmp_path / "link", StreamHeader("e"), [recorded()])
    assert (tmp_path / "link").is_symlink()
    assert len(read_stream(tmp_path / "real")) == 1


def test_same_episodes_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_stream(tmp_path / name, StreamHeader("e", None, {"z": 1, "a": 2}), [recorded()])
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_write_killed_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f.jsonl"
    write_stream(path, StreamHeader("e"), [recorded("old")])
    code = (
        "import os, signal, sys\n"
        "from ceb_gym.streams import *\n"
        "def episodes():\n"
        "    yield RecordedEpisode('new', 'q', (RecordedStep('s', 'a', 'o' * 1_000_000, 0.5),))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_stream(sys.argv[1], StreamHeader('e'), episodes())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], timeout=120)
    assert done.returncode == -signal.SIGKILL
    assert read_stream(path).episode_ids == ("old",)
    assert write_stream(path, StreamHeader("e"), [recorded("new")]) == 1
