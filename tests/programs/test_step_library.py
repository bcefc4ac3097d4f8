#!/usr/bin/env python3
"""The steps' shared libraries in the simulator, through step_library.py: forward and
backward of each variant against fp64.

Each library is preloaded into a Python of its own: the simulator's shared
memory is thread-local storage, too large for what is loaded later.
"""

import array
import itertools
import math
import os
import random
import struct
import sys
import unittest
from pathlib import Path

from copies import BUILD, main, said
from flash_steps.step_library import Refused, StepLibrary, _problem

# Of a tensor's largest value; a missing key is 2e-2 and more, and in fp8 hides in a long row.
FACTOR = {"fp32": 2e-6, "bf16": 2e-2, "fp8": 0.12}


def bf16(x):
    """x rounded to bf16, as 16 bits."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def from_bf16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def dot(x, y):
    return sum(a * b for a, b in zip(x, y))


def reference(p, t):
    """{name: flat list} in fp64; `t` holds Q, K, V and dO as lists."""
    n, nk, d, group = p["n"], p["nk"], p["d"], p["h"] // p["hkv"]
    scale = 1 / math.sqrt(d)
    q, k, v, do = (
        [t[name][i : i + d] for i in range(0, len(t[name]), d)] for name in ("Q", "K", "V", "dO")
    )
    out = {"O": [], "LSE": [], "dQ": [], "dK": [[0.0] * d for _ in k], "dV": [[0.0] * d for _ in v]}
    for head, r in itertools.product(range(p["b"] * p["h"]), range(n)):
        first = head // group * nk  # B*H and B*Hkv are in the same order
        keys = range(first, first + (min(nk, max(0, r + 1 + nk - n)) if p["causal"] else nk))
        row = head * n + r
        if not keys:  # a fully masked row
            out["O"] += [0.0] * d
            out["dQ"] += [0.0] * d
            out["LSE"].append(-math.inf)
            continue
        s = [scale * dot(q[row], k[c]) for c in keys]
        top = max(s)
        out["LSE"].append(top + math.log(sum(math.exp(x - top) for x in s)))
        probability = [math.exp(x - out["LSE"][-1]) for x in s]
        o = [sum(w * v[c][x] for w, c in zip(probability, keys)) for x in range(d)]
        out["O"] += o
        delta = dot(do[row], o)
        dq = [0.0] * d
        for w, c in zip(probability, keys):
            ds = w * (dot(do[row], v[c]) - delta) * scale
            for x in range(d):
                dq[x] += ds * k[c][x]
                out["dK"][c][x] += ds * q[row][x]
                out["dV"][c][x] += w * do[row][x]
        out["dQ"] += dq
    for name in ("dK", "dV"):
        out[name] = list(itertools.chain.from_iterable(out[name]))
    return out


class OneLibrary:
    """What the child process does with the library that is preloaded into it."""

    def __init__(self, path):
        self.library = StepLibrary(path)
        self.random = random.Random(7)

    def taken(self):
        """The variants; a cache in 8 bits, which the library refuses, is a step's last one."""
        eight_bits = "13_decode" == self.library.step
        return self.library.variants[: -1 if eight_bits else None]

    def problems(self, variant):
        """Ragged; with the mask; grouped and with other keys than queries where the variant can."""
        supports = variant["supports"]
        sizes = dict(b=1, h=2, hkv=2, n=37, nk=37, d=min(supports["d"]), causal=False)
        if "decode" in self.library.step:  # at most 16 queries
            sizes.update(n=13, nk=37)
            yield sizes
            yield {**sizes, "h": 4, "n": 3, "nk": 70, "causal": True}
            return
        yield sizes
        yield {**sizes, "b": 2, "n": 19, "nk": 19, "causal": True}
        if supports["gqa"]:
            yield {**sizes, "h": 4, "n": 21, "nk": 21, "causal": True}
        if supports["cross"]:
            yield {**sizes, "n": 23, "nk": 9, "causal": True}

    def compare(self, index, variant, p):
        """Runs one variant; what is wrong, one sentence each."""
        rows = {"q": p["b"] * p["h"] * p["n"], "k": p["b"] * p["hkv"] * p["nk"]}
        sizes = {"Q": rows["q"] * p["d"], "K": rows["k"] * p["d"], "LSE": rows["q"]}
        sizes.update(
            V=sizes["K"], O=sizes["Q"], dO=sizes["Q"], dQ=sizes["Q"], dK=sizes["K"], dV=sizes["K"]
        )
        small = variant["dtype"] == "bf16"
        at, given = {}, {}
        for name, size in sizes.items():
            code = "H" if small and name != "LSE" else "f"
            if name in ("Q", "K", "V", "dO"):
                values = array.array("f", (self.random.gauss(0, 1) for _ in range(size)))
                if small:
                    values = array.array(code, map(bf16, values))
                given[name] = list(map(from_bf16, values)) if small else list(values)
            else:
                values = array.array(code, [0xFFFF if code == "H" else math.nan] * size)
            at[name] = self.library.malloc(len(values) * values.itemsize)
            self.library.upload(at[name], values)
        if variant["prepare"]:
            self.library.runner("prepare", index, p, at)()
        self.library.runner("forward", index, p, at)()
        written = ["O"] + ["LSE"] * variant["writes_lse"]
        if variant["backward"]:
            self.library.runner("backward", index, p, at)()
            written += ["dQ", "dK", "dV"]
        wrong = []
        want = reference(p, given)
        for name in written:
            code = "H" if small and name != "LSE" else "f"
            got = array.array(code, bytes(sizes[name] * (2 if code == "H" else 4)))
            self.library.download(at[name], got)
            got = list(map(from_bf16, got)) if code == "H" else got
            largest = max(abs(x) for x in want[name] if math.isfinite(x))
            bound = FACTOR["fp8" if variant["fp8"] else variant["dtype"]] * max(1.0, largest)
            for i, (x, y) in enumerate(zip(got, want[name])):
                if not (x == y or abs(x - y) <= bound):
                    wrong.append(f"{variant['name']} {p}: {name}[{i}] is {x}, expected {y}")
                    break
        for address in at.values():
            self.library.free(address)
        return wrong

    def run(self):
        wrong = []
        for index, variant in enumerate(self.taken()):
            for p in self.problems(variant):
                wrong += self.compare(index, variant, p)
        self.library.release()
        return wrong + self.refusals()

    def refusals(self):
        """What a caller can do wrong has its status and its sentence."""
        library, good = self.library, next(self.problems(self.taken()[-1]))
        last = len(self.taken()) - 1

        def run(direction="forward", variant=last, sizes=good, **addresses):
            return library.runner(direction, variant, sizes, addresses)

        one = library.malloc(16)
        require, c, null = library._require, library._c, ": the pointer is null"
        most = {name: one for name in ("Q", "K", "V", "LSE", "dO", "dQ", "dK", "dV")}
        cases = [
            (lambda: library.check({**good, "d": 7}), 2, "d 7: this step supports d "),
            (lambda: library.check({**good, "n": 0}), 2, "N 0: must be at least 1"),
            (run(sizes={**good, "d": 7}), 2, "d 7: "),
            (run(variant=99), 2, "variant 99: "),
            (run(variant=-1), 2, "variant -1: "),
            (run(), 2, "Q is a null pointer"),
            (run(Q=one + 4), 2, "Q is not aligned to 16 bytes"),
            (run(**most), 2, "O is a null pointer"),
            (lambda: library.malloc(1 << 50), 3, "the device cannot allocate"),
            (lambda: require(c.fa_malloc(None, 16)), 2, "no place for the address" + null),
            (
                lambda: require(c.fa_workspace_bytes(last, _problem(good), None)),
                *(2, "no place for the bytes" + null),
            ),
        ]
        # Q has 16 bytes: the simulator names the kernel and its line.
        first = "prepare" if library.variants[last]["prepare"] else "forward"
        cases.append((run(first, **most, O=one), 1, ".cuh:"))
        for index, variant in enumerate(library.variants):
            words = "none has run" if variant["backward"] else "it has no backward"
            cases.append((run("backward", index, **most, O=one), 2, words))
            direction, words = "prepare", "it has no prepare"
            if variant["prepare"]:
                direction, words = "forward", "none has run"
            cases.append((run(direction, index, **most, O=one), 2, words))
        wrong = []
        for call, status, words in cases:
            try:
                call()
                wrong.append(f"nothing refused what should end with {status}, '{words}'")
            except Refused as error:
                if (error.status, words in str(error)) != (status, True):
                    wrong.append(f"{error.status}, '{error}' instead of {status}, '{words}'")
        return wrong


