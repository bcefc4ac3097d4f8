"""The classroom: every exercise against its author's promises, ./scripts/learn as people use it."""

import concurrent.futures
import json
import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree as ElementTree
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from learn_lib import check as checking  # noqa: E402
from learn_lib import exercises as catalogue  # noqa: E402
from learn_lib import grade as grading  # noqa: E402
from learn_lib import show  # noqa: E402
from learn_lib.desk import Desk  # noqa: E402

LEARN = ROOT / "scripts" / "learn"
BUILD = pathlib.Path()  # the build folder that ctest passes
EXERCISES = catalogue.load()
SEED = 20260
JOBS = 2

PLANTED = {
    "race",
    "coalescing",
    "bank conflicts",
    "wrong result",
    "uninitialised",
    "deadlock",
    "not a number",
}


def exercise(name):
    return catalogue.find(EXERCISES, name)


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def check(self, e, text, name=None, **options):
        """The verdict on a text."""
        place = self.folder / (name or e.name)
        place.mkdir(exist_ok=True)
        path = place / f"{e.label}.cuh"
        path.write_text(text)
        return checking.check(
            e, path, checking.Toolchain(BUILD), seed=SEED, folder=place / "build", **options
        )

    def learn(self, *arguments, **kind):
        return subprocess.run(
            [
                sys.executable,
                str(LEARN),
                *map(str, arguments),
                "--build",
                str(BUILD),
                "--folder",
                str(self.folder / "learn"),
            ],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
            **kind,
        )


# --- the author's guards ------------------------------------------------------------------------


