import subprocess
import sys
from pathlib import Path

import pytest

from ceb_gym.errors import ConfigurationError, MetricInputError
from ceb_gym.evaluation.metrics import expected_calibration_error
from ceb_gym.evaluation.reliability import ReliabilityBin, reliability_bins, save_reliability_diagram

CONFIDENCE = [0.05, 0.15, 0.17, None, 0.95, 1.0]
CORRECT = [False, True, False, True, True, False]


def test_bins_hold_counts_confidences_and_rates() -> None:
    bins = reliability_bins(CONFIDENCE, CORRECT)
    assert [item.count for item in bins] == [1, 2, 0, 0, 0, 0, 0, 0, 0, 2]
    assert bins[1] == ReliabilityBin(0.1, 0.2, 2, pytest.approx(0.16), pytest.approx(0.5))
    assert bins[5] == ReliabilityBin(0.5, 0.6, 0, None, None)
    assert bins[9].mean_confidence == pytest.approx(0.975)


def test_bins_add_up_to_the_calibration_error() -> None:
    scored = [(score, label) for score, label in zip(CONFIDENCE, CORRECT, strict=True) if score is not None]
    gaps = [
        item.count * abs(item.mean_confidence - item.positive_rate)
        for item in reliability_bins(CONFIDENCE, CORRECT)
        if item.count
    ]
    expected = expected_calibration_error(*zip(*scored, strict=True))
    assert sum(gaps) / len(scored) == pytest.approx(expected)


def test_nothing_scored_gives_empty_bins_and_a_diagram(tmp_path: Path) -> None:
    assert [item.count for item in reliability_bins([None], [True], num_bins=3)] == [0, 0, 0]
    save_reliability_diagram(tmp_path / "r.png", [None], [True], title="nothing scored")
    assert (tmp_path / "r.png").stat().st_size > 1_000


def test_diagram_is_a_png_with_the_same_bytes_each_time(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_reliability_diagram(tmp_path / name, CONFIDENCE, CORRECT, title="critic $ é")
    image = (tmp_path / "a").read_bytes()
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    assert image == (tmp_path / "b").read_bytes()
    assert b"matplotlib" not in image


def test_other_confidences_give_another_diagram(tmp_path: Path) -> None:
    save_reliability_diagram(tmp_path / "a", CONFIDENCE, CORRECT, title="t")
    save_reliability_diagram(tmp_path / "b", [0.5] * 6, CORRECT, title="t")
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()


def test_diagram_leaves_global_plotting_state_alone(tmp_path: Path) -> None:
    code = (
        "import sys; from ceb_gym.evaluation.reliability import save_reliability_diagram as save;"
        "assert 'matplotlib' not in sys.modules;"
        "save(sys.argv[1], [0.5], [True], title='t');"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "r.png")], check=True, timeout=120)


def test_missing_matplotlib_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'ceb-gym\[plots\]'"):
        save_reliability_diagram(tmp_path / "r.png", CONFIDENCE, CORRECT, title="t")


def test_diagram_that_cannot_be_drawn_or_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MetricInputError, match="no steps"):
        save_reliability_diagram(tmp_path / "r.png", [], [], title="t")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        save_reliability_diagram(tmp_path / "no" / "r.png", CONFIDENCE, CORRECT, title="t")
