"""The classroom: every exercise against its author's promises, ./scripts/learn as people use it."""

import concurrent.futures
import contextlib
import dataclasses
import fcntl
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from unittest import mock

import copies
from copies import Folder, for_all
from learn_lib import check as checking
from learn_lib import exercises as catalogue
from learn_lib import grade as grading
from learn_lib import show
from learn_lib.desk import Desk
from learn_lib.watch import Watch

ROOT, BUILD = Path(copies.ROOT), Path(copies.BUILD)
LEARN = ROOT / "scripts" / "learn"
EXERCISES = catalogue.load()
SEED = 20260
JOBS = 2
PLANTED = {"race", "coalescing", "bank conflicts", "wrong result", "uninitialised", "deadlock"}
PLANTED.add("not a number")
LEARN_PAGE = ROOT / "docs" / "learn.md"
PAGES = re.compile(r"(?s)(?<=```\n)(\[[-#]+\] .*?)(?=```)")


def exercise(name):
    return catalogue.find(EXERCISES, name)


def wrong(e, because):
    """The text of its first wrong solution of this kind."""
    return e.wrong(next(w for w in e.wrongs if because in (w.because, w.name)))


class Classroom(Folder):
    def file(self, e, text, folder=None):
        return self.write((folder or self.folder) / f"{e.label}.cuh", text)

    def check(self, e, text, kind=None, **options):
        """The verdict on a text, which is of this kind ("": right)."""
        path = self.file(e, text, self.folder / e.name)
        verdict = checking.check(
            *(e, path, checking.Toolchain(BUILD)),
            seed=SEED,
            folder=path.parent / "build",
            **options,
        )
        if kind is not None:
            self.assertEqual((verdict.kind, verdict.ok), (kind, not kind), verdict.message)
        return verdict

    def command(self, *arguments, folder=None):
        places = ["--build", BUILD, "--folder", folder or self.folder / "learn"]
        return list(map(str, [sys.executable, LEARN, *arguments, *places]))

    def learn(self, *arguments, folder=None, before=(), status=None, **kind):
        kind = {"capture_output": True, "text": True, "cwd": ROOT, **kind}
        done = subprocess.run([*before, *self.command(*arguments, folder=folder)], **kind)
        if status is not None:
            self.assertEqual(done.returncode, status, f"{done.stdout}{done.stderr}")
        return done


# --- the author's guards ------------------------------------------------------------------------


class Guards(Classroom):
    def test_every_exercise_keeps_its_promises(self):
        """Unsolved: compiles and fails. Solution: passes. A wrong one: fails for the reason given;
        where there is a bug to find, unsolved is one."""
        kinds = self.check_all(
            lambda e, wrongs: {
                "solution": e.solution(),
                "unsolved": e.unsolved(),
                **(dict(wrongs[:1]) if e.kind != "find the bug" else {}),
            }
        )
        self.assertLessEqual(PLANTED, kinds)

    @for_all
    def test_every_wrong_solution_fails_for_the_reason_given(self):
        self.check_all(lambda e, wrongs: dict(wrongs[e.kind != "find the bug" :]))

    def check_all(self, texts_of):
        """Each text of each exercise; the kinds of fault of those that are unsolved."""
        toolchain = checking.Toolchain(BUILD)

        def one(e, name, text, number):
            path = self.file(e, text, self.folder / f"{e.name}-{number}")
            verdict = checking.check(e, path, toolchain, seed=SEED, folder=path.parent)
            shutil.rmtree(path.parent)  # 35 MB a program
            return e, name, verdict

        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            waiting = [
                pool.submit(one, e, name, text, number)
                for e in EXERCISES
                for number, (name, text) in enumerate(
                    texts_of(e, [(w.name, e.wrong(w)) for w in e.wrongs]).items()
                )
            ]
            results = [w.result() for w in waiting]
        unsolved_kinds = set()
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
                    self.says_enough(e, verdict)
                else:
                    because = next(w.because for w in e.wrongs if w.name == name)
                    self.assertEqual(verdict.kind, because, verdict.message)
        e, name, verdict = max(results, key=lambda result: result[2].seconds)
        print(f"{len(results)} checks, the slowest {e.name}, {name}: {verdict.seconds:.1f} s")
        return unsolved_kinds

    def says_enough(self, e, verdict):
        """What a student reads first: of a hole, where it is; of a bug, what is wrong and with
        which element, and its lines only when asked."""
        path = self.file(e, e.unsolved())
        first = show.verdict(e, path, verdict, untouched=True, where=False)
        if e.kind != "find the bug":
            line = next(n for n, t in enumerate(e.unsolved().splitlines(), 1) if "FILL IN" in t)
            self.assertIn(f"{e.label}.cuh:{line}", first)
            self.assertRegex(first, "not yet: the (hole is|holes are) empty")
            return
        self.assertNotRegex(first, r"\.cuh:\d|\n +\d+ \| ")
        self.assertIn(f"not yet: {verdict.kind}", first)
        asked = show.verdict(e, path, verdict)
        if verdict.kind in ("race", "uninitialised", "deadlock", "bank conflicts", "coalescing"):
            self.assertIn("--where shows the lines", first)
            self.assertRegex(asked, rf"(?s){e.label}\.cuh:\d+.*\n +\d+ \| ")

    def test_each_has_what_a_student_needs(self):
        for e in EXERCISES:
            with self.subTest(exercise=e.name):
                self.assertGreaterEqual(len(e.wrongs), 2)
                self.assertIn(len(e.hints), range(2, 5))
                self.assertIn(e.difficulty, (1, 2, 3))
                self.assertIn(e.session, range(1, 16))
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
        self.assertGreaterEqual(len([e for e in EXERCISES if e.kind == "find the bug"]), 8)
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
        twice = e.step_text() * 2
        for text, words in (
            ("void nothing() {}\n", "0 times instead of once"),
            (twice, "2 times instead of once"),
        ):
            with mock.patch.object(type(e), "step_text", lambda self, text=text: text):
                for made in (e.unsolved, e.solution):
                    self.assertRaisesRegex(catalogue.Broken, words, made)

    def test_a_variant_is_quoted_alone(self):
        path = self.folder / "steps" / "01_naive" / "step.cuh"
        path.parent.mkdir(parents=True)
        shared = "inline int both() { return 2; }\n"
        one, two, naive = (
            f'\ninline fa::Variant {name}() {{\n  return {{.name = "{name}"}};\n}}\n'
            for name in ("one", "two", "naive")
        )
        with mock.patch.object(catalogue, "ROOT", self.folder):
            for variants in (one + naive + two, naive + one, two + naive):
                path.write_text(f"// x\nnamespace step01 {{\n{variants}\n}}\n")
                self.assertEqual(exercise("scores").variant(), ("step01", naive))
                mark = "// --- variants ---\n"
                path.write_text(f"namespace step01 {{\n{shared}{mark}{variants}\n}}\n")
                self.assertEqual(exercise("scores").variant(), ("step01", shared + naive))
            path.write_text(f"namespace step01 {{\n{one}\n}}\n")
            with self.assertRaisesRegex(catalogue.Broken, "scores.toml.*step.cuh.*'naive'"):
                exercise("scores").variant()

    def test_holes_and_what_is_in_them(self):
        for e in EXERCISES:
            with self.subTest(exercise=e.name):
                unsolved = e.unsolved()
                holes = e.holes(unsolved)
                self.assertEqual(len(holes), e.unsolved().count("FILL IN ("))
                self.assertTrue(all(hole.empty for hole in holes))
                self.assertFalse(any(h.empty for h in e.holes(e.heading() + e.solution())))
                for hole in holes:
                    self.assertIn("FILL IN", unsolved.splitlines()[hole.line - 1])
                if len(holes) < 2:
                    continue
                one = unsolved[: holes[0].begin] + holes[0].change.solution
                one += unsolved[holes[0].end :]
                words = [hole.empty for hole in e.holes(one)]
                self.assertEqual(words, [False] + [True] * (len(holes) - 1))
                full = e.completed(one, e.holes(one))
                code = catalogue.code_of(
                    "\n".join(x for x in full.splitlines() if x[:5] != "#line")
                )
                self.assertEqual(code, catalogue.code_of(e.solution()))
                self.assertEqual(e.holes(unsolved.replace("namespace", "namespaces")), [])

    def test_what_an_author_mistypes_is_named(self):
        """A copy of the steps' exercises in which scores.toml is edited is refused."""
        steps = self.folder / "steps"
        shutil.copytree(ROOT / "steps", steps, ignore=shutil.ignore_patterns("*.cu*", "*.md"))
        path = steps / "01_naive" / "exercises" / "scores.toml"
        text = path.read_text()
        for edited, *words in (
            (text.replace("title =", "titel ="), "scores.toml", "titel"),
            (text.replace('kind = "fill in"', 'kind = "guess"'), "guess", "fill in"),
            (text.replace("because =", "cause =", 1), "cause"),
            (re.sub(r"(?s)hints = \[.*?\n\]\n", "", text), "hints"),
            (text + "\n[", "scores.toml"),
            (text.replace('kind = "fill in"', 'kind = "predict"'), "'text' belongs"),
            ('text = "a file"\n' + text, "scores.toml", "'text' belongs"),
            (re.sub(r"(?s)problems = \[.*?\n\]", "problems = []", text), "passes everything"),
        ):
            path.write_text(edited)
            with mock.patch.object(catalogue, "ROOT", self.folder):
                with self.assertRaises(catalogue.Broken) as caught:
                    catalogue.load(steps)
            for word in words:
                self.assertIn(word, str(caught.exception))