class Guards(Folder):
    def test_every_exercise_keeps_its_promises(self):
        """Unsolved: compiles and fails. Solution: passes. Wrong ones: fail for the reason given."""
        toolchain = checking.Toolchain(BUILD)

        def one(e, name, text, number):
            path = self.folder / f"{e.name}-{number}" / f"{e.label}.cuh"
            path.parent.mkdir()
            path.write_text(text)
            verdict = checking.check(e, path, toolchain, seed=SEED, folder=path.parent)
            shutil.rmtree(path.parent)  # 35 MB a program
            return e, name, verdict

        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            waiting = []
            for e in EXERCISES:
                texts = [("unsolved", e.unsolved()), ("solution", e.solution())]
                texts += [(wrong.name, e.wrong(wrong)) for wrong in e.wrongs]
                waiting += [
                    pool.submit(one, e, name, text, number)
                    for number, (name, text) in enumerate(texts)
                ]
            results = [w.result() for w in waiting]
        unsolved_kinds = set()
        slowest = max(results, key=lambda result: result[2].seconds)
        for e, name, verdict in results:
            with self.subTest(exercise=e.name, what=name):
                self.assertNotEqual(verdict.kind, "does not compile", verdict.message)
                if name == "solution":
                    self.assertTrue(verdict.ok, f"{verdict.kind}: {verdict.message}")
                    self.assertEqual(len(verdict.problems), len(e.check["problems"]))
                    continue
                self.assertFalse(verdict.ok, "accepted")
                self.assertIn(verdict.kind, checking.ADVICE)
                if name == "unsolved":
                    unsolved_kinds.add(verdict.kind)
                else:
                    because = next(w.because for w in e.wrongs if w.name == name)
                    self.assertEqual(verdict.kind, because, verdict.message)
        self.assertLessEqual(PLANTED, unsolved_kinds)
        print(
            f"{len(results)} checks, the slowest {slowest[0].name}, {slowest[1]}: "
            f"{slowest[2].seconds:.1f} s with {JOBS} at a time"
        )

    def test_each_has_what_a_student_needs(self):
        for e in EXERCISES:
            with self.subTest(exercise=e.name):
                self.assertGreaterEqual(len(e.wrongs), 2)
                self.assertIn(len(e.hints), range(2, 5))
                self.assertIn(e.difficulty, (1, 2, 3))
                self.assertIn(e.session, range(1, 11))
                self.assertTrue(e.question.endswith("?"))
                self.assertTrue(e.answer.strip())
                shapes = e.check["problems"]
                self.assertGreaterEqual(len(shapes), 2)
                self.assertTrue(any(p["n"] % 32 for p in shapes), "no ragged problem")
                if e.kind == "fill in":
                    self.assertRegex(e.unsolved(), r"FILL IN \((about \d+ lines|1 line)\)")
                ours = [e.heading()] + [change.exercise for change in e.changes]
                for line in "".join(ours).splitlines():
                    self.assertLessEqual(len(line), 100, line)

    def test_the_ladder_is_covered(self):
        fill_ins = {e.step for e in EXERCISES if e.kind == "fill in"}
        steps = {p.parent.name for p in ROOT.glob("steps/[0-9][0-9]_*/exercises/")}
        self.assertEqual(fill_ins, steps)
        bugs = [e for e in EXERCISES if e.kind == "find the bug"]
        self.assertGreaterEqual(len(bugs), 8)
        files = {p.stem for p in ROOT.glob("steps/*/exercises/*.toml")}
        self.assertEqual(files, {e.name for e in EXERCISES}, "each file stands in the order once")

    def test_an_exercise_is_its_solution_outside_the_holes(self):
        for e in EXERCISES:
            with self.subTest(exercise=e.name):
                unsolved, solution, step = e.unsolved(), e.solution(), e.step_text()
                self.assertTrue(unsolved.startswith(e.heading()))
                unsolved = unsolved.removeprefix(e.heading())
                for number, change in enumerate(e.changes):
                    hole = f"<hole {number}>\n"
                    unsolved = catalogue.replace_once(unsolved, change.exercise, hole, e.name)
                    solution = catalogue.replace_once(solution, change.solution, hole, e.name)
                    step = catalogue.replace_once(step, change.step, hole, e.name)
                self.assertEqual(unsolved, solution)
                self.assertEqual(unsolved, step)
                self.assertNotEqual(e.unsolved(), e.heading() + e.solution())

    def test_a_step_that_changes_is_noticed(self):
        e = exercise("barrier")
        with mock.patch.object(type(e), "step_text", lambda self: "void nothing() {}\n"):
            with self.assertRaisesRegex(catalogue.Broken, "0 times instead of once"):
                e.unsolved()
        twice = e.step_text() * 2
        with mock.patch.object(type(e), "step_text", lambda self: twice):
            with self.assertRaisesRegex(catalogue.Broken, "2 times instead of once"):
                e.solution()

    def broken(self, edit, *words):
        """A copy of the steps' exercises in which scores.toml is edited is refused."""
        steps = self.folder / "steps"
        shutil.rmtree(steps, ignore_errors=True)
        shutil.copytree(ROOT / "steps", steps, ignore=shutil.ignore_patterns("*.cu*", "*.md"))
        path = steps / "01_naive" / "exercises" / "scores.toml"
        path.write_text(edit(path.read_text()))
        with mock.patch.object(catalogue, "ROOT", self.folder):
            with self.assertRaises(catalogue.Broken) as caught:
                catalogue.load(steps)
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_what_an_author_mistypes_is_named(self):
        self.broken(lambda t: t.replace("title =", "titel ="), "scores.toml", "titel")
        self.broken(lambda t: t.replace('kind = "fill in"', 'kind = "guess"'), "guess", "fill in")
        self.broken(lambda t: t.replace("because =", "cause =", 1), "cause")
        self.broken(lambda t: re.sub(r"hints = \[.*?\n\]\n", "", t, flags=re.DOTALL), "hints")
        self.broken(lambda t: t + "\n[", "scores.toml")


# --- one check ----------------------------------------------------------------------------------


