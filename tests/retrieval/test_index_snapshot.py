"""A saved index is used only where it provably fits, and nothing that lies in its place can do harm."""

import io
import os
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from retrieval_oracle import MemoryBank, expected, query, record

from ceb_gym.retrieval import snapshot
from ceb_gym.retrieval.snapshot import read_snapshot
from ceb_gym.retrieval.views import TfidfRetriever
from ceb_gym.types import Pin

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta"]


def filled_bank(commits: int = 6) -> MemoryBank:
    bank = MemoryBank()
    for number in range(commits):
        states = [" ".join(WORDS[(number + step) % 6 :]) for step in range(4)]
        bank.commit("own", [record(f"e{number}:{step}:1", s, step % 2 == 0) for step, s in enumerate(states)])
    return bank


def newest(bank: MemoryBank, scope: str = "own") -> tuple[Pin, ...]:
    return (Pin(scope, bank.revision(scope)),)


def save(bank: MemoryBank, path: Path, pins: tuple[Pin, ...] | None = None) -> Path:
    """Saves an index of the bank; returns the only file there is."""
    retriever = TfidfRetriever(bank, snapshot_path=path)
    retriever.view(pins or newest(bank))
    retriever.save()
    [file] = path.parent.iterdir()
    return file


def reads_all_records(bank: MemoryBank, path: Path, pins: tuple[Pin, ...] | None = None) -> bool:
    """Whether a fresh retriever has to read the whole bank; checks what it finds, too."""
    bank.calls.clear()
    pins = pins or newest(bank)
    retriever = TfidfRetriever(bank, snapshot_path=path)
    view = retriever.view(pins)
    rebuilt = "records" in bank.calls
    [answer] = view.find([query("gamma delta beta")], 3)
    for label, found in ((True, answer.productive), (False, answer.unproductive)):
        wanted = expected(bank, pins, query("gamma delta beta"), label, 3)
        assert [one.record.record_id for one in found] == [name for name, _ in wanted]
        assert [one.similarity for one in found] == pytest.approx([value for _, value in wanted], abs=1e-9)
    return rebuilt


def test_a_saved_index_spares_reading_the_bank(tmp_path):
    bank = filled_bank()
    save(bank, tmp_path / "index")
    assert not reads_all_records(bank, tmp_path / "index")


def test_a_saved_index_follows_what_the_bank_did_since(tmp_path):
    bank = filled_bank()
    save(bank, tmp_path / "index")
    bank.commit("own", [record("later:0:1", "gamma new words", True)], {"e5:0:1", "e0:1:1"})
    assert not reads_all_records(bank, tmp_path / "index")


def test_a_saved_index_of_removed_records_comes_back_without_them(tmp_path):
    bank = filled_bank()
    bank.commit("own", (), {"e0:0:1"})
    retriever = TfidfRetriever(bank, snapshot_path=tmp_path / "index")
    retriever.view((Pin("own", 6),))
    retriever.view((Pin("own", 7),))
    retriever.save()
    assert not reads_all_records(bank, tmp_path / "index")


def test_older_pins_than_the_saved_index_are_built_from_the_bank(tmp_path):
    bank = filled_bank()
    save(bank, tmp_path / "index")
    assert reads_all_records(bank, tmp_path / "index", (Pin("own", 3),))


def test_a_bank_with_another_identity_ignores_the_file(tmp_path):
    bank = filled_bank()
    save(bank, tmp_path / "index")
    bank.bank_id = "another"
    assert reads_all_records(bank, tmp_path / "index")


def test_a_copied_bank_that_went_its_own_way_ignores_the_file(tmp_path):
    original, copy = filled_bank(5), filled_bank(5)
    original.commit("own", [record("x:0:1", "alpha", True)])
    copy.commit("own", [record("y:0:1", "gamma delta", True)])
    save(original, tmp_path / "index")
    assert reads_all_records(copy, tmp_path / "index")


def test_a_copied_bank_that_is_still_behind_ignores_the_file(tmp_path):
    save(filled_bank(6), tmp_path / "index")
    assert reads_all_records(filled_bank(4), tmp_path / "index")


def test_an_index_below_the_floor_is_rebuilt(tmp_path):
    bank = filled_bank()
    save(bank, tmp_path / "index")
    bank.commit("own", (), {"e0:0:1"})
    bank.purge("own")
    assert reads_all_records(bank, tmp_path / "index")


