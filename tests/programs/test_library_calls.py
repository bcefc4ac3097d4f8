#!/usr/bin/env python3
"""What a step's library asks of CUDA, with a runtime that only writes the calls down: which stream,
what under a graph's capture, which sentence after an error.

On a GPU: tests/gpu/library_stream.py."""

import ctypes
import functools
import re
import tempfile
import unittest
from pathlib import Path

import copies
from copies import main, said
from flash_steps.step_library import Refused, StepLibrary

ROOT, BUILD = Path(copies.ROOT), Path(copies.BUILD)

SIZES = {"b": 1, "h": 2, "hkv": 2, "n": 8, "nk": 8, "d": 64, "causal": False}
ILLEGAL_ADDRESS, INVALID_VALUE = 700, 1


def build(folder):
    """The library of fake_gpu/step.cpp, from the real library.cpp and stream.cpp."""
    cache = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
    found = re.findall(r"^FA_(?:JSON|FMT)_INCLUDE:PATH=(.+)$", cache, re.M)
    compiler = re.search(r"^CMAKE_CXX_COMPILER:[A-Z]+=(.+)$", cache, re.M)[1]
    fake = ROOT / "tests" / "programs" / "fake_gpu"
    sources = [fake / "step.cpp"]
    sources += [ROOT / "common/harness" / name for name in ("library/library.cpp", "step.cpp")]
    sources += [ROOT / "common/gpu/stream.cpp"]
    # Compiled already, and the same on a GPU.
    objects = BUILD / "common/CMakeFiles/fa_common.dir/harness"
    sources += [objects / f"{name}.cpp.o" for name in ("problem", "tensors", "description")]
    path = folder / "lib99_fake.so"
    command = [compiler, "-std=c++20", "-O0", "-Wall", "-shared", "-fPIC", "-fvisibility=hidden"]
    command += ["-DFA_GPU", f"-I{fake}", f"-I{ROOT}", *(f"-idirafter{at}" for at in found)]
    command += [f"-Wl,--version-script={ROOT}/common/harness/library/exports.map"]
    done = said([*command, *sources, "-o", path])
    if done.returncode:
        raise RuntimeError(done.stderr)
    return path


