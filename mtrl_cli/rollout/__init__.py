"""The shared rollout core: admissions in, trajectories and groups out.

It knows a policy, an environment and a chat format only by the ports in `ports`; it knows no
concrete server or environment, and nothing of the screen.
"""
