from __future__ import annotations

import subprocess
import sys

import ceb_gym

PUBLIC = {
    "Assessment",
    "CebError",
    "ConfidenceWrapper",
    "Decision",
    "HistoryItem",
    "Precedent",
    "Precedents",
    "Query",
    "Record",
    "Step",
    "StepLabel",
    "Trajectory",
    "Verdict",
    "__version__",
    "rollout",
}


def test_public_names_are_these_and_exist() -> None:
    assert set(ceb_gym.__all__) == PUBLIC
    assert all(hasattr(ceb_gym, name) for name in PUBLIC)


def test_every_public_name_says_what_it_is() -> None:
    assert all(getattr(ceb_gym, name).__doc__ for name in PUBLIC - {"__version__"})


def test_importing_ceb_gym_imports_no_environment_and_no_heavy_extra() -> None:
    code = (
        "import sys, ceb_gym; "
        "print([m for m in ('ceb_envs','matplotlib','docker','playwright','adbutils','psycopg','torch') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