# --- one check ----------------------------------------------------------------------------------


class Checks(Classroom):
    def test_a_wrong_element_is_shown(self):
        e = exercise("scores")
        verdict = self.check(e, e.wrong(e.wrongs[1]), "wrong result")
        self.assertRegex(verdict.message, r"O\[b=0, h=\d, row=\d+, feature=\d+\] is \S+, expected ")
        text = show.verdict(e, "x.cuh", verdict)
        self.assertIn("  on B=1 H=2 N=40 d=32 fp32", text)
        self.assertIn("Its indices say", text)

    def test_bf16_with_fewer_key_heads_and_another_number_of_keys(self):
        e = exercise("blind_rows")
        seen = self.check(e, e.solution(), "").problems[-1]
        self.assertEqual(seen["problem"], "B=1 H=2 Hkv=1 N=33 Nk=70 d=128 causal bf16")
        self.assertEqual(seen["traffic"]["K"]["yours"]["read"], 2 * 2 * 70 * 128)  # each query head

    @for_all
    def test_a_race_in_another_file_of_the_step_names_the_line_that_leads_there(self):
        e = exercise("which_product")
        text = e.unsolved()
        verdict = self.check(e, text)
        called = re.search(
            rf"accumulators, element 3, at 1_products\.cuh:\d+ \(called at {e.label}\.cuh:(\d+)\)",
            verdict.message,
        )
        self.assertTrue(called, verdict.message)
        self.assertEqual(text.splitlines()[int(called[1]) - 1].strip(), "dQ_part.add(rdQ);")
        # A wait for both products is right, too, as the question of the exercise says.
        both = catalogue.replace_once(text, "wait_for<1>(rdQ)", "wait_for<0>(rdQ)", e.name)
        self.check(e, both, "")

    def test_traffic_is_a_table(self):
        e = exercise("tiles")
        verdict = self.check(e, wrong(e, "traffic"))
        self.assertIn("844,800 bytes read from K, most of them at 03_tiles.cuh:", verdict.message)
        text = show.verdict(e, "03_tiles.cuh", verdict)
        self.assertRegex(text, r"\n  K read +844,800 +25,600  33\.0x too many +\d+\.\d\n")
        self.assertRegex(text, r"\n  V read +25,600 +25,600  = +4\.0\n")

    def test_the_first_finding_and_how_many_others(self):
        e = exercise("tiles")
        text = e.solution()
        self.assertGreater(text.count("__syncthreads();"), 1)
        verdict = self.check(e, text.replace("__syncthreads();", ""))
        self.assertIn(verdict.kind, ("race", "uninitialised"))
        one = (
            r"^(race on|uninitialised) shared memory: .* \(and \d more findings? at other lines\)$"
        )
        self.assertRegex(verdict.message, one)
        self.assertEqual(len(re.findall("race on|uninitialised", verdict.message)), 1)

    def test_the_first_compile_error_only(self):
        e = exercise("scores")
        text = e.solution().replace("s *= scale;", "s *= sale;\n    alos wrong;")
        verdict = self.check(e, text, "does not compile")
        self.assertRegex(verdict.message, r"^01_scores\.cuh:\d+:\d+: error: .*sale")
        self.assertNotIn("alos", verdict.message)
        self.assertLessEqual(len(verdict.message.splitlines()), 6)

    def scores(self, line="", before="  float* S = t.scratch", includes=(), text=None):
        """scores, solved, with a line more, in its host function or before another text."""
        e = exercise("scores")
        text = e.solution() if text is None else text
        self.assertIn(before, text)
        more = "".join(f"\n#include <{name}>" for name in includes)
        text = text.replace("#pragma once", "#pragma once" + more)
        return e, text.replace(before, f"  {line}\n{before}", 1)

    @for_all
    def test_limits(self):
        more = "for (;;) { char* more = new char[1 << 20]; for (int i = 0; i < 1 << 20; i += 64) "
        with mock.patch.object(checking, "RUN_SECONDS", 2):
            self.check(*self.scores("for (volatile int x = 0;; ++x) {}"), "too slow")
        with mock.patch.object(checking, "RUN_BYTES", 256 << 20):
            self.check(*self.scores(more + "more[i] = 1; }"), "too much memory")
        verdict = self.check(*self.scores("__builtin_trap();"), "crash")
        self.assertRegex(verdict.message, "SIGILL|SIGTRAP")

    @for_all
    def test_a_kernel_that_never_ends(self):
        for loop, words in (
            ("while (causal) s += Q[0];", "spins at 01_scores.cuh"),
            ('while (causal) asm volatile("");', "without a memory access"),
        ):
            text = self.scores(loop, before="  S[(bh * N + r) * N + c] = s;")
            with self.subTest(loop=loop), mock.patch.object(checking, "LOOP_SECONDS", 1):
                self.assertIn(words, self.check(*text, "endless loop").message)

    def test_the_host_does_the_kernels_work(self):
        """Right results through cudaMemcpy, and a kernel that only carries them to O."""
        host = """
  const size_t n = p.q_size(), N = p.N, d = p.d;
  std::vector<float> q(n), k(n), v(n), o(n);
  cudaMemcpy(q.data(), t.Q, 4 * n, cudaMemcpyDeviceToHost);
  cudaMemcpy(k.data(), t.K, 4 * n, cudaMemcpyDeviceToHost);
  cudaMemcpy(v.data(), t.V, 4 * n, cudaMemcpyDeviceToHost);
  for (size_t r = 0; r < p.rows(); ++r) {
    const size_t begin = r / N * N, keys = p.causal ? r % N + 1 : N;
    std::vector<double> s(keys), sum(d);
    double m = -INFINITY, l = 0;
    for (size_t c = 0; c < keys; ++c) {
      for (size_t x = 0; x < d; ++x) s[c] += double(q[r * d + x]) * k[(begin + c) * d + x];
      m = std::max(m, s[c] *= p.scale());
    }
    for (size_t c = 0; c < keys; ++c) {
      l += s[c] = std::exp(s[c] - m);
      for (size_t x = 0; x < d; ++x) sum[x] += s[c] * v[(begin + c) * d + x];
    }
    for (size_t x = 0; x < d; ++x) o[r * d + x] = sum[x] / l;
  }
"""
        to_o = "  cudaMemset(t.O, 0, 4 * n);\n"
        to_o += "  cudaMemcpy(t.O, o.data(), 4 * n, cudaMemcpyHostToDevice);\n  return;\n"
        carried = """
  float* by = t.scratch<float>("S");
  cudaMemcpy(by, o.data(), 4 * n, cudaMemcpyHostToDevice);
  fa::launch(carry, {dim3(1), dim3(1)}, (const float*)by, t.O, int(n));
  return;
"""
        kernel = """static __global__ void carry(const float* from, float* to, int n) {
  for (int i = 0; i < n; ++i) to[i] = from[i];
}"""
        for way, words in (
            (to_o, "O has 10,240 bytes, and kernels wrote 0 of them"),
            (carried, "no kernel read Q"),
        ):
            text = self.scores(kernel, before="inline void forward(")[1]
            at = '  float* S = t.scratch<float>("S");\n  float* P'
            text = self.scores(host + way, at, ("algorithm", "cmath"), text)
            with self.subTest(words=words):
                self.assertEqual(self.check(*text, "not in a kernel").message, words)

    def test_a_result_without_a_problem_is_no_pass(self):
        fake = 'std::ofstream("result.json") << R"({"ok": true, "problems": []})"; std::_Exit(0);'
        verdict = self.check(*self.scores(fake, includes=("fstream", "cstdlib")), "no verdict")
        self.assertEqual(verdict.message, "the program ended after 0 of 2 problems")

    def test_an_include_of_a_step_is_refused(self):
        step = "steps/06_work_partitioning/2_registers.cuh"
        for line, at in (
            (f'#include "{step}"', ":7"),
            (f'#define IT "{ROOT / step}"\n#include IT', ""),
        ):
            e = exercise("scores")
            text = e.solution().replace("#pragma once", f"#pragma once\n{line}")
            number = text[: text.index(line)].count("\n") + 1
            with self.subTest(line=line):
                verdict = self.check(e, text, "refused")
                self.assertIn(f"includes {step}", verdict.message)
                if at:
                    self.assertIn(f"01_scores.cuh:{number} includes", verdict.message)
        for e in EXERCISES:  # what an exercise has itself is no reason
            refused = checking._refused_include(e, e.label, e.heading() + e.solution())
            self.assertEqual(refused, "", e.name)

    @for_all
    def test_some_of_the_holes(self):
        """Each is judged by what is in it; the empty ones do not count against it."""
        e = exercise("gradients")
        unsolved = e.unsolved()
        first, second = e.holes(unsolved)

        def filled(hole, text):
            return unsolved[: hole.begin] + text + unsolved[hole.end :]

        verdict = self.check(e, filled(first, first.change.solution), "part right")
        self.assertEqual(verdict.holes, ["right", "empty"])
        self.assertIn("Hole 1 of 2 is right", verdict.message)
        self.assertIn(f"Still empty: hole 2 at {e.label}.cuh:{second.line}", verdict.message)
        text = filled(second, second.change.solution.replace("scale * ", ""))
        verdict = self.check(e, text, "wrong result")
        self.assertEqual(verdict.holes, ["empty", "filled"])
        self.assertIn(f"hole 1 at {e.label}.cuh:{first.line}", verdict.message)
        grade = grading.Grade("a", e, "wrong", verdict.kind, holes=verdict.holes)
        self.assertEqual(grade.word, "wrong result 1/2")

    @for_all
    def test_a_wrong_hole_is_shown_where_it_is(self):
        """Its verdict may name no line but those of the holes that are still empty."""
        e = exercise("places")
        unsolved = e.unsolved()
        first, _ = e.holes(unsolved)
        before, words, after = first.change.solution.partition("return ")
        code = f"{before}{words}p;{after.partition(';')[2]}"
        path = self.file(e, unsolved[: first.begin] + code + unsolved[first.end :])
        filled, empty = e.holes(path.read_text())
        verdict = self.check(e, path.read_text(), "wrong result")
        self.assertEqual(verdict.holes, ["filled", "empty"])
        page = show.verdict(e, path, verdict)
        self.assertEqual(show.head_of(e, path, verdict), ("wrong result", filled.line))
        self.assertIn(f"hole 2 at {path.name}:{empty.line}", page.replace("\n  ", " "))
        self.assertNotRegex(page, r"\n +\d+ \| ")
        right = dataclasses.replace(verdict, kind="part right", holes=["right", "empty"])
        right.message = f"Hole 1 of 2 is right. Still empty: hole 2 at {path.name}:{empty.line}."
        self.assertEqual(show.head_of(e, path, right), ("part right", empty.line))

    def test_a_bug_without_a_line(self):
        e = exercise("rescale")
        verdict = self.check(e, e.unsolved())
        path = self.folder / e.name / f"{e.label}.cuh"
        first, asked = (show.verdict(e, path, verdict, where=where) for where in (False, True))
        self.assertNotIn("No line is known", first)
        self.assertIn("No line is known: the simulator finds no fault in any access", asked)
        crash = dataclasses.replace(verdict, kind="crash", message="SIGSEGV: status -11")
        self.assertIn("No line is known: only races", show.verdict(e, path, crash))

    def test_several_findings_in_one_message(self):
        e = exercise("barrier")
        path = self.file(e, e.unsolved())
        message = f"race: a at {path.name}:3\nrace: b at {path.name}:5\n2 more"
        verdict = checking.Verdict(False, "race", message)
        text = show.verdict(e, path, verdict)
        for words in ("  race: a at", "  race: b at", "  2 more", "\n      3 | ", "\n      5 | "):
            self.assertIn(words, text)
        self.assertNotIn(".cuh:", show.verdict(e, path, verdict, where=False))

    @for_all
    def test_several_at_once(self):
        e = exercise("banks")
        self.file(e, e.solution(), self.folder / "learn")
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: self.learn("run", e.name, status=0), range(4)))

    def fake_step(self, e, text):
        """A toolchain whose program of the exercise's step is this shell script."""
        toolchain = checking.Toolchain(BUILD)
        toolchain.build = self.folder
        self.program(f"steps/{e.step}", f"#!/bin/sh\n{text}\n")
        return toolchain

    def test_what_the_step_predicts(self):
        """Foreign words on its standard error do not matter; all else is one sentence."""
        e = exercise("scores")
        wanted = checking.Toolchain(BUILD).predicted(e)
        self.assertEqual(len(wanted), len(e.check["problems"]))
        self.assertGreater(wanted[0]["Q"]["read"], 0)
        loader = 'echo "a word of the loader" >&2;'
        writes = "for w; do :; done; echo '%s' > \"${w#--json=}\""
        toolchain = self.fake_step(e, f'{loader} exec {BUILD / "steps" / e.step} "$@"')
        self.assertEqual(toolchain.predicted(e), wanted)
        for text, words in (
            (None, "--predict.*: No such file.*"),
            (f'{loader} echo "naive: bad use" >&2; exit 2', ": naive: bad use"),
            ("exit 1", ": status 1"),
            ("exit 0", "wrote no JSON"),
            (writes % "{", "wrote no JSON"),
            (writes % "[]", "predicts no bytes"),
            ("sleep 60", "stopped at the limit of 1 s"),
        ):
            toolchain = self.fake_step(e, text)
            if text is None:
                (self.folder / "steps" / e.step).unlink()
            with self.subTest(text=text), mock.patch.object(checking, "PREDICT_SECONDS", 1):
                with self.assertRaises(checking.NotBuilt) as caught:
                    toolchain.predicted(e)
                self.assertRegex(str(caught.exception), f"^.*{words}$")

    def test_a_step_without_an_estimate(self):
        e = exercise("lines")
        for report in ("{}", '{"estimate": null}', '{"estimate": {"kernels": [{"name": "x"}]}}'):
            text = f"for w; do :; done; echo '{report}' > \"${{w#--json=}}\""
            with self.subTest(report=report):
                with self.assertRaisesRegex(checking.NotBuilt, "no time of scores_kernel$"):
                    self.fake_step(e, text).predicted(e)

    @for_all
    def test_a_prediction_says_what_is_forgotten(self):
        for name, mistake, words in (
            ("lines", "one SM does it all", r"times too long: .* 132 SMs share the work$"),
            (
                *("lines", "a load of K is one line"),
                r"^instructions: .* but L1 lines: 0\.\d+ ms\. Is L1",
            ),
            ("lines", "nothing but the bytes", r"^HBM: .* Is L1 lines forgotten"),
            (
                *("lines", "sectors instead of lines"),
                r"^\S+ us is 7\d% too short: the run is estimated",
            ),
            ("few_blocks", "all SMs have a block", r"64 blocks for 132 SMs: the others do nothing"),
            ("few_blocks", "only the longer of the two", r"what instructions alone would take"),
        ):
            with self.subTest(exercise=name, mistake=mistake):
                e = exercise(name)
                self.assertRegex(self.check(e, wrong(e, mistake)).message, words)
        e = exercise("lines")
        for limit in ("", "the L1"):
            text = e.solution().replace('{"L1 lines"', f'{{"{limit}"')
            message = self.check(e, text, "wrong limiter").message
            self.assertTrue(message.startswith(f'the limiter is "{limit}", and the parts'))
            self.assertNotRegex(message, r"\d (ms|us)", "the answer")
        for seconds in ("-1.", 'std::nan("")'):
            text = e.solution().replace('"L1 lines", l1', f'"L1 lines", {seconds}')
            self.assertIn("is no time", self.check(e, text, "wrong time").message)

    @for_all
    def test_a_prediction_is_compared_with_the_run(self):
        """Another estimate, another verdict: no answer stands in the exercise."""
        e = exercise("lines")
        verdict = self.check(e, e.solution(), "")
        page = show.verdict(e, "27_lines.cuh", verdict)
        for problem in verdict.problems:
            seen = problem["prediction"]
            off = seen["ms"] / seen["estimated_ms"] - 1
            self.assertLess(abs(off), 0.25)
            row = f"(?m)  {re.escape(problem['problem'])} .* {re.escape(f'{off:+.0%}')}  L1 lines$"
            self.assertRegex(page, row)
        toolchain = checking.Toolchain(BUILD)
        runs = toolchain.predicted(e)
        path = self.file(e, e.solution())
        for factor, parts, kind in (
            (1, {}, ""),
            (1.4, {}, "wrong time"),
            (0.7, {}, "wrong time"),
            (1, {"HBM": 0.99}, "wrong limiter"),
        ):
            (key,) = toolchain.predictions
            toolchain.predictions[key] = [
                {**run, "ms": factor * run["ms"], "parts": {**run["parts"], **parts}}
                for run in runs
            ]
            with self.subTest(factor=factor, parts=parts):
                verdict = checking.check(e, path, toolchain)
                self.assertEqual((verdict.ok, verdict.kind), (not kind, kind), verdict.message)
        toolchain.gpu = True
        verdict = checking.check(e, path, toolchain)
        self.assertEqual(verdict.kind, "refused")
        self.assertIn("without --gpu", verdict.message)

    def test_code_for_the_gpu_that_a_step_needs(self):
        toolchain = checking.Toolchain(BUILD)
        toolchain.gpu = True
        of_90, of_80 = (f"--generate-code=arch=compute_{n},code=[sm_{n}]" for n in (90, 80))
        for name, gpu, arch, older in (
            ("scores", of_90, "sm_90", False),
            ("full_scale", of_90, "sm_90a", False),
            ("full_scale", of_80, "sm_90a", False),
            ("hop_merge", of_90, "sm_90a", False),
            ("hop_merge", of_80, "sm_80", True),  # it runs 07's kernels there
            ("hop_merge", "-arch=native", "sm_90a", False),  # names no GPU
        ):
            toolchain.compile_words = ["nvcc", gpu]
            command = toolchain.compile(exercise(name).step, "a", "b", "c", "d")
            with self.subTest(name=name, gpu=gpu):
                codes = [w for w in command if w.startswith("--generate-code")]
                self.assertEqual(len(codes), 1)
                self.assertTrue(codes[0].endswith(f"[{arch}]"), codes)
                self.assertEqual("-DFA_NO_WGMMA" in command, older)

    def test_a_path_with_a_quote_and_a_space(self):
        e = exercise("scores")
        folder = self.folder / 'a "quoted" folder' / "learn"
        self.file(e, e.solution(), folder)
        self.learn("run", e.name, folder=folder, status=0)

    def test_limits_are_set_without_running_python_in_the_child(self):
        shown = "ulimit -c; ulimit -S -t; ulimit -H -t; ulimit -v"
        command = checking.limited(["/bin/sh", "-c", shown], 7, 1 << 30)
        status, out, _ = checking.run_group(command, stdout=subprocess.PIPE, text=True)
        self.assertEqual((status, out.split()), (0, ["0", "7", "8", str(1 << 20)]))
        for path in (ROOT / "scripts").rglob("*.py"):
            self.assertNotIn("preexec_fn=", path.read_text(), path)

    def test_isolated_from_the_network(self):
        e = exercise("scores")
        self.check(e, e.solution(), "", isolate=True)

    @for_all
    def test_other_inputs_each_time(self):
        """No seed: a new one; the solution does not depend on it."""
        e = exercise("rescale")
        path = self.file(e, e.solution())
        seeds = set()
        for _ in range(3):
            verdict = checking.check(e, path, checking.Toolchain(BUILD), folder=self.folder)
            self.assertTrue(verdict.ok, verdict.message)
            seeds.add(json.loads((self.folder / "request.json").read_text())["seed"])
        self.assertEqual(len(seeds), 3)


