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

from copies import ROOT

BUILD = os.path.abspath(sys.argv.pop()) if len(sys.argv) > 1 else os.path.join(ROOT, "build", "sim")

from flash_steps import claims, claims_file, claims_runs  # noqa: E402 -- copies.py sets the path

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
DIFFERS = 'because = "it is so"\nhere = "{here}"'


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


def run(*arguments, build=BUILD):
    return subprocess.run(
        [sys.executable, os.path.join(ROOT, "scripts", "claims"), *arguments, f"--build={build}"],
        capture_output=True,
        text=True,
    )


class Folder(unittest.TestCase):
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

    def run_file(self, content, **how):
        return run("run", "--claims", self.file(content), **how)


class Claims(unittest.TestCase):
    def test_all_verdicts_hold_and_the_page_is_up_to_date(self):
        done = run("table", "--check")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_the_list(self):
        done = run()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80)
        known = claims_file.load_claims(claims.CLAIMS)
        self.assertGreaterEqual(len(known), 20)
        self.assertGreaterEqual(sum(not claim.needs_gpu for claim in known), 16)
        for claim in known:
            self.assertRegex(done.stdout, rf"\n  {claim.id} +(needs a GPU; )?{claim.verdict}\n")

    def test_what_needs_a_gpu_names_the_device(self):
        done = run("run", "bandwidth-bound")
        self.assertEqual(done.returncode, 0, done.stderr)
        for words in ("found, NVIDIA H200", "needs a GPU; differs: ", "source: ", "$ build/gpu/"):
            self.assertIn(words, done.stdout)
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 100)  # its commands are long


class Verdicts(Folder):
    def test_a_right_finding(self):
        done = self.run_file(text())
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("found, data sheets: 16 times", done.stdout)
        self.assertIn("1 of 1 findings fit their verdicts", done.stdout)

    def test_a_wrong_finding_fails(self):
        for values in (
            {"claimed": "ratio == 17"},
            {"verdict": "differs", "more": DIFFERS.format(here="ratio == 16")},  # it is as claimed
            {
                "verdict": "differs",
                "claimed": "ratio == 17",
                "more": DIFFERS.format(here="ratio == 18"),
            },
        ):
            with self.subTest(values=values):
                done = self.run_file(text(**values))
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn("DOES NOT FIT", done.stdout)
                self.assertIn("0 of 1 findings", done.stdout)
                done = run("table", "--check", "--claims", self.file(text(**values)))
                self.assertEqual(done.returncode, 1)
                self.assertIn("DOES NOT FIT", done.stderr)

    def test_a_finding_that_differs(self):
        more = DIFFERS.format(here="ratio == 16")
        done = self.run_file(text(verdict="differs", claimed="ratio == 17", more=more))
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_reason_with_figures(self):
        more = 'because = "it is {ratio:.1f}"\nhere = "True"'
        path = self.file(text(verdict="differs", claimed="ratio == 17", more=more))
        self.assertIn("differs: it is 16.0\n", run("run", "ratio", "--claims", path).stdout)

    def test_a_page_out_of_date(self):
        done = run("table", "--check", "--claims", self.file(text()))
        self.assertEqual(done.returncode, 1)
        self.assertIn("docs/claims.md: out of date", done.stdout)


class Page(Folder):
    """`claims table` with a page and claims of its own."""

    before = "# Claims\n\n<!-- claims -->\n<!-- /claims -->\n"

    def fill(self, content):
        """(exit status, the page after it, what it says)"""
        page = self.file(self.before, "claims.md")
        with (
            mock.patch.multiple(claims, CLAIMS=self.file(content), PAGE=page),
            mock.patch.object(sys, "argv", ["claims", "table", f"--build={BUILD}"]),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()) as said,
        ):
            status = claims.main()
        with open(page, encoding="utf-8") as file:
            return status, file.read(), said.getvalue()

    def test_findings_that_fit_fill_it(self):
        status, after, said = self.fill(text())
        self.assertEqual((status, said), (0, ""))
        self.assertIn("Found, data sheets: 16 times. **Reproduced**.", after)

    def test_a_wrong_finding_leaves_it(self):
        status, after, said = self.fill(text(claimed="ratio == 17"))
        self.assertEqual((status, after), (1, self.before))
        self.assertIn("DOES NOT FIT", said)
        self.assertIn("not written", said)


