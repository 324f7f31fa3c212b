"""A secret is in no file of a run and in nothing that a command says, also where the run fails, the
server repeats the key, the configuration copies it, or a traceback is shown."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from mtrl_cli.config.compose import compose
from mtrl_cli.config.resolve import resolve
from mtrl_cli.testing import faults
from mtrl_cli.testing.policy_server import ScriptedPolicyServer
from tests.cli.processes import mtrl
from tests.cli.test_bad_input import SMALL

SECRET = 'tml-s3cret"/+9f'


def forms() -> set[str]:
    return {SECRET, json.dumps(SECRET)[1:-1], quote(SECRET, safe=""), json.dumps(SECRET[:12])[1:-1]}


def texts(folder: Path) -> Iterator[tuple[str, str]]:
    """Every file below, and every name."""
    for path in sorted(folder.rglob("*")):
        yield f"name {path}", str(path)
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            data = gzip.decompress(data) if path.suffix == ".gz" else data
            yield str(path), data.decode("utf-8", "replace")


def nowhere(folder: Path, **said: str) -> None:
    for where, text in (*texts(folder), *said.items()):
        for form in forms():
            assert form not in text, where


def play(folder: Path, url: str, *more: str) -> str:
    done = mtrl(
        "train",
        "server=tinker",
        f'server.base_url="{url}"',
        "server.api_key=${ oc.env:SCAN_KEY}",
        "name='scan ${server.api_key}'",
        "server.base_model=scripted",
        "server.tokenizer=mtrl-tiny",
        "budget.deadline=20",
        "group.max_refills=0",
        *SMALL,
        *more,
        cwd=folder,
        SCAN_KEY=SECRET,
    )
    assert "internal error" not in done.stderr
    nowhere(folder, stdout=done.stdout, stderr=done.stderr)
    return done.stderr


FAULTS = {
    "create_model": faults.status(400, {"detail": f"no model for {SECRET}"}),
    "save_weights_for_sampler": faults.fail(f"{SECRET} may not publish", "server"),
    "asample": faults.status(400, {"detail": f"{'x' * 280} {SECRET}"}),
    "create_session": faults.status(200, {"session": SECRET}),
    "retrieve_future": faults.status(404, f"<title>{SECRET}</title>"),
}
SAMPLE = "save_weights_for_sampler"


@pytest.mark.parametrize(
    "endpoint",
    [pytest.param(name, marks=[] if name == SAMPLE else pytest.mark.long) for name in FAULTS],
)
def test_a_server_that_repeats_the_key(tmp_path: Path, endpoint: str) -> None:
    with ScriptedPolicyServer(api_key=SECRET) as server:
        server.faults.add(endpoint, FAULTS[endpoint], times=-1)
        told = play(tmp_path, server.url, *(["--debug"] if endpoint == SAMPLE else []))
    assert "error" in told.lower()


@pytest.mark.long
def test_a_run_that_ends_well_and_what_is_made_of_it(tmp_path: Path) -> None:
    with ScriptedPolicyServer(api_key=SECRET) as server:
        play(tmp_path, server.url, "sinks=[tensorboard]")
        for words in (["show"], ["report"], ["verify"], ["trajectory"], ["cancel"]):
            done = mtrl(*words, "last", cwd=tmp_path, SCAN_KEY=SECRET)
            nowhere(tmp_path, stdout=done.stdout, stderr=done.stderr)


@pytest.mark.parametrize(
    "written",
    [
        "${ oc.env:SCAN_KEY}",
        '${oc.env: "SCAN_KEY" }',
        "${oc.env:${oc.env:SCAN_WHICH}}",
        "${oc.env:NO_SUCH,sk-literal-0123}",
        "x-${oc.decode:${oc.env:SCAN_KEY}}-y",
    ],
)
def test_however_an_interpolation_is_written(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-literal-0123"
    monkeypatch.setenv("SCAN_KEY", key)
    monkeypatch.setenv("SCAN_WHICH", "SCAN_KEY")
    composed = compose(None, [f"server.api_key='{written}'", "name=a ${server.api_key}"])
    experiment = resolve(composed)
    assert experiment.server.api_key is not None
    assert key in experiment.server.api_key
    assert key not in composed.redact(f"{experiment.name} {experiment.server.api_key}")
    assert key not in composed.yaml
