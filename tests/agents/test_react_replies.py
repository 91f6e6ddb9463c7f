from __future__ import annotations

import pytest

from ceb_gym.agents.react_replies import first_line, parse_reply, sequence_logprob
from ceb_gym.chat.values import ChatChoice
from ceb_gym.types import TokenLogprob


def tokens(*texts: str) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(text, -float(place), ()) for place, text in enumerate(texts))


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("Thought: look\nAction: ls -l", "ls -l"),
        ("Action: ls -l\nObservation: made up", "ls -l"),
        ("thought: x\n**Action:** `ls -l`", "ls -l"),
        ("Action:\n```bash\nls -l\npwd\n```\ndone", "ls -l\npwd"),
        ("Action: echo a\necho b\nConfidence: 80", "echo a\necho b"),
        ("Action: ls\nThought: then\nAction: pwd", "ls"),
        ("Thought: x\nAction 1: ls", "ls"),
        ("### Action:\nls", "ls"),
        ("- Action: ls\n- Confidence: 3", "ls"),
        ("<think>\nAction: rm -rf x\n</think>\nAction: ls", "ls"),
        ("Action: rm -rf x?\n</think>Action: ls", "ls"),
        ("<think>\nAction: rm -rf x", None),
        ('Action: echo "</think>"', 'echo "</think>"'),
        ("Action:", None),
        ("Action: ``", "``"),
        ("I would list the files.", None),
        ("", None),
    ],
)
def test_the_first_action_is_read_leniently(text: str, action: str | None) -> None:
    assert parse_reply(ChatChoice(text)).action == action


@pytest.mark.parametrize(("said", "score"), [("80", 0.8), ("80%", 0.8), ("8/10", 0.8), ("high", None)])
def test_a_stated_confidence_is_of_100(said: str, score: float | None) -> None:
    assert parse_reply(ChatChoice(f"Action: ls\nConfidence: {said}")).confidence == score


def test_the_action_span_holds_the_tokens_of_the_action_alone() -> None:
    written = tokens("Thought", ": x", "\nAction:", " l", "s -", "l", "\n", "Confidence", ": 5")
    text = "".join(token.token for token in written)
    parsed = parse_reply(ChatChoice(text, tokens=(*written, TokenLogprob("", -9.0, (), True))))
    assert [token.token for token in parsed.action_tokens] == [" l", "s -", "l"]
    assert sequence_logprob(parsed.tokens) == -sum(range(9))


def test_the_span_after_thinking_is_that_of_the_action_taken() -> None:
    written = tokens("<think>", "\nAction:", " ls", "</think>", "\nAction:", " ls")
    parsed = parse_reply(ChatChoice("".join(token.token for token in written), tokens=written))
    assert [token.logprob for token in parsed.action_tokens] == [-5.0]


def test_the_first_line_stands_in_only_where_it_was_not_thought() -> None:
    assert first_line(parse_reply(ChatChoice("<think>\nrm -rf x\n</think>\nls"))).action == "ls"
    assert first_line(parse_reply(ChatChoice("<think>\nrm -rf x"))).action == "?"


def test_tokens_that_spell_another_text_give_no_span() -> None:
    assert parse_reply(ChatChoice("Action: ls", tokens=tokens("something", " else"))).action_tokens == ()


def test_content_without_the_marks_around_it_is_found_among_the_tokens() -> None:
    parsed = parse_reply(ChatChoice("Action: ls", tokens=tokens("<think></think>", "Action:", " ls")))
    assert [token.token for token in parsed.action_tokens] == [" ls"]


def test_a_sequence_with_an_unknown_token_has_no_log_probability() -> None:
    assert sequence_logprob((TokenLogprob("a", -1.0), TokenLogprob("b", None))) is None
    assert sequence_logprob(()) is None
