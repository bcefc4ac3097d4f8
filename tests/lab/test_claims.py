"""scripts/claims: each verdict of docs/claims.toml holds, and the page is up to date.

Argument: a build folder.
"""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from basis import ROOT
from lab import claims, claims_file

BUILD = os.path.abspath(sys.argv.pop()) if len(sys.argv) > 1 else os.path.join(ROOT, "build", "sim")

SHEET = """
[[claim]]
id = "{id}"
group = "Rates"
says = "An A100 multiplies matrices 16 times as fast as it does other arithmetic."
source = "data sheet"
run.sheet = "{run}"
figures.ratio = "{figure}"
found = "{{ratio:.0f}} times"
claimed = "{claimed}"
verdict = "{verdict}"
{more}
"""
DIFFERS = 'because = "it is {{ratio:.1f}}"\nhere = "{}"'
# A stand-in for a step's program.
PROGRAM = """#!{python}
import sys
sys.stderr.write({says!r})
if {tree} is not None:
    open(sys.argv[-1], 'w').write({tree!r})
sys.exit({status})
"""


def text(**values):
    """A claims file with one claim."""
    default = {
        "id": "ratio",
        "run": "cat common/data/gpus.json",
        "figure": "one(sheet.gpus, name='A100').bf16_flops / gpu('A100').fp32_flops",
        "claimed": "ratio == 16",
        "verdict": "reproduced",
        "more": "",
    }
    return SHEET.format(**(default | values))


def differs(here, **values):
    return text(verdict="differs", more=DIFFERS.format(here), **values)


