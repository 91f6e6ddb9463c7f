"""Imports the run logs of InterCode-Bash (princeton-nlp/intercode) as a recorded stream."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ceb_gym.errors import ConfigurationError, StreamError
from ceb_gym.streams.codec import FormatFault, finite_number
from ceb_gym.streams.reward_rules import reward_level_labels, reward_level_name
from ceb_gym.streams.values import RecordedEpisode, RecordedStep, StreamHeader

ENV_ID: Final = "intercode-bash"
INITIAL_REWARDS: Final = {1: 0.67, 2: 0.67, 3: 0.39, 4: 0.34}
"""What InterCode pays for doing nothing, by number of the file system."""

FirstBaseline = Literal["0", "initial"]

_FULL_REWARD = 1.0
_FILE_SYSTEM = re.compile(r"fs_(\d+)")


@dataclass(frozen=True, slots=True)
class ImportedRuns:
    """What an importer found.

    Attributes:
        header: For the stream to write.
        episodes: In the order of files and, within a file, of task numbers.
        notes: What was left out, changed or is doubtful, and why: one sentence each.
    """

    header: StreamHeader
    episodes: tuple[RecordedEpisode, ...]
    notes: tuple[str, ...]

    @property
    def n_steps(self) -> int:
        """Number of steps of all episodes."""
        return sum(len(episode.steps) for episode in self.episodes)

    @property
    def n_productive(self) -> int:
        """Number of steps whose reference label is positive."""
        return sum(step.label is True for episode in self.episodes for step in episode.steps)


def import_intercode_logs(
    paths: Sequence[Path], *, first_baseline: FirstBaseline = "0", decimals: int | None = 4
) -> ImportedRuns:
    """Reads logs of multi-turn runs.

    Args:
        paths: Log files, taken as given, or folders, of which the `*multiturn*.json` files are taken in
            the order of their file system numbers.
        first_baseline: What precedes the first step's reward in the labelling rule: "0" as in the paper, or
            "initial", the reward of doing nothing.
        decimals: Places that rewards are rounded to in the rule; None compares the raw floats.

    Raises:
        ConfigurationError: If a path does not exist or a folder has no multi-turn log, or "initial" is
            asked for and a file's name does not tell its file system.
        StreamError: If a log is broken or lacks what every run has.
    """
    notes: list[str] = []
    counts: Counter[str] = Counter()
    digests: dict[str, str] = {}
    episodes: list[RecordedEpisode] = []
    labeling = _Labeling(first_baseline, decimals)
    for path in _log_files(paths, notes):
        content = _read(path)
        digests[f"{path.resolve().parent.name}/{path.name}"] = hashlib.sha256(content).hexdigest()
        initial = _initial_reward(path, first_baseline, notes)
        runs = _parse(path, content)
        if "react" in path.name or any("thoughts" in _history(path, *run) for run in runs):
            notes.append(
                f"{path.name} is a ReAct log: its rewards are 0 before the last step, so its labels say "
                "little."
            )
        for task_id, run in runs:
            episode = _episode(path, task_id, run, initial, labeling, counts)
            if episode is not None:
                episodes.append(episode)
    notes += [f"{text}: {number}." for text, number in sorted(counts.items())]
    provenance = {"importer": "intercode-logs", "sha256": digests}
    rule = reward_level_name(first_baseline, decimals)
    header = StreamHeader(ENV_ID, rule, provenance)
    return ImportedRuns(header, tuple(episodes), (*notes, *labeling.notes()))


class _Labeling:
    """Labels by the reward level, and what would be different with the raw floats.

    Args:
        first_baseline: As for `import_intercode_logs`.
        decimals: As for `import_intercode_logs`.
    """

    def __init__(self, first_baseline: FirstBaseline, decimals: int | None) -> None:
        self._from_initial = first_baseline == "initial"
        self._decimals = decimals
        self._n_productive = self._n_productive_raw = self._n_decided = 0

    def __call__(self, rewards: Sequence[float], initial: float | None) -> list[bool]:
        baseline = initial if self._from_initial and initial is not None else 0.0
        labels = reward_level_labels(rewards, baseline=baseline, decimals=self._decimals)
        raw = reward_level_labels(rewards, baseline=baseline, decimals=None)
        self._n_productive += sum(labels)
        self._n_productive_raw += sum(raw)
        self._n_decided += sum(label != other for label, other in zip(labels, raw, strict=True))
        return labels

    def notes(self) -> tuple[str, ...]:
        """One note where rounding decided a label, also where the numbers of positive steps are equal."""
        if not self._n_decided:
            return ()
        decided = f"{self._n_decided} label" + ("s" if self._n_decided > 1 else "")
        return (
            f"Rounding rewards to {self._decimals} places decides {decided} (a rise of exactly 0.05 does not "
            f"count, as a raw float it may): {self._n_productive:,} steps are positive; with raw floats "
            f"{self._n_productive_raw:,} (--raw-rewards).",
        )


def _log_files(paths: Sequence[Path], notes: list[str]) -> list[Path]:
    files: dict[Path, Path] = {}
    for path in paths:
        if path.is_dir():
            chosen: Iterable[Path] = _multi_turn_files(path, notes)
        elif path.exists():
            chosen = [path]
        else:
            raise ConfigurationError(
                f"{path}: no such file or folder; give InterCode log files or their folder."
            )
        for file in chosen:
            if file.resolve() in files:
                notes.append(f"{file.name} was given twice and is taken once.")
            files.setdefault(file.resolve(), file)
    return list(files.values())


def _multi_turn_files(folder: Path, notes: list[str]) -> list[Path]:
    found = sorted(folder.glob("*.json"), key=lambda path: (_file_system(path) or 0, path.name))
    chosen = [path for path in found if "multiturn" in path.name]
    if not chosen:
        raise ConfigurationError(
            f"{folder}: no *multiturn*.json in this folder; give the folder that holds the log files."
        )
    for path in found:
        if path not in chosen:
            kind = "a ReAct log" if "react" in path.name else "no multi-turn log"
            notes.append(f"{path.name} is left out: {kind}. Give the file itself to import it.")
    return chosen


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StreamError(f"{path}: cannot be read: {error.strerror or error}") from error


def _parse(path: Path, content: bytes) -> list[tuple[str, dict[str, Any]]]:
    try:
        log = json.loads(content.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise StreamError(f"{path}:{error.lineno}: not valid JSON: {error.msg}.") from error
    except (ValueError, RecursionError) as error:
        raise StreamError(f"{path}:1: not a JSON text: {error}.") from error
    if not isinstance(log, dict) or not all(isinstance(run, dict) for run in log.values()):
        raise StreamError(f"{path}:1: not an InterCode log: expected one JSON object of runs by task id.")
    return sorted(log.items(), key=_task_order)


def _task_order(item: tuple[str, Any]) -> tuple[int, int, str]:
    task_id = item[0]
    numeric = task_id.isascii() and task_id.isdigit()
    return (0, int(task_id), task_id) if numeric else (1, 0, task_id)


def _file_system(path: Path) -> int | None:
    found = _FILE_SYSTEM.findall(path.name)
    return int(found[-1]) if found else None


def _initial_reward(path: Path, first_baseline: FirstBaseline, notes: list[str]) -> float | None:
    reward = INITIAL_REWARDS.get(_file_system(path) or 0)
    if reward is None and first_baseline == "initial":
        raise ConfigurationError(
            f"{path}: the name tells no file system from fs_1 to fs_4, so the reward of doing nothing is "
            "unknown; rename the file or use --first-baseline 0."
        )
    if reward is None:
        notes.append(f"{path.name} names no file system from fs_1 to fs_4: no initial reward.")
    return reward


def _history(path: Path, task_id: str, run: dict[str, Any]) -> dict[str, Any]:
    history = run.get("turn_history")
    if not isinstance(history, dict) or "query" not in run:
        raise StreamError(f"{path}: task {task_id} has no query or no turn_history; not an InterCode run.")
    return history


def _turns(path: Path, task_id: str, run: dict[str, Any]) -> tuple[list[Any], list[Any], list[Any]]:
    history = _history(path, task_id, run)
    actions, observations, rewards = (history.get(key) for key in ("actions", "observations", "rewards"))
    if not (isinstance(actions, list) and isinstance(observations, list) and isinstance(rewards, list)):
        raise StreamError(f"{path}: task {task_id} lacks the list of actions, observations or rewards.")
    return actions, observations, rewards


def _episode(
    path: Path,
    task_id: str,
    run: dict[str, Any],
    initial: float | None,
    labeling: _Labeling,
    counts: Counter[str],
) -> RecordedEpisode | None:
    actions, observations, raw_rewards = _turns(path, task_id, run)
    n_steps = _count_whole_steps(actions, observations, raw_rewards, counts)
    if n_steps == 0:
        counts["Episodes left out because they have no whole step"] += 1
        return None
    rewards = [_reward(path, task_id, index, raw_rewards[index]) for index in range(n_steps)]
    labels = labeling(rewards, initial)
    for action in actions[:n_steps]:
        if not isinstance(action, str):
            counts["Actions that were no text, written as JSON"] += 1
    outcomes = [_as_text(observation) for observation in observations[:n_steps]]
    states = ["", *outcomes]
    steps = tuple(
        RecordedStep(states[index], _as_text(actions[index]), outcomes[index], rewards[index], labels[index])
        for index in range(n_steps)
    )
    return RecordedEpisode(
        episode_id=f"{path.stem}/{task_id}",
        task=_as_text(run["query"]),
        steps=steps,
        initial_reward=initial,
        success=max(rewards) >= _FULL_REWARD,
    )


def _count_whole_steps(
    actions: list[Any], observations: list[Any], rewards: list[Any], counts: Counter[str]
) -> int:
    """Returns how many leading turns have an action, an observation and a reward."""
    n_steps = min(len(actions), len(observations), len(rewards))
    # Where the model's provider refused to answer, the log ends with "blocked" and nothing was executed.
    while n_steps and actions[n_steps - 1] == "blocked" and observations[n_steps - 1] is None:
        n_steps -= 1
    for action in actions[n_steps:]:
        kind = '"blocked" actions' if action == "blocked" else "Actions"
        counts[f"{kind} without an observation or reward, left out"] += 1
    return n_steps


def _reward(path: Path, task_id: str, index: int, value: Any) -> float:
    try:
        return finite_number(value, f"rewards[{index}]")
    except FormatFault as fault:
        raise StreamError(f"{path}: task {task_id}: {fault}.") from fault


def _as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False)
