"""The report in a real browser. Needs: apt-get install chromium"""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.report.folder import RUN, make_run
from tests.report.test_report import HOSTILE, report

pytestmark = pytest.mark.peer

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--enable-logging=stderr",
]


@pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")
def test_the_browser_of_trajectories_works_without_a_complaint(tmp_path: Path) -> None:
    make_run(tmp_path, said=HOSTILE)
    report(tmp_path, RUN)
    assert CHROMIUM is not None
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    address = (tmp_path / "out.html").as_uri()
    done = subprocess.run(
        [CHROMIUM, *FLAGS, profile, "--dump-dom", address],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    dom = done.stdout
    assert 'aria-pressed="true">0/0 · +1<' in dom  # the first of eight is shown
    assert dom.count('aria-pressed="false"') == 7
    assert "Step 1, group 0, member 0" in dom
    assert 'title="token 3, id 607, sampled, mask 1, logprob -0.5 (p = 0.6065), ' in dom
    assert "advantage +1.732" in dom
    assert "&lt;img src=x onerror=alert(2)&gt;" in dom  # the model's words, as text
    assert "<img" not in dom.partition("<script type")[0] + dom.partition("</script>")[2]
