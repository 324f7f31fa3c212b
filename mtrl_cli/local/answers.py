"""What a finished promise says, in every format that it is asked for.

It is encoded once in the format that its call suggests, in the thread that made it; in the other
one when somebody asks for that.
"""

from __future__ import annotations

from dataclasses import dataclass

from mtrl_cli.local import codec, packed
from mtrl_cli.local.calls import SampleResult, TrainResult


@dataclass(eq=False, slots=True)
class Answer:
    result: object
    json: bytes | None = None
    packed: bytes | None = None

    @staticmethod
    def of(result: object, *, pack: bool = False) -> Answer:
        """``pack``: its call came as protobuf, and so will the question for it."""
        answer = Answer(result)
        answer.body(pack)
        return answer

    def body(self, pack: bool) -> tuple[bytes, str]:
        """The body and its content type; what has no arrays is JSON in any case."""
        if pack and isinstance(self.result, SampleResult | TrainResult):
            if self.packed is None:
                self.packed = packed.encode(self.result)
            return self.packed, packed.CONTENT_TYPE
        if self.json is None:
            self.json = codec.encode(self.result)
        return self.json, codec.CONTENT_TYPE

    @property
    def size(self) -> int:
        """Bytes that it holds on to, about."""
        return len(self.json or b"") + len(self.packed or b"")
