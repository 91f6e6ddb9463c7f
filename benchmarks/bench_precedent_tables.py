"""The `precedent` critic on recorded real runs: means over stream orders beside target numbers, and its gaps.

Run: python benchmarks/bench_precedent_tables.py [--seeds N] [--only NAME] [--ablate]

Needs the shared data: $CEB_SHARED, or the folder `shared` beside the project. The bank learns from finished
episodes only: by the rule that also evaluates (an oracle), or for AMEX from the annotations.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlencode

import gymnasium as gym

from ceb_gym import ConfidenceWrapper, rollout
from ceb_gym.agents.basic import RecordedAgent
from ceb_gym.critics.simple import CountsCritic
from ceb_gym.evaluation.evaluate import YARDSTICK, evaluate_rollout
from ceb_gym.evaluation.gaps import Gap
from ceb_gym.evaluation.given import GIVEN, source_episodes
from ceb_gym.evaluation.tables import PARTS
from ceb_gym.evaluation.twin import TWIN, without_precedents
from ceb_gym.evaluation.warm import REPLAY, bank_stream, warm_scope
from ceb_gym.features import feature_groups
from ceb_gym.protocols import Critic
from ceb_gym.streams import read_stream, write_stream
from ceb_gym.streams.amex import import_amex_decisions
from ceb_gym.streams.intercode import import_intercode_logs

SHARED = Path(os.environ.get("CEB_SHARED", Path(__file__).parents[1].parent / "shared")) / "data"
AGENTS = ("gpt-4", "text-davinci-003", "gpt-3.5")
AMEX = "amex"
CRITIC = "precedent"
COLUMNS = ("ECE", "AUC", "skill", "later AUC", "later skill")
GAP_COLUMNS = ("AUC", "skill", "later AUC", "later skill")
MOST_PROCESSES = 2

Numbers = tuple[float | None, ...]


@dataclass(frozen=True)
class Case:
    """A row of the table.

    Attributes:
        name: What `--only` looks in.
        agent: Whose runs are judged; `AMEX` for the decisions.
        baseline: Level before the first step in the labelling rule.
        warm: Whether the bank has seen the two other agents' runs.
        targets: In the order of `COLUMNS`: at most for ECE, at least for the others. Empty for none.
        in_file_order: Whether the stream is not shuffled: there is one order then.
    """

    name: str
    agent: str
    baseline: str = "0"
    warm: bool = False
    targets: tuple[float, ...] = ()
    in_file_order: bool = False

    @property
    def stream_name(self) -> str:
        return f"{self.agent}-{self.baseline}"


CASES = (
    Case("gpt-4 cold 0", "gpt-4", targets=(0.03, 0.90, 0.64, 0.68, 0.0)),
    Case("text-davinci-003 cold 0", "text-davinci-003", targets=(0.03, 0.90, 0.62, 0.71, 0.0)),
    Case("gpt-3.5 cold 0", "gpt-3.5", targets=(0.045, 0.82, 0.45, 0.66, 0.0)),
    Case("gpt-4 cold initial", "gpt-4", "initial", targets=(0.03, 0.84, 0.32, 0.68, 0.0)),
    Case("gpt-4 warm 0", "gpt-4", warm=True, targets=(0.02, 0.935, 0.69, 0.77, 0.08)),
    Case("gpt-4 warm initial", "gpt-4", "initial", warm=True, targets=(0.02, 0.88, 0.45, 0.77, 0.08)),
    Case("amex file order", AMEX, in_file_order=True),
    Case("amex shuffled", AMEX),
)


@dataclass(frozen=True)
class Job:
    """One run: a case, its order, its critic, and whether the gaps are wanted."""

    case: Case
    seed: int
    critic: str
    with_gaps: bool
    folder: Path


@dataclass(frozen=True)
class Outcome:
    """What a run gave: numbers in the order of `COLUMNS`, gaps by other estimator and part."""

    numbers: Numbers
    gaps: dict[str, dict[str, Gap | None]]


def make_streams(folder: Path, cases: Sequence[Case]) -> None:
    """Imports all runs that the cases need."""
    needed = {(case.agent, case.baseline) for case in cases}
    needed |= {(agent, case.baseline) for case in cases if case.warm for agent in AGENTS}
    for agent, baseline in sorted(needed):
        if agent == AMEX:
            runs = import_amex_decisions(SHARED / "amex_decisions" / "decisions.jsonl")
        else:
            logs = SHARED / "intercode" / "logs" / agent
            runs = import_intercode_logs([logs], first_baseline="initial" if baseline == "initial" else "0")
        write_stream(folder / f"{agent}-{baseline}.jsonl", runs.header, runs.episodes)


def warm_streams(case: Case, folder: Path) -> list[Path]:
    others = [agent for agent in AGENTS if agent != case.agent]
    return [folder / f"{agent}-{case.baseline}.jsonl" for agent in others]


def make_warm_bank(case: Case, folder: Path) -> None:
    """Banks the two others' runs once; each run of the case starts from a copy."""
    for path in warm_streams(case, folder):
        rule = read_stream(path).header.label_rule
        url = f"sqlite:///{folder}/{case.stream_name}-warm.db"
        bank_stream(path, bank=url, labeler=rule, critic=CRITIC)


