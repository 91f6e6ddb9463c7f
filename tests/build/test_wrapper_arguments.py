from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from ceb_gym import ConfidenceWrapper
from ceb_gym.build.arguments import bank_and_scopes, check_arguments, fill_scope, plain_arguments
from ceb_gym.errors import ConfigurationError

GOOD: dict[str, Any] = {
    "clock": None,
    "recalibrate": "none",
    "early_reset": "hold",
    "review_on": "repeat",
    "journal": "episode",
    "on_defer": "repeat",
    "max_deferrals": 20,
    "segment_steps": 500,
    "review_timeout_s": 30.0,
    "as_of": None,
    "deferred_reward": None,
    "task": "",
    "run_id": None,
    "seed": None,
}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"deferred_reward": -1},
        {"deferred_reward": np.float32(-1)},
        {"on_defer": lambda observation, reason: observation},
        {"as_of": 0},
        {"run_id": "run/1"},
        {"segment_steps": 2},
        {"clock": lambda: 0.0},
    ],
)
def test_arguments_that_can_work_are_accepted_and_used(changes: dict[str, Any]) -> None:
    arguments = {**GOOD, **changes}
    env = ConfidenceWrapper(
        gym.make("FrozenLake-v1"), "constant:0.1", "memory:", "return:0.9", "defer_below:0.5", **arguments
    )
    observation, _ = env.reset(seed=0)
    shown, reward, *_, info = env.step(0)
    assert info["ceb"]["decision"] == "defer"
    assert (shown, reward) == (observation, float(arguments["deferred_reward"] or 0.0))
    assert env.episode_id.startswith(arguments["run_id"] or "run-1")
    assert env.pins[0].revision == 0
    env.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("clock", 5),
        ("early_reset", "keep"),
        ("recalibrate", None),
        ("recalibrate", "Platt"),
        ("review_on", None),
        ("journal", True),
        ("on_defer", "skip"),
        ("on_defer", "<object>"),
        ("max_deferrals", 0),
        ("max_deferrals", True),
        ("segment_steps", 1),
        ("segment_steps", 2.5),
        ("review_timeout_s", 0),
        ("review_timeout_s", float("nan")),
        ("as_of", -1),
        ("as_of", 1.0),
        ("deferred_reward", float("nan")),
        ("deferred_reward", float("inf")),
        ("deferred_reward", "-1"),
        ("deferred_reward", [1]),
        ("task", None),
        ("task", 5),
        ("run_id", 5),
        ("run_id", "a\x00b"),
        ("run_id", "x" * 1000),
    ],
)
def test_an_argument_that_cannot_work_is_named_with_its_value(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"^{name} is "):
        check_arguments({**GOOD, name: value})


def test_a_spec_records_plain_values_and_marks_objects() -> None:
    recorded = plain_arguments(
        {
            "a": 1,
            "b": None,
            "c": "text",
            "d": {"user": "ann"},
            "e": object(),
            "f": {"user": object()},
            "g": [1],
        }
    )
    assert recorded == {
        "a": 1,
        "b": None,
        "c": "text",
        "d": {"user": "ann"},
        "e": "<object>",
        "f": "<object>",
        "g": "<object>",
    }


def test_a_recorded_mapping_is_a_copy() -> None:
    fields = {"user": "ann"}
    recorded = plain_arguments({"scope_fields": fields})
    fields["user"] = "bob"
    assert recorded == {"scope_fields": {"user": "ann"}}


def test_a_scope_template_is_filled_in() -> None:
    assert fill_scope("{env_id}/{user}", "Env-v0", {"user": "ann"}) == "Env-v0/ann"
    assert fill_scope("shared", "Env-v0", None) == "shared"


@pytest.mark.parametrize(
    "template",
    ["{user}", "{}", "{0}", "{", "}", "{env_id.missing}", "{env_id[x]}", "{env_id:d}", "{env_id!z}"],
)
def test_a_template_that_cannot_be_filled_in_says_what_to_pass(template: str) -> None:
    with pytest.raises(ConfigurationError, match="scope_fields="):
        fill_scope(template, "Env-v0", None)


def test_fields_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="scope_fields="):
        fill_scope("{user}", "Env-v0", "ann")  # type: ignore[arg-type]  # on purpose


def test_an_empty_scope_is_refused_because_all_would_share_it() -> None:
    with pytest.raises(ConfigurationError, match="empty scope"):
        fill_scope("{user}", "Env-v0", {"user": ""})


def test_the_own_scope_among_those_to_read_counts_once() -> None:
    _, scopes = bank_and_scopes("b.db?scope={env_id}&read_scopes=other,Env-v0", "Env-v0", None)
    assert scopes == ("Env-v0", "other")
