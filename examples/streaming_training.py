"""The training loop of `mtrl train`, written out: groups in, policies out.

    python examples/streaming_training.py train.steps=20 train.max_policy_lag=1

With a lag of 1 the next groups are played while a step trains. Everything that is borrowed
belongs to a scope; a Ctrl-C at any moment leaves through it.
"""

import argparse
from functools import partial
from statistics import fmean

import mtrl_cli.quiet  # noqa: F401 - from here on Ctrl-C is quiet
from mtrl_cli.config.compose import compose
from mtrl_cli.rollout import seeds
from mtrl_cli.rollout.admission import GroupAdmission
from mtrl_cli.rollout.driver import StreamingDriver
from mtrl_cli.rollout.policy import PolicySnapshot, snapshot_name
from mtrl_cli.script import Run, open_run, run
from mtrl_cli.training.commit import commit
from mtrl_cli.training.operations import Operations
from mtrl_cli.training.step.audit import Audit
from mtrl_cli.training.step.batch import KlPenalty, build_batch
from mtrl_cli.training.step.groups import GroupRules, training_groups
from mtrl_cli.training.step.reference import reference_logprobs


def admit(opened: Run, group: int, policy: PolicySnapshot) -> GroupAdmission:
    task = opened.parts.task.sample(seeds.training_task(opened.plan.seed, group))
    return opened.plan.admission(opened.folder.id, "train", group, task, policy)


async def train(opened: Run, operations: Operations) -> None:
    plan, service = opened.plan, opened.parts.service
    initial = policy = await publish(opened, operations, 0)
    commit(opened.folder, 0, initial, None, {})
    lag, pace = plan.max_policy_lag, {"per_step": plan.groups_per_step, "steps": plan.steps}
    driver = StreamingDriver(opened.rollout(), partial(admit, opened), initial, lag=lag, **pace)
    audit = Audit(plan.audit, plan.loss, service, print)
    async with driver:
        for step in range(plan.steps):
            groups = await driver.take()
            kept = training_groups(groups, GroupRules(policy.step, lag))
            reference = await reference_logprobs(service, initial, kept.trajectories)
            batch = build_batch(kept, plan.advantage, KlPenalty(plan.kl(step), reference))
            if batch.data:
                replay = await audit.replay(policy, batch)
                result = await operations.forward_backward(batch.data, plan.loss)
                await audit.check(step + 1, policy, batch, result.logprobs, replay)
                await operations.optim_step(plan.adam(step))
                policy = await publish(opened, operations, policy.step + 1)
            driver.publish(policy)
            commit(opened.folder, step + 1, policy, None, kept.outcomes)
            rewards = [reward for group in kept.groups for reward in group.rewards]
            print(f"step {step + 1}: mean reward {fmean(rewards or [0]):+.3f}, {policy.uri}")


async def publish(opened: Run, operations: Operations, step: int) -> PolicySnapshot:
    name = snapshot_name(opened.folder.id, opened.folder.attempt, step)
    return PolicySnapshot(await operations.publish(name), step)


async def main(overrides: list[str]) -> None:
    async with open_run(compose("blackjack", overrides), "train") as opened:
        folder, parts = opened.folder, opened.parts
        operations = Operations(parts.service, folder.ledger, folder.attempt, parts.chat.vocabulary)
        async with opened.resources.scope("model") as scope:
            await scope.borrow(operations.server_model(opened.plan.model))
            await train(opened, operations)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for `mtrl train`")
    run(main(parser.parse_args().overrides))