class Checks(Folder):
    def test_a_wrong_element_is_shown(self):
        e = exercise("scores")
        verdict = self.check(e, e.wrong(e.wrongs[1]))
        self.assertEqual(verdict.kind, "wrong result")
        self.assertRegex(verdict.message, r"O\[b=0, h=\d, row=\d+, feature=\d+\] is \S+, expected ")
        text = show.verdict(e, "x.cuh", verdict)
        self.assertIn("  on B=1 H=2 N=40 d=32 fp32", text)
        self.assertIn("Its indices say", text)

    def test_bf16_with_fewer_key_heads_and_another_number_of_keys(self):
        e = exercise("fragments")
        verdict = self.check(e, e.solution())
        self.assertTrue(verdict.ok, verdict.message)
        seen = verdict.problems[-1]
        self.assertEqual(seen["problem"], "B=1 H=2 Hkv=1 N=33 Nk=70 d=128 causal bf16")
        self.assertEqual(seen["traffic"]["K"]["yours"]["read"], 2 * 2 * 70 * 128)  # each query head

    def test_traffic_is_a_table(self):
        e = exercise("tiles")
        verdict = self.check(e, e.wrong(next(w for w in e.wrongs if w.because == "traffic")))
        self.assertIn("bytes read from K, most of them at 03_tiles.cuh:", verdict.message)
        text = show.verdict(e, "03_tiles.cuh", verdict)
        self.assertRegex(text, r"\n  K read +844 800 +25 600  33\.0x too many +\d+\.\d\n")
        self.assertRegex(text, r"\n  V read +25 600 +25 600  = +4\.0\n")

    def test_the_first_finding_and_how_many_others(self):
        e = exercise("tiles")
        text = e.solution()
        self.assertGreater(text.count("__syncthreads();"), 1)
        verdict = self.check(e, text.replace("__syncthreads();", ""))
        self.assertIn(verdict.kind, ("race", "uninitialised"))
        self.assertRegex(
            verdict.message,
            r"^(race on|uninitialised) shared memory: .* \(and \d more findings? at other lines\)$",
        )
        self.assertEqual(len(re.findall("race on|uninitialised", verdict.message)), 1)

    def test_the_first_compile_error_only(self):
        e = exercise("scores")
        text = e.solution().replace("s *= scale;", "s *= sale;\n    alos wrong;")
        verdict = self.check(e, text)
        self.assertEqual(verdict.kind, "does not compile")
        self.assertRegex(verdict.message, r"^01_scores\.cuh:\d+:\d+: error: .*sale")
        self.assertNotIn("alos", verdict.message)
        self.assertLessEqual(len(verdict.message.splitlines()), 6)

    def host_code(self, line):
        e = exercise("scores")
        return e, e.solution().replace(
            '  float* S = t.scratch<float>("S");', f'  {line}\n  float* S = t.scratch<float>("S");'
        )

    def test_limits(self):
        with mock.patch.object(checking, "RUN_SECONDS", 2):
            verdict = self.check(*self.host_code("for (volatile int x = 0;; ++x) {}"))
            self.assertEqual(verdict.kind, "too slow")
        with mock.patch.object(checking, "RUN_BYTES", 256 << 20):
            verdict = self.check(
                *self.host_code(
                    "for (;;) { char* more = new char[1 << 20];"
                    " for (int i = 0; i < 1 << 20; i += 64) "
                    "more[i] = 1; }"
                )
            )
            self.assertEqual(verdict.kind, "too much memory")
        verdict = self.check(*self.host_code("__builtin_trap();"))
        self.assertEqual(verdict.kind, "crash")
        self.assertRegex(verdict.message, "SIGILL|SIGTRAP")

    def test_a_kernel_that_never_ends(self):
        e = exercise("scores")
        text = e.solution().replace(
            "  S[(bh * N + r) * N + c] = s;",
            "  while (causal) s += Q[0];\n  S[(bh * N + r) * N + c] = s;",
        )
        verdict = self.check(e, text)
        self.assertEqual(verdict.kind, "endless loop")
        self.assertIn("01_scores.cuh", verdict.message)

    def test_isolated_from_the_network(self):
        e = exercise("scores")
        verdict = self.check(e, e.solution(), isolate=True)
        self.assertTrue(verdict.ok, verdict.message)

    def test_other_inputs_each_time(self):
        """No seed: a new one; the solution does not depend on it."""
        e = exercise("rescale")
        path = self.folder / f"{e.label}.cuh"
        path.write_text(e.solution())
        seeds = set()
        for _ in range(3):
            verdict = checking.check(e, path, checking.Toolchain(BUILD), folder=self.folder)
            self.assertTrue(verdict.ok, verdict.message)
            seeds.add(json.loads((self.folder / "request.json").read_text())["seed"])
        self.assertEqual(len(seeds), 3)


# --- the student's files ------------------------------------------------------------------------


