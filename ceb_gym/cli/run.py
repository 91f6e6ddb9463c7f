"""`ceb run`: an agent under a critic, on a recorded stream or a live environment, and how well it did."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import gymnasium as gym
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from ceb_gym import __version__
from ceb_gym.agents.basic import PlannerAgent, RandomAgent, RecordedAgent
from ceb_gym.agents.react import make_react_agent
from ceb_gym.build.parts import RULE_LABELERS, make_labeler, own_labeler, split_bank_url
from ceb_gym.build.specs import build_named, load, parse_spec, parse_value
from ceb_gym.cli.targets import bank_file, check_target
from ceb_gym.cli.terminal import PlainConsole
from ceb_gym.cli.warm import bank_place, bank_warm_runs, check_warm
from ceb_gym.critics.simple import BaseRateCritic, CountsCritic
from ceb_gym.errors import ConfigurationError
from ceb_gym.evaluation.evaluate import Evaluation, evaluate_rollout
from ceb_gym.evaluation.feature_weights import weights_of_run
from ceb_gym.evaluation.given import GIVEN, source_episodes
from ceb_gym.evaluation.report import REPORT_FILES, Weights, result_json, write_report
from ceb_gym.evaluation.rollout import EpisodeRow, RolloutResult, rollout
from ceb_gym.evaluation.tables import COLUMNS, GAP_COLUMNS, PARTS, gap_tables, notes, table_rows
from ceb_gym.evaluation.twin import TWIN, precedent_critic, without_precedents
from ceb_gym.protocols import Critic
from ceb_gym.streams import read_stream
from ceb_gym.text import harmless
from ceb_gym.wrapper import ConfidenceWrapper

AGENTS: Mapping[str, tuple[Any, str | None]] = {
    "random": (RandomAgent, None),
    "planner": (PlannerAgent, "skill"),
    "recorded": (RecordedAgent, None),
    "openai": (make_react_agent, "model"),
}
AGENT_GROUP = "ceb_gym.agents"
LIVE_EPISODES = 100


def add_run_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Adds `run` to the command line."""
    parser = subparsers.add_parser(
        "run",
        help="run an agent under a critic and report how good its confidence is",
        description="Run an agent under a critic: each action is judged before it is executed, each finished "
        "episode is labelled and joins the bank. Reports calibration beside the base rate, a counting "
        "table and, for the precedent critic, the same without precedents, on all steps and on later "
        "steps apart.",
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--stream", type=Path, metavar="FILE", help="replay a recorded stream")
    source.add_argument("--env", metavar="ID", help="a registered Gymnasium environment, run live")
    parser.add_argument("--env-arg", action="append", default=[], metavar="KEY=VALUE", help="for gym.make")
    parser.add_argument(
        "--agent", help="random, planner[:skill], recorded (default with --stream) or module:function"
    )
    parser.add_argument("--episodes", type=int, metavar="N", help="default: the whole stream, or 100 live")
    parser.add_argument("--critic", default="precedent", help="default: precedent")
    parser.add_argument(
        "--recalibrate", default="none", help="isotonic, platt or beta: map the critic's scores to the labels"
    )
    parser.add_argument(
        "--labeler",
        help="default with --stream: the stream's own label rule; given: its reference labels (an oracle)",
    )
    parser.add_argument("--policy", default="never", help="default: never")
    parser.add_argument("--deferred-reward", type=float, metavar="X", help="reward of a deferred step")
    parser.add_argument("--retriever", default="tfidf", help="tfidf (default), random or recent")
    parser.add_argument("--bank", default="memory:", help="path or URL; default: in memory, gone afterwards")
    parser.add_argument("--scope", help="default: the environment's id")
    parser.add_argument(
        "--warm",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help="recorded streams of other runs to bank first, unscored and each into a scope of its own "
        "(warm/NAME), which the run then reads; they count in no metric",
    )
    parser.add_argument(
        "--learn",
        default="inline",
        choices=["inline", "background", "off"],
        help="background: results may differ from run to run",
    )
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    parser.add_argument("--shuffle", action="store_true", help="play the stream in a random order by seed")
    parser.add_argument("--resamples", type=int, default=1_000, help="for the intervals; 0 for none")
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON (- for standard output)")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write table, diagram and a row per step")
    parser.add_argument("--show-last", action="store_true", help="print the last episode step by step")
    parser.set_defaults(run=run_command)


