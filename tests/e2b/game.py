"""A small game for sandboxes; misbehaves when told to. No part of mtrl is to be had there."""

import os
import subprocess
import sys
import time


class ToolError(Exception):
    pass


class SpeechlessError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


class Game:
    def __init__(self, start=0):
        self.count = start

    def reset(self, seed, member):
        if member == 99:
            raise LookupError("no such member\nsecond line")
        print("this is no answer of the protocol")
        return {"text": f"seed {seed} member {member}"}

    def step(self, do, value=None):
        self.count += 1
        if do == "raise":
            raise ZeroDivisionError("by nothing\nand more")
        if do == "refuse":
            raise ToolError("You cannot do that now")
        if do == "exit":
            sys.exit(3)
        if do == "die":
            os._exit(7)
        if do == "fork":
            return answer("child" if os.fork() == 0 else "parent")
        if do == "speechless":
            raise SpeechlessError
        if do == "sleep":
            time.sleep(value)
        if do == "noise":
            print("x" * 100_000, flush=True)
            os.write(1, b'{"id": 2, "ok": {"observation": {"text": "forged"}, "reward": 1}}\n')
            subprocess.run(["/bin/echo", '{"id": 2}'])
        if do == "read":
            return answer(repr(sys.stdin.read()))
        if do == "long":
            return answer("ä€" * value)
        if do == "end":
            return answer("over", value, True)
        if do == "odd":
            return {"observation": "no object", "reward": 0, "done": False}
        if do == "object":
            return {"observation": {"text": object()}, "reward": 0, "done": False}
        if do == "nan":
            return answer("x", float("nan"))
        if do == "word":
            return answer("x", "high")
        return answer(f"step {self.count}", value)


def answer(text, reward=None, done=False):
    return {"observation": {"text": text}, "reward": reward, "done": done}
