"""A server of bytes: one connection, one answer, as given, whatever was asked."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Raw:
    """``answer`` may be changed between requests; ``seen`` is what arrived."""

    def __init__(self) -> None:
        self.answer = b""
        self.more: bytes | None = None
        """Sent again and again after the answer, until the client goes."""
        self.seen: list[bytes] = []
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.seen.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(self.answer)
            await writer.drain()
            while self.more is not None:
                writer.write(self.more)
                await writer.drain()
                await asyncio.sleep(0)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def raw(tls: ssl.SSLContext | None = None) -> AsyncIterator[Raw]:
    served = Raw()
    server = await asyncio.start_server(served.handle, "127.0.0.1", 0, ssl=tls)
    scheme = "http" if tls is None else "https"
    served.url = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield served
    finally:
        server.close()


def reply(body: bytes, head: str = "", status: str = "200 OK") -> bytes:
    """A whole reply, after which the connection is of no more use."""
    lines = f"HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n{head}\r\n"
    return lines.encode("latin-1") + body
