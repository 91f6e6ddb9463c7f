"""Records as JSON Lines: out and in again."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ceb_gym.bank import SqlBank
from ceb_gym.bank.jsonl import export_records, import_records
from ceb_gym.errors import BankConflictError, BankError
from ceb_gym.testing import bank_episode, make_step, make_trajectory
from ceb_gym.types import Record, Step, StepLabel, Trajectory, TrajectoryKey

texts = st.text(st.characters(exclude_categories=[]), max_size=20)
names = st.text(max_size=20).filter(lambda name: "\x00" not in name)
numbers = st.floats(allow_nan=False, allow_infinity=False)
shares = st.floats(0.0, 1.0)
steps = st.builds(
    Step,
    index=st.just(0),
    state=texts,
    proposed=texts,
    action=texts,
    outcome=texts,
    reward=numbers,
    executed=st.just(True),
    confidence=st.none() | shares,
    repeated=st.booleans(),
    critic=texts,
    features=st.dictionaries(names, numbers, max_size=3),
)
trajectories = st.builds(
    Trajectory,
    episode_id=names,
    env_id=texts,
    scope=names,
    task=texts,
    steps=st.lists(steps, max_size=4).map(
        lambda drawn: tuple(replace(step, index=index) for index, step in enumerate(drawn))
    ),
    ending=st.just("terminated"),
    created_at=numbers,
)
labelled = st.lists(
    st.tuples(trajectories, st.booleans(), shares), max_size=4, unique_by=lambda item: item[0].episode_id
)


def all_records(bank: SqlBank) -> list[Record]:
    return [record for scope in bank.scopes() for record in bank.records(scope)]


@pytest.fixture
def source(open_bank: Callable[..., SqlBank]) -> SqlBank:
    bank = open_bank("memory:")
    bank_episode(bank, make_trajectory("a", 3))
    bank_episode(bank, make_trajectory("b", 2, scope="other"))
    return bank


@pytest.fixture
def exported(source: SqlBank, tmp_path: Path) -> Path:
    path = tmp_path / "records.jsonl"
    assert export_records(source, path) == 5
    return path


def change_line(path: Path, number: int, line: bytes) -> None:
    lines = path.read_bytes().split(b"\n")
    lines[number - 1] = line
    path.write_bytes(b"\n".join(lines))


def changed(path: Path, number: int, **fields: object) -> bytes:
    content = json.loads(path.read_bytes().split(b"\n")[number - 1])
    return json.dumps({**content, **fields}).encode()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(episodes=labelled)
def test_whatever_was_banked_comes_back_the_same(
    tmp_path: Path, episodes: list[tuple[Trajectory, bool, float]]
) -> None:
    source, target, path = SqlBank("memory:"), SqlBank("memory:"), tmp_path / "records.jsonl"
    for trajectory, label, share in episodes:
        bank_episode(source, trajectory, [StepLabel(step.index, label, share) for step in trajectory.steps])
    count = export_records(source, path)
    assert import_records(target, path).added == count
    assert all_records(target) == all_records(source)
    assert (import_records(target, path).added, import_records(source, path).added) == (0, 0)
    source.close()
    target.close()


def test_import_is_one_revision_of_each_scope(bank: SqlBank, source: SqlBank, exported: Path) -> None:
    bank_episode(bank, make_trajectory("own", 1))
    counts = import_records(bank, exported)
    assert (counts.added, counts.known, counts.scopes) == (5, 0, ("other", "scope"))
    assert bank.stats("scope").revisions == {"import": 1, "labels": 1}
    assert [record.record_id for record in bank.changes("scope", 1, 2).added] == ["a:0:1", "a:1:1", "a:2:1"]
    assert bank.records("other") == source.records("other")


def test_second_import_adds_nothing_and_is_no_revision(bank: SqlBank, exported: Path) -> None:
    import_records(bank, exported)
    counts = import_records(bank, exported)
    assert (counts.added, counts.known) == (0, 5)
    assert bank.revision("scope") == bank.revision("other") == 1


def test_record_that_was_removed_stays_removed(bank: SqlBank, exported: Path) -> None:
    import_records(bank, exported)
    bank.evict("scope", ["a:0:1"])
    assert import_records(bank, exported).added == 0
    assert [record.record_id for record in bank.records("scope")] == ["a:1:1", "a:2:1"]


def test_equal_imports_give_equal_digests(open_bank: Callable[..., SqlBank], exported: Path) -> None:
    first, second = open_bank("memory:"), open_bank("memory:")
    import_records(first, exported)
    import_records(second, exported)
    assert first.digest("scope", 1) == second.digest("scope", 1) != ""
    change_line(exported, 3, changed(exported, 3, vote_share=0.25))
    third = open_bank("memory:")
    import_records(third, exported)
    assert third.digest("other", 1) != first.digest("other", 1)


def test_only_the_scopes_asked_for_are_exported(source: SqlBank, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    assert export_records(source, path, ["other"]) == 2
    assert b'"scope": "scope"' not in path.read_bytes()
    assert b"a:0:1" not in path.read_bytes()


def test_unknown_scope_is_refused_and_the_old_file_kept(source: SqlBank, exported: Path) -> None:
    before = exported.read_bytes()
    with pytest.raises(BankError, match=r"'nowhere'; it has: other, scope"):
        export_records(source, exported, ["scope", "nowhere"])
    assert exported.read_bytes() == before


def test_removed_records_are_not_exported(source: SqlBank, tmp_path: Path) -> None:
    source.evict("scope", ["a:1:1"])
    assert export_records(source, tmp_path / "records.jsonl", ["scope"]) == 2


def test_export_that_fails_leaves_no_file_behind(source: SqlBank, tmp_path: Path) -> None:
    with pytest.raises(BankError, match="cannot be written"):
        export_records(source, tmp_path / "missing" / "records.jsonl")
    (tmp_path / "folder").mkdir()
    with pytest.raises(BankError, match="cannot be written"):
        export_records(source, tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_records_can_be_put_into_another_scope(bank: SqlBank, exported: Path) -> None:
    assert import_records(bank, exported, "mine").scopes == ("mine",)
    assert bank.scopes() == ["mine"]
    assert {record.scope for record in bank.records("mine")} == {"mine"}


def test_same_id_with_other_content_is_refused_and_nothing_imported(bank: SqlBank, exported: Path) -> None:
    bank_episode(bank, make_trajectory("a", [make_step(1, state="another")]))
    with pytest.raises(BankConflictError, match=r"records\.jsonl:5: record 'a:1:1'"):
        import_records(bank, exported)
    assert bank.scopes() == ["scope"]
    assert [record.record_id for record in bank.records("scope")] == ["a:1:1"]


def test_id_twice_in_a_file_with_other_content_is_refused(bank: SqlBank, exported: Path) -> None:
    with exported.open("ab") as file:
        file.write(changed(exported, 2, state="another") + b"\n")
    with pytest.raises(BankConflictError, match=r"records\.jsonl:7: record 'b:0:1'"):
        import_records(bank, exported)
    assert bank.scopes() == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"record_id": "a:0', "no JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[1, 2]", "not a JSON object"),
        (b"[" * 100_000, "nested too deeply|recursion"),
        (b"{}", "field 'action' is missing"),
        ({"extra": 1}, "field 'extra' is unknown"),
        ({"label": 1}, "field 'label' is 1, not true or false"),
        ({"task": None}, "not text"),
        ({"votes": 1.5}, "not an integer"),
        ({"votes": True}, "not an integer"),
        ({"votes": 10**40}, "integers from 0"),
        ({"vote_share": math.nan}, "NaN is no finite number"),
        ({"confidence": math.inf}, "Infinity is no finite number"),
        ({"confidence": 1.5}, r"outside \[0, 1\]"),
        ({"features": {"x": "y"}}, "an object of numbers"),
        ({"record_id": "b:0:x"}, "not of the form"),
        ({"record_id": "a:0:1"}, "not of the form"),
        ({"episode_id": "e" * 301, "record_id": "x"}, "301 characters"),
    ],
)
def test_broken_line_is_named_and_nothing_imported(
    bank: SqlBank, exported: Path, line: bytes | dict[str, object], message: str
) -> None:
    change_line(exported, 3, line if isinstance(line, bytes) else changed(exported, 3, **line))
    with pytest.raises(BankError, match=rf"records\.jsonl:3: .*({message})"):
        import_records(bank, exported)
    assert bank.scopes() == []


def test_number_too_large_for_a_float_is_refused(bank: SqlBank, exported: Path) -> None:
    line = changed(exported, 3, created_at=77.0).replace(b"77.0", b"1e999")
    change_line(exported, 3, line)
    with pytest.raises(BankError, match=r"records\.jsonl:3: .*inf"):
        import_records(bank, exported)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b'{"format": "other"}', "no export of a bank"),
        (b'{"format": "ceb-bank-records", "version": 2}', "version 2 of the format; this version reads 1"),
    ],
)
def test_file_of_another_format_is_refused(
    bank: SqlBank, exported: Path, header: bytes, message: str
) -> None:
    change_line(exported, 1, header)
    with pytest.raises(BankError, match=rf"records\.jsonl:1: .*{message}"):
        import_records(bank, exported)


def test_empty_and_missing_files_are_errors(bank: SqlBank, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(BankError, match="is empty"):
        import_records(bank, tmp_path / "empty")
    with pytest.raises(BankError, match="No such file"):
        import_records(bank, tmp_path / "missing")


def test_more_records_than_one_batch_keep_their_order(
    open_bank: Callable[..., SqlBank], tmp_path: Path
) -> None:
    source, target = open_bank("memory:"), open_bank("memory:")
    bank_episode(source, make_trajectory("long", 1203))
    export_records(source, tmp_path / "records.jsonl")
    assert import_records(target, tmp_path / "records.jsonl").added == 1203
    assert target.records("scope") == source.records("scope")
    assert target.revision("scope") == 1


def test_labels_given_after_an_import_of_the_same_steps_replace_them(bank: SqlBank, exported: Path) -> None:
    import_records(bank, exported)
    bank.add_trajectory(make_trajectory("a", 3))
    claim = bank.claim(TrajectoryKey("a", 0))
    assert claim is not None
    bank.commit_labels(claim, [StepLabel(0, True, 1.0)], "test")
    assert [record.record_id for record in bank.records("scope")] == ["a:0:2"]
