"""The READMEs' picture is what the display makes of the recorded run, and fetches nothing."""

import html
import json
import re

from benchmarks.picture import PICTURE, RECORD, drawn
from mtrl_cli.training.events import RunFinished, StepFinished


def texts(svg: str) -> list[str]:
    return [html.unescape(one) for one in re.findall(r"<text[^>]*>([^<]*)</text>", svg)]


def test_the_picture_is_drawn_from_the_record_by_the_display() -> None:
    document = json.loads(RECORD.read_text(encoding="utf-8"))
    picture = PICTURE.read_text(encoding="utf-8")
    assert texts(picture) == texts(drawn(document)), "run python -m benchmarks.picture draw"
    assert len(picture) < 60_000
    assert re.findall(r"https?://[^\"]+", picture) == ["http://www.w3.org/2000/svg"]
    shown = "".join(texts(picture)).replace("\xa0", " ")
    names = [name for _, name, _ in document["events"]]
    assert names.count(StepFinished.__name__) == 150
    assert names[-1] == RunFinished.__name__
    after = document["events"][-1][2]["after"]
    assert f"after {after['mean']:.3f} ± {after['se']:.3f}" in shown