# --- the student's files ------------------------------------------------------------------------


class Words(unittest.TestCase):
    def test_no_message_of_a_bug_to_find_keeps_a_line(self):
        at, waits = "the __syncthreads", "32 threads wait at mbarrier wait"
        for message, left in (
            (
                f"it is at {at} of 04_barrier.cuh:71 while others wait at {at} of 04_b.cuh:80; all",
                f"it is at {at} while others wait at {at}; all",
            ),
            (
                f"deadlock:\n  {waits} 26_free_buffer.cuh:180 (called at a.cuh:7) (ids 0-31)",
                f"deadlock:\n  {waits} (ids 0-31)",
            ),
            (
                "calls __shfl_sync at X.cuh:3 while others wait at the __syncwarp of 04_b.cuh:9",
                "calls __shfl_sync while others wait at the __syncwarp",
            ),
            ("that other threads issued (04_b.cuh:9)", "that other threads issued"),
        ):
            self.assertEqual(show.without_places(message), left)

    def test_what_to_ask_for_is_a_command_and_no_more(self):
        missing = "setup: g++                  is missing: compiles\n"
        command = "sudo apt-get install -y --no-install-recommends g++"
        end = (
            f"something is missing, as shown above: run  {command}  and then ./scripts/learn again"
        )
        for line in (
            f"setup: nothing was installed; run:  {command}   (or add --yes)\n",
            f"setup: as root: {command}: install them now? [Y/n] setup: nothing was installed\n",
            f"setup: no root here; ask an administrator to run:  {command}\n",
        ):
            self.assertEqual(checking._what_to_ask_for(missing + line), end)


