"""Bodies of bounded length, also of those that came packed although nobody asked for it.

Requests ask for ``identity``. Some proxies pack all the same, and a small body can unpack to any
length, so the length is bounded before the memory is taken.
"""

import zlib
from collections.abc import AsyncIterable, Mapping

from mtrl_cli.servers.errors import ReplyTooLargeError

_GZIP_OR_ZLIB = 47


class ReplyDamagedError(ConnectionError):
    """The body is not packed as its head says."""


async def gathered(pieces: AsyncIterable[bytes], most: int) -> bytes:
    """A body of ``most`` bytes at most. Raises: ReplyTooLargeError."""
    kept: list[bytes] = []
    left = most
    async for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise ReplyTooLargeError(most)
        kept.append(piece)
    return b"".join(kept)


def unpacked(body: bytes, headers: Mapping[str, str], most: int) -> bytes:
    """The body as it was before it was packed.

    Args:
        headers: names in lower case, or of any case where the mapping minds none.
        most: bytes.

    Raises:
        ReplyDamagedError, ReplyTooLargeError
    """
    if headers.get("content-encoding", "identity") not in ("gzip", "deflate"):
        return body
    reader = zlib.decompressobj(_GZIP_OR_ZLIB)
    try:
        plain = reader.decompress(body, most)
    except zlib.error as error:
        raise ReplyDamagedError(str(error)) from None
    if reader.unconsumed_tail:
        raise ReplyTooLargeError(most)
    if not reader.eof:
        raise ReplyDamagedError("it ends too early")
    return plain
