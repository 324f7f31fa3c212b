"""The report in a real browser. Needs: apt-get install chromium"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.report.folder import RUN, lengthen, make_run
from tests.report.test_played import make_pairs
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


KEYS = """<script>
const press = (place, key) =>
  place.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
document.querySelector(".list button[tabindex='0']").focus();
press(document.activeElement, "ArrowRight");
press(document.activeElement, "ArrowRight");
press(document.querySelector(".tokens"), "ArrowRight");
press(document.querySelector(".tokens"), "ArrowRight");
press(document.querySelector(".tokens"), "ArrowLeft");
press(document.querySelector(".tokens"), "ArrowLeft");
</script>"""
"""From the first episode to the third; of its tokens from the first sampled one to the one
before: the second ArrowRight meets the end."""


def opened(page: Path, profile: Path) -> str:
    """The document as the browser has it, which found nothing to complain of."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    return done.stdout


@pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")
def test_the_browser_of_trajectories_works_without_a_complaint(tmp_path: Path) -> None:
    make_run(tmp_path, said=HOSTILE)
    report(tmp_path, RUN)
    dom = opened(tmp_path / "out.html", tmp_path / "profile")
    assert 'aria-pressed="true" tabindex="0">0/0 · +1<' in dom  # the first of eight is shown
    assert dom.count('aria-pressed="false" tabindex="-1"') == 7
    assert "Step 1, group 0, member 0" in dom
    fact = "token 3, id 607, sampled, mask 1, logprob −0.5 (p = 0.6065), advantage +1.732"
    assert f'aria-live="polite">{fact}<' in dom
    assert "&lt;img src=x onerror=alert(2)&gt;" in dom  # the model's words, as text
    assert "<img" not in dom.partition("<script type")[0] + dom.partition("</script>")[2]


@pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")
def test_all_of_it_is_reached_with_the_keyboard(tmp_path: Path) -> None:
    make_run(tmp_path)
    report(tmp_path, RUN)
    page = tmp_path / "out.html"
    page.write_text(page.read_text(encoding="utf-8") + KEYS, encoding="utf-8")
    dom = opened(page, tmp_path / "profile")
    assert 'aria-pressed="true" tabindex="0">0/2 · −1<' in dom
    assert "Step 1, group 0, member 2" in dom
    assert 'aria-live="polite">token 2, id 198, prompt, mask 0<' in dom


@pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")
def test_what_is_left_out_of_a_long_trajectory_is_told(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    lengthen(path, tokens=50_000, said="x" * 9000)
    report(tmp_path, RUN)
    dom = opened(tmp_path / "out.html", tmp_path / "profile")
    assert '<div class="gap">… 46,000 tokens are not in this file …</div>' in dom
    assert "49,998 of 50,000 tokens sampled" in dom
    assert dom.count('class="sampled') + dom.count('class="prompt') == 4000
    assert "… 5,000 characters …" in dom


@pytest.mark.skipif(CHROMIUM is None, reason="apt-get install chromium")
def test_games_of_two_policies_stand_in_pairs(tmp_path: Path) -> None:
    make_pairs(tmp_path)
    report(tmp_path, RUN)
    dom = opened(tmp_path / "out.html", tmp_path / "profile")
    rows = re.findall(r"<div>((?:<button[^>]*>[^<]*</button>)+)</div>", dom)
    buttons = [re.findall(r">([^<]+)</button>", row) for row in rows]
    assert len(buttons) == 24
    assert buttons[0] == ["29 · R1/a1/step-000150 · 0", "29 · R2/a1/step-000150 · +1"]
    assert buttons[-1] == ["0 · R1/a1/step-000150 · +1", "0 · R2/a1/step-000150 · 0"]
    assert "<h3>Game 29 of R1/a1/step-000150</h3>" in dom
