import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def intercode_logs() -> Path:
    root = Path(os.environ.get("CEB_SHARED", Path(__file__).parents[3] / "shared"))
    logs = root / "data" / "intercode" / "logs"
    if not logs.is_dir():
        pytest.skip(f"real InterCode logs are not at {logs}; set CEB_SHARED to the shared folder")
    return logs
