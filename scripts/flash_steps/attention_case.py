"""An attention problem for somebody's extension, and the process that has the reference."""

import dataclasses
import json
import math
import os
import struct
import subprocess
import sys
from pathlib import Path

from . import building
from .command import Failure, NotHere
from .extension import Tensor
from .files import ROOT
from .roles import STATISTICS

JUDGE = Path(ROOT, "build", "sim", "steps", "exercise_checker", "exercise_judge")

# The order of the axes in memory, and the tensor's sizes.
LAYOUTS = {
    "[B, H, N, d]": ("bhnd", lambda b, h, n, d: [b, h, n, d]),
    "[B, N, H, d]": ("bnhd", lambda b, h, n, d: [b, n, h, d]),
    "[B*H, N, d]": ("bhnd", lambda b, h, n, d: [b * h, n, d]),
    "[N, d]": ("bhnd", lambda b, h, n, d: [n, d]),
    "[N, H, d]": ("bnhd", lambda b, h, n, d: [n, h, d]),
    "[B, N, H*d]": ("bnhd", lambda b, h, n, d: [b, n, h * d]),
    "[B*H*N*d]": ("bhnd", lambda b, h, n, d: [b * h * n * d]),
}
ONE_HEAD, ONE_ENTRY = ("[N, d]",), ("[N, d]", "[N, H, d]")
# A mask as a tensor: its type (None: the problem's), and its values for a key that is seen or not.
MASKS = {
    "0 or -inf": (None, 0.0, -math.inf),
    "true: seen": ("bool", 1, 0),
    "true: hidden": ("bool", 0, 1),
    "1: seen": ("int32", 1, 0),
}
FORMATS = {"float32": "f", "float16": "e", "bool": "B", "int32": "i"}