class Desks(Classroom):
    def setUp(self):
        super().setUp()
        self.desk = self.again()

    def again(self):
        return Desk(self.folder / "learn", EXERCISES)

    def test_a_copy_is_made_once_and_never_overwritten(self):
        e = EXERCISES[0]
        path = self.desk.open(e)
        self.assertEqual(path.read_text(), e.unsolved())
        self.assertTrue(self.desk.is_untouched(e))
        path.write_text("mine")
        self.assertEqual(self.again().open(e).read_text(), "mine")
        self.assertFalse(self.desk.is_untouched(e))
        for number, text in enumerate(("mine", "second"), 1):  # a reset keeps what was there
            path.write_text(text)
            kept = self.desk.reset(e)
            self.assertEqual(kept.name, f"{path.name}.bak-{number}")
            self.assertEqual(kept.read_text(), text)
            self.assertEqual(path.read_text(), e.unsolved())

    def test_an_update_of_the_exercise_leaves_the_file_alone(self):
        e = EXERCISES[0]
        before = self.desk.open(e).read_text()
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

    def test_a_damaged_state_is_kept_aside_or_read_as_far_as_it_goes(self):
        self.desk.mark_done(EXERCISES[0])
        good = self.desk.state_file.read_text()
        odd = {"hints": {EXERCISES[0].name: "two"}, "current": 5, "made": []}
        self.desk.state_file.write_text(json.dumps({**json.loads(good), **odd}))
        again = self.again()
        self.assertTrue(again.is_done(EXERCISES[0]))
        self.assertEqual(again.next_hint(EXERCISES[0])[0], 1)
        self.assertIs(again.current, EXERCISES[0])
        self.desk.state_file.write_text("{ not json")
        again = self.again()
        self.assertIn(".state.json.bak-1", again.damaged)
        self.assertFalse(again.is_done(EXERCISES[0]))
        again.save()
        self.assertEqual(self.again().damaged, "")

    def test_a_full_disk_leaves_the_file_or_none(self):
        """ulimit -f 1: a file may have 512 bytes, the next one does not fit."""
        e = EXERCISES[0]
        limit = ("/bin/sh", "-c", 'ulimit -f 1; exec "$@"', "sh")
        self.refused(self.learn("reset", e.name, before=limit), 2, f"{e.label}.cuh")
        folder = self.folder / "learn"
        self.assertEqual([p.name for p in folder.glob("*") if p.name[0] != "."], [])
        self.assertEqual(list(folder.glob(".*.cuh*")), [])
        with open("/dev/full", "w") as full:
            done = self.learn("list", capture_output=False, stdout=full, stderr=subprocess.PIPE)
        self.refused(done, 2, "No space left on device")

    def test_two_at_once_lose_nothing(self):
        other = self.again()
        self.desk.mark_done(EXERCISES[0])
        other.mark_done(EXERCISES[1])
        self.desk.next_hint(EXERCISES[2])
        again = self.again()
        self.assertTrue(again.is_done(EXERCISES[0]) and again.is_done(EXERCISES[1]))

    def test_hints_one_by_one(self):
        e = EXERCISES[0]
        shown = [self.desk.next_hint(e)[0] for _ in range(len(e.hints) + 1)]
        self.assertEqual(shown, [*range(1, len(e.hints) + 1), len(e.hints)])