def bank_of(job: Job, place: str) -> str:
    """The URL of the bank that a job starts with."""
    scope = {"scope": job.case.stream_name}
    if not job.case.warm:
        return f"memory:?{urlencode(scope)}"
    shutil.copy(job.folder / f"{job.case.stream_name}-warm.db", f"{place}/bank.db")
    warm = ",".join(warm_scope(path) for path in warm_streams(job.case, job.folder))
    return f"sqlite:///{place}/bank.db?{urlencode({**scope, 'read_scopes': warm})}"


def run_job(job: Job) -> Outcome:
    path = job.folder / f"{job.case.stream_name}.jsonl"
    stream = read_stream(path)
    rule = stream.header.label_rule
    twin = without_precedents(job.critic)
    others: dict[str, Critic] = {YARDSTICK: CountsCritic()} if job.with_gaps else {}
    if job.with_gaps and twin is not None:
        others[TWIN] = twin
    order = "file" if job.case.in_file_order else "shuffled"
    with TemporaryDirectory() as place:
        env: ConfidenceWrapper[Any, Any] = ConfidenceWrapper(
            gym.make(REPLAY, stream=str(path), order=order),
            critic=job.critic,
            bank=bank_of(job, place),
            labeler=rule or "none",
            seed=job.seed,
        )
        try:
            result = rollout(
                env,
                RecordedAgent(),
                len(stream),
                seed=job.seed,
                estimators=others,
                learn_given=rule is None,
                sources=source_episodes(stream),
            )
        finally:
            env.close()
    resamples = 1_000 if job.with_gaps else 0
    found = evaluate_rollout(result, labeler=rule or GIVEN, label_rule=rule, resamples=resamples)
    every, later = found.summaries["critic"]["all"], found.summaries["critic"]["later_steps"]
    numbers = (every.ece, every.auc, every.brier_skill, later.auc, later.brier_skill)
    return Outcome(numbers, {other: dict(gaps) for other, gaps in found.gaps.items()})


def means(outcomes: Sequence[Outcome]) -> Numbers:
    columns = zip(*(outcome.numbers for outcome in outcomes), strict=True)
    return tuple(
        fmean(known) if (known := [v for v in column if v is not None]) else None for column in columns
    )


def cell(value: float | None, target: float | None, at_most: bool) -> str:
    if value is None or target is None:
        return "-" if value is None else f"{value:.3f}"
    met = value <= target if at_most else value >= target
    return f"{value:.3f} ({'≤' if at_most else '≥'} {target:g}{'' if met else ', missed'})"


def print_means(cases: Sequence[Case], outcomes: dict[tuple[str, str], list[Outcome]]) -> None:
    print("\n### Means over stream orders, beside the targets\n")
    print("| run | orders | " + " | ".join(COLUMNS) + " |\n|---|" + "---|" * (len(COLUMNS) + 1))
    for case in cases:
        found = outcomes[case.name, CRITIC]
        targets = case.targets or (None,) * len(COLUMNS)
        cells = [
            cell(value, target, name == "ECE")
            for value, target, name in zip(means(found), targets, COLUMNS, strict=True)
        ]
        print(f"| {case.name} | {len(found)} | " + " | ".join(cells) + " |")


