"""Contract suites for your own parts: inherit one in a test file and give it the part.

    class TestMyBank(BankContract):
        @pytest.fixture
        def bank(self, tmp_path, clock):
            bank = MyBank(tmp_path, clock=clock)
            yield bank
            bank.close()

The contracts need pytest.
"""

from ceb_gym.testing.bank_contract import BankContract
from ceb_gym.testing.samples import ManualClock, bank_episode, make_labels, make_step, make_trajectory

__all__ = ["BankContract", "ManualClock", "bank_episode", "make_labels", "make_step", "make_trajectory"]