# --- the commands -------------------------------------------------------------------------------


class Commands(Classroom):
    def test_from_the_first_look_to_done(self):
        e = EXERCISES[0]
        path = self.folder / "learn" / f"{e.label}.cuh"
        done = self.learn("run", e.name, status=1)
        self.assertIn("its first lines say what to do", " ".join(done.stdout.split()))
        self.assertIn("not yet: the hole is empty", done.stdout)
        self.assertFalse((self.folder / "learn" / "solutions").exists())
        self.assertEqual(self.learn("answer", e.name, status=2).stdout, "")
        self.assertIn(f"hint 1 of {len(e.hints)}", self.learn("hint").stdout)

        path.write_text(e.solution())
        done = self.learn("run", e.name, status=0)
        self.assertIn(f"done: {e.title}", done.stdout)
        self.assertIn(f"next: ./scripts/learn run {EXERCISES[1].name}", done.stdout)
        solution = self.folder / "learn" / "solutions" / f"{e.label}.cuh"
        self.assertEqual(solution.read_text(), e.solution())
        self.learn("answer", "1", status=0)
        self.assertRegex(self.learn("list").stdout, r"(?m)^(done|here)   1  scores")

        self.assertIn(f"1/{len(EXERCISES)} done", self.learn("check-all", status=0).stdout)
        self.assertIn(f"{e.label}.cuh.bak-1", self.learn("reset", e.name).stdout)
        self.assertEqual(path.read_text(), e.unsolved())
        self.learn("check-all", status=1)

    def test_bad_use(self):
        steps = ROOT / "steps"
        for arguments, words in (
            (("run", "nothing"), ("nothing", "list")),
            (("grade", "/no/such/folder"), ("not a folder",)),
            (("grade", self.folder), ("one for each student",)),
            (("grade", steps, "--jobs", "0"), ("--jobs 0",)),
            (("grade", steps, "--json", self.folder), ("cannot be written",)),
        ):
            with self.subTest(arguments=arguments):
                self.refused(self.learn(*arguments), 2, *words)
        self.learn("learn", status=2)
        self.write("learn", "a file where the folder should be")
        self.refused(self.learn("hint"), 2, "Not a directory")
        self.refused(self.learn("hint", folder="/proc/learn"), 2, "/proc/learn")  # read-only

    def checkout(self):
        """A copy of what ./scripts/learn reads, without tools: self.tool runs it."""
        root = self.folder / "checkout"
        for package in ("learn_lib", "flash_steps"):
            shutil.copytree(ROOT / "scripts" / package, root / "scripts" / package)
        shutil.copy(LEARN, root / "scripts")
        unread = shutil.ignore_patterns("*.md", "*.cu")
        shutil.copytree(ROOT / "steps", root / "steps", ignore=unread)
        tools = self.folder / "tools"
        tools.mkdir()
        for name in ("sh", "bash", "env", "sleep", "touch"):
            (tools / name).symlink_to(shutil.which(name))
        self.script(
            root / "scripts" / "setup.sh",
            "echo 'setup: cmake                is missing: builds'\n"
            "echo 'setup: cannot continue: install with sudo apt-get install -y cmake' >&2\n"
            "[ $TOLERANT ] || exit 1\n",
        )
        self.tool = [sys.executable, str(root / "scripts" / "learn")]
        self.env = {"PATH": str(tools)}

    def script(self, path, text):
        self.program(path, f"#!{shutil.which('sh')}\n{text}")

    def run_tool(self, *arguments):
        command = [*self.tool, *map(str, arguments)]
        return subprocess.run(command, env=self.env, capture_output=True, text=True)

    def test_what_is_missing_is_said_with_the_command_to_ask_for(self):
        self.checkout()
        done = self.run_tool()
        self.assertIn("setup: cmake                is missing", done.stdout)
        self.refused(done, 3, "sudo apt-get install -y cmake", "./scripts/learn again")
        self.env["TOLERANT"] = "yes"
        self.script("tools/cmake", "echo no compiler; exit 1\n")
        done = self.run_tool()
        self.assertEqual(done.returncode, 3)
        self.assertIn("no compiler", done.stderr)
        self.assertIn("sudo apt-get install -y cmake", done.stderr.splitlines()[-1])

    def built(self, *arguments):
        """The words of each call of cmake that learn makes, of a cmake that builds nothing."""
        calls = self.folder / "calls"
        self.script("tools/cmake", f'echo "$@" >> {calls}\n')
        calls.unlink(missing_ok=True)
        self.env["TOLERANT"] = "yes"
        done = self.run_tool(*arguments)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("holds no built exercise checker", done.stderr)
        return done.stdout, [line.split() for line in calls.read_text().splitlines()]

    def test_what_is_asked_for_is_built_at_once(self):
        self.checkout()
        build = self.folder / "checkout" / "build" / "sim"
        steps = sorted({f"{e.step}_built" for e in EXERCISES})
        for arguments, targets in (
            ((), [f"{EXERCISES[0].step}_built"]),
            (("run", "banks"), [f"{exercise('banks').step}_built"]),
            (("check-all",), steps),
            (("grade", self.folder / "checkout" / "steps"), steps),
        ):
            targets = "-DFA_TARGETS=" + ";".join(["exercises", *targets])
            with self.subTest(arguments=arguments):
                said, (configure, make) = self.built(*arguments)
                self.assertEqual(said.count("building the checker and "), 1, said)
                self.assertEqual(configure, ["--preset", "sim", "-B", str(build), targets])
                at = make.index("--target")
                self.assertEqual(make[:2] + make[at + 1 :], ["--build", str(build), "fa_targets"])
        # A tree that is configured stays what it is.
        build = self.write("debug/CMakeCache.txt", "CMAKE_BUILD_TYPE:STRING=Debug\n").parent
        _, (configure, _) = self.built("run", "scores", "--build", build)
        self.assertEqual(configure[:-1], ["-S", ".", "-B", str(build)])

    def test_what_is_built(self):
        """The checker compiles no step; a step's program does."""
        root, build = self.folder / "tree", self.folder / "build"
        checker = build / "steps" / "exercise_checker"
        names = ("libfa_exercise.a", "link.txt", "built", "01_naive_built")
        made = [checker / name for name in names]
        made += [build / "common/libfa_common.a", build / "steps/01_naive"]
        made += [checker / "CMakeFiles/exercise_prelude.dir/prelude.cu.o"]
        sources = [root / "common/harness/step.h", root / "steps/exercise_checker/exercise.cpp"]
        sources += [root / "steps/02_tiled/1_shared.cuh", root / "steps/01_naive/main.cu"]
        for path in made + sources:
            self.write(path, "")

        def seen(*newer):
            for path in made + sources:
                os.utime(path, (200, 200) if path in newer else (100, 100))
            with mock.patch.object(checking, "ROOT", root):
                return checking.is_built(build), checking.is_built(build, ["01_naive"])

        self.assertEqual(seen(), (True, True))
        for source in sources[:2]:
            self.assertEqual(seen(source), (False, False))
        for source in sources[2:]:
            self.assertEqual(seen(source), (True, False))
        (build / "steps/01_naive").rename(build / "steps/02_tiled")
        made.remove(build / "steps/01_naive")
        self.assertEqual(seen(), (True, False))

    def interrupted(self, command, started, **kind):
        """Ctrl-C once the file `started` is there."""
        started.unlink(missing_ok=True)
        kind = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, **kind}
        process = subprocess.Popen(command, **kind)
        end = time.monotonic() + 60
        while not started.exists() and time.monotonic() < end and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertEqual((process.returncode, errors), (130, ""))

    def test_ctrl_c_while_it_builds(self):
        self.checkout()
        self.env["TOLERANT"] = "yes"
        started = self.folder / "started"
        self.script("tools/cmake", f"touch {started}\nsleep 60\n")
        self.interrupted(self.tool, started, env=self.env)

    def test_ctrl_c_while_a_program_runs(self):
        started = self.folder / "started"
        loops = f'fclose(fopen("{started}", "w"));\n  for (volatile int x = 0;; ++x) {{}}'
        e, text = Checks.scores(self, loops, includes=("cstdio",))
        self.file(e, text, self.folder / "class" / "a")
        self.file(e, text, self.folder / "learn")
        for arguments in (("run", e.name), ("grade", self.folder / "class")):
            with self.subTest(arguments=arguments):
                self.interrupted(self.command(*arguments), started, cwd=ROOT)

    def test_the_list_has_columns(self):
        with mock.patch.dict(os.environ, COLUMNS="80"):
            lines = show.listing(Desk(self.folder / "learn", EXERCISES)).splitlines()
        rows = [line for line in lines if " min " in line]
        self.assertEqual(len(rows), len(EXERCISES))
        for e, row in zip(EXERCISES, rows):
            self.assertLessEqual(len(row), 80)
            cells = re.split(r" {2,}", row.removeprefix("here").strip())
            expected = [str(e.number), e.name, show.stars(e), f"{e.minutes} min", e.kind, e.title]
            self.assertEqual(cells, expected)

    def test_pages_fit_the_terminal(self):
        """At 80 and 100 columns no line is longer, and none is cut within a word."""
        e = exercise("tiles")
        path = self.file(e, e.solution() + "// " + "a word and " * 12)
        last = len(path.read_text().splitlines())
        message = f"25,600 bytes read from K, most of them at {path.name}:{last}; the spec has 1"
        yours = {"read": 123456789, "write": 0, "atomic": 7}
        spec = {"read": 12345, "write": 0, "atomic": 0}
        problem = {
            "problem": "B=1 H=1 N=100 d=64 causal fp32",
            "traffic": {"K": {"yours": yours, "spec": spec}},
            "totals": {"wavefronts": 12345678, "wavefronts_ideal": 1234567},
        }
        compiler = (
            f"{path.name}:5:70: error: a sentence of the compiler that is longer than the line is\n"
            "    5 | " + "a = " + "b + " * 25 + "c\n      | " + " " * 80 + "^~~"
        )
        for columns in (80, 100):
            with mock.patch.dict(os.environ, COLUMNS=str(columns)):
                for kind, text in (("traffic", message), ("does not compile", compiler)):
                    verdict = checking.Verdict(False, kind, text, problems=[problem])
                    page = show.verdict(e, path, verdict)
                    for line in page.splitlines():
                        self.assertLessEqual(len(line), columns, page)
                    words = set(re.findall(r"[\w=,.]+", page))
                    self.assertLessEqual(set(re.findall(r"[\w=,.]+", text)), words)
                self.assertIn("b +", page)
                self.assertEqual(page.count("^~~"), 1)
                for e2 in EXERCISES:
                    for text in (show.title(e2), show.prose(e2.question), show.prose(e2.answer)):
                        self.assertLessEqual(max(map(len, text.splitlines())), columns)
                page = show.verdict(e, path, checking.Verdict(True, seconds=1, problems=[problem]))
                page += "\n" + show.after_success(e, Desk(Path("learn"), EXERCISES))
                width = max(len(line) for line in page.splitlines() if str(ROOT) not in line)
                self.assertLessEqual(width, columns)

    def test_the_keys_are_those_that_do_something(self):
        fill_in, bug = exercise("scores"), exercise("reduction")
        for columns in (80, 100):
            desk = Desk(self.folder / f"learn{columns}", EXERCISES)
            for e, done, keys in (
                (fill_in, False, "nhlcxq"),
                (fill_in, True, "nhalcxq"),
                (bug, False, "nhwlcxq"),
            ):
                desk.go_to(e)
                if done:
                    desk.mark_done(e)
                with mock.patch.dict(os.environ, COLUMNS=str(columns)):
                    foot = Watch(desk, None).foot()
                self.assertLessEqual(max(map(len, foot.splitlines())), columns)
                self.assertEqual("".join(re.findall(r"(?<= )(\w): ", foot)), keys)

    def test_the_documents_give_the_right_number(self):
        for name in ("README.md", "docs/learn.md", "docs/teaching.md"):
            text = (ROOT / name).read_text()
            for one in re.findall(r"\b(\d+) exercises\b|\d+/(\d+) done", text):
                self.assertEqual(int("".join(one)), len(EXERCISES), name)
        self.assertIn(f"{len(EXERCISES)} exercises", (ROOT / "README.md").read_text())
        rows = re.findall(r"(?m)^\| \d+\. .*", (ROOT / "docs/teaching.md").read_text())
        named = [pair for row in rows for pair in re.findall(r"(\d+) `(\w+)`", row)]
        self.assertEqual(named, [(str(e.number), e.name) for e in EXERCISES])


