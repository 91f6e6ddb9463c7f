"""Checks the wrapper's arguments, and says what of them a spec can record."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from numbers import Real
from typing import Any

from ceb_gym.bank.rows import MAX_NAME_CHARS
from ceb_gym.build.parts import split_bank_url
from ceb_gym.build.specs import OBJECT, check_members
from ceb_gym.critics.recalibration import RECALIBRATIONS
from ceb_gym.engine.lane import LaneSettings
from ceb_gym.errors import ConfigurationError
from ceb_gym.protocols import Bank
from ceb_gym.text import clean_text

_MAX_RUN_ID_CHARS = 200


def plain_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """What a spec records: plain configuration as it is, an object as a marker that names its argument."""
    return {name: _plain(value) for name, value in arguments.items()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping) and all(isinstance(item, str) for item in value.values()):
        return dict(value)
    return OBJECT


def check_single(env: Any) -> None:
    """Raises ConfigurationError for a vector environment, and for one that is wrapped already."""
    layer = env
    while layer is not None:
        if hasattr(type(layer), "assess_many"):
            raise ConfigurationError(
                "This environment has a ConfidenceWrapper already, and a second one would take for executed "
                'what the first defers: use one, and join policies as "a | b".'
            )
        layer = vars(layer).get("env") if hasattr(layer, "__dict__") else None
    if hasattr(env, "single_action_space"):
        raise ConfigurationError(
            "ConfidenceWrapper wraps one environment, and this is a vector environment: wrap its lanes, as "
            "in gym.make_vec(id, num_envs=4, wrappers=[lambda env: ConfidenceWrapper(env, ...)])."
        )


def bank_and_scopes(
    bank: str | Bank, env_id: str, fields: Mapping[str, str] | None
) -> tuple[str | Bank, tuple[str, ...]]:
    """Returns where the bank is (or the open bank), the own scope, and the further scopes to read."""
    if isinstance(bank, os.PathLike):
        bank = os.fspath(bank)
    if not isinstance(bank, str):
        check_members("bank", bank, Bank)
        return bank, (fill_scope("{env_id}", env_id, fields),)
    url, template, read_scopes = split_bank_url(bank)
    own = fill_scope(template or "{env_id}", env_id, fields)
    return url, (own, *(scope for scope in read_scopes if scope != own))  # or its records would count twice


def lane_settings(arguments: Mapping[str, Any], env_id: str, scopes: tuple[str, ...]) -> LaneSettings:
    """The part of the wrapper's arguments that stays the same for all episodes of a lane."""
    return LaneSettings(
        env_id=env_id,
        scopes=scopes,
        as_of=arguments["as_of"],
        task=arguments["task"],
        segment_steps=arguments["segment_steps"],
        early_reset=arguments["early_reset"],
        journal_steps=arguments["journal"] == "step",
    )


def fill_scope(template: str, env_id: str, fields: Mapping[str, str] | None) -> str:
    """Fills in a scope template. Raises ConfigurationError for a field without a value, or an empty scope."""
    try:
        scope = template.format(**{"env_id": env_id, **(fields or {})})
    except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
        why = f"no value for {error.args[0]}" if isinstance(error, KeyError) else str(error)
        raise ConfigurationError(
            f"The scope template {template!r} cannot be filled in ({why}): pass "
            'scope_fields={"name": "value"} for each field in braces.'
        ) from error
    if not scope:
        raise ConfigurationError(f"The scope template {template!r} gives an empty scope with {fields!r}.")
    if clean_text(scope) != scope or len(scope) > MAX_NAME_CHARS:
        raise ConfigurationError(
            f"The scope {scope!r:.60} cannot be stored: it has {len(scope)} characters, of at most "
            f"{MAX_NAME_CHARS}, or holds NUL or a lone surrogate. Name another by bank='FILE?scope=NAME'."
        )
    return scope


def check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raises ConfigurationError for the first argument that cannot work, with its value."""
    _check_names(arguments)
    _check_choices(arguments)
    _check_numbers(arguments)


def _check_names(arguments: Mapping[str, Any]) -> None:
    task, run_id = arguments["task"], arguments["run_id"]
    if not isinstance(task, str):
        raise ConfigurationError(f"task is {task!r}: give text.")
    if run_id is None:
        return
    storable = isinstance(run_id, str) and clean_text(run_id) == run_id and len(run_id) <= _MAX_RUN_ID_CHARS
    if not storable:
        raise ConfigurationError(
            f"run_id is {run_id!r:.300}: give None, or text without NUL of at most {_MAX_RUN_ID_CHARS} "
            "characters."
        )


def _check_choices(arguments: Mapping[str, Any]) -> None:
    clock = arguments["clock"]
    if clock is not None and not callable(clock):
        raise ConfigurationError(f"clock is {clock!r}: pass a callable that returns seconds, or None.")
    choices = {
        "recalibrate": RECALIBRATIONS,
        "early_reset": ("hold", "label", "drop"),
        "review_on": ("repeat", "every"),
        "journal": ("episode", "step"),
    }
    for name, valid in choices.items():
        if arguments[name] not in valid:
            raise ConfigurationError(f"{name} is {arguments[name]!r}: choose one of {', '.join(valid)}.")
    on_defer = arguments["on_defer"]
    if not callable(on_defer) and on_defer not in ("repeat", "append_reason"):
        hint = " (an object cannot be recorded: pass it again)" if on_defer == OBJECT else ""
        raise ConfigurationError(f'on_defer is {on_defer!r}{hint}: "repeat", "append_reason" or a callable.')


def _check_numbers(arguments: Mapping[str, Any]) -> None:
    for name, least in (("max_deferrals", 1), ("segment_steps", 2)):
        value = arguments[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigurationError(f"{name} is {value!r}: give a whole number of at least {least}.")
    seed = arguments["seed"]
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
        raise ConfigurationError(f"seed is {seed!r}: give a whole number from 0, or None.")
    timeout_s = arguments["review_timeout_s"]
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise ConfigurationError(f"review_timeout_s is {timeout_s!r}: give a number of seconds above 0.")
    as_of = arguments["as_of"]
    if as_of is not None and (isinstance(as_of, bool) or not isinstance(as_of, int) or as_of < 0):
        raise ConfigurationError(f"as_of is {as_of!r}: give a revision, a whole number from 0.")
    reward = arguments["deferred_reward"]
    if reward is not None and not (isinstance(reward, Real) and math.isfinite(float(reward))):
        raise ConfigurationError(f"deferred_reward is {reward!r}: give a finite number.")
