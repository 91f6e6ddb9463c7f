"""The rule for what a machine cannot run."""

import os
from typing import NoReturn

import pytest


def cannot_run(reason: str) -> NoReturn:
    """Skips on a user's machine; fails where CI is "true", because there everything must run."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"must run on CI: {reason}")
    pytest.skip(reason)