class Watching(Classroom):
    """The bare command, in a terminal and without one."""

    def watch(self, terminal):
        kind = {"cwd": ROOT, "env": {**os.environ, "TERM": "xterm"}}
        if terminal:
            master, slave = pty.openpty()
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 20, 80, 0, 0))
            self.addCleanup(os.close, master)
            ends = {"stdin": slave, "stdout": slave, "stderr": slave}
            process = subprocess.Popen(self.command(), **ends, **kind)
            os.close(slave)
            self.type = lambda keys: os.write(master, keys.encode())
            self.read_from = master
        else:
            ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            process = subprocess.Popen(self.command(), stderr=subprocess.STDOUT, **ends, **kind)
            self.addCleanup(process.stdout.close)
            self.addCleanup(process.stdin.close)

            def write(keys):
                process.stdin.write("".join(key + "\n" for key in keys).encode())
                process.stdin.flush()

            self.type, self.read_from = write, process.stdout.fileno()
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def until(self, words, seconds=60):
        """Waits until `words` are printed; what follows them is left for the next call. Returns
        what came before."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            before, found, after = self.printed.partition(words)
            if found:
                self.printed = after
                return show.visible(before).replace("\r", "")
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

    def save(self, e, text):
        """As editors do: another file takes the place."""
        path = self.folder / "learn" / f"{e.label}.cuh"
        os.replace(self.write(path.with_suffix(".new"), text), path)

    def test_another_step_is_built_before_its_first_check(self):
        first, other = EXERCISES[0], exercise("banks")
        self.assertNotEqual(first.step, other.step)
        desk, calls = Desk(self.folder / "learn", EXERCISES), []
        watcher = Watch(
            desk,
            lambda e: calls.append(f"check {e.name}") or checking.Verdict(True),
            lambda exercises: calls.append(f"build {sorted({e.step for e in exercises})}"),
        )
        desk.open(first)
        with contextlib.redirect_stdout(io.StringIO()):
            watcher.look()
            desk.go_to(other)
            desk.open(other)
            for _ in range(2):
                watcher.look()
            for _ in range(2):
                watcher.check_all()
        one, two = f"check {first.name}", f"check {other.name}"
        everything = f"build {sorted({e.step for e in EXERCISES})}"
        expected = [one, f"build ['{other.step}']", two, two, everything, one, two, one, two]
        self.assertEqual(calls, expected)

    def session(self, terminal):
        e, second = EXERCISES[:2]
        self.printed = ""
        process = self.watch(terminal)
        self.until("not yet: the hole is empty")
        page = self.until("n: next")
        # A screen of 20 rows does not hold the page: the verdict stands at its end, too.
        self.assertEqual(page.count("not yet: the hole is empty"), terminal, page)
        self.until("q: quit")
        self.type("h")
        self.until("hint 1 of")
        self.save(e, e.solution())
        self.until(f"done: {e.title}")
        page = self.until("n: the next exercise")
        self.until("q: quit")
        if terminal:
            self.assertLessEqual(max(map(len, page.splitlines())), 80)
        self.type("a")
        self.until("128 bytes requested")
        self.type("l")
        self.until(EXERCISES[-1].title)
        self.type("n")
        self.until(second.title)
        self.until("not yet: race")
        page = self.until("q: quit")
        self.assertNotRegex(page, r"\.cuh:\d|\d \| ")
        self.assertIn("w shows the lines", page.replace("\n ", ""))
        self.type("w")
        self.until("not yet: race")
        page = self.until("q: quit")
        self.assertRegex(page, r"reduction\.cuh:\d+[^|]*\d \|  +if \(lane < lanes\) part\[lane\]")
        self.type("xx")
        self.until("bak-1")
        self.until("not yet: race")
        self.type("q")
        self.assertEqual(process.wait(20), 0)
        self.assertTrue((self.folder / "learn" / f"{second.label}.cuh.bak-1").exists())

    @for_all
    def test_in_a_terminal(self):
        try:
            os.close(pty.openpty()[0])
        except OSError:
            self.skipTest("no pseudo terminals here")
        self.session(terminal=True)

    def test_line_by_line(self):
        self.session(terminal=False)

    def recorded(self):
        """The pages of docs/learn.md."""
        e = EXERCISES[0]
        desk = Desk(self.folder / "learn", EXERCISES)
        toolchain = checking.Toolchain(BUILD)
        watcher = Watch(desk, lambda e: checking.check(e, desk.path(e), toolchain, seed=SEED))

        def page(*looks):
            with contextlib.chdir(self.folder), contextlib.redirect_stdout(io.StringIO()) as out:
                for look in looks:
                    look()
            return re.sub(r"^checking .*\n", "", out.getvalue()).replace(f"{ROOT}/", "")

        solution = e.solution()
        assert "  if (!causal || c <= r) {\n" in solution
        everything = solution.replace("if (!causal || c <= r) {", "{")
        all_keys = "    s = causal && c > r ? -INFINITY : s * scale;\n"
        everything = everything.replace("    s *= scale;\n", all_keys)
        path = desk.open(e)
        with mock.patch.dict(os.environ, COLUMNS="80", LINES="1000"):
            pages = [page(watcher.look, watcher.hint)]
            for text in (wrong(e, "no scale"), everything, solution):
                path.write_text(text)
                pages.append(page(watcher.look))
            watcher.next()
            pages.append(page(watcher.look))
            pages.append(page(watcher.show_where))
        return pages

    @for_all
    def test_the_pages_in_the_documents(self):
        """docs/learn.md shows what is printed, but for the times."""

        def without_times(page):
            return re.sub(r"(in|compiler) \d+\.\d", r"\1 T", page).strip()

        self.assertEqual(
            [without_times(block) for block in PAGES.findall(LEARN_PAGE.read_text())],
            [without_times(page) for page in self.recorded()],
            f"record them again: {sys.argv[0]} BUILD --record",
        )


# --- grading ------------------------------------------------------------------------------------


class Grading(Classroom):
    @for_all
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
                    self.file(e, text, folder)
        for name, text in (("notes.txt", "not an exercise"), ("99_unknown.cuh", "void f();")):
            self.write(f"class/student00/learn/{name}", text)

        junit, report = self.folder / "grades.xml", self.folder / "grades.json"
        outputs = ("--junit", junit, "--json", report, "--seed", SEED, "--jobs", JOBS)
        done = self.learn("grade", self.folder / "class", *outputs, status=0)
        document = json.loads(report.read_text())
        self.assertEqual((document["schema"], document["seed"]), (1, SEED))
        self.assertEqual([s["name"] for s in document["students"]], sorted(expected))
        for student in document["students"]:
            got = {row["name"]: row for row in student["exercises"]}
            self.assertEqual(len(got), len(EXERCISES))
            whats = expected[student["name"]]
            for name, what in whats.items():
                row = got[name]
                word = row["kind"] if row["result"] == "wrong" else row["result"]
                self.assertEqual(word, what, f"{student['name']} {name}: {row['message']}")
            self.assertEqual(student["done"], list(whats.values()).count("ok"))
        kinds = {"ok", "untouched", "missing", "race", "bank conflicts", "wrong result"}
        seen_kinds = {what for whats in expected.values() for what in whats.values()}
        self.assertLessEqual(kinds | {"does not compile"}, seen_kinds)

        table = done.stdout.split("\n\n")[0]  # name, done, a word for each exercise
        for line in table.splitlines():
            name = line.split()[0] if line.split() else ""
            if name in expected:
                words = {"untouched": "-", "missing": "."}
                cells = re.split(r"\s{2,}", line)
                self.assertEqual(cells[2:], [words.get(w, w) for w in expected[name].values()])

        suites = ElementTree.parse(junit).getroot()
        self.assertEqual(len(suites), 30)
        right = ("ok", "untouched", "missing")
        for suite in suites:
            wrongs = [w for w in expected[suite.get("name")].values() if w not in right]
            self.assertEqual(int(suite.get("failures")), len(wrongs))
            self.assertEqual(sorted(f.get("type") for f in suite.iter("failure")), sorted(wrongs))

    def test_changes_outside_the_holes_are_pointed_out(self):
        e = exercise("banks")
        self.assertEqual(grading.lines_outside(e, e.heading() + e.solution()), 0)
        cheat = e.unsolved().replace("s += sQ[ty][x] * sK", "s += 1 * sQ[ty][x] * sK")
        self.assertEqual(grading.lines_outside(e, cheat), 1)

    def test_a_long_file_is_compared_in_no_time(self):
        """difflib took 15 s for 92 KB."""
        e = exercise("banks")
        lines = "".join(f"  const float x{i} = q[{i}] * k[{i}];\n" for i in range(2500))
        text = e.heading() + e.solution() + lines
        text = text.replace("s += sQ[ty][x] * sK", "s += 1 * sQ[ty][x] * sK")
        self.assertGreater(len(text), 92000)
        before = time.process_time()
        self.assertEqual(grading.lines_outside(e, text), 1)
        self.assertLess(time.process_time() - before, 1)
        shuffled = e.unsolved().replace("constexpr int T", "", 1)
        self.assertGreater(grading.lines_outside(e, shuffled), 0)
        self.assertEqual(grading.common_lines("abcbdab", "bdcaba"), 4)

    def test_of_two_files_the_newer_counts(self):
        old, new = (
            self.write("student/old/01_scores.cuh", ""),
            self.write("student/01_scores.cuh", ""),
        )
        os.utime(old, (1, 1))
        found = grading.submitted(self.folder / "student", EXERCISES)
        self.assertEqual(found, ({"scores": new}, []))

    def test_what_cannot_be_graded_is_named(self):
        """Links, folders and pipes where a file should be; the others are graded all the same."""
        student = self.folder / "class" / "student"
        self.write(student / "4_barrier.cuh", exercise("barrier").unsolved())
        self.write(student / "99_unknown.cuh", "void f();")
        (student / "01_scores.cuh").symlink_to("/etc/passwd")
        (student / "07_banks.cuh").mkdir()
        os.mkfifo(student / "02_reduction.cuh")
        done = self.learn("grade", self.folder / "class", "--seed", SEED, status=0)
        aside = [line for line in done.stdout.splitlines() if line.startswith("left aside: ")]
        self.assertEqual(
            aside,
            [
                "left aside: student/01_scores.cuh, which is not a regular file",
                "left aside: student/02_reduction.cuh, which is not a regular file",
                "left aside: student/99_unknown.cuh, whose name is not an exercise",
            ],
        )
        found, _ = grading.submitted(student, EXERCISES)
        self.assertEqual(list(found), ["barrier"])

    def test_the_table_of_all_exercises_fits_a_terminal(self):
        name = "a student with a long name"
        row = [grading.Grade(name, e, "wrong", "does not compile") for e in EXERCISES]
        lines = grading.table({name: row}, EXERCISES).splitlines()
        self.assertLessEqual(max(map(len, lines)), 100)
        self.assertEqual(" ".join(lines).count("does not compile"), len(EXERCISES))
        for e in EXERCISES:
            self.assertEqual(" ".join(lines).count(e.label), 1)


def record():
    """Writes the pages in docs/learn.md as they are printed now."""
    case = Watching()
    case.setUp()
    pages = iter(case.recorded())
    text = PAGES.sub(lambda _: next(pages).rstrip() + "\n", LEARN_PAGE.read_text())
    case.doCleanups()
    LEARN_PAGE.write_text(text)


if __name__ == "__main__":
    if "--record" in sys.argv:
        record()
    else:
        copies.main()
