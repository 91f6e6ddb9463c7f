"""One engine for all wrappers of a process that are configured alike."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from ceb_gym.build.parts import (
    check_retriever,
    make_bank,
    make_critic,
    make_labeler,
    make_retriever,
    own_labeler,
)
from ceb_gym.critics.recalibration import recalibrated
from ceb_gym.engine.core import Engine
from ceb_gym.engine.judging import Judge, OnCriticError
from ceb_gym.engine.learning import Learner, LearnMode
from ceb_gym.errors import ConfigurationError
from ceb_gym.protocols import Bank

_lock = threading.RLock()  # a wrapper may be freed, and give its engine back, while this thread holds it
_shared: dict[tuple[Any, ...], list[Any]] = {}  # key -> [engine, number of users, configuration]
if hasattr(os, "register_at_fork"):
    # another thread may hold the lock at the moment of the fork; the child must not wait for it for ever
    os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.RLock(), _shared={}))


@dataclass(frozen=True)
class EngineConfig:
    """All that decides whether two wrappers can share an engine. Objects count by identity.

    Attributes:
        bank: URL without scope parameters, or an open Bank, which is then never closed here.
        critic: Spec or Critic.
        labeler: Spec, labeler, callable, "none", or None (only where nothing is learned).
        retriever: Spec or Retriever.
        on_critic_error: "raise", "unscored", a spec or a Critic.
        recalibrate: How the critic's scores are recalibrated, or "none".
        learn: "inline", "background" or "off".
        run_id: First part of episode ids, or None.
        clock: Seconds since the epoch.
    """

    bank: str | Bank
    critic: Any
    labeler: Any
    retriever: Any
    on_critic_error: Any
    recalibrate: str
    learn: LearnMode
    run_id: str | None
    clock: Callable[[], float]
    private: object = field(default=None)

    def key(self) -> tuple[Any, ...]:
        """Equal for configurations that can share."""
        values = (self.bank, self.critic, self.labeler, self.retriever, self.on_critic_error, self.learn)
        named = tuple(value if isinstance(value, str) or value is None else id(value) for value in values)
        return (
            *named,
            self.recalibrate,
            self.run_id,
            id(self.clock),
            id(self.private) if self.private else None,
            os.getpid(),
        )


def engine_config(arguments: Mapping[str, Any], bank: str | Bank) -> EngineConfig:
    """The part of the wrapper's arguments that makes an engine; a private bank in memory is never shared."""
    chosen = ("critic", "labeler", "retriever", "on_critic_error", "recalibrate", "learn", "run_id")
    values = {name: arguments[name] for name in chosen}
    if values["labeler"] is None:
        values["labeler"] = own_labeler(values["critic"])
    return EngineConfig(
        bank=bank,
        **values,
        clock=arguments["clock"] or time.time,
        private=object() if bank == "memory:" else None,
    )


class _BorrowedBank:
    """A bank that was passed in as an object: closing is left to its owner."""

    def __init__(self, bank: Bank) -> None:
        self._bank = bank

    def __getattr__(self, name: str) -> Any:
        return getattr(self._bank, name)

    def close(self) -> None:
        """Leaves the bank open."""


def _borrowed(bank: Bank) -> Bank:
    forwarding: Any = _BorrowedBank(bank)
    return cast(Bank, forwarding)


def check_config(config: EngineConfig) -> None:
    """Builds what needs no bank, so that a wrong spec fails in the constructor and not at the first reset."""
    recalibrated(make_critic(config.critic), config.recalibrate)
    check_retriever(config.retriever)
    _on_error(config.on_critic_error)
    if config.learn not in ("inline", "background", "off"):
        raise ConfigurationError(
            f'learn is {config.learn!r}: choose "inline", "background" or "off" (read only).'
        )
    if config.learn != "off":
        make_labeler(config.labeler)


def _on_error(on_critic_error: Any) -> OnCriticError:
    if on_critic_error == "raise":
        return "raise"
    if on_critic_error == "unscored":
        return "unscored"
    return make_critic(on_critic_error)


def _build(config: EngineConfig) -> Engine:
    read_only = config.learn == "off"
    if isinstance(config.bank, str):
        url = config.bank
        bank = make_bank(url, read_only=read_only, clock=config.clock)
    else:
        url = config.bank.url
        bank = _borrowed(config.bank)
    try:
        retriever = make_retriever(config.retriever, bank, url)
        critic = recalibrated(make_critic(config.critic), config.recalibrate)
        judge = Judge(bank, retriever, critic, _on_error(config.on_critic_error))
        labeler = None if read_only else make_labeler(config.labeler)
        learner = Learner(bank, labeler, config.learn)
        return Engine(
            bank,
            retriever,
            judge,
            learner,
            read_only=read_only,
            run_id=config.run_id,
            clock=config.clock,
        )
    except BaseException:
        bank.close()
        raise


def open_engine(config: EngineConfig) -> Engine:
    """Returns the engine for a configuration; each call needs one `close_engine`."""
    key = config.key()
    with _lock:
        entry = _shared.get(key)
        if entry is None:
            # the configuration is kept, so that no other object can get the identity of one in the key
            entry = _shared[key] = [_build(config), 0, config]
        entry[1] += 1
        engine: Engine = entry[0]
        return engine


def close_engine(engine: Engine) -> None:
    """Gives an engine back; the last user closes it. Always waits for this engine's pending labels."""
    if engine.pid != os.getpid():
        return  # the parent's
    with _lock:
        key = next((key for key, entry in list(_shared.items()) if entry[0] is engine), None)
        if key is None:
            return
        entry = _shared[key]
        entry[1] -= 1
        last = entry[1] == 0
        if last:
            del _shared[key]
    if last:
        engine.close()
    else:
        engine.learner.flush()