def test_another_analyzer_version_ignores_the_file(tmp_path, monkeypatch):
    bank = filled_bank()
    save(bank, tmp_path / "index")
    monkeypatch.setattr(snapshot, "ANALYZER_VERSION", 999)
    assert reads_all_records(bank, tmp_path / "index")


def test_each_combination_of_scopes_has_a_file_without_the_others_words(tmp_path):
    bank = filled_bank()
    bank.commit("other", [record("o:0:1", "secret", True, scope="other")])
    retriever = TfidfRetriever(bank, snapshot_path=tmp_path / "index")
    for pins in (newest(bank), newest(bank, "other"), newest(bank) + newest(bank, "other")):
        retriever.view(pins)
    retriever.save()
    contents = [set(read_snapshot(file).vocabulary.words()) for file in tmp_path.iterdir()]
    assert len(contents) == 3
    assert sum("secret" in words for words in contents) == 2
    assert sum("gamma" in words for words in contents) == 2


def test_saving_again_writes_only_what_is_worth_it(tmp_path):
    bank = MemoryBank()
    bank.commit("own", [record(f"e{n}:0:1", WORDS[n % 6], n % 2 == 0) for n in range(100)])
    retriever = TfidfRetriever(bank, snapshot_path=tmp_path / "index")

    def saved_revisions() -> int:
        retriever.view(newest(bank))
        retriever.save()
        [file] = tmp_path.iterdir()
        return read_snapshot(file).origin.revisions[0]

    assert saved_revisions() == 1
    bank.commit("own", [record("one:0:1", "alpha", True)])
    assert saved_revisions() == 1
    bank.commit("own", [record("two:0:1", "alpha", True), record("two:1:1", "beta", True)])
    assert saved_revisions() == 3


def damaged(content: bytes) -> dict[str, bytes]:
    """Files that may lie in the place of a snapshot."""
    cut = {f"cut to {size}": content[:size] for size in (0, 1, 30, len(content) // 2, len(content) - 1)}
    rng = np.random.default_rng(1)
    flipped = {}
    for number in range(40):
        noisy = bytearray(content)
        noisy[rng.integers(len(content))] ^= int(rng.integers(1, 256))
        flipped[f"flipped {number}"] = bytes(noisy)
    pickled, plain = io.BytesIO(), io.BytesIO()
    np.savez(pickled, head=np.array([{"a": 1}], dtype=object))
    np.savez(plain, head=np.arange(3))
    array = io.BytesIO()
    np.save(array, np.arange(3))
    return (
        cut
        | flipped
        | {
            "array": array.getvalue(),
            "pickled": pickled.getvalue(),
            "foreign": plain.getvalue(),
            "text": b"hello" * 99,
        }
    )


def same_content(content: bytes, other: bytes) -> bool:
    with np.load(io.BytesIO(content)) as arrays, np.load(io.BytesIO(other)) as others:
        same = [np.array_equal(arrays[name], others[name]) for name in arrays.files]
        return arrays.files == others.files and all(same)


def test_a_damaged_file_is_never_trusted(tmp_path):
    bank = filled_bank()
    file = save(bank, tmp_path / "index")
    intact = file.read_bytes()
    trusted = {}
    for name, content in damaged(intact).items():
        file.write_bytes(content)
        if not reads_all_records(bank, tmp_path / "index"):
            trusted[name] = content
    # a few bytes of an archive say nothing about its content, such as the time in it
    assert len(trusted) < 10 and all(name.startswith("flipped") for name in trusted)
    assert all(same_content(content, intact) for content in trusted.values())


def rewritten(file: Path, name: str, change) -> None:
    """Changes one array of a snapshot, with matching checksums."""
    with np.load(file) as arrays:
        content = dict(arrays)
    content[name] = change(content[name])
    np.savez(file.open("wb"), **content)


def bumped(array: np.ndarray) -> np.ndarray:
    changed = array.copy()
    changed[-1] += 1_000_000
    return changed


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("0.columns", bumped),
        ("0.columns", lambda array: -array - 1),
        ("0.columns", lambda array: array[::-1].copy()),
        ("0.columns", lambda array: array.astype(np.float64)),
        ("0.row_starts", bumped),
        ("0.row_starts", lambda array: array[:-1]),
        ("0.counts", lambda array: array[:-1]),
        ("0.counts", lambda array: array * 0),
        ("0.terms", lambda array: array[::-1].copy()),
        ("0.terms", bumped),
        ("0.id_ends", bumped),
        ("0.scopes", lambda array: array + np.int16(7)),
        ("0.dead", lambda array: np.array([999])),
        ("0.num_productive", lambda array: np.array(999)),
        ("0.times", lambda array: array[:-1]),
        ("words", lambda array: array[:3]),
        ("head", lambda array: array[:-1]),
        ("head", lambda array: np.frombuffer(b"[]", np.uint8)),
    ],
)
def test_positions_that_lead_outside_are_refused(tmp_path, name, change):
    bank = filled_bank()
    file = save(bank, tmp_path / "index")
    rewritten(file, name, change)
    assert read_snapshot(file) is None
    assert reads_all_records(bank, tmp_path / "index")


