"""Runs commands, keeps what they print."""

import math
import os
import re
import shlex
import subprocess
import threading
import time

from .steps import ROOT


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


class Shell:
    """Runs commands, keeps their output in logs/ and remembers them for results.json."""

    def __init__(self, out, deadline, python):
        # No machine's paths in results.
        self.names = ((python, "python3"), (out, "OUT"), (ROOT, "."))
        self.logs = os.path.join(out, "logs")
        os.makedirs(self.logs, exist_ok=True)
        self.deadline = deadline  # of time.monotonic(), or None
        self.commands = []
        self.lock = threading.Lock()

    def remaining(self):
        return math.inf if self.deadline is None else self.deadline - time.monotonic()

    def __call__(self, name, command, timeout=None, environment=None):
        """(exit status, output); status None: stopped because the time was over."""
        log = os.path.join(self.logs, re.sub(r"[^\w.-]+", "_", name) + ".txt")
        limit = min(timeout or math.inf, max(self.remaining(), 0.1))
        start = time.monotonic()
        with open(log, "w+", encoding="utf-8", errors="replace") as file:
            try:
                status = subprocess.run(
                    command,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    cwd=ROOT,
                    timeout=None if limit == math.inf else limit,
                    env={**os.environ, **(environment or {})},
                ).returncode
            except subprocess.TimeoutExpired:
                status = None
            except OSError as error:
                file.write(f"{command[0]}: {error.strerror}\n")
                status = 127
            file.seek(0)
            output = file.read()
        shown = shlex.join([f"{k}={v}" for k, v in (environment or {}).items()] + command)
        for path, name_of_it in self.names:
            shown = shown.replace(path, name_of_it)
        with self.lock:
            self.commands.append(
                {
                    "name": name,
                    "command": shown,
                    "exit_status": status,
                    "seconds": round(time.monotonic() - start, 2),
                }
            )
        return status, output
