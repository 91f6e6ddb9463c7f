from __future__ import annotations

from collections.abc import Iterator

import pytest
from pytest_httpserver import HTTPServer


@pytest.fixture
def model(request: pytest.FixtureRequest) -> str:
    return request.node.name


@pytest.fixture(scope="session")
def running_server() -> Iterator[HTTPServer]:
    with HTTPServer(host="127.0.0.1", port=0, threaded=True) as running:
        yield running


@pytest.fixture
def server(running_server: HTTPServer) -> Iterator[HTTPServer]:
    yield running_server
    running_server.clear()