class Programs(Folder):
    """A stand-in for a step's program."""

    def program(self, status, tree=None, says=""):
        path = self.file(
            f"#!{sys.executable}\n"
            "import sys\n"
            f"sys.stderr.write({says!r})\n"
            f"if {tree is not None}:\n"
            f"    open(sys.argv[-1], 'w').write({json.dumps(tree)!r})\n"
            f"sys.exit({status})\n",
            os.path.join("steps", "program"),
        )
        os.chmod(path, 0o755)

    def run_program(self, **values):
        content = text(run="build/sim/steps/program", figure="sheet.n", claimed="ratio == 3")
        return self.run_file(content + values.get("more", ""), build=self.folder)

    def test_what_it_writes_is_read(self):
        self.program(0, {"n": 3, "device": {"name": "simulator (2 cores)"}})
        done = self.run_program()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("found, simulator: 3 times", done.stdout)

    def test_a_wrong_result_fails_unless_the_claim_is_about_it(self):
        self.program(1, {"n": 3, "device": {"name": "simulator (2 cores)"}}, "O is wrong")
        done = self.run_program()
        self.assertEqual(done.returncode, 1)
        self.assertIn("O is wrong", done.stderr)
        self.assertEqual(self.run_program(more="wrong = true\n").returncode, 0)

    def test_its_exit_status(self):
        for status, words in ((2, "--n 0: at least 1"), (3, "no memory")):
            self.program(status, says=words)
            done = self.run_program()
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (status, 1))
            self.assertIn(words, done.stderr)

    def test_no_program(self):
        done = self.run_program()
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (3, 1))
        self.assertIn("cmake --preset sim", done.stderr)


class BadInput(Folder):
    def refused(self, done, *words):
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertNotIn("Traceback", done.stderr)
        for word in words:
            self.assertIn(word, done.stderr)

    def test_files(self):
        two = text() + text()
        for content, *words in (
            ("", "no [[claim]]"),
            ("[[claim", "is not TOML"),
            ("claim = 3", "no [[claim]]"),
            (two, "two claims", "ratio"),
            (text(more="colour = 1"), "colour", "choose from"),
            (text(verdict="true"), "'true'", "reproduced"),
            (text(verdict="differs"), "'because'"),
            (text(more=DIFFERS.format(here="True")), "'because'"),
            (text(claimed=" "), "no text 'claimed'"),
            (text(claimed="ratio =="), "claimed", "ratio =="),
            (text(figure="open('/etc/passwd')"), "figure 'ratio'", "open"),
            (text(figure="sheet.gpus"), "no number"),
            (text(figure="sheet.cpus"), "there is no 'cpus'"),
            (text(figure="one(sheet.gpus, name='B1000').sms"), "0 rows"),
            (text(run="cat no.json"), "no.json"),
            (text(run="build/gpu/steps/01_naive --n 7"), "--variant"),
            (text(run="build/gpu/steps/01_naive --variant naive --b 1 --h 1 --n 7 --d"), "value"),
            (
                text(run="build/gpu/steps/01_naive --variant naive --b 1 --h 1 --n 7 --d 64"),
                "no run",
            ),
            (text(run="./scripts/peers.py --steps 10"), "--variants"),
            (text(run="rm -r build"), "rm"),
            (
                text(
                    verdict="differs",
                    claimed="False",
                    more='because = "it is {none}"\nhere = "True"',
                ),
                "because",
                "'none'",
            ),
        ):
            with self.subTest(words=words):
                done = self.run_file(content)
                self.refused(done, *words)
                self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_arguments(self):
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
                self.refused(run(*arguments), word)


class Commands(unittest.TestCase):
    def commands(self, *lines):
        values = {key: "x" for key in claims_file.TEXTS}
        names = dict(zip("abcdef", lines))
        return claims.commands_of(claims_file.Claim(**values, run=names))

    def test_on_the_page(self):
        a, b = "build/sim/steps/01_naive --n 8", "build/sim/steps/04_fused --n 8"
        self.assertEqual(self.commands(a, a), [a])
        self.assertEqual(
            self.commands(a, b),
            ["for x in 01_naive 04_fused; do build/sim/steps/$x --n 8; done"],
        )
        self.assertEqual(self.commands(a, b + " --causal"), [a, b + " --causal"])
        self.assertEqual(self.commands(a, a + " --d 32", b), ["./scripts/claims run x"])

    def test_that_run(self):
        runner = claims_runs.Runner("/build")
        self.assertEqual(
            runner.line(["build/sim/steps/01_naive", "--n", "8"], "F"),
            ["/build/steps/01_naive", "--n", "8", "--json", "F"],
        )
        self.assertEqual(
            runner.line(["build/gpu/steps/01_naive"], "F"),
            ["build/gpu/steps/01_naive", "--json", "F"],
        )
        self.assertEqual(
            runner.line("mpirun -n 2 build/sim/steps/14_ring --n 8".split(), "F"),
            "mpirun -n 2 /build/steps/14_ring --n 8 --json F".split(),
        )
        self.assertIn("/build/steps/04_fused", runner.line(["./scripts/fit_m.py"], "F"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
