"""`ceb bank` as a person uses it."""

import json
from pathlib import Path

import pytest

from ceb_gym.bank import SqlBank
from ceb_gym.cli.main import main
from ceb_gym.testing import bank_episode, make_step, make_trajectory


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "250")


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A bank with one scope: three records, a pending, a held and an open episode, and an intent."""
    path = tmp_path / "bank.db"
    bank = SqlBank(f"sqlite:///{path}")
    bank_episode(bank, make_trajectory("done"))
    bank.add_trajectory(make_trajectory("waits"))
    bank.add_trajectory(make_trajectory("held"), status="held")
    bank.add_trajectory(make_trajectory("cut", ending="segmented"), status="open")
    bank.journal(make_trajectory("lost", 0), make_step(7, action="rm -r folder"))
    bank.close()
    return str(path)


def ceb(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["bank", *arguments]) == code
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["bank", *arguments])
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_stats_name_the_command_that_finishes_what_waits(
    capsys: pytest.CaptureFixture[str], path: str
) -> None:
    out = ceb(capsys, "stats", "--bank", path)
    assert f"1 pending (ended, not yet labelled): `ceb bank label --bank {path} --labeler NAME`" in out
    assert f"1 held (kept without labels): `ceb bank label --bank {path} --labeler NAME --held`" in out
    assert "1 open" in out
    assert "1 intents" in out


def test_stats_as_json_hold_all_counts(capsys: pytest.CaptureFixture[str], path: str) -> None:
    (scope,) = json.loads(ceb(capsys, "stats", "--bank", path, "--json"))["scopes"]
    assert (scope["scope"], scope["revision"], scope["records"], scope["productive"]) == ("scope", 1, 3, 2)
    assert scope["trajectories"] == {"held": 1, "labelled": 1, "open": 1, "pending": 1}


def test_stats_take_a_url(capsys: pytest.CaptureFixture[str], postgres_url: str) -> None:
    SqlBank(postgres_url).close()
    assert "It is empty." in ceb(capsys, "stats", "--bank", postgres_url)


def test_show_lists_newest_records_and_what_was_running(
    capsys: pytest.CaptureFixture[str], path: str
) -> None:
    out = ceb(capsys, "show", "--bank", path, "--limit", "2")
    assert "done:2:1" in out
    assert "done:0:1" not in out
    assert "rm -r folder" in out


def test_show_prints_a_record_or_an_episode(capsys: pytest.CaptureFixture[str], path: str) -> None:
    assert "label: False" in ceb(capsys, "show", "--bank", path, "done:1:1")
    assert "act 2" in ceb(capsys, "show", "--bank", path, "waits")
    episode = json.loads(ceb(capsys, "show", "--bank", path, "done", "--json"))
    assert len(episode["steps"]) == len(episode["records"]) == 3
    assert "no episode 'nowhere'" in ceb(capsys, "show", "--bank", path, "nowhere", code=1)


@pytest.mark.parametrize("arguments", [("show",), ("show", "x"), ("show", "x:0:1"), ("search", "act")])
def test_stored_text_cannot_steer_the_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    path = tmp_path / "bank.db"
    bank = SqlBank(f"sqlite:///{path}")
    evil = "act \x1b]0;title\x07 \x1b[2J \x9b31m [bold]"
    bank_episode(bank, make_trajectory("x", [make_step(0, state=evil, action=evil)], task=evil))
    bank.close()
    out = ceb(capsys, *arguments, "--bank", str(path))
    assert "[bold]" in out
    assert not any(char in out for char in "\x1b\x07\x9b")


def test_search_finds_the_same_action_first(capsys: pytest.CaptureFixture[str], path: str) -> None:
    found = json.loads(ceb(capsys, "search", "--bank", path, "state 2 act 2", "-k", "1", "--json"))
    assert len(found["productive"]) == len(found["unproductive"]) == 1
    assert found["revision"] == 1
    assert "done:" in ceb(capsys, "search", "--bank", path, "act 2")


def test_search_asks_for_a_scope_where_there_are_two(capsys: pytest.CaptureFixture[str], path: str) -> None:
    bank = SqlBank(f"sqlite:///{path}")
    bank_episode(bank, make_trajectory("b", scope="other"))
    bank.close()
    assert "--scope: other, scope" in ceb(capsys, "search", "--bank", path, "act", code=2)
    assert "no scope 'third'" in ceb(capsys, "search", "--bank", path, "act", "--scope", "third", code=1)


def test_export_and_import_carry_records_over(
    capsys: pytest.CaptureFixture[str], path: str, tmp_path: Path
) -> None:
    file, target = str(tmp_path / "records.jsonl"), str(tmp_path / "target.db")
    assert "3 records" in ceb(capsys, "export", "--bank", path, "--out", file)
    assert "3 records added, 0 were there already" in ceb(capsys, "import", "--bank", target, file)
    assert "0 records added, 3 were there already" in ceb(capsys, "import", "--bank", target, file)


def test_prune_does_what_its_options_say(capsys: pytest.CaptureFixture[str], path: str) -> None:
    out = ceb(capsys, "prune", "--bank", path, "--keep", "1", "--purge", "--end-open", "--forget-intents")
    assert out.splitlines() == [
        "2 records removed.",
        "2 removed records deleted for good.",
        "1 open segments are held now.",
        "1 intents forgotten.",
    ]
    assert "1 records removed." in ceb(capsys, "prune", "--bank", path, "--older-than", "1")


def test_prune_without_a_choice_is_a_wrong_argument(capsys: pytest.CaptureFixture[str], path: str) -> None:
    assert "--keep" in ceb(capsys, "prune", "--bank", path, code=2)
    assert "not allowed with" in refused(capsys, "prune", "--bank", path, "--keep", "1", "--older-than", "2")
    assert "negative" in refused(capsys, "prune", "--bank", path, "--keep", "-1")
    assert "days" in refused(capsys, "prune", "--bank", path, "--older-than", "nan")


def test_migrate_says_when_there_is_nothing_to_do(capsys: pytest.CaptureFixture[str], path: str) -> None:
    assert ceb(capsys, "migrate", "--bank", path) == "The bank is up to date.\n"


@pytest.mark.parametrize(
    "command", ["stats", "show", "migrate", "label --labeler success", "prune --forget-intents"]
)
def test_a_bank_that_does_not_exist_is_not_created_by_a_typo(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str
) -> None:
    assert "does not exist" in ceb(capsys, *command.split(), "--bank", str(tmp_path / "bank.db"), code=1)
    assert list(tmp_path.iterdir()) == []


def test_bank_in_memory_is_a_wrong_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert "always empty" in ceb(capsys, "stats", "--bank", "memory:", code=2)
