"""maintain equal_code: what makes a step different for a GPU, and what does not."""

import json
import unittest
from unittest import mock

from basis import ROOT, Folder, for_all, main
from flash_steps import commits
from flash_steps.command import Failure
from flash_steps.commits import is_current
from flash_steps.nvcc import find_nvcc
from lab import equal_code

STEP = "01_naive"
# A step's program, with its report beside it. mpirun starts it with several ranks.
PROGRAM = """#!/bin/sh
case "$*" in
  *--describe*) cat "$0.about" ;;
  *broken*) echo nonsense; exit 1 ;;
  *) for word; do case $word in --json=*) cp "$0.json" "${word#--json=}" ;; esac; done ;;
esac
"""
ABOUT = {"variants": [{"name": "one", "supports": {"d": [64], "n": 0, "cross": 1, "gqa": 1}}]}
ABOUT["variants"][0]["ranks"] = False
RUN = {
    "kernels": [{"name": "f", "blocks": 4, "bytes": {"read": 8}}],
    "backward": {"kernels": [{"name": "b", "blocks": 2}]},
    "host_ms": 1,
}


class EqualCode(Folder):
    def step(self, tree, **changes):
        path = f"{tree}/build/sim/steps/{STEP}"
        self.program(path, PROGRAM)
        self.write(path + ".about", json.dumps(ABOUT))
        self.write(path + ".json", json.dumps({**RUN, **changes}))

    def differs(self, code=({}, {})):
        with (
            mock.patch.object(equal_code, "machine_code", side_effect=code),
            mock.patch.object(equal_code, "ROOT", self.folder / "now"),
        ):
            return equal_code.differs("nvcc", STEP, self.folder / "older")

    def test_launches(self):
        self.step("older")
        self.step("now", host_ms=2)
        self.assertIsNone(self.differs())
        other = {"name": "b", "blocks": 3}
        for changes in ({"kernels": []}, {"backward": {"kernels": [other]}}, {"prepare": RUN}):
            self.step("now", **changes)
            self.assertRegex(self.differs(), "^launches of --variant one ")
        self.program(f"older/build/sim/steps/{STEP}", "#!/bin/sh\nexit 2\n")
        self.assertIsNone(self.differs())  # a new variant
        self.step("older")
        self.step("now", ranks=[{"rows": [], "scores": [], "sent": 1, "requested": 2}])
        self.assertRegex(self.differs(), "^launches")
        with self.assertRaisesRegex(Failure, "nonsense"):
            equal_code.launches(self.folder / "now", STEP, ["broken"], 1)

    def test_a_kernel_by_another_name(self):
        """Mangled like nvcc's: void one::f<2>(int), void two::f<2>(int); RUN launches f."""
        self.step("older")
        for now in ({".text._ZN3two1fILi2EEEvi": (8, "a")}, {".text._ZN3two1fILi2EEEvi": (8, "b")}):
            kernels = [{**RUN["kernels"][0], "name": "two::f<2>"}]
            self.step("now", kernels=kernels)
            equal = now[".text._ZN3two1fILi2EEEvi"] == (8, "a")
            what = self.differs(({".text.f": (8, "a")}, now))
            self.assertEqual(what is None, equal, what)
        self.step("now", kernels=[{**kernels[0], "blocks": 5}])
        self.assertRegex(self.differs(({".text.f": (8, "b")}, now)), "^launches")

    def test_machine_code_comes_first(self):
        k, other = {".text.k": (8, "a")}, {".text.k": (8, "b")}
        self.assertEqual(self.differs((k, other)), "machine code of .text.k")
        self.step("older")
        self.step("now")
        self.assertIsNone(self.differs(({}, k)))  # for a new variant

    @for_all
    def test_results_that_counted_as_the_older_tree_s(self):
        found = equal_code.current_then(str(ROOT), [STEP])
        self.assertTrue(found and all(steps == [STEP] for steps in found.values()))
        self.assertTrue(all(is_current(STEP, commit) for commit in found))

    @for_all
    @unittest.skipUnless(find_nvcc(), "nvcc is not installed")
    def test_what_nvcc_makes(self):
        def code(text):
            self.write(f"steps/{STEP}/main.cu", text)
            return equal_code.machine_code(find_nvcc(), STEP, self.folder)

        kernel = "__global__ void k(float* x) { x[threadIdx.x] = 1; }\n"
        first = code(kernel)
        self.assertEqual([name for name in first if name.startswith(".text")], [".text._Z1kPf"])
        self.assertEqual(code("// a word\n\n" + kernel), first)
        self.assertNotEqual(code(kernel.replace("= 1", "= 2")), first)
        self.assertNotEqual(code(kernel.replace("void k", "void j")), first)

    def test_an_entry_stays_where_a_result_needs_it(self):
        def entry(since, at, *steps):
            return {"since": since, "at": at, "steps": list(steps)}

        with (
            mock.patch.object(equal_code, "commits_in", return_value={"old", "older"}),
            mock.patch.object(equal_code, "numbered_steps", return_value=["01", "02"]),
            mock.patch.object(commits, "has_same_code", side_effect=lambda s, c: c == "now"),
        ):
            chain = [entry("mid", "now", "01"), entry("older", "mid", "01", "02")]
            found = [entry("old", "now", "01", "02"), *chain, entry("unnamed", "now", "01")]
            kept = [found[0], chain[0], entry("older", "mid", "01")]
            self.assertEqual(equal_code.needed(found), kept)
            shorter = entry("older", "now", "01")
            self.assertEqual(equal_code.needed([shorter, *found]), [shorter, found[0]])

    def test_all_variants_are_run(self):
        supports = {"d": [64, 128], "n": 0, "cross": 0, "gqa": 0}
        variants = [{"name": "one", "ranks": True, "supports": supports}]
        with mock.patch.object(equal_code, "described", return_value={"variants": variants}):
            calls = list(equal_code.calls_of(STEP))
            variants[0]["ranks"] = False
            self.assertEqual([n for _, n in equal_code.calls_of(STEP)], [1] * 2 * 2)
        self.assertEqual(len(calls), 2 * 2 * 2)  # d, mask, ranks
        size = ["--n=300", "--nk=300", "--h=6", "--hkv=6", "--d=128", "--input=normal"]
        size += ["--estimate-heads=0"]
        self.assertIn((["--variant", "one", *size, "--causal"], 3), calls)


main()