class Calls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.path = str(build(Path(folder.name)))

    def setUp(self):
        self.library = StepLibrary(self.path)
        self.fake = ctypes.CDLL(self.path)
        self.fake.fa_fake_calls.restype = ctypes.c_char_p
        self.addCleanup(self.library.release)
        self.addCleanup(self.fake.fa_fake_capture, 0)
        self.addCleanup(self.fake.fa_fake_status, 0)
        self.calls()
        self.at = dict.fromkeys(("Q", "K", "V", "O", "LSE", "dO", "dQ", "dK", "dV"), 4096)

    def calls(self):
        return self.fake.fa_fake_calls().decode().split("\n")[:-1]

    def run_step(self, direction="forward", variant=1, stream=None, sizes=SIZES, **at):
        self.library.runner(direction, variant, sizes, {**self.at, **at}, stream)()
        return self.calls()

    def test_all_work_goes_to_the_callers_stream(self):
        self.assertEqual(
            self.run_step(stream=7), ["malloc", "malloc", "memset on 7", "forward on 7"]
        )
        self.assertEqual(self.run_step("backward", stream=9), ["backward on 9"])
        self.assertEqual(self.run_step(), ["forward on 0"])
        with self.assertRaises(Refused):
            self.run_step(stream=7, Q=4)
        self.assertEqual(self.run_step(), ["forward on 0"])

    def test_nothing_is_allocated_under_capture(self):
        self.fake.fa_fake_capture(1)
        with self.assertRaisesRegex(Refused, "captured: run this variant and problem once before"):
            self.run_step(stream=7)
        self.assertEqual(self.calls(), [])
        self.fake.fa_fake_capture(0)
        self.run_step(stream=7)
        self.fake.fa_fake_capture(1)
        self.assertEqual(self.run_step(stream=7), ["forward on 7"])
        with self.assertRaisesRegex(Refused, "sums: nothing can be allocated"):
            self.run_step(stream=7, sizes={**SIZES, "n": 9})

    def test_an_illegal_address_is_named(self):
        self.run_step(stream=7)
        self.fake.fa_fake_status(ILLEGAL_ADDRESS)
        for call, run in (
            ("fa_forward", self.run_step),
            ("fa_free", lambda: self.library.free(self.library_memory())),
            ("fa_release", self.library.release),
        ):
            with self.assertRaises(Refused) as caught:
                run()
            self.assertEqual(caught.exception.status, 1)
            words = str(caught.exception)
            self.assertIn(f"{call}: CUDA reports 'an illegal memory access was", words)
            self.assertIn("last run here was fa_forward of variant 1 (both), B=1 H=2 N=8", words)
            self.assertIn("context is lost: start a new process", words)
        self.fake.fa_fake_status(INVALID_VALUE)
        with self.assertRaises(Refused) as caught:
            self.library.release()
        self.assertEqual(str(caught.exception), "fa_release: CUDA reports 'invalid argument'")

    def library_memory(self):
        """Memory that may be freed, from before the error."""
        self.fake.fa_fake_status(0)
        address = self.library.malloc(16)
        self.fake.fa_fake_status(ILLEGAL_ADDRESS)
        return address

    def test_backward_without_forward(self):
        for sizes, words in (
            (SIZES, "none has run"),
            ({**SIZES, "n": 9}, "the last one was of B=1 H=2 N=8 d=64 fp32"),
        ):
            with self.assertRaisesRegex(Refused, "variant 1: fa_forward of the same.*" + words):
                self.run_step("backward", sizes=sizes)
            self.run_step()
        self.run_step("backward")
        with self.assertRaisesRegex(Refused, "LSE is a null pointer"):
            self.run_step("backward", LSE=None)
        with self.assertRaisesRegex(Refused, "99_fake kernel: it has no backward"):
            self.run_step("backward", variant=0)
        self.library.release()
        with self.assertRaisesRegex(Refused, "none has run"):
            self.run_step("backward")

    def test_a_forward_that_failed_leaves_nothing_to_a_backward(self):
        self.run_step()
        self.addCleanup(self.fake.fa_fake_largest, 1 << 30)
        self.fake.fa_fake_largest(1000)
        with self.assertRaisesRegex(Refused, "sums: the device cannot allocate"):
            self.run_step(sizes={**SIZES, "n": 900})
        with self.assertRaisesRegex(Refused, "none has run"):
            self.run_step("backward")
        self.run_step()
        self.assertEqual(self.run_step("backward"), ["backward on 0"])

    def test_a_forward_needs_the_prepare_of_its_tensors(self):
        self.assertEqual([v["prepare"] for v in self.library.variants][:3], [False, False, True])
        run = functools.partial(self.run_step, variant=2)
        with self.assertRaisesRegex(
            Refused,
            "^variant 2: fa_prepare of the same tensors, B=1 H=2 N=8 d=64 fp32, must come before "
            "fa_forward; none has run$",
        ):
            run()
        self.assertEqual(self.calls(), [])
        others = dict.fromkeys(("O", "LSE", "dO", "dQ", "dK", "dV"))  # it needs Q, K and V alone
        self.assertEqual(
            run("prepare", stream=7, **others), ["malloc", "malloc", "memset on 7", "prepare on 7"]
        )
        self.assertEqual(run(stream=7), ["forward on 7"])
        self.assertEqual(run(stream=9), ["forward on 9"])
        self.assertEqual(run("backward"), ["backward on 0"])
        more = {**SIZES, "n": 9}
        for wrong, words in (
            ({"sizes": more}, "the last one was of B=1 H=2 N=8 d=64 fp32$"),
            ({"V": 8192}, "the last one was of other Q, K or V$"),
        ):
            for direction in ("forward", "backward"):
                with self.assertRaisesRegex(Refused, f"before fa_{direction}; {words}"):
                    run(direction, **wrong)
        with self.assertRaisesRegex(Refused, "K is a null pointer"):
            run("prepare", K=None)
        self.assertEqual(run(), ["forward on 0"])  # what was refused changed nothing

        run("prepare")  # of other values, perhaps: the forward before it is forgotten
        with self.assertRaisesRegex(Refused, "fa_forward of the same tensors.*none has run"):
            run("backward")
        run()
        self.addCleanup(self.fake.fa_fake_largest, 1 << 30)
        self.fake.fa_fake_largest(1000)
        with self.assertRaisesRegex(Refused, "sums: the device cannot allocate"):
            run("prepare", sizes={**SIZES, "n": 900})
        with self.assertRaisesRegex(Refused, "fa_prepare of the same tensors.*none has run"):
            run()
        run("prepare")
        self.library.release()
        with self.assertRaisesRegex(Refused, "fa_prepare of the same tensors.*none has run"):
            run()
        with self.assertRaisesRegex(Refused, "99_fake both: it has no prepare"):
            self.run_step("prepare", variant=1)

    def test_a_cache_that_it_has_no_arguments_for_is_refused(self):
        words = "^variant cache8: its K and V are of 8 bits with scales, for which FaTensors has no"
        with self.assertRaisesRegex(Refused, words) as caught:
            self.run_step(variant=3)
        self.assertEqual(caught.exception.status, 2)
        with self.assertRaisesRegex(Refused, words):
            self.library.workspace_bytes(3, SIZES)
        self.library.check(SIZES)  # what the step's other variants take
        for name, value in (("lengths", [8]), ("page", 16), ("cache8", True)):
            sizes = {**SIZES, name: value}
            for call in (
                lambda: self.run_step(sizes=sizes),
                lambda: self.library.check(sizes),
                lambda: self.library.workspace_bytes(0, sizes),
            ):
                with self.assertRaisesRegex(Refused, f"^{name} .*the library has no argument"):
                    call()
        self.assertEqual(self.calls(), [])
        self.run_step(sizes={**SIZES, "lengths": None, "page": None, "cache8": False})

    def test_sentences_name_the_fields_of_FaProblem(self):
        for wrong, words in (
            ({"d": 7}, "d 7: this step supports d 32, 64, 96, 128"),
            ({"n": 0}, "N 0: must be at least 1"),
            ({"hkv": 3}, "Hkv 3: H 2 must be a multiple of it"),
            ({"nk": 1 << 29}, "Nk 536870912: at most 268435456 is supported"),
        ):
            with self.assertRaises(Refused) as caught:
                self.library.check({**SIZES, **wrong})
            self.assertEqual(str(caught.exception), words)


if __name__ == "__main__":
    main()
