"""maintain trace_pipeline: its pictures are those of the trace; the kernels make its calls."""

import json
import os
import re
import shutil
import sys
import tempfile
import unittest

from copies import ROOT, copy_scripts, maintain
from flash_steps import trace_pipeline

STEP = os.path.join("steps", "10_warp_specialized")
BACKWARD = os.path.join("steps", "11_hopper_backward")


class Trace(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for part in (STEP, BACKWARD, os.path.join("docs", "pictures")):
            shutil.copytree(os.path.join(ROOT, part), os.path.join(self.root, part))
        copy_scripts(self.root)

    def run_script(self, *args, **environment):
        return maintain("trace_pipeline", *args, root=self.root, **environment)

    def replace(self, path, old, new):
        path = os.path.join(self.root, path)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.assertIn(old, text)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace(old, new))

    def test_pictures_are_those_of_the_trace(self):
        done = self.run_script("--check")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_another_picture_is_found(self):
        self.replace(os.path.join("docs", "pictures", "pipeline_persistent.svg"), "P V", "PV")
        done = self.run_script("--check")
        self.assertEqual(done.returncode, 1)
        self.assertIn("pipeline_persistent.svg is not what", done.stderr)
        self.assertEqual(self.run_script().returncode, 0)  # draws it anew
        self.assertEqual(self.run_script("--check").returncode, 0)

    def test_a_call_that_left_a_kernel_is_named(self):
        self.replace(os.path.join(STEP, "3_specialized.cuh"), "wait_scores<1>", "wait_scores<2>")
        done = self.run_script("--check")
        self.assertEqual(done.returncode, 1)
        self.assertIn("3_specialized.cuh has 'wait_scores<1>();' 0 times, not 1", done.stderr)

    def test_so_is_one_that_left_the_backward(self):
        self.replace(os.path.join(BACKWARD, "6_columns.cuh"), ".add(rdQ)", ".put(rdQ)")
        done = self.run_script("--check")
        self.assertEqual(done.returncode, 1)
        self.assertIn("6_columns.cuh has '.add(rdQ);' 0 times, not 1", done.stderr)

    def test_comments_do_not_count(self):
        folder = os.path.join(self.root, STEP)
        for name in ("3_specialized.cuh", "4_persistent.cuh"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                text = re.sub(r" *//.*", "", file.read())
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text.replace("  take(0);", "  take(0);  // wait_scores<1>();"))
        self.assertEqual(self.run_script("--check").returncode, 0)

    def test_one_place_of_two_that_left_is_found(self):
        path = os.path.join(self.root, STEP, "4_persistent.cuh")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.replace("wait_scores<1>();", "wait<1>();", 1))
        done = self.run_script("--check")
        self.assertEqual(done.returncode, 1)
        self.assertIn("1 times, not 2", done.stderr)

    def test_each_product_and_each_softmax_has_a_beginning_and_an_end(self):
        with open(trace_pipeline.RESULTS, encoding="utf-8") as file:
            results = json.load(file)
        for name in results["kernels"]:
            spans = trace_pipeline.spans_of(results, name)
            lanes = [lane for group in trace_pipeline.lanes_of(name, spans) for lane, _ in group]
            for lane in lanes:
                if lane in ("copies", "stores"):  # of both warpgroups
                    continue
                times = [(begin, end) for where, _, begin, end in spans if where == lane]
                self.assertGreater(len(times), 6, (name, lane))
                for (begin, end), (following, _) in zip(times, times[1:]):
                    self.assertLess(begin, end, (name, lane))
                    self.assertLessEqual(end, following, (name, lane))

    def test_without_nvcc_it_says_so(self):
        done = self.run_script("--measure", PATH="/nowhere")
        self.assertEqual(done.returncode, 3)
        self.assertIn("no nvcc", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
