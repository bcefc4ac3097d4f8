"""docs/debugging.md: its gdb command stops in one CUDA thread and steps over a barrier.

With --update the output in docs/debugging.md is replaced by the real one.
"""

import functools
import re
import shutil
import unittest

from copies import BUILD, ROOT, main, on_page, said

DOC = ROOT / "docs" / "debugging.md"


@functools.cache  # gdb stops at the breakpoint in each thread, to ask its condition
def run_gdb():
    """The output of the documented command, from the breakpoint on."""
    command = re.search(r"```sh\n(gdb .*?)```", DOC.read_text(), re.DOTALL)[1]
    command = command.replace("build/sim", str(BUILD))
    done = said(["bash", "-c", command], cwd=ROOT, timeout=300)
    output = done.stdout
    start = output.find("hit Breakpoint")
    if start < 0:
        raise AssertionError(f"gdb did not stop:\n{output}\n{done.stderr}")
    return output[output.rfind("\n", 0, start) + 1 :].replace(f"{ROOT}/", "")


@unittest.skipUnless(shutil.which("gdb"), "gdb is not installed")
class Gdb(unittest.TestCase):
    def test_stops_in_one_thread_and_steps_over_a_barrier(self):
        output = run_gdb()
        self.assertIn("scores_kernel<64>", output)
        values = re.findall(r"^\$\d = (.*)$", output, re.MULTILINE)
        self.assertEqual(len(values), 3, output)
        before, after, thread = values
        self.assertNotEqual(before, after)  # other threads ran while this one was at the barrier
        self.assertEqual(thread, "{x = 3, y = 5, z = 0}")  # and gdb came back to this one
        stopped_at, stepped_to = (int(n) for n in re.findall(r"^(\d+)\t", output, re.MULTILINE))
        lines = (ROOT / "steps/02_tiled/1_shared.cuh").read_text().splitlines()
        self.assertIn("__syncthreads();", lines[stopped_at - 1])
        self.assertEqual(stepped_to, stopped_at + 1)

    def test_the_page_shows_what_gdb_prints(self):
        def without_versions(text):  # library paths and thread names differ between machines
            return [line for line in text.splitlines() if re.match(r"\$|\d+\t", line)]

        shown = on_page(DOC, "gdb", run_gdb())
        self.assertEqual(without_versions(shown), without_versions(run_gdb()))


if __name__ == "__main__":
    main()
