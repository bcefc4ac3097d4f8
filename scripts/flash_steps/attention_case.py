"""An attention problem for somebody's extension: its tensors, and how they lie in memory."""

import dataclasses
import math
import struct

from .extension import FORMATS, Tensor
from .roles import STATISTICS

LAYOUTS = ("[B, H, N, d]", "[B, N, H, d]", "[B*H, N, d]", "[N, d]", "[N, H, d]", "[B, N, H*d]",
           "[B*H*N*d]")  # fmt: skip
OF_KEYS = ("K", "V", "dK", "dV")
ONE_HEAD, ONE_ENTRY = ("[N, d]",), ("[N, d]", "[N, H, d]")
# A mask as a tensor: its type (None: the problem's), and its values for a key that is seen or not.
MASKS = {
    "0 or -inf": (None, 0.0, -math.inf),
    "true: seen": ("bool", 1, 0),
    "true: hidden": ("bool", 0, 1),
    "1: seen": ("int32", 1, 0),
}


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
    out: str = ""  # their type, if it is not that of Q
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

    @property
    def rows_first(self):
        return "H" in self.layout and self.layout.index("N") < self.layout.index("H")

    def sizes(self, name):
        of_keys, axes = name in OF_KEYS, self.layout[1:-1].split(", ")
        size = {"B": self.b, "H": self.hkv if of_keys else self.h, "d": self.d}
        size["N"] = self.n if of_keys else self.rows
        if name in STATISTICS:  # without d, and never [B, N, H]
            axes = ["B", "H", "N"][self.packed :] if self.rows_first else axes
            axes = [axis.removesuffix("*d") for axis in axes if axis != "d"]
        elif self.one == "[]" and not of_keys and "*d" not in self.layout:
            axes.remove("N")
        return [math.prod(size[name] for name in axis.split("*")) for axis in axes]

    def tensor(self, name, written=()):
        """Unwritten, but for a mask, lengths and starts. Those of `written` have the type `out`."""
        if name == "starts":
            starts = [sum(self.documents[:i]) for i in range(len(self.documents) + 1)]
            return Tensor([len(starts)], "int32", struct.pack(f"{len(starts)}i", *starts), name)
        if name == "lengths":
            return Tensor([self.b], "int32", struct.pack(f"{self.b}i", *self.keys), name)
        if name == "mask":
            return self.mask_tensor()
        type = "float32" if name in STATISTICS else self.out if name in written else ""
        return Tensor(self.sizes(name), type or self.type, name=name)

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
        return {"problem": problem, "seed": self.seed, "type": self.type, "unscaled": self.unscaled}

    def laid(self, name, data, back=False):
        """The rows of [B, H, N, d] in the order of the layout, or back."""
        if not self.rows_first or name in STATISTICS:
            return data
        h, n = (self.hkv, self.n) if name in OF_KEYS else (self.h, self.rows)
        h, n = (n, h) if back else (h, n)
        row = len(data) // (self.b * h * n)
        at = ((b * h + i) * n + k for b in range(self.b) for k in range(n) for i in range(h))
        return b"".join(data[i * row : (i + 1) * row] for i in at)

    def __str__(self):
        words = [f"B={self.b} H={self.h}"] + [f"Hkv={self.hkv}"] * (self.group > 1)
        words += [f"Nq=1 Nk={self.n}" if self.one else f"N={self.n}", f"d={self.d}"]
        words += ["causal"] * self.causal
        words += [f"window={self.window[0]},{self.window[1]}"] * bool(self.mask)
        words += [f"documents={self.documents}"] * self.packed + [f"keys={self.keys}"] * self.ragged
        return " ".join([*words, self.type])
