"""The kinds of training calls, and what is told of a cell."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Call:
    """A kind of training call: its endpoint, and how many of its requests pass unharmed."""

    kind: str
    endpoint: str
    skip: int = 1
    numbered: bool = True
    """It has a sequence number, by which a server can know it again."""


CALLS = (
    Call("create_model", "create_model", 0, numbered=False),
    Call("load_state", "load_weights", 0),
    Call("forward_backward", "forward_backward"),
    Call("optim_step", "optim_step"),
    Call("publish", "save_weights_for_sampler"),
    Call("save_state", "save_weights", 0),
    Call("unload_model", "unload_model", 0, numbered=False),
)
BY_KIND = {call.kind: call for call in CALLS}


@dataclass
class Result:
    """How a cell ended. ``told``: the outcome that the ledger had for the call before any later
    attempt; ``attempts`` that it took; ``flaws``: what was not as it must be."""

    told: str = "–"
    attempts: int = 0
    flaws: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.flaws