def run_command(args: argparse.Namespace) -> int:
    """Runs the agent, prints the table and writes what was asked for; returns the exit code."""
    for name in ("resamples", "seed"):
        if getattr(args, name) < 0:
            raise ConfigurationError(f"--{name} is {getattr(args, name)}: give a whole number from 0.")
    _check_targets(args)
    env, label_rule, episodes, sources = _make_env(args)
    labeler_spec = args.labeler or own_labeler(args.critic) or _own_rule(label_rule)
    labeler_name = _labeler_name(args, labeler_spec)
    check_warm(args, labeler_spec)
    with bank_place(args) as place:
        wrapped = _wrap(env, args, "none" if labeler_spec == GIVEN else labeler_spec, place)
        agent = _make_agent(args)
        try:
            bank_warm_runs(args, place, labeler_spec, _progress)
            with _progress(episodes) as advance:
                result = rollout(
                    wrapped,
                    agent,
                    episodes,
                    seed=args.seed,
                    estimators=_estimators(args.critic),
                    on_episode=advance,
                    learn_given=labeler_name == GIVEN,
                    sources=sources,
                )
            weights = _weights(wrapped, result, args)
        finally:
            wrapped.close()
    evaluation = evaluate_rollout(
        result, labeler=labeler_name, label_rule=label_rule, resamples=args.resamples, seed=args.seed
    )
    settings = _settings(args, episodes, labeler_name)  # files first: whoever reads our output may be gone
    if args.report is not None:
        paths = write_report(args.report, result, evaluation, args.critic, settings, weights)
        print("wrote " + ", ".join(str(path) for path in paths), file=sys.stderr)
    if args.json is not None:
        _write_json(args.json, result_json(evaluation, settings, weights))
    _print(result, evaluation, args)
    return 1 if result.interrupted else 0


def _estimators(critic: str) -> dict[str, Critic]:
    twin = without_precedents(critic)
    others: dict[str, Critic] = {} if twin is None else {TWIN: twin}
    return {**others, "base_rate": BaseRateCritic(), "counts": CountsCritic()}


def _weights(
    wrapped: ConfidenceWrapper[Any, Any], result: RolloutResult, args: argparse.Namespace
) -> Weights:
    """The weights of the critic's features, for a report that shows them."""
    critic = precedent_critic(args.critic)
    if args.report is None or critic is None or not result.episodes:
        return None
    wrapped.flush()
    return weights_of_run(critic, wrapped.bank, wrapped.pins[0].scope, result, seed=args.seed)


def _labeler_name(args: argparse.Namespace, labeler: str | None) -> str:
    """The name of what labels, "none" for nothing. Raises ConfigurationError where that would be a guess."""
    if args.learn == "off":
        return "none"
    if labeler is None:
        given = " --labeler given (the stream's own labels, an oracle)," if args.stream is not None else ""
        raise ConfigurationError(
            f"Which labeler is right is never guessed: pass{given} --labeler return:0.99 (Gymnasium "
            "rewards), success, reward_level, none, or --learn off."
        )
    made = None if labeler == GIVEN else make_labeler(labeler)
    return made.name if made is not None else labeler


def _own_rule(label_rule: str | None) -> str | None:
    """A stream's label rule as labeler: only a rule of ours, since a file must not name code to run."""
    if label_rule is not None and parse_spec("labeler", label_rule).name not in RULE_LABELERS:
        raise ConfigurationError(
            f"The stream's labels follow the rule {label_rule!r}, which is none of "
            f"{', '.join(sorted(RULE_LABELERS))}: name the bank's own --labeler."
        )
    return label_rule


def _check_targets(args: argparse.Namespace) -> None:
    """Fails before the run, not after it, where its results could not be written or would destroy inputs."""
    inputs = [args.stream, *args.warm, bank_file(split_bank_url(args.bank)[0])]
    if args.json not in (None, "-"):
        check_target(args.json, *inputs)
    if args.report is not None:
        try:
            args.report.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"--report {args.report} cannot be written: {error.strerror}."
            ) from error
        for name in REPORT_FILES:
            check_target(args.report / name, *inputs)


def _make_env(args: argparse.Namespace) -> tuple[gym.Env[Any, Any], str | None, int, dict[str, str]]:
    """Returns environment, rule behind its reference labels, number of episodes, and what run each is of."""
    if args.stream is not None:
        if args.env_arg:
            raise ConfigurationError("--env-arg goes with --env, not with --stream.")
        stream = read_stream(args.stream)
        env = gym.make(
            "ceb_envs:ceb/Replay-v0",
            stream=str(args.stream),
            order="shuffled" if args.shuffle else "file",
        )
        if args.scope is None and "scope=" not in args.bank:
            args.scope = stream.header.env_id.replace("{", "{{").replace("}", "}}")  # a name, no template
        episodes = len(stream) if args.episodes is None else args.episodes
        if episodes > len(stream):
            raise ConfigurationError(f"--episodes is {episodes}, but the stream has {len(stream)}.")
        return env, stream.header.label_rule, episodes, source_episodes(stream)
    if args.shuffle:
        raise ConfigurationError("--shuffle goes with --stream.")
    try:
        env = gym.make(args.env, **dict(_env_arg(text) for text in args.env_arg))
    except Exception as error:  # environments are foreign code
        raise ConfigurationError(
            f"The environment {args.env!r} cannot be made: {type(error).__name__}: {error}"
        ) from error
    return env, None, LIVE_EPISODES if args.episodes is None else args.episodes, {}


