"""One real small model for the whole test session."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ceb_gym.testing.local_model import local_model_server, missing_local_model


@pytest.fixture(scope="session")
def model_url() -> Iterator[str]:
    missing = missing_local_model()
    if missing is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"the local model must run in CI: {missing}")
        pytest.skip(missing)
    with local_model_server() as url:
        yield url