def preloaded(library, *words):
    """What a Python of its own says, into which this is loaded."""
    return said([sys.executable, *words], env={**os.environ, "LD_PRELOAD": str(library)})


class Libraries(unittest.TestCase):
    def test_each_step(self):
        libraries = sorted(Path(BUILD, "steps").glob("lib[0-9][0-9]_*.so"))
        self.assertTrue(libraries)
        for path in libraries:
            with self.subTest(library=path.name):
                done = preloaded(path, __file__, "--library", path)
                self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_beside_each_program_and_nothing_else_exported(self):
        for program in Path(BUILD, "steps").glob("[0-9][0-9]_*"):
            library = program.with_name(f"lib{program.name}.so")
            shown = said(["nm", "-D", "--defined-only", library], check=True).stdout
            names = shown.split()[2::3]
            self.assertIn("fa_forward", names)
            self.assertEqual([name for name in names if not name.startswith("fa_")], [])

    def test_a_kernel_may_read_the_librarys_constants(self):
        code = (
            "import ctypes; c = ctypes.CDLL(None); c.fa_read_tables.restype = ctypes.c_char_p\n"
            "y = (ctypes.c_float * 4)(); print(c.fa_read_tables(y).decode(), *y)"
        )
        done = preloaded(f"{BUILD}/tests/libtest_constants.so", "-c", code)
        self.assertEqual(done.stdout + done.stderr, " 2.0 5.0 4.0 7.0\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--library"]:
        print("\n".join(OneLibrary(sys.argv[2]).run()), end="")
    else:
        main()
