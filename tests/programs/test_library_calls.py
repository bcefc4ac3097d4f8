"""The CUDA calls of a step's library, with a runtime that only records them: which stream, what
during a graph's capture, which sentence after an error.

What calls leave to later ones: tests/harness/library.cpp; on a GPU: tests/gpu/library_stream.py."""

import ctypes
import tempfile
import unittest
from pathlib import Path

from copies import BUILD, ROOT, fake_gpu_compiler, main, said
from flash_steps.step_library import Refused, StepLibrary

SIZES = {"b": 1, "h": 2, "hkv": 2, "n": 8, "nk": 8, "d": 64, "causal": False}
MORE = {**SIZES, "n": 9}
ILLEGAL_ADDRESS, INVALID_VALUE = 700, 1


def paged(*lengths):
    return {**SIZES, "b": 2, "page": 16, "lengths": lengths}


def build(folder):
    """The library of fake_gpu/step.cpp, with the real library.cpp and stream.cpp."""
    sources = [ROOT / "tests/programs/fake_gpu/step.cpp"]
    sources += [ROOT / "common/harness" / name for name in ("library/library.cpp", "step.cpp")]
    sources += [ROOT / "common/gpu/stream.cpp"]
    # Already compiled, and the same on a GPU.
    made = BUILD / "common/CMakeFiles/fa_reference.dir"
    sources += [made / "harness/problem.cpp.o", made / "Unity/unity_inputs_cxx.cxx.o"]
    sources += [BUILD / "common/CMakeFiles/fa_common.dir/harness/description.cpp.o"]
    sources += [BUILD / "common/sim/CMakeFiles/fa_cold.dir/Unity/unity_counts_cxx.cxx.o"]
    path = folder / "lib99_fake.so"
    command = [*fake_gpu_compiler(), "-shared", "-fPIC", "-fvisibility=hidden"]
    command += [f"-Wl,--version-script={ROOT}/common/harness/library/exports.map"]
    done = said([*command, *sources, "-o", path])
    if done.returncode:
        raise RuntimeError(done.stderr)
    return path


class Calls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.path = str(build(Path(cls.enterClassContext(tempfile.TemporaryDirectory()))))

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
        """The CUDA calls, or the sentence of a refusal, which makes no calls."""
        try:
            self.library.runner(direction, variant, sizes, {**self.at, **at}, stream)()
        except Refused as refused:
            self.assertNotIn(" on ", " ".join(self.calls()))
            return str(refused)
        return ", ".join(self.calls())

    def story(self, variant, *lines):
        """One call after another: (direction, its calls or words, arguments of run_step)."""
        for direction, told, *how in lines:
            shown = self.run_step(direction, **{"variant": variant}, **(how[0] if how else {}))
            self.assertRegex(shown, told, (direction, how))

    def no_room(self):
        self.addCleanup(self.fake.fa_fake_largest, 1 << 30)
        self.fake.fa_fake_largest(1000)

    def test_all_work_goes_to_the_callers_stream(self):
        self.story(
            1,
            ("forward", "^malloc, malloc, memset on 7, forward on 7$", {"stream": 7}),
            ("backward", "^backward on 9$", {"stream": 9}),
            ("forward", "^forward on 0$"),
            ("forward", "Q is not aligned", {"stream": 7, "Q": 4}),
            ("forward", "^forward on 0$"),
        )

    def test_nothing_is_allocated_under_capture(self):
        self.fake.fa_fake_capture(1)
        first = "captured: run this variant and problem once before"
        self.story(1, ("forward", first, {"stream": 7}))
        self.fake.fa_fake_capture(0)
        self.run_step(stream=7)
        self.fake.fa_fake_capture(1)
        self.story(
            1,
            ("forward", "^forward on 7$", {"stream": 7}),
            ("forward", "sums: nothing can be allocated", {"stream": 7, "sizes": MORE}),
        )

    def test_an_illegal_address_is_named(self):
        self.run_step(stream=7)
        address = self.library.malloc(16)  # which may be freed, from before the error
        self.fake.fa_fake_status(ILLEGAL_ADDRESS)
        run = self.library.runner("forward", 1, SIZES, self.at)
        for call, run in (
            ("fa_forward", run),
            ("fa_free", lambda: self.library.free(address)),
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

    def test_a_prepare_without_room_leaves_none(self):
        none = ("forward", "^variant 2: fa_prepare of the same tensors, .*; none has run$")
        self.story(
            2,
            none,
            ("prepare", "^malloc, malloc, memset on 7, prepare on 7$", {"stream": 7}),
            ("forward", "^forward on 9$", {"stream": 9}),
        )
        self.no_room()
        self.story(
            2,
            ("prepare", "sums: the device cannot allocate", {"sizes": {**SIZES, "n": 900}}),
            none,
            ("prepare", "prepare on 0$"),
            ("forward", "forward on 0$"),
        )

    def test_lengths_are_copied_when_they_change(self):
        def run(told, *lengths, **how):
            return "forward", told, {"sizes": paged(*lengths), **how}

        self.at["table"] = 4096
        self.story(
            4,
            run("memcpy on 7, forward 8 0 on 7$", 8, 0, stream=7),
            run("^forward 8 0 on 9$", 8, 0, stream=9),
            run("^memcpy on 9, forward 1 2 on 9$", 1, 2, stream=9),
            run("^forward on 0$"),
            run("^forward 1 2 on 0$", 1, 2),
        )
        with_lengths, without = (
            self.library.workspace_bytes(4, paged(*lengths)) for lengths in ((1, 2), ())
        )
        self.assertEqual(with_lengths - without, 8)
        self.fake.fa_fake_capture(1)
        captured = "^lengths: nothing can be allocated or copied while the stream is captured"
        self.story(4, run(captured, 2, 2), run("^forward 1 2 on 0$", 1, 2))
        self.fake.fa_fake_capture(0)
        again = run("malloc, memcpy on 0, forward 1 2 on 0$", 1, 2)
        self.library.release()
        self.story(4, again, ("forward", "forward on 0$", {"sizes": {**paged(), "n": 900}}))
        self.no_room()  # for more lengths
        many = {**paged(*[1, 2] * 200), "b": 400, "n": 1}
        self.story(4, ("forward", "^lengths: the device cannot", {"sizes": many}), again)

    def test_a_wrong_cache_is_refused(self):
        """The rest: tests/harness/library.cpp."""
        for variant, words, sizes in (
            (4, "^page 8: this step supports pages of 16, 32,", {**paged(), "page": 8}),
            (4, "^lengths: 1 for 2 batch entries$", paged(1)),
            (4, "table is a null pointer", paged()),
            (3, "^variant cache8: its K and V are of 8 bits with scales, for which", SIZES),
            (1, "forward on 0$", {**SIZES, "lengths": None, "page": None, "cache8": False}),
        ):
            self.calls()
            self.story(variant, ("forward", words, {"sizes": sizes}))


if __name__ == "__main__":
    main()
