from pathlib import Path

import ceb_envs
import ceb_gym

DEFINED_IN = "replay/env.py"


def modules_that_mention(package_file: str, name: str) -> set[str]:
    root = Path(package_file).parent
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if name in path.read_text(encoding="utf-8")
    }


def test_only_evaluation_mentions_reference_labels() -> None:
    found = modules_that_mention(ceb_gym.__file__, "reference_labels")
    assert {path for path in found if not path.startswith("evaluation/")} == set()


def test_only_the_replay_environment_defines_reference_labels() -> None:
    assert modules_that_mention(ceb_envs.__file__, "reference_labels") == {DEFINED_IN}