def test_a_folder_in_the_place_of_the_file_costs_a_rebuild_only(tmp_path):
    bank = filled_bank()
    file = save(bank, tmp_path / "index")
    file.unlink()
    file.mkdir()
    assert reads_all_records(bank, tmp_path / "index")
    retriever = TfidfRetriever(bank, snapshot_path=tmp_path / "index")
    retriever.view(newest(bank))
    retriever.save()
    assert [one.name for one in tmp_path.iterdir()] == [file.name]


def test_a_missing_folder_costs_the_snapshot_only(tmp_path):
    bank = filled_bank()
    retriever = TfidfRetriever(bank, snapshot_path=tmp_path / "gone" / "index")
    retriever.view(newest(bank))
    retriever.save()
    assert not (tmp_path / "gone").exists()


def test_unfinished_files_of_killed_processes_are_deleted_when_old(tmp_path):
    bank = filled_bank()
    file = save(bank, tmp_path / "index")
    old, fresh = (file.with_name(f"{file.name}.{name}.tmp") for name in ("old", "fresh"))
    old.touch()
    fresh.touch()
    long_ago = time.time() - 2 * snapshot.STALE_AFTER_S
    os.utime(old, (long_ago, long_ago))
    file.unlink()
    retriever = TfidfRetriever(bank, snapshot_path=tmp_path / "index")
    retriever.view(newest(bank))
    retriever.save()
    assert sorted(tmp_path.iterdir()) == sorted([file, fresh])


WRITER = """
    import resource, signal, sys
    from pathlib import Path
    sys.path.insert(0, {folder!r})
    from test_index_snapshot import filled_bank, newest
    from ceb_gym.retrieval.views import TfidfRetriever
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    if {limit}:
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
    bank = filled_bank({commits})
    print("ready", flush=True)
    for _ in range({rounds}):
        retriever = TfidfRetriever(bank, snapshot_path=Path({path!r}))
        retriever.view(newest(bank))
        retriever._lineages[("own",)]._saved = None
        retriever.save()
"""


def writer(path: Path, *, rounds: int, commits: int = 6, limit: int = 0) -> subprocess.Popen[str]:
    """A process that saves an index again and again."""
    code = WRITER.format(
        folder=str(Path(__file__).parent), path=str(path), rounds=rounds, commits=commits, limit=limit
    )
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n", process.communicate()[1]
    return process


def test_two_processes_may_save_at_once_and_a_third_reads_only_whole_files(tmp_path):
    file = save(filled_bank(), tmp_path / "index")
    writers = [writer(tmp_path / "index", rounds=40, commits=commits) for commits in (6, 3)]
    seen = set()
    while any(process.poll() is None for process in writers):
        seen.add(read_snapshot(file).origin.revisions)
    for process in writers:
        _, errors = process.communicate()
        assert process.returncode == 0, errors
    assert seen <= {(3,), (6,)}
    assert list(tmp_path.iterdir()) == [file]


def test_a_killed_writer_leaves_the_file_whole(tmp_path):
    bank = filled_bank()
    file = save(bank, tmp_path / "index")
    for delay_ms in (3, 11, 17):
        process = writer(tmp_path / "index", rounds=100_000)
        time.sleep(delay_ms / 1000)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert read_snapshot(file).origin.revisions == (6,)
        assert not reads_all_records(bank, tmp_path / "index")


def test_a_full_disk_costs_the_snapshot_only_and_leaves_the_old_one(tmp_path):
    file = save(filled_bank(3), tmp_path / "index")
    before = file.read_bytes()
    process = writer(tmp_path / "index", rounds=1, limit=700)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "not saved" in errors
    assert file.read_bytes() == before
    assert list(tmp_path.iterdir()) == [file]


def test_a_snapshot_is_a_plain_archive_of_arrays(tmp_path):
    file = save(filled_bank(), tmp_path / "index")
    with zipfile.ZipFile(file) as archive:
        assert {"head.npy", "words.npy", "0.terms.npy"} <= set(archive.namelist())
