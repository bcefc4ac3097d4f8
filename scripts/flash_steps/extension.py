"""A PyTorch extension in the simulator: builds it, and calls its functions in another process.

What both say: common/sim/any/extension.cpp.
"""

import argparse
import contextlib
import dataclasses
import json
import math
import os
import select
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from flash_steps import cuda_program
from flash_steps.command import Failure
from flash_steps.files import text_of

SIZES = {
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "int64": 8,
    "int32": 4,
    "int16": 2,
}
SIZES |= {"int8": 1, "uint8": 1, "bool": 1}
BINDS = ("PYBIND11_MODULE", "TORCH_LIBRARY")
SECONDS = 60  # of one call


@dataclasses.dataclass
class Tensor:
    """`data`: row-major bytes; None: device memory that nothing has written."""

    sizes: list
    type: str
    data: bytes = None
    name: str = ""
    cuda: bool = True

    @property
    def bytes(self):
        return math.prod(self.sizes) * SIZES[self.type]


class Stopped(Failure):
    """The program ended within a call, or the call takes too long."""


class CheckFailed(Failure):
    """The extension's own check, as a RuntimeError of PyTorch."""


def build(files, folder, gpu="H200", functions=None, include=(), define=()):
    """Compiles and links to `folder`/program. Returns its path and what its text says about the
    functions: [{"name", "scope", "defined", "parameters"}]. Raises cuda_program.Refused."""
    for path in files:
        if not os.path.isfile(path):
            raise cuda_program.Refused(f"there is no file {path}")
        if not path.endswith((*cuda_program.CPLUSPLUS, ".c")):
            raise cuda_program.Refused(f"{path}: its name must end with .cu, .cpp or .c")
    binds = any(word in text_of(path) for path in files for word in BINDS)
    wanted = functions or ("bound" if binds else "all")
    options = argparse.Namespace(extension=wanted, include=list(include), define=list(define))
    options.openmp, options.library = False, []
    how = cuda_program.how_to_build()
    how["flags"] += cuda_program.macros_of(gpu)
    how["local"], how["functions"], how["bound"] = 0, [], binds
    objects = [
        cuda_program.compile_file(path, how, options, folder, i)[0] for i, path in enumerate(files)
    ]
    return cuda_program.link(objects, how, options, folder), how


class Program:
    """The running extension. `functions`: [{"name", "symbol", "parameters"}]."""

    def __init__(self, path, how, files, gpu="H200", analyse=True):
        self.path, self.process = path, None
        self.text = "\n".join(text_of(path) for path in files)
        words = argparse.Namespace(gpu=gpu, workers=None, watchdog=10, limit=None, lines=True)
        words.analyse, words.barriers = analyse, False
        wishes = cuda_program.wishes(words, files, None, [], how["local"])
        self.environment = {**os.environ, "FLASH_STEPS_SIM": wishes + "\nquiet"}
        self.how = how
        self.start()

    def start(self):
        self.close()
        (read, to_us), (from_us, write) = os.pipe(), os.pipe()
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            ["./" + Path(self.path).name, str(from_us), str(to_us)],
            executable=self.path,
            cwd=os.path.dirname(self.path),
            pass_fds=(from_us, to_us),
            stdin=subprocess.DEVNULL,
            stdout=self.errors,
            stderr=self.errors,
            env=self.environment,
            start_new_session=True,
        )
        os.close(from_us)
        os.close(to_us)
        self.read, self.write, self.buffer = read, os.fdopen(write, "wb"), b""
        self.functions = json.loads(self._line())["functions"]

    def close(self):
        if self.process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            os.close(self.read)
            with contextlib.suppress(OSError):  # it has ended
                self.write.close()
            self.errors.close()
            self.process = None

    def _fill(self):
        ready = select.select([self.read], [], [], max(0, self.deadline - time.monotonic()))[0]
        if not ready:
            raise Stopped(f"a call takes more than {SECONDS} s")
        more = os.read(self.read, 1 << 20)
        if not more:
            status = self.process.wait()
            said = self.said().strip().splitlines()
            name = signal.Signals(-status).name if status < 0 else f"status {status}"
            raise Stopped(f"the program ended by {name}{': ' + said[-1] if said else ''}")
        self.buffer += more

    def _line(self):
        self.deadline = time.monotonic() + SECONDS
        while b"\n" not in self.buffer:
            self._fill()
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def _bytes(self, count):
        while len(self.buffer) < count:
            self._fill()
        found, self.buffer = self.buffer[:count], self.buffer[count:]
        return found

    def said(self):
        """What it wrote to its standard output and error."""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def call(self, index, arguments, anew=True):
        """The results, with Tensor for tensors; (results, the arguments' bytes after the call, the
        answer). Raises CheckFailed and Stopped, after which the program starts again."""
        words = []
        for value in arguments:
            if isinstance(value, Tensor):
                word = {"sizes": list(value.sizes), "type": value.type, "name": value.name}
                word["cuda"] = value.cuda
                words.append(word if value.data is not None else {**word, "unwritten": True})
            else:
                words.append(value)
        tensors = [value for value in arguments if isinstance(value, Tensor)]
        try:
            request = json.dumps({"call": index, "arguments": words, "anew": anew})
            self.write.write(request.encode() + b"\n")
            for tensor in tensors:
                self.write.write(tensor.data or b"")
            self.write.flush()
            answer = json.loads(self._line())
        except (Stopped, OSError) as error:
            self.start()
            raise error if isinstance(error, Stopped) else Stopped(str(error)) from None
        if "refused" in answer or "ended" in answer:
            if "ended" in answer:
                self.start()
            error = CheckFailed(answer.get("refused", "a finding ended the program"))
            error.answer = answer
            raise error
        results = [
            Tensor(r["sizes"], r["type"], name=r["buffer"]) if isinstance(r, dict) else r
            for r in answer["results"]
        ]
        for result in results:
            if isinstance(result, Tensor):
                result.data = self._bytes(result.bytes)
        after = [self._bytes(tensor.bytes) for tensor in tensors]
        return results, after, answer
