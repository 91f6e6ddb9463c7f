"""The environment ids of this package."""

from __future__ import annotations

from typing import Final

import gymnasium

ENTRY_POINTS: Final = {
    "ceb/Replay-v0": "ceb_envs.replay.env:ReplayEnv",
}
"""Import string of each environment by its id; strings, so that a spec can be written as JSON."""


def register_environments() -> None:
    """Makes the ids known to `gymnasium.make`; ids that are already known are left as they are."""
    for env_id, entry_point in ENTRY_POINTS.items():
        if env_id not in gymnasium.registry:
            gymnasium.register(id=env_id, entry_point=entry_point)