def print_gaps(cases: Sequence[Case], outcomes: dict[tuple[str, str], list[Outcome]]) -> None:
    print("\n### Paired differences of the first order (95 %, over episodes)\n")
    print("| run | minus | " + " | ".join(GAP_COLUMNS) + " |\n|---|" + "---|" * (len(GAP_COLUMNS) + 1))
    for case in cases:
        for other, parts in outcomes[case.name, CRITIC][0].gaps.items():
            cells = [gap_cell(parts[part], name) for part in PARTS for name in ("auc", "brier_skill")]
            print(f"| {case.name} | {other} | " + " | ".join(cells) + " |")


def gap_cell(gap: Gap | None, name: str) -> str:
    if gap is None or (difference := gap[name].difference) is None:
        return "-"
    interval = gap[name].ci
    return f"{difference:+.3f}" + ("" if interval is None else f" [{interval[0]:+.3f}, {interval[1]:+.3f}]")


def print_ablation(
    cases: Sequence[Case], critics: dict[str, str], outcomes: dict[tuple[str, str], list[Outcome]]
) -> None:
    print("\n### Change of later AUC / later skill without one group of features (means over orders)\n")
    print("| run | " + " | ".join(critics) + " |\n|---|" + "---|" * len(critics))
    for case in cases:
        full = means(outcomes[case.name, CRITIC])
        cells = []
        for critic in critics.values():
            less = means(outcomes[case.name, critic])
            pairs = zip(less[3:], full[3:], strict=True)
            cells.append(" / ".join("-" if a is None or b is None else f"{a - b:+.3f}" for a, b in pairs))
        print(f"| {case.name} | " + " | ".join(cells) + " |")


def critic_without(group: str) -> str:
    return f"{CRITIC}?precedents=false" if group == "precedents" else f"{CRITIC}?without={group}"


def chosen_cases(only: str | None) -> list[Case]:
    cases = [case for case in CASES if only is None or only in case.name]
    if not cases:
        sys.exit(f"--only is {only!r}: it is part of none of {', '.join(case.name for case in CASES)}.")
    if not SHARED.is_dir():
        sys.exit(f"There is no folder {SHARED}: set CEB_SHARED to the folder of the shared data.")
    return cases


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="stream orders, default: 5")
    parser.add_argument("--only", metavar="NAME", help="only runs whose name has this in it")
    parser.add_argument(
        "--ablate", action="store_true", help="also leave out one group of features at a time"
    )
    parser.add_argument("--processes", type=int, default=2, choices=range(1, MOST_PROCESSES + 1))
    args = parser.parse_args()
    cases = chosen_cases(args.only)
    groups = {group: critic_without(group) for group in feature_groups()} if args.ablate else {}
    with TemporaryDirectory() as place, ProcessPoolExecutor(args.processes) as pool:
        folder = Path(place)
        make_streams(folder, cases)
        warm = [case for case in cases if case.warm]
        list(pool.map(make_warm_bank, warm, [folder] * len(warm)))
        jobs = [
            Job(case, seed, critic, seed == 0 and critic == CRITIC, folder)
            for case in cases
            for critic in (CRITIC, *groups.values())
            for seed in range(1 if case.in_file_order else args.seeds)
        ]
        jobs.sort(key=lambda job: not job.case.warm)  # the longest first, so that no process idles in the end
        outcomes: dict[tuple[str, str], list[Outcome]] = {}
        for number, (job, outcome) in enumerate(zip(jobs, pool.map(run_job, jobs), strict=True), 1):
            outcomes.setdefault((job.case.name, job.critic), []).append(outcome)
            print(f"{number}/{len(jobs)} {job.case.name}, {job.critic}, {job.seed}", file=sys.stderr)
    print_means(cases, outcomes)
    print_gaps(cases, outcomes)
    if groups:
        print_ablation(cases, groups, outcomes)


if __name__ == "__main__":
    main()
