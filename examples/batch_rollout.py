"""Play one batch of groups under the base model, and print what every episode did.

    python examples/batch_rollout.py
    python examples/batch_rollout.py --groups 8 group.size=4 seed=7

The embedded policy server is started for the batch and ended with it. Everything that is
borrowed belongs to the scope of `open_run`; a Ctrl-C at any moment leaves through it.
"""

import argparse

import mtrl_cli.quiet  # noqa: F401 - from here on Ctrl-C is quiet
from mtrl_cli.config.compose import compose
from mtrl_cli.rollout import seeds
from mtrl_cli.rollout.admission import GroupAdmission
from mtrl_cli.rollout.policy import PolicySnapshot
from mtrl_cli.runs.trajectories import write_trajectories
from mtrl_cli.script import Run, open_run, run


def admission(opened: Run, policy: PolicySnapshot, group: int) -> GroupAdmission:
    """The facts that are fixed when a group enters: what is played, under which policy."""
    task = opened.parts.task.sample(seeds.derive("task/rollout", opened.plan.seed, group))
    return opened.plan.admission(opened.folder.id, "rollout", group, task, policy)


async def main(groups: int, overrides: list[str]) -> None:
    async with open_run(compose("blackjack", overrides), "rollout") as opened:
        policy = PolicySnapshot(await opened.parts.service.base_policy(), step=0)
        admissions = [admission(opened, policy, group) for group in range(groups)]

        played = await opened.rollout().run(admissions)

        for group in played:
            print(f"group {group.admission.group}: {group.failed or 'complete'}")
            for member in group.members:
                answers = [call.answer for turn in member.turns for call in turn.calls]
                print(f"  {member.reward:+.0f}, {member.stop}: {' | '.join(answers)}")
        write_trajectories(opened.folder.path / "trajectories" / "rollout.jsonl.gz", played)
        print(f"trajectories: {opened.folder.path}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for `mtrl rollout`")
    asked = parser.parse_args()
    run(main(asked.groups, asked.overrides))
