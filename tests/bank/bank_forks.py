"""Running part of a test in a forked process that cannot come back into pytest."""

import os
import signal
import traceback
from collections.abc import Callable

KILLED = -signal.SIGKILL


def start(function: Callable[[], object]) -> int:
    """Returns the id of a process that runs the function; it ends with 0, or with 1 on an error."""
    process_id = os.fork()
    if process_id:
        return process_id
    code = 1
    try:
        function()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def wait(process_id: int) -> int:
    """Returns how the process ended, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1])


def run(function: Callable[[], object]) -> int:
    """Runs the function in a forked process and returns how that ended."""
    return wait(start(function))
