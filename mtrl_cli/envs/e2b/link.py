"""JSON lines to the one process of a sandbox, over the SDK's commands.

A request goes out by ``send_stdin``; its answer comes back on the command's output, in pieces.
Each has an id, and the worker answers an id that it has answered from memory. So a request whose
outcome is unknown (the sending failed, the stream broke) is sent once more under the same id,
after the stream was opened anew, and executes at most once.
"""

import asyncio
import contextlib
import itertools
import json
from collections.abc import Mapping
from typing import Any

from mtrl_cli.envs.e2b.worker import LONGEST
from mtrl_cli.foreign import told

_SHORT = 2000
"""Characters of the process's error output that are kept for a message."""

_OUR_OWN = 0
"""The SDK's word for no time-out when a stream is opened: we bound it ourselves. Under its own,
a cancelled opening leaves an error that nobody can catch, and a traceback on the screen."""


class LinkBroken(Exception):  # noqa: N818
    """The process cannot be asked any more, or did not answer; the text says why."""


class Failed(Exception):  # noqa: N818
    """The process answered with an error; ``trace`` is the game's traceback, if it raised."""

    def __init__(self, kind: str, message: str, trace: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.trace = trace


class Link:
    """The line to one running process. `open` it, `ask`, `close`."""

    def __init__(self, sandbox: Any) -> None:
        """``sandbox`` is the SDK's ``AsyncSandbox``."""
        self._commands = sandbox.commands
        self._handle: Any = None
        self._watch: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._pieces: list[str] = []
        self._length = 0
        self._stderr = ""
        self._ended: str | None = None
        """Why it can never answer again."""
        self._lost: asyncio.Future[str] | None = None
        """Done when the stream is broken; the process may live on."""

    async def open(self, command: str, timeout: float) -> Mapping[str, Any]:
        """Start ``command`` and wait for its first answer, which has the id 0.

        Raises:
            LinkBroken, Failed, TimeoutError
            Exception: the SDK's, when it could not be started.
        """
        async with asyncio.timeout(timeout):
            first = self._expect(0)
            self._attach(
                await self._commands.run(
                    command,
                    background=True,
                    stdin=True,
                    timeout=0,
                    request_timeout=_OUR_OWN,
                    cwd=".",
                    on_stdout=self._read,
                    on_stderr=self._read_stderr,
                    retain_output=False,
                )
            )
            return await self._answer(first, 0)

    async def ask(
        self, operation: str, data: Mapping[str, Any], timeout: float
    ) -> Mapping[str, Any]:
        """The answer to one request.

        Raises:
            LinkBroken: it is not known, and will not be.
            Failed: it is an error.
            TimeoutError
        """
        number = next(self._numbers)
        text = json.dumps({"id": number, "op": operation, "data": dict(data)}) + "\n"
        answer = self._expect(number)
        try:
            async with asyncio.timeout(timeout):
                problem = await self._exchange(text, answer, timeout)
                if problem is not None:
                    await self._reopen(problem)
                    # The first line may have been cut off: a new line ends what there is of it.
                    problem = await self._exchange("\n" + text, answer, timeout)
                if problem is not None:
                    raise LinkBroken(problem)
                return await self._answer(answer, number)
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """Leave the stream. What becomes of the process is the sandbox's business."""
        self._end("it is closed")
        if self._watch is not None:
            self._watch.cancel()
        if self._handle is not None:
            with contextlib.suppress(Exception):
                await self._handle.disconnect()

    # --- one exchange ---------------------------------------------------------------------------

    async def _exchange(
        self, text: str, answer: "asyncio.Future[Mapping[str, Any]]", timeout: float
    ) -> str | None:
        """Send a line and wait for its answer; why there is none, if it may be asked again."""
        self._check()
        assert self._lost is not None
        lost = self._lost
        sending = asyncio.ensure_future(self._send(text, timeout))
        sending.add_done_callback(_heard)  # where the stream or the answer was first
        try:
            await _first(sending, lost, answer)
            if sending.done() and (problem := sending.result()) is not None:
                return None if answer.done() else problem
            await _first(lost, answer)
            return None if answer.done() else lost.result()
        finally:
            sending.cancel()

    async def _send(self, text: str, timeout: float) -> str | None:
        """What went wrong, if it may still have arrived.

        Raises:
            LinkBroken: it surely did not, and will not.
        """
        import e2b

        try:
            await self._handle.send_stdin(text, request_timeout=timeout)
        except (e2b.NotFoundException, e2b.SandboxNotRunningException) as error:
            raise LinkBroken(self._why(f"the process is gone ({told(error)})")) from error
        except e2b.RateLimitException as error:
            await asyncio.sleep(1.0)
            return told(error)
        except Exception as error:
            return told(error)
        return None

    async def _reopen(self, problem: str) -> None:
        """Attach to the process anew, where its stream is broken.

        Raises:
            LinkBroken: that fails too.
        """
        assert self._lost is not None
        if not self._lost.done():
            return
        self._check()
        self._pieces, self._length = [], 0  # the rest of a line that was cut off never comes
        try:
            self._attach(
                await self._commands.connect(
                    self._handle.pid,
                    timeout=0,
                    request_timeout=_OUR_OWN,
                    on_stdout=self._read,
                    on_stderr=self._read_stderr,
                    retain_output=False,
                )
            )
        except Exception as error:
            self._end(f"{problem}; it could not be reached again ({told(error)})")
            self._check()

    async def _answer(
        self, answer: "asyncio.Future[Mapping[str, Any]]", number: int
    ) -> Mapping[str, Any]:
        assert self._lost is not None
        await _first(answer, self._lost)
        self._waiting.pop(number, None)
        if not answer.done():
            raise LinkBroken(self._why(self._lost.result()))
        message = answer.result()
        if "error" in message:
            error = message["error"]
            trace = error.get("trace")
            raise Failed(
                str(error.get("kind")),
                str(error.get("message")),
                trace if isinstance(trace, str) else None,
            )
        result = message.get("ok")
        if not isinstance(result, Mapping):
            raise Failed("fault", f"it answered {type(result).__name__}, not an object")
        return result

    def _expect(self, number: int) -> "asyncio.Future[Mapping[str, Any]]":
        self._check()
        future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        return future

    # --- the stream -----------------------------------------------------------------------------

    def _attach(self, handle: Any) -> None:
        self._handle = handle
        self._lost = asyncio.get_running_loop().create_future()
        self._watch = asyncio.ensure_future(self._watched(handle, self._lost))

    async def _watched(self, handle: Any, lost: "asyncio.Future[str]") -> None:
        """A stream that ends says so only to who waits for the command."""
        import e2b

        try:
            await handle.wait()
            self._end("the process has ended")
        except e2b.CommandExitException as error:
            self._end(f"the process has ended with exit code {error.exit_code}")
        except (e2b.SandboxNotRunningException, e2b.NotFoundException) as error:
            self._end(told(error))
        except Exception as error:
            if not lost.done():
                lost.set_result(f"its output broke off ({told(error)})")

    def _read(self, piece: str) -> None:
        """Output as it comes. Never raises: that would end the stream in silence."""
        *whole, rest = piece.split("\n")
        for end in whole:
            text = "".join([*self._pieces, end])
            self._pieces, self._length = [], 0
            self._take(text)
        self._length += len(rest)
        if self._length > LONGEST + 1024:
            self._end(f"it sent a line of more than {LONGEST:,} characters")
            self._pieces, self._length = [], 0
        elif rest:
            self._pieces.append(rest)

    def _take(self, text: str) -> None:
        try:
            message = json.loads(text)
            future = self._waiting.get(message["id"])
        except (ValueError, LookupError, TypeError, RecursionError):
            return  # no answer of ours: whoever waits has a deadline
        if future is not None and not future.done():
            future.set_result(message)

    def _read_stderr(self, piece: str) -> None:
        self._stderr = (self._stderr + piece)[-_SHORT:]

    def _end(self, reason: str) -> None:
        self._ended = self._ended or reason
        if self._lost is not None and not self._lost.done():
            self._lost.set_result(self._ended)

    def _check(self) -> None:
        """Raises: LinkBroken."""
        if self._ended is not None:
            raise LinkBroken(self._why(self._ended))

    def _why(self, reason: str) -> str:
        last = self._stderr.strip().rpartition("\n")[2]
        return f"{reason}: {last}" if last else reason


def _heard(task: "asyncio.Task[Any]") -> None:
    """Nobody else may ask how it ended, and an error that nobody asks for is a traceback."""
    if not task.cancelled():
        task.exception()


async def _first(*futures: "asyncio.Future[Any]") -> None:
    """Wait until one of them is done."""
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
