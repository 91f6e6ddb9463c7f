from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ceb_gym.bank import SqlBank
from ceb_gym.testing import BankContract, ManualClock


class TestSqliteBank(BankContract):
    @pytest.fixture
    def bank(self, tmp_path: Path, clock: ManualClock) -> Iterator[SqlBank]:
        bank = SqlBank(f"sqlite:///{tmp_path / 'bank.db'}", clock=clock)
        yield bank
        bank.close()


class TestMemoryBank(BankContract):
    @pytest.fixture
    def bank(self, clock: ManualClock) -> Iterator[SqlBank]:
        bank = SqlBank("memory:", clock=clock)
        yield bank
        bank.close()


class TestPostgresBank(BankContract):
    @pytest.fixture
    def bank(self, postgres_url: str, clock: ManualClock, open_bank: Callable[..., SqlBank]) -> SqlBank:
        return open_bank(postgres_url, clock=clock)
