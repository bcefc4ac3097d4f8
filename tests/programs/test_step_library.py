"""The steps' shared libraries in the simulator, through step_library.py: forward and backward of
each variant against the output of the step's program, which compares it with fp64.

Each library is preloaded into a separate Python: the simulator's shared memory is thread-local
storage, too large for libraries that are loaded later.
"""

import array
import itertools
import json
import math
import os
import random
import struct
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from copies import BUILD, SCRIPTS, for_all, main, said
from flash_steps import step_library
from flash_steps.step_library import Refused, StepLibrary, _problem
from test_programs import read_npy, write_npy

GRADIENTS = {"fp32": 2e-6, "bf16": 2e-2}  # of the largest value: atomics add in any order


def bf16(x):
    """x rounded to bf16, as 16 bits."""
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def from_bf16(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


class OneLibrary:
    """The work of the child process with its preloaded library."""

    def __init__(self, path):
        self.library = StepLibrary(path)
        self.random = random.Random(7)
        self.latent = "17_latent" == self.library.step  # V is a part of K

    def taken(self):
        """The variants by place, without the one with an 8-bit cache, which is refused."""
        return {i: v for i, v in enumerate(self.library.variants) if not v["cache8"]}

    def problems(self, variant):
        """Ragged; with the mask, grouped, and with Nk != N where the variant can."""
        supports = variant["supports"]
        sizes = dict(b=1, h=2, hkv=2, n=37, nk=37, d=min(supports["d"]), causal=False)
        if self.latent:
            yield {**sizes, "hkv": 1, "n": 3, "causal": True}
            if supports["pages"]:
                cache = {"nk": 300, "page": 64, "lengths": [0, 65, 300]}
                yield {**sizes, "hkv": 1, "b": 3, "n": 2, "causal": True, **cache}
            return
        if "decode" in self.library.step:  # at most 16 queries
            yield {**sizes, "n": 13}
            yield {**sizes, "h": 4, "n": 3, "nk": 70, "causal": True}
            for page in (0, 16, 64) if supports["pages"] else ():
                grouped = {**sizes, "b": 5, "h": 4, "n": 3, "nk": 700, "causal": page != 0}
                yield {**grouped, "page": page, "lengths": [0, 1, 65, 700, 16]}
            return
        yield sizes
        more = {"b": 2, "n": 23, "nk": 9 if supports["cross"] else 23, "causal": True}
        yield {**sizes, **more, "h": 4 if supports["gqa"] else 2}

    def program(self, variant, p, given):
        """{name: values} from the step's program for the same inputs."""
        shapes = {"Q": (p["h"], p["n"]), "K": (p["hkv"], p["nk"])}
        shapes |= {"V": shapes["K"], "dO": shapes["Q"]}
        with tempfile.TemporaryDirectory() as folder:
            command = [f"{BUILD}/steps/{self.library.step}", "--variant", variant["name"]]
            command += ["--workers", "1", "--out-dir", folder] + ["--causal"] * p["causal"]
            if p.get("lengths"):
                command += ["--lengths", ",".join(map(str, p["lengths"])), "--page", str(p["page"])]
            for name in ("Q", "K", *["V"] * (not self.latent), *["dO"] * variant["backward"]):
                shape = (p["b"], *shapes[name], p["d"])
                path = write_npy(Path(folder, f"in_{name}.npy"), shape, given[name])
                command += [f"--{name.lower()}", path]
            done = said(command, env={**os.environ, "LD_PRELOAD": ""})
            if done.returncode:
                raise RuntimeError(done.stdout + done.stderr)
            return {x.stem: read_npy(x)[1] for x in Path(folder).glob("[!i]*.npy")}

    def pool(self, p, keys, table):
        """K or V in pages; NaN where there is no key."""
        d, page, columns = p["d"], p["page"], len(table) // p["b"]
        rows = array.array("H", [0xFFFF]) * (d * page * p["hkv"] * (max(table) + 1))
        for b, length in enumerate(p["lengths"]):
            for h, c in itertools.product(range(p["hkv"]), range(length)):
                to = (table[b * columns + c // page] * p["hkv"] + h) * page + c % page
                at = (b * p["hkv"] + h) * p["nk"] + c
                rows[to * d : (to + 1) * d] = keys[at * d : (at + 1) * d]
        return rows

    def table(self, p):
        """Pages in any order, not all of a pool; -1 where there is no key."""
        pages = [-(-length // p["page"]) for length in p["lengths"]]
        order, most = list(range(sum(pages) + 9)), -(-p["nk"] // p["page"])
        self.random.shuffle(order)
        rows = [[order.pop() for _ in range(n)] + [-1] * (most - n) for n in pages]
        return array.array("i", itertools.chain(*rows))

    def compare(self, index, variant, p):
        """Runs one variant. Returns errors, one sentence each."""
        rows = {"q": p["b"] * p["h"] * p["n"], "k": p["b"] * p["hkv"] * p["nk"]}
        sizes = {"Q": rows["q"] * p["d"], "K": rows["k"] * p["d"], "LSE": rows["q"]}
        for name, same in zip(("V", "O", "dO", "dQ", "dK", "dV"), "KQQQKK"):
            sizes[name] = sizes[same]
        if self.latent:
            sizes["O"] = rows["q"] * 512
            for name in ("V", "dO", "dQ", "dK", "dV"):
                del sizes[name]
        small = variant["dtype"] == "bf16"
        codes = {name: "H" if small and name != "LSE" else "f" for name in sizes}
        at, given, table = {}, {}, self.table(p) if p.get("page") else None
        for name, size in sizes.items():
            values = array.array(codes[name], [0xFFFF if codes[name] == "H" else math.nan] * size)
            if name in ("Q", "K", "V", "dO"):
                given[name] = [self.random.gauss(0, 1) for _ in range(size)]
                given[name] = [from_bf16(bf16(x)) for x in given[name]] if small else given[name]
                values = array.array(codes[name], map(bf16, given[name]) if small else given[name])
            if table and name in "KV":
                values = self.pool(p, values, table)
            at[name] = self.upload(values)
        if table:
            at["table"] = self.upload(table)
        passes = ["prepare"] * variant["prepare"] + ["forward"] + ["backward"] * variant["backward"]
        for one in passes:
            self.library.runner(one, index, p, at)()
        want = self.program(variant, p, given)
        written = ["O"] + ["LSE"] * variant["writes_lse"]
        written += ["dQ", "dK", "dV"] * variant["backward"]
        wrong = [] if set(written) <= set(want) else [f"{variant['name']}: wrote only {[*want]}"]
        for name in set(written) & set(want):
            got = array.array(codes[name], [0] * sizes[name])
            self.library.download(at[name], got)
            got = list(map(from_bf16, got)) if codes[name] == "H" else got
            largest = max(abs(x) for x in want[name] if math.isfinite(x))
            bound = GRADIENTS[variant["dtype"]] * max(1.0, largest) if name[0] == "d" else 0
            for i, (x, y) in enumerate(zip(got, want[name], strict=True)):
                if not (x == y or abs(x - y) <= bound):
                    wrong.append(f"{variant['name']} {p}: {name}[{i}] is {x}, expected {y}")
                    break
        for address in at.values():
            self.library.free(address)
        return wrong

    def upload(self, values):
        address = self.library.malloc(len(values) * values.itemsize)
        self.library.upload(address, values)
        return address

    def run(self):
        """The last variant runs all problems, the others half of them, in alternation."""
        wrong, variants = [], self.taken()
        for index, variant in variants.items():
            problems = list(self.problems(variant))
            for p in problems if index == max(variants) else problems[index % 2 :: 2]:
                wrong += self.compare(index, variant, p)
        self.library.release()
        return wrong + self.overrun()

    def overrun(self):
        """[] if the simulator names the buffer of an O that is too small, as a caller may pass."""
        library, last = self.library, max(self.taken())
        one = library.malloc(16)
        most = {name: one for name in ("Q", "K", "V", "O", "LSE", "dO", "dQ", "dK", "dV")}
        first = "prepare" if library.variants[last]["prepare"] else "forward"
        words = "of buffer memory, which has 16 bytes"
        try:
            library.runner(first, last, next(self.problems(library.variants[last])), most)()
        except Refused as error:
            if error.status == 1 and words in str(error):
                return []
            return [f"{error.status}, '{error}' instead of 1, '{words}'"]
        return [f"nothing refused what should end with 1, '{words}'"]


def preloaded(library, *words):
    """The output of a separate Python, into which this library is loaded."""
    return said([sys.executable, *words], env={**os.environ, "LD_PRELOAD": str(library)})


class Calls(unittest.TestCase):
    """What a library is given, by one that only notes it."""

    SIZES = dict(b=2, h=4, hkv=1, n=5, nk=7, d=64, causal=True)

    def setUp(self):
        about = {"step": "06", "kind": "sim", "supports": {"d": [64]}, "variants": [{"name": "v"}]}
        self.c = mock.Mock()
        self.c.fa_describe.return_value = json.dumps(about).encode()
        self.c.fa_last_error.return_value = b"so"
        self.status(0)
        with mock.patch.object(step_library.ctypes, "CDLL", lambda path: self.c):
            self.library = StepLibrary("x.so")

    def status(self, status):
        for name in ("check", "release", "malloc", "free", "upload", "download", "forward"):
            getattr(self.c, "fa_" + name).return_value = status
        self.c.fa_workspace_bytes.return_value = status

    def test_a_problem(self):
        p = _problem(self.SIZES)
        values = [getattr(p, name) for name in ("b", "h", "hkv", "n", "nk", "d", "causal", "page")]
        self.assertEqual(values, [2, 4, 1, 5, 7, 64, 1, 0])
        self.assertFalse(p.lengths or p.mask)
        self.assertFalse(_problem({**self.SIZES, "lengths": [], "page": None}).lengths)
        p = _problem({**self.SIZES, "page": 16, "lengths": [3, 0]})
        self.assertEqual((p.page, p.lengths[:2]), (16, [3, 0]))
        for more, words in (
            ({"lengths": [3]}, "lengths: 1 for 2 batch entries"),
            ({"cache8": True}, "cache8: the library has no argument for its scales"),
        ):
            with self.assertRaisesRegex(Refused, words) as caught:
                _problem({**self.SIZES, **more})
            self.assertEqual(caught.exception.status, 2)

    def test_a_mask(self):
        mask = _problem({**self.SIZES, "window": [9, 0]}).mask.contents
        self.assertEqual((mask.left, mask.right, mask.documents, mask.predicate), (9, 0, 0, None))
        self.assertFalse(mask.row_lengths or mask.key_lengths)
        starts = {"row_starts": [0, 2, 2, 5], "key_starts": [0, 1, 4, 7]}
        mask = _problem({**self.SIZES, **starts}).mask.contents
        self.assertEqual((mask.left, mask.right, mask.documents), (-1, -1, 3))
        self.assertEqual((mask.row_lengths[:3], mask.key_lengths[:3]), ([2, 0, 3], [1, 3, 3]))
        mask = _problem({**self.SIZES, "mask": "strided:8"}).mask.contents
        self.assertEqual((mask.predicate, mask.tile_heads, mask.tiles), (b"strided:8", 0, None))
        mask = _problem({**self.SIZES, "tiles": (4, 4096)}).mask.contents
        self.assertEqual((mask.predicate, mask.tile_heads, mask.tiles), (b"tiles", 4, 4096))

    def test_what_fails_is_said(self):
        c, library = self.c, self.library
        c.fa_malloc.side_effect = c.fa_workspace_bytes.side_effect = None
        values = array.array("f", [1])
        calls = [lambda: library.check(self.SIZES), library.release, lambda: library.malloc(1)]
        calls += [lambda: library.free(1), lambda: library.upload(1, values)]
        calls += [lambda: library.download(1, values)]
        calls += [library.runner("forward", 0, self.SIZES, {})]
        calls += [lambda: library.workspace_bytes(0, self.SIZES)]
        for status, said_of, words in ((3, b"so", "so"), (1, b"", "status 1")):
            self.status(status)
            c.fa_last_error.return_value = said_of
            for call in calls:
                with self.assertRaisesRegex(Refused, f"^{words}$") as caught:
                    call()
                self.assertEqual(caught.exception.status, status)
        for said_of, words in (
            ("cannot allocate memory in static TLS block", "x.so: the simulator's must be loaded"),
            ("no such file", "^no such file$"),
        ):
            with mock.patch.object(step_library.ctypes, "CDLL", side_effect=OSError(said_of)):
                with self.assertRaisesRegex(OSError, words):
                    StepLibrary("x.so")


class Libraries(unittest.TestCase):
    def test_the_backward_of_a_short_step(self):
        path = BUILD / "steps" / "lib06_work_partitioning.so"
        done = preloaded(path, __file__, "--library", path)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    @for_all
    def test_each_step(self):
        libraries = sorted((BUILD / "steps").glob("lib[0-9][0-9]_*.so"))
        self.assertTrue(libraries)
        for path in libraries:
            with self.subTest(library=path.name):
                done = preloaded(path, __file__, "--library", path)
                self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    @for_all
    def test_without_preloading_a_sentence_says_how(self):
        path = BUILD / "steps" / "lib01_naive.so"
        code = "import sys; from flash_steps.step_library import StepLibrary as S; S(sys.argv[1])"
        how = f"OSError: {path}: the simulator's must be loaded before Python: LD_PRELOAD={path} "
        for environment, words in (({}, how), ({"LD_PRELOAD": str(path)}, "")):
            environment["PYTHONPATH"] = str(SCRIPTS)
            done = said([sys.executable, "-c", code, path], env={**os.environ, **environment})
            last = (done.stderr.splitlines() or [""])[-1]
            self.assertEqual(last[: len(how)], words)

    @for_all
    def test_beside_each_program_and_nothing_else_exported(self):
        for program in (BUILD / "steps").glob("[0-9][0-9]_*"):
            library = program.with_name(f"lib{program.name}.so")
            shown = said(["nm", "-D", "--defined-only", library], check=True).stdout
            names = shown.split()[2::3]
            self.assertIn("fa_forward", names)
            self.assertEqual([name for name in names if not name.startswith("fa_")], [])

    @for_all
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