def _env_arg(text: str) -> tuple[str, Any]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise ConfigurationError(f"--env-arg is {text!r}: write KEY=VALUE.")
    return key, parse_value(value)


def _wrap(
    env: gym.Env[Any, Any], args: argparse.Namespace, labeler: str | None, bank: str
) -> ConfidenceWrapper[Any, Any]:
    return ConfidenceWrapper(
        env,
        critic=args.critic,
        bank=bank,
        labeler=labeler,
        policy=args.policy,
        retriever=args.retriever,
        recalibrate=args.recalibrate,
        learn=args.learn,
        deferred_reward=args.deferred_reward,
        seed=args.seed,
    )


def _make_agent(args: argparse.Namespace) -> Any:
    """Builds the agent, also one that another installed package offers."""
    text = args.agent or ("recorded" if args.stream is not None else None)
    if text is None:
        raise ConfigurationError("--env needs --agent: random, planner:0.7, openai:MODEL or module:function.")
    name, argument = parse_spec("agent", text).name, parse_spec("agent", text).argument
    known = dict(AGENTS)
    for offered in entry_points(group=AGENT_GROUP):
        if offered.name == name:
            known[name] = (offered.load(), "argument")
    if name not in known and argument is not None:
        loaded = load("agent", f"{name}:{argument}")
        if not isinstance(loaded, type):
            return loaded
    return build_named("agent", text, known, seed=args.seed)[0]


@contextmanager
def _progress(episodes: int) -> Iterator[Any]:
    """A progress bar on standard error, where that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("episodes"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        job = bar.add_task("episodes", total=episodes)

        def advance(_: EpisodeRow) -> None:
            bar.advance(job)

        yield advance


def _settings(args: argparse.Namespace, episodes: int, labeler: str) -> dict[str, Any]:
    return {
        "source": args.env if args.env is not None else args.stream.name,
        "agent": args.agent or "recorded",
        "critic": args.critic,
        "recalibrate": args.recalibrate,
        "labeler": labeler,
        "policy": args.policy,
        "retriever": args.retriever,
        "learn": args.learn,
        "bank": args.bank,
        "scope": args.scope,
        "warm": [path.name for path in args.warm],
        "episodes": episodes,
        "seed": args.seed,
        "shuffle": args.shuffle,
        "resamples": args.resamples,
        "version": __version__,
    }


def _print(result: RolloutResult, evaluation: Evaluation, args: argparse.Namespace) -> None:
    console = PlainConsole(sys.stderr if args.json == "-" else sys.stdout)
    if args.show_last and result.episodes:
        console.print(_episode_table(result))
    if result.interrupted:
        console.print(f"interrupted after {len(result.episodes)} episodes")
    for line in notes(evaluation):
        console.print(line)
    for part, title in PARTS.items():
        table = Table(Column("estimator", no_wrap=True), *COLUMNS, title=title, title_justify="left")
        for row in table_rows(evaluation, args.critic, part):
            table.add_row(*(_narrow(cell) for cell in row))
        console.print(table)
    for gap in gap_tables(evaluation):
        table = Table(*GAP_COLUMNS, title=gap.title, title_justify="left")
        for row in gap.rows:
            table.add_row(*row)
        console.print(table)
        if gap.sentence:
            console.print(gap.sentence)


def _narrow(cell: str) -> str:
    """Breaks the lines of a cell, since all columns must fit into 80 characters."""
    for place, broken in ((" [", "\n["), (", ", ",\n"), (" (no ", "\n(no\n"), (" (raw)", "\n(raw)")):
        cell = cell.replace(place, broken)
    return cell


def _episode_table(result: RolloutResult) -> Table:
    last = result.episodes[-1].episode
    table = Table("step", "action", "confidence", "precedents +/-", "label", title=f"Episode {last}")
    for row in result.steps:
        if row.episode == last:
            confidence = row.confidence["critic"]
            table.add_row(
                str(row.step_index),
                harmless(row.action[:60]),
                "unscored" if confidence is None else f"{confidence:.3f}",
                f"{row.productive_precedents}/{row.unproductive_precedents}",
                {True: "productive", False: "unproductive", None: "-"}[row.label],
            )
    return table


def _write_json(target: str, text: str) -> None:
    if target == "-":
        sys.stdout.write(text)
        return
    Path(target).write_text(text, encoding="utf-8")