class Desks(Folder):
    def setUp(self):
        super().setUp()
        self.desk = Desk(self.folder / "learn", EXERCISES)

    def test_a_copy_is_made_once_and_never_overwritten(self):
        e = EXERCISES[0]
        path = self.desk.open(e)
        self.assertEqual(path.read_text(), e.unsolved())
        self.assertTrue(self.desk.is_untouched(e))
        path.write_text("mine")
        self.assertEqual(Desk(self.folder / "learn", EXERCISES).open(e).read_text(), "mine")
        self.assertFalse(self.desk.is_untouched(e))

    def test_reset_keeps_what_was_there(self):
        e = EXERCISES[0]
        path = self.desk.open(e)
        for number, text in enumerate(("first", "second"), 1):
            path.write_text(text)
            kept = self.desk.reset(e)
            self.assertEqual(kept.name, f"{path.name}.bak-{number}")
            self.assertEqual(kept.read_text(), text)
            self.assertEqual(path.read_text(), e.unsolved())

    def test_an_update_of_the_exercise_leaves_the_file_alone(self):
        e = EXERCISES[0]
        path = self.desk.open(e)
        before = path.read_text()
        with mock.patch.object(e, "task", "Another task."):
            self.assertTrue(self.desk.has_changed(e))
            self.assertEqual(self.desk.open(e).read_text(), before)
            self.assertTrue(self.desk.is_untouched(e))
        self.assertFalse(self.desk.has_changed(e))

    def test_another_order_finds_the_old_file(self):
        e = EXERCISES[0]
        self.desk.open(e).rename(self.folder / "learn" / f"77_{e.name}.cuh")
        self.assertEqual(self.desk.path(e).name, f"77_{e.name}.cuh")
        self.assertIs(catalogue.find(EXERCISES, f"learn/77_{e.name}.cuh"), e)

    def test_a_damaged_state_is_kept_aside(self):
        self.desk.mark_done(EXERCISES[0])
        self.desk.state_file.write_text("{ not json")
        again = Desk(self.folder / "learn", EXERCISES)
        self.assertIn(".state.json.bak-1", again.damaged)
        self.assertFalse(again.is_done(EXERCISES[0]))
        again.save()
        self.assertEqual(Desk(self.folder / "learn", EXERCISES).damaged, "")

    def test_a_state_with_odd_values_is_read_as_far_as_it_goes(self):
        self.desk.mark_done(EXERCISES[0])
        state = json.loads(self.desk.state_file.read_text())
        state.update(hints={EXERCISES[0].name: "two"}, current=5, made=[])
        self.desk.state_file.write_text(json.dumps(state))
        again = Desk(self.folder / "learn", EXERCISES)
        self.assertTrue(again.is_done(EXERCISES[0]))
        self.assertEqual(again.next_hint(EXERCISES[0])[0], 1)
        self.assertIs(again.current, EXERCISES[0])

    def test_hints_one_by_one(self):
        e = EXERCISES[0]
        shown = [self.desk.next_hint(e)[0] for _ in range(len(e.hints) + 1)]
        self.assertEqual(shown, [*range(1, len(e.hints) + 1), len(e.hints)])


# --- the commands -------------------------------------------------------------------------------


class Commands(Folder):
    def test_from_the_first_look_to_done(self):
        e = EXERCISES[0]
        path = self.folder / "learn" / f"{e.label}.cuh"
        done = self.learn("run", e.name)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("its first lines say what to do", done.stdout)
        self.assertIn("not yet: uninitialised", done.stdout)
        self.assertFalse((self.folder / "learn" / "solutions").exists())
        refused = self.learn("answer", e.name)
        self.assertEqual((refused.returncode, refused.stdout), (2, ""))
        hint = self.learn("hint")
        self.assertIn(f"hint 1 of {len(e.hints)}", hint.stdout)

        path.write_text(e.solution())
        done = self.learn("run", e.name)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f"done: {e.title}", done.stdout)
        self.assertIn(f"next: ./scripts/learn run {EXERCISES[1].name}", done.stdout)
        solution = self.folder / "learn" / "solutions" / f"{e.label}.cuh"
        self.assertEqual(solution.read_text(), e.solution())
        self.assertEqual(self.learn("answer", "1").returncode, 0)
        self.assertRegex(self.learn("list").stdout, r"(?m)^(done|here)   1  scores")

        broken = self.learn("check-all")
        self.assertEqual(broken.returncode, 0, broken.stdout)
        self.assertIn(f"1/{len(EXERCISES)} done", broken.stdout)
        reset = self.learn("reset", e.name)
        self.assertIn(f"{e.label}.cuh.bak-1", reset.stdout)
        self.assertEqual(path.read_text(), e.unsolved())
        self.assertEqual(self.learn("check-all").returncode, 1)

    def test_bad_use(self):
        for arguments, words in (
            (("run", "nothing"), ("nothing", "list")),
            (("grade", "/no/such/folder"), ("no folder",)),
            (("grade", str(self.folder)), ("one for each student",)),
            (("grade", str(ROOT / "steps"), "--jobs", "0"), ("--jobs 0",)),
            (("grade", str(ROOT / "steps"), "--json", str(self.folder)), ("cannot be written",)),
        ):
            with self.subTest(arguments=arguments):
                refused = self.learn(*arguments)
                self.assertEqual(refused.returncode, 2, refused.stdout)
                self.assertEqual(len(refused.stderr.splitlines()), 1, refused.stderr)
                for word in words:
                    self.assertIn(word, refused.stderr)
        self.assertEqual(self.learn("learn").returncode, 2)
        (self.folder / "learn").write_text("a file where the folder should be")
        refused = self.learn("hint")
        self.assertEqual((refused.returncode, len(refused.stderr.splitlines())), (2, 1))
        self.assertIn("Not a directory", refused.stderr)


