"""A PyTorch extension in the simulator: builds it, and calls its functions in another process.

What both say: common/sim/any/extension.cpp.
"""

import argparse
import contextlib
import dataclasses
import math
import os
import struct
import subprocess
import tempfile
import time

from flash_steps import cuda_program
from flash_steps.building import group_of
from flash_steps.checker import Channel, Ended, end_of
from flash_steps.command import Failure
from flash_steps.files import text_of

FORMATS = {"float16": "e", "float32": "f", "float64": "d", "int64": "q", "int32": "i", "int16": "h",
           "int8": "b", "uint8": "B", "bool": "?"}  # fmt: skip
SIZES = {type: struct.calcsize(form) for type, form in FORMATS.items()} | {"bfloat16": 2}
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
    options.openmp, options.library, options.gpu = False, [], gpu
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
        self.path, self.ends = path, contextlib.ExitStack()
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
        for end in (read, write):
            self.ends.callback(os.close, end)
        self.errors = self.ends.enter_context(tempfile.TemporaryFile())
        words = ["./" + os.path.basename(self.path), str(from_us), str(to_us)]
        how = {"executable": self.path, "cwd": os.path.dirname(self.path), "env": self.environment}
        how |= {"stdin": subprocess.DEVNULL, "stdout": self.errors, "stderr": self.errors}
        how["pass_fds"] = from_us, to_us
        self.process = self.ends.enter_context(group_of(words, **how))
        os.close(from_us)
        os.close(to_us)
        self.channel = Channel(read, write)
        with self._waiting():
            self.functions = self.channel.get()["functions"]

    def close(self):
        self.ends.close()

    @contextlib.contextmanager
    def _waiting(self):
        self.channel.until = time.monotonic() + SECONDS
        try:
            yield
        except TimeoutError:
            raise Stopped(f"a call takes more than {SECONDS} s") from None
        except (Ended, OSError):
            try:
                status = self.process.wait(1)
            except subprocess.TimeoutExpired:  # it runs on
                raise Stopped("the program sent an invalid answer") from None
            said = self.said().strip().splitlines()
            said = f": {said[-1]}" if said else ""
            raise Stopped(f"the program ended by {end_of(status)}{said}") from None

    def said(self):
        """What it wrote to its standard output and error."""
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")

    def call(self, index, arguments, anew=True):
        """The results, with Tensor for tensors; (results, the arguments' bytes after the call, the
        answer). Raises CheckFailed and Stopped, after which the program starts again."""
        words = list(arguments)
        for i, value in enumerate(arguments):
            if isinstance(value, Tensor):
                words[i] = {"sizes": list(value.sizes), "type": value.type, "name": value.name}
                words[i] |= {"cuda": value.cuda}
                words[i] |= {"unwritten": True} if value.data is None else {}
        tensors = [value for value in arguments if isinstance(value, Tensor)]
        data = b"".join(tensor.data or b"" for tensor in tensors)
        try:
            with self._waiting():
                self.channel.put({"call": index, "arguments": words, "anew": anew}, data)
                return self._results(tensors, self.channel.get())
        except Stopped:
            self.start()
            raise

    def _results(self, tensors, answer):
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
                result.data = self.channel.bytes(result.bytes)
        after = [self.channel.bytes(tensor.bytes) for tensor in tensors]
        return results, after, answer
