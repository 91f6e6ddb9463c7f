"""Addresses of endpoints and the keys for them, which are read when they are needed and kept nowhere."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from ceb_gym.errors import ConfigurationError

NO_KEY = "none"  # the openai package wants one, endpoints on loopback do not
_ADDRESS_VARIABLE = "OPENAI_BASE_URL"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


class Endpoint:
    """Where a model is served.

    Args:
        base_url: None for OpenAI's own, or what OPENAI_BASE_URL says.
        api_key: Called for the key of each request, so that a token may be renewed.
        api_key_env: The environment variable that is read otherwise.
        api: "openai" or "azure".
        api_version: Of Azure.

    Attributes:
        base_url: None for OpenAI's own.
        name: For messages and the reply cache. All of loopback is one, since ports there come and go.

    Raises:
        ConfigurationError: If the address cannot be used, or it has a user name, password or query, which
            could be a secret and would show up in specs and errors.
    """

    def __init__(
        self,
        base_url: str | None,
        api_key: Callable[[], str] | None,
        api_key_env: str,
        api: str = "openai",
        api_version: str | None = None,
    ) -> None:
        if base_url is None and api == "openai":
            base_url = os.environ.get(_ADDRESS_VARIABLE) or None
        _check_address(base_url, api, api_version)
        if api_key is not None and not callable(api_key):
            raise ConfigurationError(
                "api_key is no function: pass one that returns the key, or name an environment variable with "
                "api_key_env. (What was passed is not shown, since it could be the key.)"
            )
        if not isinstance(api_key_env, str) or not _VARIABLE_NAME.fullmatch(api_key_env):
            raise ConfigurationError(
                "api_key_env is no name of an environment variable: name the variable that holds the key. "
                "(What was passed is not shown, since it could be the key.)"
            )
        self.base_url = base_url
        self.name = _endpoint_name(base_url)
        self.api, self.api_version = api, api_version
        self._api_key, self._api_key_env = api_key, api_key_env

    def key(self) -> str:
        """Reads the key. Raises ConfigurationError where there is none and one is needed."""
        try:
            key = self._api_key() if self._api_key is not None else os.environ.get(self._api_key_env)
        except Exception as error:  # foreign code, whose message could hold a secret
            raise ConfigurationError(
                f"The key for {self.name} cannot be read: api_key raised {type(error).__name__}."
            ) from None
        key = key.strip() if isinstance(key, str) else ""
        if not (key.isascii() and key.isprintable()):
            raise ConfigurationError(f"The key for {self.name} holds characters that no header can carry.")
        if key:
            return key
        if self._api_key is not None:
            raise ConfigurationError(f"The key for {self.name} cannot be read: api_key returned no text.")
        if self.base_url is not None and urlsplit(self.base_url).hostname in _LOOPBACK:
            return NO_KEY
        raise ConfigurationError(
            f"There is no key for {self.name}: set the environment variable {self._api_key_env}, or "
            "name another with api_key_env."
        )


def _endpoint_name(base_url: str | None) -> str:
    if base_url is None:
        return "openai"
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    if host in _LOOPBACK:
        return "loopback"
    path = parts.path.rstrip("/")
    return f"{host}:{parts.port}{path}" if parts.port else f"{host}{path}"


def _check_address(base_url: Any, api: Any, api_version: Any) -> None:
    if base_url is not None:
        try:
            parts = urlsplit(base_url)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            secret = bool(parts.username or parts.password or parts.query)
        except (AttributeError, TypeError, ValueError):
            usable, secret = False, isinstance(base_url, str) and "@" in base_url
        if secret:
            raise ConfigurationError(
                "base_url has a user name, a password or a query: keys are read only from the environment or "
                "api_key. (It is not shown, since it could hold a key.)"
            )
        if not usable:
            raise ConfigurationError(
                f"base_url is {base_url!r}: give an address such as http://HOST:PORT/v1."
            )
    if api not in ("openai", "azure"):
        raise ConfigurationError(f"api is {api!r}: choose openai or azure.")
    if api == "azure" and (base_url is None or not api_version):
        raise ConfigurationError("api=azure needs base_url and api_version.")
