"""Command lines and files that would destroy, run or hide something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ceb_gym.bank.store import SqlBank
from ceb_gym.cli.main import main
from ceb_gym.streams import RecordedEpisode, RecordedStep, StreamHeader, write_stream

LIVE = ["run", "--env", "FrozenLake-v1", "--agent", "random", "--labeler", "success?reward_above=0"]
LIVE += ["--episodes", "2", "--resamples", "0"]


def make_stream(path: Path, header: StreamHeader, action: str = "go") -> Path:
    write_stream(path, header, [RecordedEpisode("e", "task", (RecordedStep("s", action, "o", 1.0, True),))])
    return path


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_a_stream_cannot_name_code_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = f"subprocess:Popen?args=touch%20{tmp_path}/PWNED&shell=true"
    stream = make_stream(tmp_path / "s.jsonl", StreamHeader("toy", rule))
    assert main(["run", "--stream", str(stream)]) == 2
    assert "name the bank's own --labeler" in said(capsys)
    assert not (tmp_path / "PWNED").exists()


def test_braces_in_a_streams_environment_are_no_template(tmp_path: Path) -> None:
    stream = make_stream(tmp_path / "s.jsonl", StreamHeader("my{env}", "reward_level?first_baseline=0"))
    bank = str(tmp_path / "b.db")
    assert main(["run", "--stream", str(stream), "--resamples", "0", "--bank", bank]) == 0
    opened = SqlBank(f"sqlite:///{bank}")
    assert opened.scopes() == ["my{env}"]
    opened.close()


def test_no_output_may_overwrite_an_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = make_stream(tmp_path / "s.jsonl", StreamHeader("toy", "reward_level?first_baseline=0"))
    bank = tmp_path / "b.db"
    assert main(["run", "--stream", str(stream), "--bank", str(bank), "--resamples", "0"]) == 0
    os.symlink(bank, tmp_path / "link.db")
    before = {path: path.read_bytes() for path in (stream, bank)}
    for arguments in (
        ["run", "--stream", str(stream), "--json", str(stream)],
        ["run", "--stream", str(stream), "--bank", str(bank), "--json", str(tmp_path / "link.db")],
        ["run", "--stream", str(stream), "--json", str(bank)],
        ["bank", "export", "--bank", str(bank), "--out", str(bank)],
        ["import", "intercode-logs", str(stream), "--out", str(stream)],
    ):
        assert main(arguments) == 2, arguments
        assert "would be overwritten" in said(capsys)
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("target", [".", "no/such/folder/r.json"])
def test_a_target_that_cannot_be_written_fails_before_the_run(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*LIVE, "--json", target]) == 2
    assert "give the path" in (text := said(capsys)) or "cannot be written" in text


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        ([*LIVE, "--seed", "-1"], 2, "--seed is -1"),
        ([*LIVE, "--env-arg", "map_name=zzz"], 2, "cannot be made: KeyError"),
        ([*LIVE, "--env-arg", "desc=5"], 2, "cannot be made"),
        ([*LIVE, "--critic", "sys:exit"], 2, "cannot be built"),
        ([*LIVE, "--agent", "foreign:quits"], 1, "ended from inside by SystemExit(0)"),
        ([*LIVE, "--agent", "foreign:fails"], 1, "the run failed: ZeroDivisionError"),
        ([*LIVE, "--critic", "foreign:Broken"], 2, "cannot be built"),
    ],
)
def test_foreign_code_that_fails_is_one_sentence_and_never_exit_0(
    arguments: list[str],
    code: int,
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "foreign.py").write_text(
        "def quits(observation, info):\n    raise SystemExit(0)\n\n"
        "def fails(observation, info):\n    1 / 0\n\n"
        "class Broken:\n    def __init__(self):\n        raise RuntimeError('no')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main(arguments) == code
    text = said(capsys)
    assert sentence in text and "Traceback" not in text


def test_a_traceback_is_shown_to_who_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "failing_agent.py").write_text("def fails(observation, info):\n    1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CEB_TRACEBACK", "1")
    assert main([*LIVE, "--agent", "failing_agent:fails"]) == 1
    assert "failing_agent.py" in capsys.readouterr().err


def test_terminal_escapes_are_spelled_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = StreamHeader("toy", "reward_level?first_baseline=0")
    stream = make_stream(tmp_path / "s.jsonl", header, action="\x1b[31mred")
    assert main(["run", "--stream", str(stream), "--resamples", "0", "--show-last"]) == 0
    assert main(["run", "--stream", str(stream), "--critic", "\x1b]0;x\x07"]) == 2
    captured = capsys.readouterr()
    assert "\x1b" not in captured.out + captured.err and "\\x1b[31mred" in captured.out


@pytest.mark.parametrize("redirection", [">&-", "> /dev/full"])
def test_a_standard_output_that_cannot_be_written_is_no_traceback(tmp_path: Path, redirection: str) -> None:
    command = " ".join([sys.executable, "-m", "ceb_gym.cli.main", *map(_quoted, LIVE)])
    done = subprocess.run(
        ["bash", "-c", f"{command} {redirection}"], capture_output=True, text=True, timeout=60
    )
    assert "Traceback" not in done.stderr
    assert done.returncode == (0 if redirection == ">&-" else 1)


def test_an_ascii_terminal_shows_any_text(tmp_path: Path) -> None:
    header = StreamHeader("toy", "reward_level?first_baseline=0")
    stream = make_stream(tmp_path / "s.jsonl", header, action="grüße \U0001f600")
    command = [sys.executable, "-m", "ceb_gym.cli.main", "run", "--stream", str(stream), "--show-last"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LANG": "C"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 0 and "gr\\xfc" in done.stdout, done.stderr


def test_purging_deletes_the_words_in_the_index_beside_the_bank(tmp_path: Path) -> None:
    header = StreamHeader("toy", "reward_level?first_baseline=0")
    stream = make_stream(tmp_path / "s.jsonl", header, action="secretword")
    bank = str(tmp_path / "b.db")
    assert main(["run", "--stream", str(stream), "--bank", bank, "--resamples", "0"]) == 0
    assert list(tmp_path.glob("b.db.index.*"))
    assert main(["bank", "prune", "--bank", bank, "--keep", "0", "--purge"]) == 0
    assert not list(tmp_path.glob("b.db.index.*"))


def test_results_name_bank_and_scope(tmp_path: Path) -> None:
    stream = make_stream(tmp_path / "s.jsonl", StreamHeader("toy", "reward_level?first_baseline=0"))
    target = tmp_path / "r.json"
    assert main(["run", "--stream", str(stream), "--json", str(target), "--resamples", "0"]) == 0
    settings = json.loads(target.read_text())["settings"]
    assert (settings["bank"], settings["scope"]) == ("memory:", "toy")


def _quoted(text: str) -> str:
    return f"'{text}'"
