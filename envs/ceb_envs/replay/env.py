"""An environment that plays a recorded stream back."""

from __future__ import annotations

from typing import Any, Final, Literal, cast

import gymnasium

from ceb_envs.spaces import UnicodeText
from ceb_gym.errors import ConfigurationError, UsageError
from ceb_gym.streams import RecordedEpisode, RecordedStep, read_stream
from ceb_gym.text import clean_text, shorten

_ORDERS: Final = ("file", "shuffled")
_RENDERED_CHARS: Final = 1_000


class ReplayEnv(gymnasium.Env[str, str]):
    """Pays out recorded rewards and outcomes, whatever the action.

    Observation: the text the recorded agent saw before its next action (after the last step: the last
    outcome). Action: any text. An episode terminates with its last recorded step. `info` has the same keys
    at every reset and step: `task` and `episode` (str), `outcome` (str, "" at reset), `action_matches`
    (bool: the action was the recorded one; False at reset), and, where every episode of the stream states
    them, `initial_reward` (float) and `success` (bool, False before the end).

    `reset(seed=...)` starts the order anew, a `reset` without a seed goes on to the next episode and, after
    the last, to the first again. `reset(options={"episode": position or id})` plays one episode out of
    turn: the order goes on where it was.

    `metadata["env_id"]` names the environment that the stream was recorded from: critics and scopes go by it.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012  # Gymnasium's own convention; each replay adds its `env_id`
        "render_modes": ["ansi"],
        "render_fps": 4,
        "reward_kind": "level",
        "summarizer": "ceb_envs.replay.summarizer:ReplaySummarizer",
    }

    def __init__(
        self,
        stream: str,
        order: Literal["file", "shuffled"] = "file",
        render_mode: Literal["ansi"] | None = None,
    ) -> None:
        """Opens a stream and checks all of it.

        Args:
            stream: Path of the file; a string, so that the environment's spec can be written as JSON.
            order: "file", or "shuffled" by the seed given to `reset`.
            render_mode: "ansi" for `render()` as text.

        Raises:
            ConfigurationError: If an argument has no meaning.
            StreamError: If the stream cannot be read or breaks its format.
        """
        if not isinstance(stream, str):
            raise ConfigurationError(f"stream must be a path as a string, got {stream!r}; pass str(path).")
        if order not in _ORDERS:
            raise ConfigurationError(f"order must be one of {', '.join(_ORDERS)}, got {order!r}.")
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ConfigurationError(f'render_mode must be "ansi" or None, got {render_mode!r}.')
        self.observation_space = UnicodeText()
        self.action_space = UnicodeText()
        self.render_mode = render_mode
        self._stream = read_stream(stream)
        # a critic should know what was recorded: a table of risky shell commands is read for a shell only
        self.metadata = {**type(self).metadata, "env_id": self._stream.header.env_id}
        self._order = order
        self._positions: list[int] | None = None
        self._next_turn = 0
        self._episode: RecordedEpisode | None = None
        self._step_index = 0
        self._last_action: str | None = None

    @property
    def label_rule(self) -> str | None:
        """The rule behind the recorded labels, as stated in the stream's header."""
        return self._stream.header.label_rule

    @property
    def recorded_env_id(self) -> str:
        """The environment the runs were recorded in."""
        return self._stream.header.env_id

    @property
    def n_episodes(self) -> int:
        """Number of episodes in the stream."""
        return len(self._stream)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Starts the next episode, or the one named by `options["episode"]` (position or id).

        Raises:
            ConfigurationError: If the stream has no such episode.
        """
        super().reset(seed=seed)
        if self._positions is None or seed is not None:
            self._positions = self._draw_order()
            self._next_turn = 0
        wanted = (options or {}).get("episode")
        if wanted is None:
            position = self._positions[self._next_turn]
            self._next_turn = (self._next_turn + 1) % len(self._positions)
        else:
            position = self._position_of(wanted)
        self._episode = self._stream[position]
        self._step_index = 0
        self._last_action = None
        return self._episode.steps[0].state, self._info(self._episode, outcome="", matches=False)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Pays out the recorded step.

        Raises:
            UsageError: Before the first `reset` and after the episode's end.
        """
        episode, recorded = self._current()
        self._step_index += 1
        self._last_action = str(action)
        ended = self._step_index == len(episode.steps)
        observation = recorded.outcome if ended else episode.steps[self._step_index].state
        matches = isinstance(action, str) and clean_text(action) == recorded.action
        info = self._info(episode, outcome=recorded.outcome, matches=matches)
        return observation, recorded.reward, ended, False, info

    def render(self) -> str | None:
        """Returns the task, the last action and what came after it as text (render mode "ansi")."""
        if self.render_mode is None:
            return None
        if self._episode is None:
            raise UsageError("render was called before reset; call reset first.")
        lines = [f"[{self._episode.episode_id}] {self._episode.task}"]
        if self._last_action is None:
            lines += ["state:", shorten(self._episode.steps[0].state, _RENDERED_CHARS)]
        else:
            done = self._episode.steps[self._step_index - 1]
            lines += [
                f"step {self._step_index - 1}, reward {done.reward:g}",
                f"> {shorten(self._last_action, _RENDERED_CHARS)}",
                shorten(done.outcome, _RENDERED_CHARS),
            ]
        return "\n".join(lines)

    def recorded_action(self) -> str:
        """Returns what the recorded agent did next, for an agent that replays it.

        Raises:
            UsageError: Before the first `reset` and after the episode's end.
        """
        return self._current()[1].action

    def recorded_logprobs(self) -> tuple[float, ...] | None:
        """Returns the token log-probabilities of the recorded next action, where they are known.

        Raises:
            UsageError: Before the first `reset` and after the episode's end.
        """
        return self._current()[1].logprobs

    def reference_labels(self) -> tuple[bool | None, ...]:
        """Returns the labels of all steps of the episode that just ended; for evaluation only.

        Raises:
            UsageError: Before the episode's end, so that no critic can see them in time.
        """
        if self._episode is None or self._step_index < len(self._episode.steps):
            raise UsageError(
                "reference labels were asked for before the episode's end; play it to its last step first."
            )
        return tuple(step.label for step in self._episode.steps)

    def _draw_order(self) -> list[int]:
        if self._order == "file":
            return list(range(len(self._stream)))
        return cast("list[int]", self.np_random.permutation(len(self._stream)).tolist())

    def _position_of(self, wanted: object) -> int:
        if isinstance(wanted, str) and wanted in self._stream.episode_ids:
            return self._stream.index_of(wanted)
        if isinstance(wanted, int) and not isinstance(wanted, bool) and 0 <= wanted < len(self._stream):
            return wanted
        raise ConfigurationError(
            f"options['episode'] is {wanted!r}; {self._stream.path} has the positions 0 to "
            f"{len(self._stream) - 1} and ids such as {self._stream.episode_ids[0]!r}."
        )

    def _current(self) -> tuple[RecordedEpisode, RecordedStep]:
        if self._episode is None:
            raise UsageError("no episode is running; call reset first.")
        if self._step_index == len(self._episode.steps):
            raise UsageError(f"episode {self._episode.episode_id!r} has ended; call reset for the next one.")
        return self._episode, self._episode.steps[self._step_index]

    def _info(self, episode: RecordedEpisode, *, outcome: str, matches: bool) -> dict[str, Any]:
        """Returns `info`; optional facts appear only where all episodes have them, so keys never change."""
        info: dict[str, Any] = {
            "task": episode.task,
            "episode": episode.episode_id,
            "outcome": outcome,
            "action_matches": matches,
        }
        if self._stream.has_initial_rewards:
            info["initial_reward"] = episode.initial_reward
        if self._stream.has_successes:
            ended = self._step_index == len(episode.steps)
            info["success"] = bool(episode.success) and ended
        return info