class Watching(Folder):
    """The bare command, in a terminal and without one."""

    def watch(self, terminal):
        command = [
            sys.executable,
            str(LEARN),
            "--build",
            str(BUILD),
            "--folder",
            str(self.folder / "learn"),
        ]
        if terminal:
            master, slave = pty.openpty()
            self.addCleanup(os.close, master)
            process = subprocess.Popen(
                command,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                cwd=ROOT,
                env={**os.environ, "TERM": "xterm"},
            )
            os.close(slave)
            self.write, self.read_from = (lambda keys: os.write(master, keys.encode())), master
        else:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
            )
            self.addCleanup(process.stdout.close)
            self.addCleanup(process.stdin.close)

            def write(keys):
                process.stdin.write("".join(key + "\n" for key in keys).encode())
                process.stdin.flush()

            self.write, self.read_from = write, process.stdout.fileno()
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def until(self, words, seconds=60):
        """Waits until `words` are printed; what follows them is left for the next call."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            _, found, after = self.printed.partition(words)
            if found:
                self.printed = after
                return
            ready, _, _ = select.select([self.read_from], [], [], 0.1)
            if ready:
                try:
                    more = os.read(self.read_from, 4096)
                except OSError:
                    more = b""
                if not more:
                    break
                self.printed += more.decode(errors="replace")
        self.fail(f"'{words}' did not come; this did:\n{self.printed}")

    def session(self, terminal):
        e, second = EXERCISES[:2]
        self.printed = ""
        process = self.watch(terminal)
        self.until("not yet: uninitialised")
        self.until("q quit")
        self.write("h")
        self.until("hint 1 of")
        path = self.folder / "learn" / f"{e.label}.cuh"
        new = path.with_suffix(".new")
        new.write_text(e.solution())  # as editors save: another file takes the place
        os.replace(new, path)
        self.until(f"done: {e.title}")
        self.until("n: the next exercise")
        self.write("a")
        self.until("4 different ones")
        self.write("l")
        self.until(EXERCISES[-1].title)
        self.write("n")
        self.until(second.title)
        self.until("not yet: race")
        self.until("q quit")
        self.write("xx")
        self.until("bak-1")
        self.until("not yet: race")
        self.write("q")
        self.assertEqual(process.wait(20), 0)
        self.assertTrue((self.folder / "learn" / f"{second.label}.cuh.bak-1").exists())

    def test_in_a_terminal(self):
        try:
            os.close(pty.openpty()[0])
        except OSError:
            self.skipTest("no pseudo terminals here")
        self.session(terminal=True)

    def test_line_by_line(self):
        self.session(terminal=False)


# --- grading ------------------------------------------------------------------------------------


class Grading(Folder):
    def test_thirty_copies_with_injected_faults(self):
        """Three exercises, thirty students; who made which mistake is known beforehand."""
        picked = [exercise(name) for name in ("scores", "barrier", "banks")]
        expected = {}
        for student in range(30):
            name = f"student{student:02}"
            expected[name] = {}
            folder = self.folder / "class" / name / "learn"
            folder.mkdir(parents=True)
            for e in picked:
                choices = [("ok", e.solution()), ("untouched", e.unsolved()), ("missing", None)]
                choices += [(w.because, e.wrong(w)) for w in e.wrongs]
                choices.append(("does not compile", e.solution().replace("float", "flaot", 1)))
                what, text = choices[(student * 5 + picked.index(e) * 3) % len(choices)]
                expected[name][e.name] = what
                if text is not None:
                    (folder / f"{e.label}.cuh").write_text(text)
        odd = self.folder / "class" / "student00" / "learn"
        (odd / "notes.txt").write_text("not an exercise")
        (odd / "99_unknown.cuh").write_text("void f();")

        junit, report = self.folder / "grades.xml", self.folder / "grades.json"
        done = self.learn(
            "grade",
            self.folder / "class",
            "--junit",
            junit,
            "--json",
            report,
            "--seed",
            SEED,
            "--jobs",
            JOBS,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        document = json.loads(report.read_text())
        self.assertEqual((document["schema"], document["seed"]), (1, SEED))
        self.assertEqual([s["name"] for s in document["students"]], sorted(expected))
        seen_kinds = set()
        for student in document["students"]:
            got = {row["name"]: row for row in student["exercises"]}
            self.assertEqual(len(got), len(EXERCISES))
            for name, what in expected[student["name"]].items():
                row = got[name]
                word = row["kind"] if row["result"] == "wrong" else row["result"]
                self.assertEqual(word, what, f"{student['name']} {name}: {row['message']}")
                seen_kinds.add(what)
            self.assertEqual(
                student["done"], sum(w == "ok" for w in expected[student["name"]].values())
            )
        self.assertLessEqual(
            {
                "ok",
                "untouched",
                "missing",
                "race",
                "bank conflicts",
                "wrong result",
                "does not compile",
            },
            seen_kinds,
        )

        table = done.stdout.split("\n\n")[0]  # name, done, a word for each exercise
        for line in table.splitlines():
            name = line.split()[0] if line.split() else ""
            if name in expected:
                words = {"untouched": "-", "missing": "."}
                cells = re.split(r"\s{2,}", line)
                self.assertEqual(cells[2:], [words.get(w, w) for w in expected[name].values()])

        suites = ElementTree.parse(junit).getroot()
        self.assertEqual(len(suites), 30)
        for suite in suites:
            wrong = [
                w
                for w in expected[suite.get("name")].values()
                if w not in ("ok", "untouched", "missing")
            ]
            self.assertEqual(int(suite.get("failures")), len(wrong))
            self.assertEqual(sorted(f.get("type") for f in suite.iter("failure")), sorted(wrong))

    def test_changes_outside_the_holes_are_pointed_out(self):
        e = exercise("banks")
        self.assertEqual(grading.lines_outside(e, e.heading() + e.solution()), 0)
        cheat = e.unsolved().replace("s += sQ[ty][x] * sK", "s += 1 * sQ[ty][x] * sK")
        self.assertEqual(grading.lines_outside(e, cheat), 1)

    def test_of_two_files_the_newer_counts(self):
        student = self.folder / "student"
        (student / "old").mkdir(parents=True)
        old, new = student / "old" / "01_scores.cuh", student / "01_scores.cuh"
        old.write_text("old")
        new.write_text("new")
        os.utime(old, (1, 1))
        self.assertEqual(grading.submitted(student, EXERCISES), ({"scores": new}, []))

    def test_what_cannot_be_graded_is_named(self):
        """Links, folders and pipes where a file should be; the others are graded all the same."""
        student = self.folder / "class" / "student"
        student.mkdir(parents=True)
        (student / "4_barrier.cuh").write_text(exercise("barrier").unsolved())
        (student / "01_scores.cuh").symlink_to("/etc/passwd")
        (student / "07_banks.cuh").mkdir()
        (student / "99_unknown.cuh").write_text("void f();")
        os.mkfifo(student / "02_reduction.cuh")
        done = self.learn("grade", self.folder / "class", "--seed", SEED)
        self.assertEqual(done.returncode, 0, done.stderr)
        aside = [line for line in done.stdout.splitlines() if line.startswith("left aside: ")]
        self.assertEqual(
            aside,
            [
                "left aside: student/01_scores.cuh, which is no plain file",
                "left aside: student/02_reduction.cuh, which is no plain file",
                "left aside: student/99_unknown.cuh, whose name is no exercise's",
            ],
        )
        found, _ = grading.submitted(student, EXERCISES)
        self.assertEqual(list(found), ["barrier"])

    def test_the_table_of_all_exercises_fits_a_terminal(self):
        row = [
            grading.Grade("a student with a long name", e, "wrong", "does not compile")
            for e in EXERCISES
        ]
        lines = grading.table({row[0].student: row}, EXERCISES).splitlines()
        self.assertLessEqual(max(map(len, lines)), 100)
        self.assertEqual(" ".join(lines).count("does not compile"), len(EXERCISES))
        for e in EXERCISES:
            self.assertEqual(" ".join(lines).count(e.label), 1)


def main():
    global BUILD
    if len(sys.argv) < 2:
        sys.exit("usage: test_learn.py BUILD_FOLDER [TEST ...]")
    BUILD = pathlib.Path(sys.argv[1]).resolve()
    try:
        checking.Toolchain(BUILD)
    except checking.NotBuilt as error:
        sys.exit(f"test_learn.py: {error}: cmake --build {BUILD} --target exercises")
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])


if __name__ == "__main__":
    main()
