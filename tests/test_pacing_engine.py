"""`examples/paced-flower`, played by Flower's own SuperLink and SuperNodes."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from codedfedl.io.tables import column_names
from codedfedl.pacing.rounds import PacingJournal

pytestmark = [pytest.mark.engine, pytest.mark.long]

RUN = Path(__file__).parent.parent / "examples" / "paced-flower" / "run.py"
WITHIN = 0.25  # seconds of the deadline


def test_the_example_is_paced_on_real_sockets(tmp_path: Path, run: Any) -> None:
    """Four nodes, the last ten times slower: its answers are cut short. The run leaves a page."""
    app = ["paced", "--data", "digits", "--nodes", "4", "--examples", "160", "--rounds", "5"]
    command = [sys.executable, str(RUN), *app, "--pause", "1", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    log = "".join(path.read_text("utf-8") for path in tmp_path.glob("*.log"))
    assert done.returncode == 0, done.stderr + log
    (out,) = (path for path in tmp_path.glob("paced-*") if path.is_dir())
    rounds = PacingJournal(out, resume=True).facts()
    assert [facts["round"] for facts in rounds] == [1, 2, 3, 4, 5]
    with_deadline = [facts for facts in rounds if facts["deadline"] is not None]
    assert len(with_deadline) >= 3
    assert all(facts["seconds"] <= facts["deadline"] + WITHIN for facts in with_deadline)
    shares = [a["share"] for facts in with_deadline for a in facts["answers"]]
    assert min(shares) < 0.9
    assert "deadline_s" in column_names(out / "rounds.parquet")
    assert "Waiting for all would have taken" in (out / "report.html").read_text("utf-8")
    code, text, _ = run("plan", out / "fleet.csv", "--json")
    assert code == 0
    assert text
