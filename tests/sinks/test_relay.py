"""Sinks: what they get, and that nothing which they do stops or slows a run."""

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mtrl_cli.rollout.events import ignore
from mtrl_cli.runs.stop import StopRequest
from mtrl_cli.sinks import trackers
from mtrl_cli.sinks.relay import LONGEST_QUEUE, Relay
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from mtrl_cli.training.events import Notice
from mtrl_cli.training.run import resume, train
from tests.training.runs import experiment, lines, train_on

SUMMARY = {"status": "finished"}


class Recorder:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.summary: Mapping[str, Any] | None = None

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self.logged.append((step, dict(figures)))

    def close(self, summary: Mapping[str, Any]) -> None:
        self.summary = summary


class Broken(Recorder):
    def log(self, step: int, figures: Mapping[str, float]) -> None:
        raise SystemExit("no\nnetwork")


def test_a_sink_gets_everything_in_order_and_the_summary() -> None:
    sink, told = Recorder(), list[str]()
    relay = Relay({"one": lambda: sink}, told.append)
    for step in range(100):
        relay.log(step, {"reward": step / 2})
    relay.close(SUMMARY)
    assert sink.logged == [(step, {"reward": step / 2}) for step in range(100)]
    assert (sink.summary, told) == (SUMMARY, [])


def test_a_failing_sink_is_told_of_once_and_the_others_go_on() -> None:
    sink, told = Recorder(), list[str]()
    relay = Relay({"bad": Broken, "good": lambda: sink}, told.append)
    for step in range(3):
        relay.log(step, {})
    relay.close(SUMMARY)
    assert told == ["sink bad: no network; the run goes on without it"]
    assert len(sink.logged) == 3


def test_a_sink_that_hangs_holds_nobody_up() -> None:
    release, told = threading.Event(), list[str]()

    class Hanging(Recorder):
        def log(self, step: int, figures: Mapping[str, float]) -> None:
            release.wait(60)

    relay = Relay({"slow": Hanging}, told.append)
    begun = time.monotonic()
    for step in range(LONGEST_QUEUE + 10):
        relay.log(step, {})
    assert len(told) == 1
    assert "does not keep up" in told[0]
    relay.close(SUMMARY, seconds=0.2)
    assert time.monotonic() - begun < 10
    assert len(told) == 1
    release.set()


async def test_a_run_goes_on_without_the_sink_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(run: trackers.RunInfo) -> Recorder:
        raise ImportError("No module named 'wandb'")

    monkeypatch.setattr(trackers, "_EXTRAS", {"wandb": missing})
    events: list[object] = []
    async with ScriptedPolicyServer() as server:
        options = ("sinks=[wandb]", "train.steps=1")
        run = await train_on(server.url, tmp_path, *options, observer=events.append)
    assert run.status == "finished"
    told = [e.text for e in events if isinstance(e, Notice) and "sink" in e.text]
    assert told == [
        "sink wandb: No module named 'wandb': python -m pip install 'mtrl-cli[wandb]'; "
        "the run goes on without it"
    ]


async def test_a_run_s_sink_gets_its_metrics_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, infos = Recorder(), list[trackers.RunInfo]()

    def opened(run: trackers.RunInfo) -> Recorder:
        infos.append(run)
        return sink

    monkeypatch.setattr(trackers, "_EXTRAS", {"tensorboard": opened})
    async with ScriptedPolicyServer() as server:
        options = ("sinks=[tensorboard]", "train.steps=2", "server.api_key=very-secret-key")
        run = await train_on(server.url, tmp_path, *options, observer=ignore)
    steps = [line for line in lines(run, "metrics.jsonl") if "episodes" in line]
    assert [step for step, _ in sink.logged] == [1, 2]
    for (_, figures), line in zip(sink.logged, steps, strict=True):
        assert figures == {k: v for k, v in line.items() if k not in ("step", "attempt", "time")}
    assert sink.summary is not None
    assert sink.summary["status"] == "finished"
    assert infos[0].settings["train.steps"] == "2"
    assert "very-secret-key" not in json.dumps(dict(infos[0].settings))


async def test_a_resume_that_goes_back_tells_what_stands_and_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sinks, infos = list[Recorder](), list[trackers.RunInfo]()

    def opened(run: trackers.RunInfo) -> Recorder:
        infos.append(run)
        sinks.append(Recorder())
        return sinks[-1]

    monkeypatch.setattr(trackers, "_EXTRAS", {"mlflow": opened})
    async with ScriptedPolicyServer() as server:
        where = (f'server.base_url="{server.url}"', f'run.dir="{tmp_path}"')
        options = ("sinks=[mlflow]", "train.steps=3", "train.checkpoint_every=1", "eval.games=2")
        declared, yaml = experiment(*where, *options)
        first = await train(declared, yaml, observer=ignore, stop=StopRequest())
        folder = Path(first.folder)
        await resume(folder, declared, at=1, observer=ignore, stop=StopRequest())
    assert [[step for step, _ in sink.logged] for sink in sinks] == [[0, 1, 2, 3, 3], [2, 3, 3]]
    before = sinks[0].logged[0][1]
    assert set(before) == {
        f"eval/{name}" for name in ("mean", "se", "pass_rate", "games", "failed")
    }
    assert infos[0].past().voids is False
    past = infos[1].past()
    assert past.name(infos[1].id) == f"{first.run}-a2"
    assert [(point.step, dict(point.figures)) for point in past.points] == sinks[0].logged[:2]


async def test_a_tracker_s_own_keys_are_not_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "key-of-the-tracker")
    monkeypatch.setenv("TRACKIO_SERVER_URL", "https://track.example?write_token=token-in-address")

    def refused(run: trackers.RunInfo) -> Recorder:
        raise ValueError(f"{os.environ['WANDB_API_KEY']} {os.environ['TRACKIO_SERVER_URL']}")

    monkeypatch.setattr(trackers, "_EXTRAS", {"wandb": refused})
    events: list[object] = []
    async with ScriptedPolicyServer() as server:
        options = ("sinks=[wandb]", "train.steps=1")
        await train_on(server.url, tmp_path, *options, observer=events.append)
    told = [e.text for e in events if isinstance(e, Notice) and "sink" in e.text]
    assert told == [
        "sink wandb: *** https://track.example?write_token=***; the run goes on without it"
    ]


def test_tensorboard_s_event_files_hold_the_figures(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="python -m pip install 'mtrl-cli[tensorboard]'")
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    info = trackers.RunInfo("r", "blackjack", tmp_path, "mtrl", {})
    told: list[str] = []
    relay = Relay(trackers.openers(["tensorboard"], info), told.append)
    relay.log(1, {"reward": 0.25, "bad": float("nan")})
    relay.log(2, {"reward": 0.5})
    relay.close(SUMMARY)
    assert told == []
    (file,) = (tmp_path / "tensorboard").iterdir()
    events = [e for e in LegacyEventFileLoader(str(file)).Load() if e.HasField("summary")]
    found = [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value]
    assert found == [(1, "reward", 0.25), (2, "reward", 0.5)]
