from collections.abc import Sequence

import pytest

from ceb_gym.features import is_repeated, step_features
from ceb_gym.types import HistoryItem, Query


def query_after(earlier: Sequence[str], action: str) -> Query:
    history = tuple(HistoryItem("s", before, "o", True, None) for before in earlier)
    repeated = is_repeated(action, earlier)
    return Query("env", "scope", 0, "episode", "task", "s", action, history, repeated, len(earlier))


@pytest.mark.parametrize(
    ("earlier", "repeated"),
    [
        (["ls", "cd a", "pwd"], True),
        (["ls -la", "cd a", "pwd"], True),
        (["cd a", "pwd", "ls -la /tmp"], True),
        (["ls", "cd a", "pwd", "cat x"], False),
        (["l"], False),
        ([" ls"], False),
        (["LS"], False),
        ([], False),
    ],
)
def test_flag_is_set_when_the_action_begins_one_of_the_last_three(earlier: list[str], repeated: bool) -> None:
    assert is_repeated("ls", earlier) is repeated


def test_an_empty_action_repeats_only_an_empty_one() -> None:
    assert not is_repeated("", ["ls", "cd"])
    assert is_repeated("", ["ls", ""])


def test_exact_repeat_is_stricter_than_the_flag() -> None:
    features = step_features(query_after(["ls -la"], "ls"))
    assert features == {"step_index": 1.0, "exact_repeat": 0.0, "prefix_repeat": 1.0}
    assert step_features(query_after(["ls"], "ls"))["exact_repeat"] == 1.0


def test_exact_repeat_looks_back_three_steps() -> None:
    assert step_features(query_after(["ls", "a", "b"], "ls"))["exact_repeat"] == 1.0
    assert step_features(query_after(["ls", "a", "b", "c"], "ls"))["exact_repeat"] == 0.0
