"""Environments that come with ceb_gym; importing this package makes their ids known to Gymnasium."""

from __future__ import annotations

from ceb_envs.registration import register_environments

register_environments()
