from __future__ import annotations

from typing import Any

import pytest

from ceb_gym.chat.client import OpenAIChat
from ceb_gym.errors import ConfigurationError


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_s": 0},
        {"deadline_s": float("nan")},
        {"retries": -1},
        {"retries": True},
        {"concurrency": 0},
        {"cache": "x"},
        {"cache_mode": "record"},
        {"cache_mode": "always", "cache": "x"},
        {"cache_mode": "replay", "cache": "no-such-file"},
        {"max_requests": -1},
        {"max_cost": 1},
        {"api": "azure"},
        {"api": "other"},
        {"base_url": "ftp://127.0.0.1"},
        {"base_url": "127.0.0.1:80"},
        {"base_url": 3},
    ],
    ids=str,
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        OpenAIChat("model", **{"base_url": "http://127.0.0.1:9/v1", **options})
