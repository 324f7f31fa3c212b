"""120 trajectories, 48 wide, under every fault at once: each one is accounted for, no reward comes
from a fault, and nothing is left at the provider. A smaller number runs always."""

import asyncio
import random
from collections import Counter

import pytest

from mtrl_cli.chat.renderer import RendererChat
from mtrl_cli.chat.tokenizer import load_tokenizer
from mtrl_cli.rollout.admission import Budget, GroupAdmission
from mtrl_cli.rollout.client import ClientMultiTurnRollout
from mtrl_cli.rollout.group import FailureRule, Group
from mtrl_cli.rollout.ports import Sample, SampleRequest, SamplingParams
from mtrl_cli.rollout.trajectory import Stop
from mtrl_cli.tasks.blackjack.game import Game
from mtrl_cli.tasks.blackjack.task import Blackjack
from mtrl_cli.testing import faults
from mtrl_cli.testing.e2b_emulator import E2BEmulator
from tests.e2b.rig import Rig, rig

HTML = {"Content-Type": "text/html"}
BLACKJACK = {
    "entrypoint": "mtrl_cli.tasks.blackjack.program:BlackjackProgram",
    "files": ("mtrl_cli.tasks.blackjack.game", "mtrl_cli.tasks.blackjack.text"),
    "adapter": Blackjack(),
}
FAULTS = (
    ("create", faults.drop_reply()),
    ("create", faults.reset()),
    ("create", faults.hang()),
    ("create", faults.status(504, {"code": 504, "message": "late"}, executes=True)),
    ("create", faults.status(429, "<html>", headers=HTML, retry_after=0.3)),
    ("create", faults.status(429, {"code": 429, "message": "slow"}, retry_after=0.3)),
    ("create", faults.status(503, {"code": 503, "message": "busy"}, retry_after=0.3)),
    ("create", faults.status(500, "<html>", headers=HTML)),
    ("create", faults.hide(0.5)),
    ("list", faults.status(503, "<html>", headers=HTML)),
    ("write", faults.vanish()),
    ("start", faults.vanish()),
    ("start", faults.reset()),
    ("send_input", faults.reset()),
    ("send_input", faults.drop_request()),
    ("send_input", faults.vanish()),
    ("output", faults.reset()),
    ("kill", faults.reset()),
    ("kill", faults.drop_reply()),
    ("kill", faults.late(0.5)),
    ("kill", faults.status(503, "<html>", headers=HTML)),
)


class Stands:
    """A policy that always stands, so that every reward can be worked out."""

    def __init__(self) -> None:
        tokenizer = load_tokenizer("mtrl-tiny")
        call = '<tool_call>\n{"name": "play", "arguments": {"action": "stand"}}\n</tool_call>'
        end = tokenizer.convert_tokens_to_ids("<|im_end|>")
        self._tokens = [*tokenizer.encode(call), end]
        self.chat = RendererChat(tokenizer, "qwen3")

    async def sample(self, request: SampleRequest) -> Sample:
        await asyncio.sleep(0.02)
        return Sample(self._tokens, [-0.1] * len(self._tokens), "stop")


def admission(group: int, size: int) -> GroupAdmission:
    return GroupAdmission(
        run="run-1", stream="train", run_seed=1, group=group, size=size,
        task=Blackjack().sample(group), policy="p", policy_step=0, sampling=SamplingParams(),
        budget=Budget(64, 1024, 2048, 4, deadline=120.0),
    )  # fmt: skip


def rollout(use: Rig, policy: Stands, concurrency: int) -> ClientMultiTurnRollout:
    return ClientMultiTurnRollout(
        policy=policy, chat=policy.chat, task=Blackjack(), envs=use.factory,
        resources=use.resources, concurrency=concurrency,
        failure_rule=FailureRule("refill", max_refills=4),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "cancelled", "wide", "times"),
    [
        pytest.param(4, 1, 16, 1, id="33 trajectories"),
        pytest.param(15, 3, 48, 3, id="120 trajectories", marks=pytest.mark.long),
    ],
)
async def test_trajectories_under_every_fault(
    emulator: E2BEmulator, groups: int, cancelled: int, wide: int, times: int
) -> None:
    """``groups`` groups of 7 are played, ``cancelled`` groups of 5 are dropped on their way."""
    draw = random.Random(5)
    for operation, fault in FAULTS * times:
        emulator.faults.add(operation, fault, skip=draw.randrange(2, groups * 6))
    policy = Stands()
    async with rig(emulator, at_once=wide, settles=4.0, **BLACKJACK) as use:
        played = rollout(use, policy, wide - 8 if cancelled else wide)
        dropped = rollout(use, policy, 8)
        for number in range(cancelled):
            dropped.admit(admission(1000 + number, 5))
        playing = asyncio.ensure_future(played.run([admission(n, 7) for n in range(groups)]))
        await asyncio.sleep(0.5)
        settled = await dropped.stop(cancel=True)
        done = await playing
    finished = [group.admission.group for group in settled.undelivered]
    assert sorted([*settled.dropped, *finished]) == list(range(1000, 1000 + cancelled))
    # Every trajectory is finished, or its failure is the infrastructure's.
    for group in done:
        check(group)
    failures = Counter(f.stop for group in done for f in group.failures)
    assert set(failures) <= {Stop.ENV_FAILURE}
    assert emulator.faults.met >= len(FAULTS) * times // 2
    # Nothing is left, by the emulator's own count, and every sandbox is accounted for.
    counts = emulator.counts()
    assert emulator.live == []
    assert counts["created"] == counts["killed"] + counts["vanished"]
    assert counts["most"] <= wide + len(FAULTS) * times  # lost ones come on top
    assert use.resources.live == ()
    assert use.journal.open() == []


def check(group: Group) -> None:
    assert group.failed is None
    assert [member.admission.member for member in group.members] == list(range(7))
    for member in group.members:
        game = Game.deal(group.admission.task.seed, member.admission.member)
        game.stand()
        assert (member.stop, member.reward) == (Stop.DONE, game.reward)
        assert member.admission.refill == sum(
            failure.admission.member == member.admission.member for failure in group.failures
        )
    assert all(failure.reward is None for failure in group.failures)
