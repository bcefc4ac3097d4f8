"""compare.py, report.py and tables.py on JSON made by hand."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

from sample_results import gpu, sim, write

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts")


def run(script, *args):
    return subprocess.run([sys.executable, os.path.join(SCRIPTS, script), *args],
                          capture_output=True, text=True)


class Scripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def file(self, name, data):
        return write(os.path.join(self.folder, name), data)

    def row(self, text, label):
        """The cells of the line that starts with `label`."""
        lines = [line for line in text.splitlines() if line.startswith(label)]
        self.assertEqual(len(lines), 1, text)
        return lines[0]


class Table(Scripts):
    def test_counted_and_measured_share_a_row(self):
        done = run("compare.py", self.file("a.json", sim()), self.file("b.json", gpu()))
        self.assertEqual(done.returncode, 0, done.stderr)
        line = self.row(done.stdout, "01_naive")
        for figure in ("2.00 GB", "40.0 MB", "5.00 M", "8.0", "60.0 MB", "62.0 MB", "33.6 MB",
                       "500 us", "1.07", "ok"):
            self.assertIn(figure, line)
        self.assertNotIn(">=", line)
        self.assertIn("B=1 H=4 N=1024 d=64 causal fp32, measured on NVIDIA H200", done.stdout)

    def test_a_bound_is_marked(self):
        done = run("compare.py", self.file("a.json", sim()))
        self.assertIn(">= 250 us", self.row(done.stdout, "01_naive"))
        self.assertNotIn("TFLOP", done.stdout)

    def test_input_and_seed_do_not_part_runs_but_sizes_do(self):
        same = run("compare.py", self.file("a.json", sim()),
                   self.file("b.json", gpu(input="normal", seed=7)))
        self.row(same.stdout, "01_naive")
        other = run("compare.py", self.file("a.json", sim()),
                    self.file("b.json", gpu(n=2048, nk=2048)))
        lines = [line.split()[:2] for line in other.stdout.splitlines() if line.startswith("0")]
        self.assertEqual(lines, [["01_naive", "1024"], ["01_naive", "2048"]])
        self.assertIn("B=1 H=4 d=64 causal fp32", other.stdout)

    def test_each_gpu_has_its_row(self):
        done = run("compare.py", self.file("a.json", sim()), self.file("b.json", gpu()),
                   self.file("c.json", gpu("NVIDIA A100", 1.5)))
        lines = [line for line in done.stdout.splitlines() if line.startswith("01_naive")]
        self.assertEqual(len(lines), 2)
        self.assertIn("NVIDIA A100", lines[1])
        self.assertIn("1.50 ms", lines[1])

    def test_variants_and_backward_have_rows(self):
        data = sim(step="02_tiled", variant="shared")
        data["backward"] = {"traffic": data["traffic"], "time": None, "bound_ms": 0.75,
                            "flops": 1, "flops_executed": 1, "host_ms": 1.0}
        done = run("compare.py", self.file("a.json", data))
        self.assertIn(">= 250 us", done.stdout)
        self.assertIn(">= 750 us", self.row(done.stdout, "02_tiled shared bwd"))

    def test_a_wrong_run_shows_and_fails(self):
        done = run("compare.py", self.file("a.json", sim(ok=False)))
        self.assertEqual(done.returncode, 1)
        self.assertIn("WRONG", self.row(done.stdout, "01_naive"))

    def test_table_fits_100_columns(self):
        label = {"step": "02_tiled", "variant": "shared"}
        done = run("compare.py", self.file("a.json", sim(**label)),
                   self.file("b.json", gpu(**label)))
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 100)

    def test_markdown(self):
        done = run("compare.py", "--markdown", self.file("a.json", sim()))
        lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
        self.assertEqual(len(lines), 3)
        self.assertEqual(len({line.count("|") for line in lines}), 1)
        self.assertIn("requested read", lines[0])

    def test_a_list_of_runs_and_results_with_a_header(self):
        runs = [sim(), sim(step="03_online_softmax")]
        for data in (runs, {"device": "NVIDIA H200", "runs": runs}):
            done = run("compare.py", self.file("a.json", data))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("03_online_softmax", done.stdout)

    def test_bad_files_get_one_sentence(self):
        path = os.path.join(self.folder, "bad.json")
        for text in ("{", "[]x", "{}", '{"step": 1}', "3"):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
            done = run("compare.py", path)
            self.assertEqual((done.returncode, done.stdout), (2, ""), text)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn("bad.json", done.stderr)
        done = run("compare.py", os.path.join(self.folder, "none.json"))
        self.assertEqual(done.returncode, 2)
        self.assertIn("none.json: No such file", done.stderr)


class Diff(Scripts):
    def test_two_runs_side_by_side(self):
        before = sim()
        after = sim(step="02_tiled")
        after["traffic"]["requested"]["counted"]["read"] = 500000000
        done = run("compare.py", "--diff", self.file("a.json", before), self.file("b.json", after))
        self.assertEqual(done.returncode, 0, done.stderr)
        line = self.row(done.stdout, "requested read").split()
        self.assertEqual(line[2:], ["2.00", "GB", "500", "MB", "0.25x"])
        self.assertIn("1.50 GB", self.row(done.stdout, "  Q"))

    def test_many_runs_pair_by_step_and_problem(self):
        done = run("compare.py", "--diff",
                   self.file("a.json", [sim(), sim(n=64), sim(step="09_x")]),
                   self.file("b.json", [sim(n=64), sim()]))
        self.assertEqual(done.stdout.count("A: "), 2)
        self.assertNotIn("09_x", done.stdout)

    def test_nothing_in_common(self):
        done = run("compare.py", "--diff", self.file("a.json", [sim(), sim(n=64)]),
                   self.file("b.json", [sim(n=65), sim(n=66)]))
        self.assertEqual(done.returncode, 2)
        self.assertIn("no step and problem in common", done.stderr)

    def test_needs_two_files(self):
        self.assertEqual(run("compare.py", "--diff", self.file("a.json", sim())).returncode, 2)


class Plots(Scripts):
    def test_plots_or_one_sentence(self):
        out = os.path.join(self.folder, "plots")
        files = [self.file(f"{n}.{i}.json", make(n=n, nk=n))
                 for n in (512, 1024) for i, make in enumerate((sim, gpu))]
        done = run("compare.py", *files, "--plots", out)
        if importlib.util.find_spec("matplotlib"):
            self.assertEqual(done.returncode, 0, done.stderr)
            for name in ("time.svg", "traffic.svg", "roofline.svg"):
                with open(os.path.join(out, name), encoding="utf-8") as file:
                    self.assertIn("<svg", file.read())
        else:
            self.assertEqual(done.returncode, 2)
            self.assertIn("plots need matplotlib", done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1)


class Report(Scripts):
    def test_table_and_page(self):
        self.file("01_naive.kernel.sim.json", sim())
        self.file("02_tiled.kernel.sim.json", sim(step="02_tiled"))
        self.file("02_tiled.shared.sim.json", sim(step="02_tiled", variant="shared", ok=False))
        for name in ("01_naive.kernel.sim", "02_tiled.kernel.sim", "02_tiled.shared.sim",
                     "03_online_softmax.kernel.sim"):
            with open(os.path.join(self.folder, name + ".txt"), "w", encoding="utf-8") as file:
                file.write(f"the text of {name} & <more>")
        page = os.path.join(self.folder, "report.html")
        done = run("report.py", "--out", page, self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        labels = [line.split("  ")[0] for line in done.stdout.splitlines() if line.startswith("0")]
        self.assertEqual(labels, ["01_naive", "02_tiled shared", "02_tiled"])
        with open(page, encoding="utf-8") as file:
            text = file.read()
        for part in ("<svg", "WRONG", "the text of 01_naive.kernel.sim &amp; &lt;more&gt;",
                     "03_online_softmax kernel, sim"):
            self.assertIn(part, text)
        for outside in ("http:", "https:", "src=", "url(", "@import"):
            self.assertNotIn(outside, text)

    def test_nothing_to_show(self):
        done = run("report.py", "--out", os.path.join(self.folder, "r.html"), self.folder)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.splitlines()), 1)


class Tables(Scripts):
    def fill(self, text, *args):
        path = os.path.join(self.folder, "page.md")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        done = run("tables.py", "--results", self.folder, *args, path)
        with open(path, encoding="utf-8") as file:
            return done, file.read()

    def test_fills_between_the_markers_and_only_there(self):
        self.file("r.json", [sim(), sim(n=64), gpu()])
        done, text = self.fill(
            "before\n<!-- table: steps n=1024 -->\nold\n<!-- /table -->\nafter\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(text.startswith("before\n<!-- table: steps n=1024 -->\n"))
        self.assertTrue(text.endswith("<!-- /table -->\nafter\n"))
        self.assertNotIn("old", text)
        self.assertIn("| 01_naive | 2.00 GB |", text)
        self.assertEqual(text.count("01_naive"), 1)
        again, same = self.fill(text, "--check")
        self.assertEqual((again.returncode, same), (0, text))

    def test_check_finds_what_is_out_of_date_and_leaves_it(self):
        self.file("r.json", sim())
        page = "<!-- table: steps -->\nold\n<!-- /table -->\n"
        done, text = self.fill(page, "--check")
        self.assertEqual((done.returncode, text), (1, page))
        self.assertIn("out of date", done.stdout)

    def test_check_finds_what_is_empty(self):
        self.file("r.json", sim())
        for block in ("<!-- table: steps -->\n{}<!-- /table -->\n",
                      "<!-- run: echo one -->\n{}<!-- /run -->\n"):
            for body in ("", "\n \n"):
                done, text = self.fill(block.format(body), "--check")
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertEqual(text, block.format(body))
                self.assertIn(f"page.md: nothing under '{block[5:block.index(' -->')]}'",
                              done.stdout)
        page = "<!-- run: echo one -->\n```\n$ echo one\none\n```\n<!-- /run -->\n"
        self.assertEqual(self.fill(page, "--check")[0].returncode, 0)

    def test_a_space_in_a_filter_is_written_as_an_underscore(self):
        self.file("r.json", [gpu("NVIDIA H200"), gpu("NVIDIA A100", 1.5)])
        done, text = self.fill("<!-- table: steps device=NVIDIA_A100 -->\n<!-- /table -->\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("1.50 ms", text)
        self.assertNotIn("H200", text)

    def test_speed(self):
        self.file("r.json", [gpu(), gpu(n=2048, median_ms=0.25)])
        done, text = self.fill("<!-- table: speed causal=true -->\n<!-- /table -->\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| TFLOP/s | N=1024 | N=2048 |", text)
        self.assertIn("| 01_naive | 1.07 | 2.15 |", text)

    def test_bad_markers_get_one_sentence(self):
        self.file("r.json", sim())
        for spec, word in (("nosuch", "choose from"), ("steps n", "key=value"),
                           ("steps n=3", "no result"), ("steps x=3", "choose from")):
            done, text = self.fill(f"<!-- table: {spec} -->\nold\n<!-- /table -->\n")
            self.assertEqual(done.returncode, 2, spec)
            self.assertIn(word, done.stderr)
            self.assertIn("old", text)

    def test_runs_commands_when_asked(self):
        page = "<!-- run: echo one; echo two -->\nold\n<!-- /run -->\n"
        self.assertIn("old", self.fill(page)[1])
        done, text = self.fill(page, "--run")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("```\n$ echo one; echo two\none\ntwo\n```\n<!-- /run -->", text)
        broken, _ = self.fill("<!-- run: exit 3 -->\n<!-- /run -->\n", "--run")
        self.assertEqual(broken.returncode, 2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])  # the build folder that ctest passes is not needed
