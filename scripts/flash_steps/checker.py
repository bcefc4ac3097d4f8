"""The checker (steps/exercise_checker/checker.cpp), and how programs talk to each other: a line of
JSON, then bytes (common/counts/channel.h)."""

import contextlib
import json
import os
import select
import signal
import subprocess
import time

from .building import group_of
from .command import Failure

LONGEST = 64 << 20  # bytes of a line


class Ended(Exception):
    """The other program says nothing more, or nothing of sense."""


class CheckerEnded(Failure):
    """The checker crashed, or the system ended it: no verdict on what was asked."""


def end_of(status):
    """A process: "SIGSEGV", or "status 2"."""
    return signal.Signals(-status).name if status < 0 else f"status {status}"


class Channel:
    """One end, of two file descriptors. `until`: when time.monotonic() ends the wait."""

    def __init__(self, read, write):
        self.read, self.write, self.buffer, self.until = read, write, bytearray(), None

    def put(self, line, data=b""):
        left = memoryview(json.dumps(line).encode() + b"\n" + data)
        while left:
            left = left[os.write(self.write, left) :]

    def get(self):
        while (end := self.buffer.find(b"\n")) < 0:
            if len(self.buffer) > LONGEST:
                raise Ended
            self._fill()
        try:
            return json.loads(self.bytes(end + 1))
        except (ValueError, RecursionError):
            raise Ended from None

    def bytes(self, count):
        while len(self.buffer) < count:
            self._fill()
        found = bytes(self.buffer[:count])
        del self.buffer[:count]
        return found

    def _fill(self):
        if self.until is not None:
            left = max(0, self.until - time.monotonic())
            if not select.select([self.read], [], [], left)[0]:
                raise TimeoutError
        more = os.read(self.read, 1 << 20)
        if not more:
            raise Ended
        self.buffer += more


class Checker:
    """Asks about a problem: `asked` is {"problem", "type", "seed", ...}, as checker.cpp says."""

    def __init__(self, process):
        self.process = process
        self.channel = Channel(process.stdout.fileno(), process.stdin.fileno())

    def ask(self, asked, data=b""):
        try:
            self.channel.put(asked, data)
            return self.channel.get()
        except (Ended, OSError):
            raise self.ended() from None

    def ended(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            how = end_of(self.process.wait(5))
            return CheckerEnded(f"the checker ended by {how}: there is no verdict")
        return CheckerEnded("the checker sent an invalid answer: there is no verdict")

    def inputs(self, asked, names):
        """({name: its bytes}, the answer)"""
        said = self.ask({**asked, "inputs": list(names)})
        try:
            return {n: self.channel.bytes(size) for n, size in zip(names, said["sizes"])}, said
        except Ended:
            raise self.ended() from None

    def check(self, asked, outputs):
        """The verdict on each of {name: (type, bytes)}."""
        line = [{"name": name, "type": type} for name, (type, _) in outputs.items()]
        return self.ask({**asked, "outputs": line}, b"".join(data for _, data in outputs.values()))


@contextlib.contextmanager
def started(path):
    ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with group_of([str(path)], **ends) as process, process.stdin:
        yield Checker(process)


def made_by_the_host(outputs, inputs, moved):
    """Why kernels did not make the result, or "". `outputs`: {name: bytes}; `moved`: {buffer:
    {"read", "write", "atomic"}} by kernels alone, without copies and memsets."""
    none = dict.fromkeys(("read", "write", "atomic"), 0)
    for name, size in outputs.items():
        of = moved.get(name, none)
        written = of["write"] + of["atomic"]
        # What is added to may have rows to which nothing is added.
        if written < (1 if of["atomic"] else size):
            return f"{name} has {size:,} bytes, and kernels wrote {written:,} of them"
    return next((f"no kernel read {n}" for n in inputs if not moved.get(n, none)["read"]), "")