class Claims(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def file(self, content, name="claims.toml"):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(content)
        return path

    def run_claims(self, *arguments, status=0, said=(), build=BUILD):
        """What it prints, and what it says is wrong; `said` is in one of both."""
        script = os.path.join(ROOT, "scripts", "claims")
        line = [sys.executable, script, *arguments, f"--build={build}"]
        done = subprocess.run(line, capture_output=True, text=True)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        for words in [said] if isinstance(said, str) else said:
            self.assertIn(words, done.stdout + done.stderr)
        if status in (2, 3):
            self.assertEqual(done.stdout, "")
        return done.stdout, done.stderr

    def run_file(self, content, *ids, **how):
        return self.run_claims("run", *ids, "--claims", self.file(content), **how)

    # --- of this tree ---

    def test_all_verdicts_hold_and_the_page_is_up_to_date(self):
        self.assertEqual(self.run_claims("table", "--check"), ("", ""))

    def test_the_list(self):
        out, _ = self.run_claims()
        self.assertLessEqual(max(map(len, out.splitlines())), 80)
        known = claims_file.load_claims(claims.CLAIMS)
        self.assertGreaterEqual(sum(not claim.needs_gpu for claim in known), 16)
        for claim in known:
            self.assertRegex(out, rf"\n  {claim.id} +(needs a GPU; )?{claim.verdict}\n")

    def test_what_needs_a_gpu_names_the_device(self):
        said = ("found, NVIDIA H200", "needs a GPU; differs: ", "source: ", "$ build/gpu/")
        out, _ = self.run_claims("run", "bandwidth-bound", said=said)
        self.assertLessEqual(max(map(len, out.splitlines())), 100)  # its commands are long

    # --- of a file ---

    def test_findings_that_fit(self):
        said = ("found, data sheets: 16 times", "1 of 1 findings fit their verdicts")
        self.run_file(text(), said=said)
        content = differs("ratio == 16", claimed="ratio == 17")
        self.run_file(content, "ratio", said="differs: it is 16.0\n")
        path = self.file(text())
        said = "docs/claims.md: out of date"
        self.run_claims("table", "--check", "--claims", path, status=1, said=said)

    def test_a_wrong_finding_fails(self):
        for content in (
            text(claimed="ratio == 17"),
            differs("ratio == 16"),  # it is as claimed
            differs("ratio == 18", claimed="ratio == 17"),
        ):
            self.run_file(content, status=1, said=("DOES NOT FIT", "0 of 1 findings"))
            path = self.file(content)
            self.run_claims("table", "--check", "--claims", path, status=1, said="DOES NOT FIT")

    def test_only_what_fits_fills_the_page(self):
        before = "# Claims\n\n<!-- claims -->\n<!-- /claims -->\n"
        for content, status in ((text(), 0), (text(claimed="ratio == 17"), 1)):
            page = self.file(before, "claims.md")
            with (
                mock.patch.multiple(claims, CLAIMS=self.file(content), PAGE=page),
                mock.patch.object(sys, "argv", ["claims", "table", f"--build={BUILD}"]),
                contextlib.redirect_stdout(io.StringIO()),
                contextlib.redirect_stderr(io.StringIO()) as said,
            ):
                self.assertEqual(claims.main(), status)
            with open(page, encoding="utf-8") as file:
                after = file.read()
            found = "Found, data sheets: 16 times. **Reproduced**." in after
            self.assertEqual((found, after == before), (status == 0, status == 1))
            self.assertEqual("not written" in said.getvalue(), status == 1)

    def test_what_a_program_writes_and_how_it_ends(self):
        right = {"n": 3, "device": {"name": "simulator (2 cores)"}}
        content = text(run="build/sim/steps/program", figure="sheet.n", claimed="ratio == 3")
        wrong = content + "wrong = true\n"  # the claim is about a wrong result
        self.run_file(content, build=self.folder, status=3, said="cmake --preset sim")
        for ends, tree, says, asked, status, said in (
            (0, right, "", content, 0, "found, simulator: 3 times"),
            (1, right, "O is wrong", content, 1, "O is wrong"),
            (1, right, "O is wrong", wrong, 0, "found, simulator: 3 times"),
            (2, None, "--n 0: at least 1", content, 2, "--n 0: at least 1"),
            (3, None, "no memory", content, 3, "no memory"),
        ):
            tree = tree and json.dumps(tree)
            program = PROGRAM.format(python=sys.executable, says=says, tree=tree, status=ends)
            if tree:
                program = program.replace(f"if {tree} is not None", "if True")
            os.chmod(self.file(program, os.path.join("steps", "program")), 0o755)
            _, error = self.run_file(asked, build=self.folder, status=status, said=said)
            self.assertLessEqual(len(error.splitlines()), 1)

    def test_files_that_are_wrong(self):
        gpu = "build/gpu/steps/01_naive --variant naive --b 1 --h 1 --n 7 --d"
        for content, *words in (
            ("", "no [[claim]]"),
            ("[[claim", "is not TOML"),
            ("claim = 3", "no [[claim]]"),
            (text() + text(), "two claims", "ratio"),
            (text(more="colour = 1"), "colour", "choose from"),
            (text(verdict="true"), "'true'", "reproduced"),
            (text(verdict="differs"), "'because'"),
            (text(more=DIFFERS.format("True")), "'because'"),
            (text(claimed=" "), "no text 'claimed'"),
            (text(claimed="ratio =="), "claimed", "ratio =="),
            (text(figure="open('/etc/passwd')"), "figure 'ratio'", "open"),
            (text(figure="sheet.gpus"), "no number"),
            (text(figure="sheet.cpus"), "there is no 'cpus'"),
            (text(figure="one(sheet.gpus, name='B1000').sms"), "0 rows"),
            (text(run="cat no.json"), "no.json"),
            (text(run="build/gpu/steps/01_naive --n 7"), "--variant"),
            (text(run=gpu), "value"),
            (text(run=gpu + " 64"), "no run"),
            (text(run="./scripts/peers.py --steps 10"), "--variants"),
            (text(run="rm -r build"), "rm"),
            (differs("True", claimed="False").replace("ratio:.1f", "none"), "because", "'none'"),
        ):
            with self.subTest(words=words):
                _, error = self.run_file(content, status=2, said=words)
                self.assertEqual(len(error.splitlines()), 1)

    def test_arguments_that_are_wrong(self):
        for arguments, word in (
            (("run", "no-such"), "no-such"),
            (("walk",), "walk"),
            (("list", "delta"), "takes no ID"),
            (("run", "--check"), "--check"),
            (("table", "--gpu"), "--gpu"),
            (("table", "--claims", "others.toml"), "--check"),
            (("run", "--gpu", "no-such"), "no-such"),
            (("--claims", os.path.join(self.folder, "nothing.toml")), "nothing.toml"),
        ):
            with self.subTest(arguments=arguments):
                self.run_claims(*arguments, status=2, said=word)

    def test_commands_on_the_page_and_as_they_run(self):
        a, b = "build/sim/steps/01_naive --n 8", "build/sim/steps/04_fused --n 8"
        loop = "for x in 01_naive 04_fused; do build/sim/steps/$x --n 8; done"
        values = {key: "x" for key in claims_file.TEXTS}
        for lines, shown in (
            ((a, a), [a]),
            ((a, b), [loop]),
            ((a, b + " --causal"), [a, b + " --causal"]),
            ((a, a + " --d 32", b), ["./scripts/claims run x"]),
        ):
            claim = claims_file.Claim(**values, run=dict(zip("abc", lines)))
            self.assertEqual(claims.commands_of(claim), shown)
        runner = claims_file.Runner("/build")
        for words, line in (
            (a, "/build/steps/01_naive --n 8 --json F"),
            ("build/gpu/steps/01_naive", "build/gpu/steps/01_naive --json F"),
            (
                "mpirun -n 2 build/sim/steps/14_ring --n 8",
                "mpirun -n 2 /build/steps/14_ring --n 8 --json F",
            ),
            (
                "./scripts/fit_m.py",
                f"{sys.executable} ./scripts/fit_m.py --program /build/steps/04_fused --json F",
            ),
        ):
            self.assertEqual(runner.line(words.split(), "F"), line.split())


if __name__ == "__main__":
    unittest.main(argv=["test"])