@dataclasses.dataclass(frozen=True)
class Case:
    """A problem, how its tensors lie, and what the extension is taken to compute."""

    b: int = 2
    h: int = 3
    n: int = 64  # keys, and queries unless `one`
    d: int = 64
    causal: bool = False
    layout: str = "[B, H, N, d]"
    type: str = "float32"
    unscaled: bool = False  # without 1/sqrt(d)
    block: int = 32
    zeroed: bool = False  # outputs among the arguments are zero, not unwritten
    host: bool = False  # the tensors are the host's, and the extension copies them
    seed: int = 1
    factor: int = 1  # of Q: how far apart the scores of a row are
    group: int = 1  # query heads that share a head of keys
    one: str = ""  # "[1]": one query, a step of decoding; "[]": without its axis
    packed: bool = False  # documents, one after the other, and where each begins
    ragged: bool = False  # each batch entry has its own number of keys
    mask: str = ""  # one of MASKS, of a window
    mask_axes: int = 2

    def fitted(self):
        b = 1 if self.layout in ONE_ENTRY else self.b
        h = 1 if self.layout in ONE_HEAD else max(self.h // self.group, 1) * self.group
        return dataclasses.replace(self, b=b, h=h)

    @property
    def rows(self):
        return 1 if self.one else self.n

    @property
    def hkv(self):
        return self.h // self.group

    @property
    def documents(self):
        first, second = self.n // 2, self.n // 8 + 1
        return [first, second, self.n - first - second]

    @property
    def keys(self):
        return [self.n - (7 * i + 3) % self.n for i in range(self.b)]

    @property
    def window(self):
        """Keys that a row sees before its own, and after."""
        return self.n // 4, 1 + self.seed % 3

    def sizes(self, name):
        b, d = self.b, self.d
        of_keys = name in ("K", "V", "dK", "dV")
        h, n = (self.hkv, self.n) if of_keys else (self.h, self.rows)
        if name in STATISTICS:
            few = {"[B*H, N, d]": [b * h, n], "[N, d]": [n], "[B*H*N*d]": [b * h * n]}
            return few.get(self.layout, [h, n] if self.packed else [b, h, n])
        if self.one == "[]" and not of_keys and "*d" not in self.layout:
            n = None
        return [size for size in LAYOUTS[self.layout][1](b, h, n, d) if size is not None]

    def tensor(self, name):
        """Unwritten; that of a mask, of lengths and of starts is written."""
        if name == "starts":
            starts = [sum(self.documents[:i]) for i in range(len(self.documents) + 1)]
            return Tensor([len(starts)], "int32", struct.pack(f"{len(starts)}i", *starts), name)
        if name == "lengths":
            return Tensor([self.b], "int32", struct.pack(f"{self.b}i", *self.keys), name)
        if name == "mask":
            return self.mask_tensor()
        return Tensor(self.sizes(name), "float32" if name in STATISTICS else self.type, name=name)

    def mask_tensor(self):
        type, seen, hidden = MASKS[self.mask]
        left, right = self.window
        sees = [[r - left <= c <= r + right for c in range(self.n)] for r in range(self.rows)]
        values = [seen if one else hidden for row in sees for one in row]
        type = type or self.type
        if type == "bfloat16":  # the upper half of a float32
            wide = struct.pack(f"{len(values)}f", *values)
            data = b"".join(wide[i + 2 : i + 4] for i in range(0, len(wide), 4))
        else:
            data = struct.pack(f"{len(values)}{FORMATS[type]}", *values)
        ahead = {2: [], 3: [self.b, 1], 4: [self.b, self.h]}[self.mask_axes]
        return Tensor([*ahead, self.rows, self.n], type, data * math.prod(ahead), "mask")

    def bytes_of(self, name):
        if name == "qkv":
            return self.bytes_of("Q") + 2 * self.bytes_of("K")
        return self.tensor(name).bytes

    def asked(self):
        problem = {"b": self.b, "h": self.h, "hkv": self.hkv, "n": self.rows, "nk": self.n}
        problem |= {"d": self.d, "causal": self.causal, "factor": self.factor}
        problem |= {"window": self.window} if self.mask else {}
        problem |= {"lengths": self.documents} if self.packed else {}
        problem |= {"keys": self.keys} if self.ragged else {}
        return {"problem": problem, "seed": self.seed, "type": self.type,
                "order": LAYOUTS[self.layout][0], "unscaled": self.unscaled}  # fmt: skip

    def __str__(self):
        words = [f"B={self.b} H={self.h}"] + [f"Hkv={self.hkv}"] * (self.group > 1)
        words += [f"Nq=1 Nk={self.n}" if self.one else f"N={self.n}", f"d={self.d}"]
        words += ["causal"] * self.causal + [f"window={self.window[0]},{self.window[1]}"] * bool(
            self.mask
        )
        words += [f"documents={self.documents}"] * self.packed + [f"keys={self.keys}"] * self.ragged
        return " ".join([*words, self.type])


class Judge:
    """The process with the reference (steps/exercise_checker/extension.cpp)."""

    def __init__(self):
        folders = Path(ROOT, "common"), Path(ROOT, "steps", "exercise_checker")
        files = [path for folder in folders for path in folder.rglob("*.[ch]*")]
        if not building.is_newer(JUDGE.parent / "judge_built", files):
            log = os.path.join(ROOT, "build", "judge.log")
            failed = building.build_or_say("sim", ["judge"], log, sys.stderr)
            if failed:
                raise NotHere(f"the judge was not built: {failed[1]}")
        self.process = subprocess.Popen(
            [JUDGE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    def close(self):
        self.process.stdin.close()
        self.process.wait()

    def _ask(self, line, data=b""):
        self.process.stdin.write(json.dumps(line).encode() + b"\n" + data)
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise Failure("the judge ended")
        return json.loads(answer)

    def inputs(self, case, names):
        """{name: its bytes}"""
        self._ask({**case.asked(), "inputs": list(names)})
        return {name: self.process.stdout.read(case.bytes_of(name)) for name in names}

    def check(self, case, outputs, traffic):
        """The verdict on each of {name: Tensor}, and why the kernels did not make them, or ""."""
        line = {"outputs": [{"name": n, "type": t.type} for n, t in outputs.items()]}
        data = b"".join(t.data for t in outputs.values())
        answer = self._ask({**case.asked(), **line, "traffic": traffic}, data)
        return answer["tensors"], answer["host"]
