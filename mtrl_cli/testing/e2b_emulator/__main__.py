"""``mtrl dev e2b-emulator``: the emulator in the foreground, until Ctrl-C."""

import argparse
import asyncio
import shlex
import signal
import sys

from mtrl_cli.testing.e2b_emulator.server import E2BEmulator


async def serve(port: int) -> None:
    """Raises: OSError: the port cannot be listened on."""
    emulator = E2BEmulator()
    await emulator.start(port)
    end = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    try:
        lines = [f"export {name}={shlex.quote(v)}" for name, v in emulator.environ().items()]
        lines += [
            "# In another shell: paste the lines above, then two steps at a pace without limits:",
            "mtrl train conf=blackjack_e2b train.steps=2 train.kl_end_step=null"
            " env.e2b.per_second=50",
            "# Commands run as processes of this machine, without isolation. Ctrl-C ends it.",
        ]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
        await end.wait()
    finally:
        await emulator.stop()
    counts = emulator.counts()
    sys.stdout.write(
        f"ended: {counts['created']} sandboxes created, at most {counts['most']} at once,"
        f" {counts['killed']} killed, {counts['expired']} expired\n"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="mtrl dev e2b-emulator")
    parser.add_argument("--port", type=int, default=0)
    try:
        asyncio.run(serve(parser.parse_args().port))
    except OSError as error:
        sys.stderr.write(f"error: cannot listen: {error.strerror}; choose another --port\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
