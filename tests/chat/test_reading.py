from __future__ import annotations

import math
from typing import Any

import pytest

from ceb_gym.chat.reading import first_json_object, read_label, read_score


@pytest.mark.parametrize(
    ("value", "score"),
    [
        (0.8, 0.8),
        ("0.8", 0.8),
        (".8", 0.8),
        ("0,8", 0.8),
        ("85%", 0.85),
        ("85 %", 0.85),
        ("8/10", 0.8),
        ("8 out of 10", 0.8),
        (85.5, 0.855),
        ("85.5", 0.855),
        (85, 0.85),
        (1.0, 1.0),
        (1, 1.0),
        (0, 0.0),
        ('"0.4"', 0.4),
        (-0.2, 0.0),
        (1.3, 1.0),
        (-1, None),
        (2.0, None),
        (7, None),
        (1e9, None),
        (101, None),
        (math.nan, None),
        (math.inf, None),
        (10**400, None),
        (True, None),
        (None, None),
        ([0.5], None),
        ({"a": 1}, None),
        ("", None),
        ("high", None),
        ("120%", None),
        ("12/10", None),
        ("1/0", None),
        ("1,000", None),
        ("85,000", None),
        ("There are 5 reasons why this is a score of 9", None),
    ],
    ids=str,
)
def test_scores_are_read_by_their_own_scale_or_not_at_all(value: Any, score: float | None) -> None:
    read = read_score(value)
    assert read.score == (None if score is None else pytest.approx(score))
    assert read.clipped == (value in (-0.2, 1.3))
    assert (read.note == "") == (score is not None and value in (0.8, "0.8", ".8", "0,8", 1.0, 1, 0, '"0.4"'))


@pytest.mark.parametrize(("value", "score"), [(85, 1.0), (-3, 0.0), (0.4, 0.4), ("2", 1.0), (math.nan, None)])
def test_the_papers_range_always_clips(value: Any, score: float | None) -> None:
    assert read_score(value, score_range="paper").score == score


@pytest.mark.parametrize(
    ("value", "score"), [(85, 0.85), (0.85, 0.0085), (1, 0.01), (140, 1.0), ("70%", 0.7)]
)
def test_percentages_are_always_divided_by_100(value: Any, score: float) -> None:
    assert read_score(value, score_range="percent").score == pytest.approx(score)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"score": 0.5}', 0.5),
        ('```json\n{"score": 0.5}\n```', 0.5),
        ('Sure! {"score": 0.5} Hope that helps {"score": 1}', 0.5),
        ('<think>maybe {"score": 0.1}</think>{"score": 0.5}', 0.5),
        ('{"other": 1} {"score": 0.5}', 0.5),
        ('{"a": {"score": 0.5}}', 0.5),
        ("{'score': 0.5}", None),
        ('{"score": 0.5', None),
        ('<think>it was {"score": 0.1}', None),
        ("   \n" * 100, None),
        ("", None),
        ("{" * 3000, None),
        ('[{"score": 0.5}]', 0.5),
        ('thoughts without an opening tag {"score": 0.1}</think> {"score": 0.5}', 0.5),
        ('{"score": 0.5, "rationale": "the state says </think> and more"}', 0.5),
        ('```json\n{"score": 0.5, "rationale": "</think>"}```', 0.5),
        ('{"rationale": "it printed {\\"score\\": 1}", "score": 0.5}', 0.5),
    ],
)
def test_the_first_complete_object_with_the_field_counts(text: str, found: float | None) -> None:
    value = first_json_object(text, "score")
    assert (value or {}).get("score") == found


@pytest.mark.parametrize(
    ("value", "label"),
    [
        (True, True),
        (False, False),
        (1, True),
        (0, False),
        ("Productive", True),
        ("unproductive.", False),
        ("yes", True),
        ("no", False),
        (0.7, None),
        (2, None),
        (10**400, None),
        (math.nan, None),
        (None, None),
        ("maybe", None),
        ([], None),
    ],
    ids=str,
)
def test_votes_are_read_plainly_or_not_at_all(value: Any, label: bool | None) -> None:
    assert read_label(value) is label
