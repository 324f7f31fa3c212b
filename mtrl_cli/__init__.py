"""mtrl: multi-turn reinforcement learning of language-model agents, from the client's side."""

__version__ = "0.1.0"
