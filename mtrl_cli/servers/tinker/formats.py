"""JSON or protobuf: which of the two a call is written in, and reading either.

A result is read as what its Content-Type says, whatever was asked for: some servers answer one
format only. A forward/backward request is written in the session's `Formats.chosen`. Where the
format of a server is not known it is found out by the first such call: 415 and 422 mean that the
server could not read the body, so nothing was executed and the call may be written in the other
format, once. What the server accepted then stays for the session.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mtrl_cli.rollout.ports import Sample
from mtrl_cli.servers.interface import Datum, ForwardBackwardResult, LossSpec
from mtrl_cli.servers.tinker import codec as json_codec
from mtrl_cli.servers.tinker.codec import MalformedReply, parse_aside
from mtrl_cli.wire.tinker_messages import CONTENT_TYPE as PROTOBUF

Format = Literal["json", "protobuf"]

CONTENT_TYPES: Mapping[Format, str] = {"json": "application/json", "protobuf": PROTOBUF}
UNREADABLE = (415, 422)
"""Statuses of a server that cannot read a body: nothing was executed."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A result that came as protobuf, unread: which message it is, the call knows."""

    body: bytes


Result = Mapping[str, Any] | Packed


@dataclass(slots=True)
class Formats:
    """The format of a session's requests.

    ``chosen`` is what a forward/backward pass is written in; ``known`` says that it stays so.
    """

    chosen: Format
    known: bool

    @staticmethod
    def of(codec: Literal["auto", "json", "protobuf"], guess: Format | None = None) -> "Formats":
        """``auto`` with a ``guess`` is what is known of the server; without one, JSON is tried."""
        if codec != "auto":
            return Formats(codec, known=True)
        return Formats(guess or "json", known=guess is not None)

    @property
    def other(self) -> Format:
        return "protobuf" if self.chosen == "json" else "json"

    @property
    def accept(self) -> str:
        """What results are asked for in."""
        return CONTENT_TYPES[self.chosen]

    def accepted(self, content_type: str) -> None:
        """The server read a pass of this type."""
        self.chosen = "protobuf" if content_type == PROTOBUF else "json"
        self.known = True


def is_packed(content_type: str | None) -> bool:
    return content_type is not None and content_type.startswith(PROTOBUF)


async def read_result(body: bytes, content_type: str | None) -> Result:
    """Raises: MalformedReply."""
    return Packed(body) if is_packed(content_type) else await parse_aside(body)


def forward_backward_body(
    written: Format, model: str, seq: int, data: Sequence[Datum], loss: LossSpec
) -> bytes:
    if written == "json":
        return json_codec.forward_backward_body(model, seq, data, loss)
    from mtrl_cli.servers.tinker import protobuf

    return protobuf.forward_backward_body(model, seq, data, loss)


def sample_of(result: Result) -> Sample:
    if isinstance(result, Packed):
        from mtrl_cli.servers.tinker import protobuf

        return protobuf.sample_of(result.body)
    return json_codec.sample_of(result)


def prompt_logprobs_of(result: Result, length: int) -> NDArray[np.float32]:
    if isinstance(result, Packed):
        from mtrl_cli.servers.tinker import protobuf

        return protobuf.prompt_logprobs_of(result.body, length)
    return json_codec.prompt_logprobs_of(result, length)


def forward_backward_of(result: Result) -> ForwardBackwardResult:
    if isinstance(result, Packed):
        from mtrl_cli.servers.tinker import protobuf

        return protobuf.forward_backward_of(result.body)
    return json_codec.forward_backward_of(result)


def unpacked(result: Result) -> Mapping[str, Any]:
    """The result of a call that is answered in JSON by every server."""
    if isinstance(result, Packed):
        raise MalformedReply("the reply is protobuf where the API has JSON")
    return result
