"""The classroom: every exercise against its author's promises, and ./scripts/learn in use."""

import codecs
import concurrent.futures
import contextlib
import fcntl
import functools
import io
import json
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import xml.etree.ElementTree as ElementTree
import zipfile
from pathlib import Path
from unittest import mock

from copies import BUILD, ROOT, Folder, for_all, main, on_page, typed
from flash_steps.command import BadInput
from learn_lib import check as checking
from learn_lib import course, show
from learn_lib import exercises as catalogue
from learn_lib import grade as grading
from learn_lib.desk import Desk
from learn_lib.watch import Watch

LEARN = ROOT / "scripts" / "learn"
EXERCISES = catalogue.load()
# `test_learn.py BUILD NAME...` tests only these exercises' promises.
NAMED = [e for e in EXERCISES if e.name in sys.argv[1:]]
SEED = 20260
JOBS = 2
LEARN_PAGE = ROOT / "docs" / "learn.md"


def exercise(name):
    return catalogue.find(EXERCISES, name)


def mistaken(e, wrong):
    text = e.solution()
    for edit in wrong.change:
        text = catalogue.replace_once(text, edit["solution"], edit["wrong"], e.path.name)
    return text


def wrong(name, mistake):
    e = exercise(name)
    return mistaken(e, next(w for w in e.wrong if w.name == mistake))


@functools.cache
def toolchain(*more):
    tools = checking.Toolchain(BUILD)
    tools.compile_words += more
    if more:
        tools.predictions = toolchain().predictions
    return tools


@functools.cache
def checked(name, text, *more):
    """The verdict on a text of an exercise: each is compiled once."""
    e = exercise(name)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{e.label}.cuh")
        path.write_text(text)
        return checking.check(e, path, toolchain(*more), seed=SEED)


class Classroom(Folder):
    def file(self, e, text, folder=""):
        return self.write(Path(folder, f"{e.label}.cuh"), text)

    def verdict(self, name, text, kind):
        """The verdict on a text, which must be of this kind ("": right)."""
        verdict = checked(name, text)
        self.assertEqual((verdict.kind, verdict.ok), (kind, not kind), verdict.message)
        return verdict

    def page(self, name, text, where=True):
        e = exercise(name)
        return show.verdict(e, self.file(e, text), checked(name, text), where=where)

    def command(self, *arguments):
        places = ["--build", BUILD, "--folder", self.folder / "learn"]
        return [*map(str, [*arguments, *places])]

    def learn(self, *arguments, status=0, before=(), **how):
        command = [*before, sys.executable, LEARN, *self.command(*arguments)]
        how = {"capture_output": True, "text": True, "cwd": ROOT, **how}
        done = self.ended(subprocess.run(command, **how), status)
        return done

    def typed(self, *arguments):
        return typed("learn", *self.command(*arguments))


# --- the author's guards ------------------------------------------------------------------------


class Guards(Classroom):
    def test_every_exercise_keeps_its_promises(self):
        """Unsolved: fails. Solution: passes. Each third: its first wrong one fails as announced."""

        def texts_of(e, wrongs):
            texts = {"solution": e.solution(), "unsolved": e.unsolved()}
            return texts | dict(wrongs[: self.wrongs_now(e)])

        self.check_all(texts_of)

    @for_all
    def test_every_wrong_solution_fails_for_the_reason_given(self):
        for mistake in (w for e in NAMED or EXERCISES for w in e.wrong):
            self.assertRegex(mistake.because, "^[a-z ]+$")
        self.check_all(lambda e, wrongs: dict(wrongs[self.wrongs_now(e) :]))

    @staticmethod
    def wrongs_now(e):
        """How many wrong solutions the short run has: a bug to find is one itself."""
        return int(e.kind != "find the bug" and e.number % 3 == 0)

    @for_all
    def test_a_hole_that_is_left_empty_compiles(self):
        """The check says so without a compiler."""
        tools = checking.Toolchain(BUILD)
        tools.compile_words.append("-fsyntax-only")
        tools.link = lambda *_: ["true"]
        for e in NAMED or EXERCISES:
            if e.kind != "find the bug":
                path = self.file(e, e.unsolved())
                check = checking.Check(e, path, tools, SEED, self.folder / e.name, False)
                with self.subTest(exercise=e.name):
                    self.assertIsNone(check.compile(e.unsolved()))

    def check_all(self, texts_of):
        """Checks each text of each exercise, with debug information only for expected lines."""
        texts = [
            (e, name, text)
            for e in NAMED or EXERCISES
            for name, text in texts_of(e, [(w.name, mistaken(e, w)) for w in e.wrong]).items()
        ]
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
            words = {"unsolved": ()}
            one = lambda t: checked(t[0].name, t[2], *words.get(t[1], ["-g0"]))
            results = list(pool.map(one, texts))
        for (e, name, text), verdict in zip(texts, results):
            with self.subTest(exercise=e.name, what=name):
                self.assertNotEqual(verdict.kind, "does not compile", verdict.message)
                self.assertEqual(verdict.ok, name == "solution", verdict.message)
                if name == "solution":
                    self.assertEqual(len(verdict.problems), len(e.check["problems"]))
                elif name == "unsolved":
                    self.says_enough(e, text, verdict)
                else:
                    because = next(w.because for w in e.wrong if w.name == name)
                    self.assertEqual(verdict.kind, because, verdict.message)

    def says_enough(self, e, text, verdict):
        """The first page: a hole's place, or a bug's effect and element; its lines on request."""
        first, asked = (self.page(e.name, text, where) for where in (False, True))
        if e.kind != "find the bug":
            line = next(n for n, t in enumerate(text.splitlines(), 1) if "FILL IN" in t)
            words = rf"^not yet: the (hole is|holes are) empty; write your lines at .*{e.label}"
            self.assertRegex(" ".join(first.split()), rf"{words}\.cuh:{line}\b")
            return
        self.assertNotRegex(first, r"\.cuh:\d|\n +\d+ \| |No line is known")
        self.assertIn(f"not yet: {verdict.kind}", first)
        if verdict.kind in ("race", "uninitialised", "deadlock", "bank conflicts", "coalescing"):
            self.assertIn("--where shows the lines", first)
            self.assertRegex(asked, rf"(?s){e.label}\.cuh:\d+.*\n +\d+ \| ")
        else:
            self.assertIn("No line is known", asked)

    def test_each_has_what_a_student_needs(self):
        for e in EXERCISES:
            with self.subTest(exercise=e.name):
                self.assertGreaterEqual(len(e.wrong), 2)
                self.assertIn(len(e.hints), range(2, 5))
                self.assertIn(e.difficulty, (1, 2, 3))
                self.assertTrue(e.question.endswith("?"))
                self.assertTrue(e.answer.strip())
                shapes = e.check["problems"]
                self.assertGreaterEqual(len(shapes), 2)
                self.assertTrue(any(p["n"] % 32 for p in shapes), "no ragged problem")
                if e.kind == "fill in":
                    self.assertRegex(e.unsolved(), r"FILL IN \((about \d+ lines|1 line)\)")
                for line in "".join([e.heading(), *(c.exercise for c in e.change)]).splitlines():
                    self.assertLessEqual(len(line), 100, line)
        kinds = "race,coalescing,bank conflicts,wrong result,uninitialised,deadlock".split(",")
        self.assertLessEqual(set(kinds), {w.because for e in EXERCISES for w in e.wrong})
        fill_ins = {e.step for e in EXERCISES if e.kind == "fill in"}
        steps = {p.parent.name for p in ROOT.glob("steps/[0-9][0-9]_*/exercises/")}
        self.assertEqual(fill_ins, steps)
        self.assertGreaterEqual(len([e for e in EXERCISES if e.kind == "find the bug"]), 8)
        files = {p.stem for p in ROOT.glob("steps/*/exercises/*.toml")}
        self.assertEqual(files, {e.name for e in EXERCISES}, "each file stands in the order once")

    def test_a_step_that_changes_is_noticed(self):
        e = exercise("barrier")
        for text, times in (("void nothing() {}\n", 0), (e.step_text() * 2, 2)):
            with mock.patch.object(type(e), "step_text", lambda self, text=text: text):
                for made in (e.unsolved, e.solution):
                    words = f"{times} times instead of once"
                    self.assertRaisesRegex(catalogue.Broken, words, made)

    def test_holes_and_what_is_in_them(self):
        for e in NAMED or EXERCISES:
            with self.subTest(exercise=e.name):
                unsolved, solved = e.unsolved(), e.heading() + e.solution()
                for text in (unsolved, solved):  # outside the holes they equal the step
                    self.assertEqual(grading.lines_outside(e, text), 0)
                self.assertNotEqual(unsolved, solved)
                holes = e.holes(unsolved)
                self.assertEqual(len(holes), unsolved.count("FILL IN ("))
                self.assertTrue(all(hole.empty for hole in holes))
                self.assertFalse(any(hole.empty for hole in e.holes(solved)))
                for hole in holes:
                    self.assertIn("FILL IN", unsolved.splitlines()[hole.line - 1])
                if len(holes) < 2:
                    continue
                one = filled(unsolved, holes[0], holes[0].change.solution)
                words = [hole.empty for hole in e.holes(one)]
                self.assertEqual(words, [False] + [True] * (len(holes) - 1))
                full = re.sub("(?m)^#line .*\n", "", e.completed(one, e.holes(one)))
                self.assertEqual(catalogue.code_of(full), catalogue.code_of(e.solution()))
                self.assertEqual(e.holes(unsolved.replace("namespace", "namespaces")), [])

    def test_what_an_author_mistypes_is_named(self):
        """A copy of the steps' exercises with an edited scores.toml is refused."""
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
            (text.replace('kind = "fill in"', 'kind = "predict"'), "unknown key 'variant'"),
            ('text = "a file"\n' + text, "scores.toml", "'text' belongs"),
            (re.sub(r"(?s)problems = \[.*?\n\]", "problems = []", text), "passes everything"),
        ):
            path.write_text(edited)
            with mock.patch.object(catalogue, "ROOT", self.folder):
                with self.assertRaises(catalogue.Broken) as caught:
                    catalogue.load(steps)
            for word in words:
                self.assertIn(word, str(caught.exception))


OF_ONE = (
    "test_holes_and_what_is_in_them",
    "test_every_exercise_keeps_its_promises",
    "test_every_wrong_solution_fails_for_the_reason_given",
    "test_a_hole_that_is_left_empty_compiles",
    "test_each_has_what_a_student_needs",
)


def filled(text, hole, code):
    return text[: hole.begin] + code + text[hole.end :]


# --- one check ----------------------------------------------------------------------------------


class Checks(Classroom):
    def test_a_wrong_element_is_shown(self):
        text = wrong("gradients", "no delta")
        message = self.verdict("gradients", text, "wrong result").message
        self.assertRegex(message, r"^dQ\[b=0, h=0, row=\d+, feature=\d+\] is \S+, expected ")
        page = self.page("gradients", text)
        self.assertIn("  on B=1 H=1 N=45 d=32 fp32", page)
        self.assertIn("Its indices say", page)

    def test_traffic_is_a_table(self):
        """Two bytes each, where six query heads read one key head."""
        solution = exercise("blind_rows").solution()
        seen = self.verdict("blind_rows", solution, "").problems[-1]
        self.assertEqual(seen["problem"], "B=1 H=2 Hkv=1 N=33 Nk=70 d=128 causal bf16")
        self.assertEqual(seen["traffic"]["K"]["yours"]["read"], 2 * 2 * 70 * 128)
        self.assertRegex(self.page("blind_rows", solution), r"\n  K read +35,840 +35,840  = ")
        text = wrong("tiles", "each thread reads K from HBM")
        message = self.verdict("tiles", text, "traffic").message
        self.assertIn("844,800 bytes read from K, most of them at 03_tiles.cuh:", message)
        page = self.page("tiles", text)
        self.assertRegex(page, r"\n  K read +844,800 +25,600  33\.0x too many +\d+\.\d\n")
        self.assertRegex(page, r"\n  V read +25,600 +25,600  = +4\.0\n")

    def test_each_word_of_a_table(self):
        none, ways = dict.fromkeys(("read", "write", "atomic"), 0), ("yours", "spec", "sectors")
        rows = {}
        for name, way, figures, words in (
            ("A", "read", (0, 4, 8), "A read 0 4 fewer 4.0"),
            ("B", "write", (8, 8, 3), "B write 8 8 = 1.5"),
            ("C", "atomic", (9, 0, 4), "C atomic 9 0 none is needed 2.0"),
            ("D", "read", (990, 10, 2), "D read 990 10 99.0x too many 1.0"),
            ("E", "read", (1000, 10, 2), "E read 1,000 10 100x too many 1.0"),
            ("F", "read", (0, 0, 0), None),
        ):
            rows[name] = {key: {**none, way: n} for key, n in zip(ways, figures)}
            rows[name]["requests"], rows[name]["words"] = {**none, way: 2}, words
        for (yours, ideal), last in (
            ((0, 0), []),
            ((5, 5), ["bank wavefronts 5 5 ="]),
            ((5, 2), ["bank wavefronts 5 2 2.5x"]),
        ):
            totals = {"wavefronts": yours, "wavefronts_ideal": ideal}
            text = show.traffic({"problem": "N=1", "traffic": rows, "totals": totals})
            head, _, *lines = (" ".join(line.split()) for line in show.visible(text).splitlines())
            expected = [row["words"] for row in rows.values() if row["words"]] + last
            self.assertEqual([head, *lines], ["N=1", *expected])
        yours = {"problem": "N=2", "prediction": {"ms": 3, "estimated_ms": 4, "limit": "HBM"}}
        said = show.visible(show.predictions([yours])).splitlines()[1]
        self.assertEqual(said.split(), ["N=2", "3.00", "ms", "4.00", "ms", "-25%", "HBM"])

    def test_a_race_in_another_file_of_the_step_names_the_line_that_leads_there(self):
        e = exercise("which_product")
        message = self.verdict(e.name, e.unsolved(), "race").message
        words = rf"accumulators, element 3, at parts\.cuh:\d+ \(called at {e.label}\.cuh:(\d+)\)"
        self.assertRegex(message, words)
        called = re.search(words, message)
        line = e.unsolved().splitlines()[int(called[1]) - 1]
        self.assertEqual(line.strip(), "dQ_part.add(rdQ);")

    @for_all
    def test_a_wait_for_both_products_is_right_too(self):
        """As in the question of the exercise."""
        text = exercise("which_product").unsolved()
        text = catalogue.replace_once(text, "wait_for<1>(rdQ)", "wait_for<0>(rdQ)", "")
        self.verdict("which_product", text, "")

    def test_the_first_compile_error_only(self):
        text = exercise("scores").solution()
        text = text.replace("s *= scale;", "s *= sale;\n    alos wrong;")
        message = self.verdict("scores", text, "does not compile").message
        self.assertRegex(message, r"^01_scores\.cuh:\d+:\d+: error: .*sale")
        self.assertNotIn("alos", message)
        self.assertLessEqual(len(message.splitlines()), 6)

    def scores(self, line, before="  float* S = t.scratch", includes=(), text=None):
        """scores, solved, with an additional line, in its host function or before another text."""
        text = text or exercise("scores").solution()
        self.assertIn(before, text)
        more = "".join(f"\n#include <{name}>" for name in includes)
        text = text.replace("#pragma once", "#pragma once" + more)
        return text.replace(before, f"  {line}\n{before}", 1)

    @for_all
    def test_limits(self):
        more = "for (;;) { char* more = new char[1 << 20]; for (int i = 0; i < 1 << 20; i += 64) "
        loop = "for (volatile int x = 0;; ++x) {}"
        in_kernel = "  S[(bh * N + r) * N + c] = s;"
        spins = self.scores("while (causal) s += Q[0];", in_kernel)
        silent = self.scores("for (volatile int x = 0; causal;) ++x;", in_kernel)
        for name, limit, text, kind, words in (
            ("RUN_SECONDS", 2, self.scores(loop), "too slow", "limit of 2 s"),
            ("RUN_BYTES", 1 << 28, self.scores(more + "more[i] = 1; }"), "too much memory", "MiB"),
            ("RUN_SECONDS", 20, self.scores("__builtin_trap();"), "crash", "SIGILL|SIGTRAP"),
            ("LOOP_SECONDS", 1, spins, "endless loop", "spins at 01_scores.cuh"),
            ("LOOP_SECONDS", 1, silent, "endless loop", "without a memory access"),
        ):
            with self.subTest(words=words), mock.patch.object(checking, name, limit):
                self.assertRegex(self.verdict("scores", text, kind).message, words)

    @for_all
    def test_the_host_does_the_kernels_work(self):
        """Right results through cudaMemcpy, copied to O by a kernel, with the word let through."""
        host = """
  fa::Inputs in;
  for (auto [from, to] : {std::pair(t.Q, &in.Q), {t.K, &in.K}, {t.V, &in.V}}) {
    to->resize(p.q_size());
    cudaMemcpy(to->data(), from, 4 * p.q_size(), cudaMemcpyDeviceToHost);
  }
  const fa::Definition<double> want(p, in, [](double x) { return x; });
  const std::vector<float> o(want.O.begin(), want.O.end());
"""
        to_o = "  cudaMemset(t.O, 0, 4 * o.size());\n"
        to_o += "  cudaMemcpy(t.O, o.data(), 4 * o.size(), cudaMemcpyHostToDevice);\n  return;\n"
        carried = """
  float* by = t.scratch<float>("S");
  cudaMemcpy(by, o.data(), 4 * o.size(), cudaMemcpyHostToDevice);
  fa::launch(carry, {dim3(1), dim3(1)}, (const float*)by, t.O, int(o.size()));
  return;
"""
        kernel = """static __global__ void carry(const float* from, float* to, int n) {
  for (int i = 0; i < n; ++i) to[i] = from[i];
}"""
        for way, words in (
            (to_o, "O has 10,240 bytes, and kernels wrote 0 of them"),
            (carried, "no kernel read Q"),
        ):
            text = self.scores(kernel, before="inline void forward(")
            at = '  float* S = t.scratch<float>("S");\n  float* P'
            text = self.scores(host + way, at, ("common/harness/definition.h",), text)
            with self.subTest(words=words):
                self.verdict("scores", text, "refused")
                with mock.patch.object(checking, "NOT_YOURS", ()):
                    message = checked.__wrapped__("scores", text).message
                self.assertEqual(message, words)

    def test_what_is_refused(self):
        """In a hole, elsewhere in the file, or outside functions; grade also reports the latter."""
        e = exercise("scores")
        in_hole, outside = "    s *= scale;", "inline void forward("
        for line, before, word in (
            ('asm volatile("" ::: "memory");', in_hole, "asm"),
            ('__asm__("");', in_hole, "__asm__"),
            ('a\\\nsm("");', in_hole, "asm"),
            ("#define A(x, y) x##y", outside, "##"),
            ('static __attribute__((no_sanitize("thread"))) void f();', outside, "__attribute__"),
            ("const auto f = [] [ [gnu::noinline]] {};", in_hole, "[ ["),
            ("[[gnu::constructor]] static void f() {}", outside, "[["),
            ('#pragma GCC optimize("O3")', outside, "#pragma"),
            ("cudaMemcpy(0, t.Q, 4, cudaMemcpyDeviceToHost);", "  float* S = t.s", "cudaMemcpy"),
            ('#include "common/harness/reference.h"', outside, "#include"),
            ('# include "steps/06_work_partitioning/2_registers.cuh"', outside, "# include"),
            ("%:include <fstream>", outside, "%:"),
        ):
            with self.subTest(line=line):
                text = self.scores(line, before)
                message = self.verdict("scores", text, "refused").message
                self.assertRegex(message, rf"^01_scores\.cuh:\d+ holds '{re.escape(word)}'?")
                self.assertEqual(grading.lines_outside(e, text) > 0, before != in_hole)
        top = checking.refused_words(e, "f", "#include <cstdlib>\n" + e.unsolved())
        self.assertRegex(top, "^f:1 holds '#include <cstdlib>':")
        fine = self.scores("#pragma unroll\n    // asm [[", "    for (int x = 0; x < d; ++x)")
        self.assertEqual(checking.refused_words(e, "", fine), "")
        for e in EXERCISES:
            for text in (e.unsolved(), e.solution()):
                self.assertEqual(checking.refused_words(e, "", text), "", e.name)

    def cheats(self):
        """(exercise, text, expected result, words of the message)"""
        leaves = "static struct Cheat { Cheat() { %s _Exit(0); } } cheat;"
        verdict = r"{\"ok\": true, \"problems\": []}\n"
        writes = f'FILE* f = fopen("result.json", "w"); fputs("{verdict}", f); fclose(f);'
        talks = f'for (int to = 3; to < 64; ++to) dprintf(to, "{verdict}");'
        uniform = 'extern "C" double exp(double) noexcept { return 1; }\n'
        uniform += 'extern "C" float expf(float) noexcept { return 1; }'
        reference = """namespace fa {
struct Sample;
struct ReferenceForward;
ReferenceForward attention_fp64(const Problem&, const Inputs&, const Sample&);
}  // namespace fa
static void* volatile answer = reinterpret_cast<void*>(&fa::attention_fp64);"""
        for line, kind, words in (
            (leaves % writes, "no verdict", "ended after 0 of 2 problems"),
            (leaves % talks, "no verdict", "ended after 0 of 2 problems"),
            (uniform, "wrong result", "^O"),
            (reference, "does not compile", "undefined reference.*attention_fp64"),
        ):
            text = exercise("scores").solution()
            yield "scores", text.replace("namespace", f"{line}\nnamespace", 1), kind, words
        reads = """  char answer[4096] = "";
  if (FILE* f = fopen("request.json", "r")) fread(answer, 1, sizeof answer - 1, f), fclose(f);
  return {strstr(answer, "HBM") ? "HBM" : "", 1.};
"""
        lines = exercise("lines")
        text = filled(lines.unsolved(), lines.holes(lines.unsolved())[0], reads)
        yield "lines", text, "wrong limiter", 'is ""'
        late = wrong("producer", "V of a tile before K of the next one")
        yield "producer", late, "order", "order KVKV"

    @for_all
    def test_cheats(self):
        """The verdict is the judge's, out of reach of the student's code."""
        for name, text, kind, words in self.cheats():
            with self.subTest(kind=kind, words=words):
                self.assertRegex(self.verdict(name, text, kind).message, words)

    def test_a_verdict_of_ones_own(self):
        """A cheat that answers in the judge's place."""
        name, text, kind, words = list(self.cheats())[1]
        self.assertRegex(self.verdict(name, text, kind).message, words)
        self.assertGreater(grading.lines_outside(exercise(name), text), 0)

    def test_what_filled_holes_are_worth(self):
        """By the verdict on the whole text, here without a compiler."""
        e = exercise("gradients")
        unsolved = e.unsolved()
        first = e.holes(unsolved)[0]
        text = filled(unsolved, first, first.change.solution)
        empty = e.holes(text)[1].line
        path, broken = self.file(e, text), ("does not compile", "no ;")
        for whole, kind, holes, words in (
            (("", ""), "part right", ["right", "empty"], "Hole 1 of 2 is right: with the rest "),
            (("race", "two"), "race", ["filled", "empty"], "two" + checking.STILL_EMPTY),
            (broken, "race", ["filled", "empty"], "of the text"),
        ):

            def tried(check, tried_text, whole=whole):
                return check.made(*(("race", "of the text") if tried_text == text else whole))

            with mock.patch.object(checking.Check, "try_text", tried):
                verdict = checking.check(e, path, toolchain())
            self.assertEqual((verdict.ok, verdict.kind, verdict.holes), (False, kind, holes))
            self.assertTrue(verdict.message.startswith(words), verdict.message)
            if whole != broken:
                self.assertTrue(verdict.message.endswith(f"hole 2 at {path.name}:{empty}."))

    def test_what_the_end_of_the_program_means(self):
        """Its status, its last output, and what the judge has seen."""
        e = exercise("scores")
        check = checking.Check(e, self.file(e, e.solution()), toolchain(), 1, self.folder, False)
        right, none = {"ok": True, "problems": [{}]}, {"ok": False, "problems": [None, {"x": 1}]}
        wrong = {**none, "kind": "wrong result"}
        for status, errors, seen, kind, words in (
            (0, "", right, "", ""),
            ("too slow", "", none, "too slow", "the limit of 20 s"),
            ("too much memory", "", none, "too much memory", "the limit of 1024 MiB"),
            ("too much output", "", none, "too much output", "the limit of 16 MiB in a file"),
            (3, "x: no GPU found", none, "no GPU", "without --gpu the check runs in"),
            (3, " no memory\n", none, "no GPU", "no memory"),
            (1, "a\nspins without a memory access\n", right, "endless loop", "spins without"),
            (-11, "a\nb\n", none, "crash", "SIGSEGV: b"),
            (-6, "", right, "crash", "SIGABRT: status -6"),
            (7, "", right, "crash", "status 7"),
            (0, "", none, "no verdict", f"after 1 of {len(e.check['problems'])} problems"),
            (1, "", {**wrong, "kind": "race", "message": "two"}, "race", "two"),
            (1, "", {**wrong, "message": "O is 1\nnan"}, "wrong result", "O is 1\nnan"),
            (1, "", {**wrong, "message": "O is -nan, not 1"}, "not a number", "O is -nan"),
            (1, "", {**wrong, "message": "O is inf"}, "not a number", "O is inf"),
            (1, "", {**wrong, "message": "O was never written"}, "unwritten", "O was never"),
        ):
            with mock.patch.object(check, "converse", lambda: (status, errors, seen)):
                verdict = check.run()
            self.assertEqual((verdict.kind, verdict.ok), (kind, not kind))
            self.assertIn(words, verdict.message)

    @for_all
    def test_some_of_the_holes(self):
        """Each is judged by its content; empty ones do not count, and are not shown as a fault."""
        e = exercise("gradients")
        unsolved = e.unsolved()
        first, second = e.holes(unsolved)
        text = filled(unsolved, first, first.change.solution)
        verdict = self.verdict(e.name, text, "part right")
        self.assertEqual(verdict.holes, ["right", "empty"])
        self.assertIn("Hole 1 of 2 is right", verdict.message)
        line = e.holes(text)[1].line
        self.assertIn(f"Still empty: hole 2 at {e.label}.cuh:{line}", verdict.message)
        path = self.file(e, text)
        self.assertEqual(show.head_of(e, path, verdict), ("part right", line))

        text = filled(unsolved, second, second.change.solution.replace("scale * ", ""))
        verdict = self.verdict(e.name, text, "wrong result")
        self.assertEqual(verdict.holes, ["empty", "filled"])
        empty, wrong_one = e.holes(text)
        path = self.file(e, text)
        self.assertEqual(show.head_of(e, path, verdict), ("wrong result", wrong_one.line))
        page = show.verdict(e, path, verdict)
        self.assertIn(f"hole 1 at {path.name}:{empty.line}", page.replace("\n  ", " "))
        self.assertNotRegex(page, r"\n +\d+ \| ")
        grade = grading.Grade("a", e, "wrong", verdict.kind, holes=verdict.holes)
        self.assertEqual(grade.word, "wrong result 1/2")

    def test_a_bug_without_a_line_and_one_with_several(self):
        e = exercise("barrier")
        path = self.file(e, e.unsolved())
        crash = checking.Verdict(False, "crash", "SIGSEGV: status -11")
        self.assertIn("No line is known: only races", show.verdict(e, path, crash))
        message = f"deadlock:\na at {path.name}:3\nb at {path.name}:5"
        deadlock = checking.Verdict(False, "deadlock", message)
        page = show.verdict(e, path, deadlock)
        for words in ("  a at", "  b at", "\n      3 | ", "\n      5 | "):
            self.assertIn(words, page)
        self.assertNotIn(".cuh:", show.verdict(e, path, deadlock, where=False))
        at, waits = "the __syncthreads", "32 threads wait at mbarrier wait"
        of = (" of 04_barrier.cuh:71", " of 04_b.cuh:80")
        for message, *places in (
            (f"it is at {at}@ while others wait at {at}@; all", *of),
            (f"deadlock:\n  {waits}@ (ids 0-31)", " 26_free_buffer.cuh:180 (called at a.cuh:7)"),
            ("that other threads issued@", " (04_b.cuh:9)"),
        ):
            told = message.replace("@", "{}").format(*places)
            self.assertEqual(show.without_places(told), message.replace("@", ""))

    def test_what_the_step_predicts(self):
        """Its program may be missing or fail: one sentence."""
        e, prediction = exercise("scores"), exercise("lines")
        self.assertGreater(toolchain().predicted(e)[0]["Q"]["read"], 0)
        tools = checking.Toolchain(BUILD)
        tools.build = self.folder
        writes = "for w; do :; done; echo '{}' > \"${w#--json=}\""
        for text, one, words in (
            (None, e, "--predict.*: No such file or directory"),
            ("echo loader >&2; echo 'naive: bad use' >&2; exit 2", e, ": naive: bad use"),
            ("exit 0", e, ": No such file or directory"),
            (writes, e, "step 01_naive predicts no 'scores'"),
            (writes, prediction, "step 01_naive predicts no 'lines'"),
        ):
            if text:
                self.program("steps/01_naive", f"#!/bin/sh\n{text}\n")
            with self.subTest(text=text):
                self.assertRaisesRegex(checking.NotBuilt, f"{words}$", tools.predicted, one)

    @for_all
    def test_a_prediction_says_what_is_forgotten(self):
        def changed(before, after):
            return exercise("lines").solution().replace(before, after)

        no_time = changed('"L1 lines", l1', '"L1 lines", std::nan("")')
        for name, text, kind, words in (
            ("lines", "one SM does it all", "wrong time", "times too long: .* 132 SMs share"),
            ("lines", "a load of K is one line", "wrong limiter", r"but L1 lines: \d+ us\. Is"),
            ("lines", "nothing but the bytes", "wrong limiter", "^HBM: .* Is L1 lines forgotten"),
            ("lines", "sectors instead of lines", "wrong time", r"^\S+ us is 7\d% too short: "),
            ("few_blocks", "all SMs have a block", "wrong time", "64 blocks for 132 SMs: the"),
            ("few_blocks", "only the longer of the two", "wrong time", "what instructions alone"),
            ("lines", no_time, "wrong time", "is no time"),
            ("lines", changed('{"L1 lines"', '{"L1"'), "wrong limiter", '^the limiter is "L1", '),
        ):
            with self.subTest(words=words):
                text = text if "\n" in text else wrong(name, text)
                self.assertRegex(self.verdict(name, text, kind).message, words)

    @for_all
    def test_a_prediction_is_compared_with_the_run(self):
        """Another estimate, another verdict: the exercise contains no answer."""
        e = exercise("lines")
        for problem in self.verdict(e.name, e.solution(), "").problems:
            seen = problem["prediction"]
            off = seen["ms"] / seen["estimated_ms"] - 1
            self.assertLess(abs(off), 0.25)
            row = rf"(?m)  {re.escape(problem['problem'])} .* {re.escape(f'{off:+.0%}')}  L1 lines$"
            self.assertRegex(self.page(e.name, e.solution()), row)
        tools = checking.Toolchain(BUILD)
        runs, path = tools.predicted(e), self.file(e, e.solution())
        for factor, parts, kind in (
            (1.4, {}, "wrong time"),
            (0.7, {}, "wrong time"),
            (1, {"HBM": 0.99}, "wrong limiter"),
        ):
            tools.predictions[e.name] = [
                {**run, "ms": factor * run["ms"], "parts": {**run["parts"], **parts}}
                for run in runs
            ]
            with self.subTest(factor=factor, parts=parts):
                verdict = checking.check(e, path, tools)
                self.assertEqual((verdict.ok, verdict.kind), (False, kind), verdict.message)
        tools.gpu = True
        self.assertIn("without --gpu", checking.check(e, path, tools).message)

    def test_code_for_the_gpu_that_a_step_needs(self):
        tools = checking.Toolchain(BUILD)
        tools.gpu = True
        of_90, of_80 = (f"--generate-code=arch=compute_{n},code=[sm_{n}]" for n in (90, 80))
        for name, gpu, arch, older in (
            ("scores", of_90, "sm_90", False),
            ("full_scale", of_80, "sm_90a", False),
            ("hop_merge", of_90, "sm_90a", False),
            ("hop_merge", of_80, "sm_80", True),  # it runs 07's kernels there
            ("hop_merge", "-arch=native", "sm_90a", False),  # names no GPU
        ):
            tools.compile_words = ["nvcc", gpu]
            command = tools.compile(exercise(name).step, "a", "b", "c")
            codes = [word for word in command if word.startswith("--generate-code")]
            with self.subTest(name=name, gpu=gpu):
                self.assertEqual([code[-len(arch) - 2 :] for code in codes], [f"[{arch}]"])
                self.assertEqual("-DFA_NO_WGMMA" in command, older)

    def test_a_program_of_anybody(self):
        """Without a network, in a folder with any name, saved on Windows, with an unwritable
        TMPDIR; it names lines even in a process name space without its own /proc. The inputs are
        the check's, and the limits are set without running Python in the child."""
        e = exercise("barrier")
        path = self.file(e, "", 'a "quoted" folder')
        path.write_bytes(codecs.BOM_UTF8 + e.unsolved().replace("\n", "\r\n").encode())
        with mock.patch.dict(os.environ, TMPDIR="/proc"):
            verdict = checking.check(e, path, toolchain(), isolate=True)
        self.assertEqual(verdict.kind, "race", verdict.message)
        self.assertEqual(verdict.message.count(f" at {path.name}:"), 2, verdict.message)
        checks = [checking.Check(e, path, toolchain(), None, path, False) for _ in range(3)]
        self.assertEqual(len({check.seed for check in checks}), 3)
        shown = "{ ulimit -c; ulimit -S -t; ulimit -H -t; ulimit -v; } >&2"
        status, said = checking.limited(["/bin/sh", "-c", shown], self.folder, 7, 1 << 30)
        self.assertEqual((status, said.split()), (0, ["0", "7", "8", str(1 << 20)]))

    def test_the_memory_of_a_programs_children_is_its_own(self):
        code = "import time; x = b'x' * (200 << 20); time.sleep(20)"
        child = ["/bin/sh", "-c", f'{sys.executable} -c "{code}"; :']
        how = {"seconds": 20, "resident": 100 << 20}
        status, _ = checking.limited(child, self.folder, 20, **how)
        self.assertEqual(status, "too much memory")

    def test_a_program_that_writes_without_end(self):
        """Keeps the start and the end of its standard error; limits the size of a file."""
        much = "echo first >&2; head -c 50000000 /dev/zero | tr '\\0' x >&2; echo; echo last >&2"
        limits = {"seconds": 60, "resident": 1 << 30}
        status, said = checking.limited(["/bin/sh", "-c", much], self.folder, 7, **limits)
        self.assertEqual(status, 0)
        self.assertRegex(said, r"^first\nx+last\n$")
        self.assertLessEqual(len(said), 2 * checking.HEARD)
        endless = ["/bin/sh", "-c", "exec cat /dev/zero > file"]
        status, said = checking.limited(endless, self.folder, 7, file=1 << 20)
        self.assertEqual((status, said), ("too much output", ""))
        self.assertEqual((self.folder / "file").stat().st_size, 1 << 20)


# --- the student's files ------------------------------------------------------------------------


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
        with mock.patch.object(e, "task", "Another task."):  # an update of the repository
            self.assertTrue(self.desk.has_changed(e))
            self.assertEqual(self.desk.open(e).read_text(), path.read_text())
            self.assertTrue(self.desk.is_untouched(e))
        self.assertFalse(self.desk.has_changed(e))
        path.write_text("mine")
        self.assertEqual(self.again().open(e).read_text(), "mine")
        self.assertFalse(self.desk.is_untouched(e))
        for number, text in enumerate(("mine", "second"), 1):  # a reset keeps what was there
            path.write_text(text)
            kept = self.desk.reset(e)
            self.assertEqual(kept.name, f"{path.name}.bak-{number}")
            self.assertEqual(kept.read_text(), text)
            self.assertEqual(path.read_text(), e.unsolved())
        path.rename(path.with_name(f"77_{e.name}.cuh"))  # the order has changed
        self.assertEqual(self.desk.path(e).name, f"77_{e.name}.cuh")
        self.assertIs(catalogue.find(EXERCISES, f"learn/77_{e.name}.cuh"), e)

    def test_a_damaged_state_is_kept_aside(self):
        self.desk.mark_done(EXERCISES[0])
        good = json.loads(self.desk.state_file.read_text())
        texts = [json.dumps({**good, **odd}) for odd in ({"hints": {"a": "two"}}, {"made": []})]
        for number, text in enumerate([*texts, "{ not json", "[]"], 1):
            self.desk.state_file.write_text(text)
            again = self.again()
            self.assertIn(f".state.json.bak-{number}", again.damaged)
            again.go_to(EXERCISES[1])
            self.assertEqual(self.again().damaged, "")
            self.assertIs(self.again().current, EXERCISES[1])
        self.desk.state_file.write_text(json.dumps({**good, "current": 5}))
        self.assertIs(self.again().current, EXERCISES[0])
        self.assertTrue(self.again().is_done(EXERCISES[0]))

    def test_a_full_disk_leaves_the_file_or_none(self):
        """ulimit -f 1: a file may have 512 bytes, the next one does not fit."""
        e = EXERCISES[0]
        limit = ("/bin/sh", "-c", 'ulimit -f 1; exec "$@"', "sh")
        self.refused(self.learn("reset", e.name, before=limit, status=2), 2, f"{e.label}.cuh")
        self.assertEqual(list((self.folder / "learn").glob("*.cuh*")), [])
        self.assertEqual(list((self.folder / "learn").glob(".*.cuh*")), [])
        with open("/dev/full", "w") as full:
            how = {"capture_output": False, "stdout": full, "stderr": subprocess.PIPE}
            self.refused(self.learn("list", status=2, **how), 2, "No space left on device")

    def test_two_at_once_lose_nothing(self):
        other = self.again()
        self.desk.mark_done(EXERCISES[0])
        other.mark_done(EXERCISES[1])
        e = EXERCISES[2]
        shown = [self.desk.next_hint(e)[0] for _ in range(len(e.hints) + 1)]
        self.assertEqual(shown, [*range(1, len(e.hints) + 1), len(e.hints)])
        self.assertTrue(all(self.again().is_done(one) for one in EXERCISES[:2]))


class Pieces(Folder):
    def test_exercises_are_found(self):
        first, tenth = EXERCISES[0], EXERCISES[9]
        for wanted, found in (
            *((first.name, first), ("1", first), ("01", first), ("10", tenth)),
            *((f"01_{first.name}", first), (f"a/99_{first.name}.cuh", first)),
            *((f"7_{tenth.name}", tenth), (f"x_{first.name}", None), ("001", None), ("0", None)),
            *(("99", None), ("", None), (f"{first.name}.cu", None)),
        ):
            self.assertIs(catalogue.find(EXERCISES, wanted), found, wanted)

    def test_texts(self):
        self.assertEqual([catalogue.line_at("a\nb\nc", at) for at in (0, 1, 2, 4)], [1, 1, 2, 3])
        for text, blank in (
            ("a // b\nc", "a     \nc"),
            ("a /* b\n } */ c", "a     \n      c"),
            (r'f("{\"}", 1) {', "f(      , 1) {"),
            ("c = '}'; '\\\\'", "c =    ;     "),
            ("a / b * c", "a / b * c"),
        ):
            self.assertEqual(catalogue.code_lines(text), blank)
        for text, leaves in (
            ("{ } { { } }", False),
            ("} {", True),
            ("// }", False),
            ("{ } }", True),
            ("{", False),
            ("", False),
        ):
            self.assertEqual(grading.leaves_its_block(text), leaves, text)
        heading = EXERCISES[0].heading() + EXERCISES[1].heading()
        self.assertEqual(catalogue.held_in(heading), [e.name for e in EXERCISES[:2]])
        self.assertEqual(catalogue.held_in("x " + heading[:-9].splitlines()[0]), [])
        for data, text in (
            (b"", ""),
            (b"a", "a\n"),
            (b"\xef\xbb\xbfa\r\nb\rc\n", "a\nb\nc\n"),
            (b"\xff\n", "\ufffd\n"),
        ):
            path = self.folder / "a.cuh"
            path.write_bytes(data)
            self.assertEqual(catalogue.student_text(path), text)
        for data, told in (
            *((b"", "a.cuh is an empty file"), (b" \n", "a.cuh is an empty file")),
            *((b"\xef\xbb\xbf\n", "a.cuh is an empty file"), (b"a", "")),
            (b"\xff\xfea\0", "a.cuh is UTF-16 text: save it as UTF-8"),
            (b"\xfe\xff\0a", "a.cuh is UTF-16 text: save it as UTF-8"),
            (b"a\0b", "a.cuh holds zero bytes, so it is no text in UTF-8"),
        ):
            path.write_bytes(data)
            self.assertEqual(catalogue.no_text(path), told)

    def test_what_looks_handed_in(self):
        name = EXERCISES[0].name
        for file, looks in (
            *(("x.cuh", True), ("x.CU", True), ("x.tar.gz", True), ("x.Zip", True)),
            *((f"{name}.txt", True), (f"01_{name}", True), (f"alice {name}.docx", True)),
            *(("notes.txt", False), ("x.cpp", False), (f"my{name}.txt", False)),
        ):
            self.assertEqual(grading.looks_handed_in(file, EXERCISES), looks, file)
        aside = grading.Aside()
        for n in range(6):
            aside.leave(f"al/{n}", "so", "al")
        aside.leave("bo/0", "so", "bo")
        aside.leave("x", "else")
        lines = [
            "left aside, so: al/0, al/1, al/2, al/3, 2 more of al, bo/0",
            "left aside, else: x",
        ]
        self.assertEqual(list(aside.lines()), lines)
        self.assertEqual(aside.of("bo"), {"so": ["bo/0"]})

    def test_the_next_open_one(self):
        desk = Desk(self.folder / "learn", EXERCISES[:3])
        a, b, c = EXERCISES[:3]
        for done, after, found in ((b, a, c), (None, c, a), (c, a, a), (a, b, None)):
            if done:
                desk.mark_done(done)
            self.assertIs(desk.next_open(after), found)
        self.assertIs(desk.current, a)
        self.assertEqual(desk.solution_path(b).read_text(), b.solution())
        five = Desk(self.folder / "of_five", EXERCISES[:5])
        for done, after, found in (
            (4, 2, 3),
            (3, 2, 0),
            (0, 2, 1),
            (1, 4, 2),
            (1, 2, 2),
            (2, 2, None),
        ):
            five.mark_done(EXERCISES[done])
            self.assertIs(
                five.next_open(EXERCISES[after]), found if found is None else EXERCISES[found]
            )
        five.state["done"][a.name] = "earlier"
        five.mark_done(a)
        self.assertEqual(five.state["done"][a.name], "earlier")
        desk.go_to(b)
        self.assertIs(Desk(self.folder / "learn", EXERCISES[:3]).current, b)
        desk.next_hint(a)
        desk.reset(a)
        self.assertFalse(desk.is_done(a) or desk.state["hints"])
        self.assertTrue(desk.is_done(b) and desk.is_untouched(a) and desk.is_untouched(c))
        self.assertFalse(desk.has_changed(c))
        self.assertIsNone(desk.reset(c))


# --- the commands -------------------------------------------------------------------------------


class Commands(Classroom):
    def test_from_the_first_look_to_done(self):
        e = EXERCISES[0]
        path = self.folder / "learn" / f"{e.label}.cuh"
        said = self.learn("run", e.name, status=1).stdout
        self.assertIn("its first lines say what to do", " ".join(said.split()))
        self.assertIn("not yet: the hole is empty", said)
        self.assertFalse((self.folder / "learn" / "solutions").exists())
        self.assertEqual(self.typed("answer", e.name).returncode, 2)
        self.assertIn(f"hint 1 of {len(e.hints)}", self.typed("hint").stdout)

        path.write_text(e.solution())
        said = self.learn("run", e.name).stdout
        self.assertIn(f"done: {e.title}", said)
        self.assertIn(f"next: ./scripts/learn run {EXERCISES[1].name}", said)
        solution = self.folder / "learn" / "solutions" / f"{e.label}.cuh"
        self.assertEqual(solution.read_text(), e.solution())
        self.assertIn(e.answer[:30], self.typed("answer", "1").stdout)
        self.assertRegex(self.typed("list").stdout, r"(?m)^done   1  scores")

        self.assertIn(f"1/{len(EXERCISES)} done", self.learn("check-all").stdout)
        self.assertIn(f"{e.label}.cuh.bak-1", self.typed("reset", e.name).stdout)
        self.assertEqual(path.read_text(), e.unsolved())
        said = self.ended(self.typed("check-all"), 1)
        self.assertRegex(said.stdout, r"01_scores .* empty   \(unchanged\)")

    def test_bad_use(self):
        inside = self.write("class/alice/x", "").parent / "grades.json"
        for arguments, *words in (
            (("run", "nothing"), "nothing", "list"),
            (("run", "no/01_scores.cuh"), "there is no file no/01_scores.cuh"),
            (("list", "scores"), "list", "scores"),
            (("hint", "--where"), "--where", "run"),
            (("grade",), "folder"),
            (("grade", "/no/such/folder"), "not a folder"),
            (("grade", inside.parent), "one for each student"),
            (("grade", self.folder / "class", "--json", inside), "a student's folder"),
            (("grade", self.folder / "class", "--jobs", "0"), "--jobs 0"),
            (("grade", self.folder / "class", "--json", self.folder), "cannot be written"),
            (("run", "scores", "--build", ""), "its value is empty"),
        ):
            with self.subTest(arguments=arguments):
                self.refused(self.typed(*arguments), 2, *words)
        self.assertEqual(self.typed("learn").returncode, 2)
        self.write("learn", "a file where the folder should be")
        self.refused(self.learn("hint", status=2), 2, "Not a directory")

    def asked(self, *arguments, setup=0):
        """What it builds where nothing is built, and how it ends: (targets, done)"""
        calls, run = [], mock.Mock(**{"run.return_value.returncode": setup})
        fails = {"side_effect": lambda *call: calls.append(call) or ["cmake", "."]}
        with (
            mock.patch.object(checking, "is_built", lambda *_: False),
            mock.patch.object(checking, "subprocess", run),
            mock.patch.object(checking.building, "build", **fails),
        ):
            done = self.typed(*arguments)
        self.assertEqual(done.returncode, 3)
        self.assertEqual(done.stdout.count("building the checker and "), 1, done.stdout)
        return [(call[0], call[1]) for call in calls], done

    def test_what_is_asked_for_is_built_at_once(self):
        steps = sorted({f"{e.step}_built" for e in EXERCISES})
        self.file(exercise("banks"), exercise("banks").solution(), "class/alice")
        for arguments, targets in (
            ((), [f"{EXERCISES[0].step}_built"]),
            (("run", "banks"), [f"{exercise('banks').step}_built"]),
            (("check-all",), steps),
            (("grade", self.folder / "class"), [f"{exercise('banks').step}_built"]),
        ):
            with self.subTest(arguments=arguments):
                built, done = self.asked(*arguments)
                self.assertEqual(built, [("sim", ["exercises", *targets])])
                self.assertIn("cmake . failed; the end of ", done.stderr)
        built, done = self.asked("run", "banks", setup=1)  # setup.sh has said what is missing
        self.assertEqual(built, [])
        self.refused(done, 3, "something is missing, as shown above")

    def test_what_is_built(self):
        """The checker compiles no step; a step's program does."""
        root, build = self.folder / "tree", self.folder / "build"
        made = [build / "steps/exercise_checker" / name for name in ("built", "01_naive_built")]
        common = [root / "common/harness/step.h", root / "steps/exercise_checker/exercise.cpp"]
        steps = [root / "steps/02_tiled/1_shared.cuh", root / "steps/01_naive/main.cu"]
        for path in made + common + steps:
            self.write(path, "")

        def seen(newer=None):
            for path in made + common + steps:
                if path.exists():
                    os.utime(path, (200, 200) if path == newer else (100, 100))
            with mock.patch.object(checking, "ROOT", root):
                return checking.is_built(build), checking.is_built(build, ["01_naive"])

        self.assertEqual(seen(), (True, True))
        self.assertEqual([seen(source) for source in common], 2 * [(False, False)])
        self.assertEqual([seen(source) for source in steps], 2 * [(True, False)])
        made[1].unlink()
        self.assertEqual(seen(), (True, False))
        self.write(build / "CMakeCache.txt", "CMAKE_CACHEFILE_DIR:INTERNAL=/no/such\n")
        self.assertEqual(seen(), (False, False))

    def test_ctrl_c_while_a_program_runs(self):
        started, e = self.folder / "started", exercise("scores")
        loops = f'fclose(fopen("{started}", "w"));\n  for (volatile int x = 0;; ++x) {{}}'
        text = Checks.scores(self, loops)
        self.file(e, text, "class/a")
        self.file(e, text, "learn")
        for arguments in (("run", e.name), ("grade", self.folder / "class")):
            with self.subTest(arguments=arguments):
                started.unlink(missing_ok=True)
                how = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
                words = [sys.executable, LEARN, *self.command(*arguments)]
                process = subprocess.Popen(words, **how)
                end = time.monotonic() + 60
                while not started.exists() and time.monotonic() < end and process.poll() is None:
                    time.sleep(0.05)
                process.send_signal(signal.SIGINT)
                _, errors = process.communicate(timeout=60)
                self.assertEqual((process.returncode, errors), (130, ""))

    def test_pages_fit_the_terminal(self):
        """At 80 and 100 columns no line is longer, and none is cut within a word."""
        e = exercise("tiles")
        path = self.file(e, e.solution() + "// " + "a word and " * 12)
        last = len(path.read_text().splitlines())
        message = f"25,600 bytes read from K, most of them at {path.name}:{last}; the spec has 1"
        yours = {"read": 123456789, "write": 0, "atomic": 7}
        spec = {"read": 12345, "write": 0, "atomic": 0}
        problem = {"problem": "B=1 H=1 N=100 d=64 causal fp32"}
        problem["traffic"] = {"K": {"yours": yours, "spec": spec}}
        problem["totals"] = {"wavefronts": 12345678, "wavefronts_ideal": 1234567}
        compiler = (
            f"{path.name}:5:70: error: a sentence of the compiler that is longer than the line is\n"
            "    5 | " + "a = " + "b + " * 25 + "c\n      | " + " " * 80 + "^~~"
        )
        row = [grading.Grade("a long name", x, "wrong", "does not compile") for x in EXERCISES]
        for columns in (80, 100):
            with mock.patch.dict(os.environ, COLUMNS=str(columns)):
                pages = [f"{show.title(x)}\n{show.prose(x.question)}" for x in EXERCISES]
                pages.append(show.listing(Desk(self.folder / "learn", EXERCISES)))
                pages.append(grading.table({"a long name": row}, EXERCISES))
                right = checking.Verdict(True, problems=[problem])
                pages.append(show.verdict(e, path, right))
                for kind, text in (("traffic", message), ("does not compile", compiler)):
                    verdict = checking.Verdict(False, kind, text, problems=[problem])
                    pages.append(show.verdict(e, path, verdict))
                    words = set(re.findall(r"[\w=,.]+", pages[-1]))
                    self.assertLessEqual(set(re.findall(r"[\w=,.]+", text)), words)
                for page in pages:
                    self.assertLessEqual(max(map(len, page.splitlines())), columns, page)
                self.assertIn("b +", pages[-1])
                self.assertEqual(pages[-1].count("^~~"), 1)
                code = "   17 | " + 140 * "x", "      | " + 99 * " " + "^", "   18 | a " + 90 * "y"
                lengths = {80: [80, 80, 40, 11, 80, 30], 100: [100, 60, 20, 11, 100]}
                self.assertEqual(list(map(len, show.snippet(code))), lengths[columns])
                table = " ".join(pages[len(EXERCISES) + 1].split())
                for x in EXERCISES:
                    self.assertEqual(table.count(x.label), 1)
                self.assertEqual(table.count("does not compile"), len(EXERCISES))

    def test_the_keys_are_those_that_do_something(self):
        desk = Desk(self.folder / "learn", EXERCISES)
        names, all_keys = ("scores", "scores", "reduction"), ("nhlcxq", "nhalcxq", "nhwlcxq")
        for name, keys in zip(names, all_keys):
            e = exercise(name)
            desk.go_to(e)
            if "a" in keys:
                desk.mark_done(e)
            foot = Watch(desk, None).foot()
            self.assertLessEqual(max(map(len, foot.splitlines())), 80)
            self.assertEqual("".join(re.findall(r"(?<= )(\w): ", foot)), keys)

    def test_where_the_keys_lead(self):
        """n: to the next open one, also past an unsolved one; x: asks first."""
        three = EXERCISES[:3]
        desk = Desk(self.folder / "learn", three)
        watch, said = Watch(desk, None), io.StringIO()

        def marks():
            return re.findall(r"(?m)^(here|done|    )  +\d", show.visible(show.listing(desk)))

        self.assertEqual(marks(), ["here", "    ", "    "])
        with contextlib.redirect_stdout(said), mock.patch("time.sleep"):
            for done, passed, at in (
                *((0, 0, 1), (0, 0, 2), (0, 0, 0), (0, 0, 1), (0, 0, 2)),
                *((0, 1, 0), (1, 1, 1), (1, 0, 2)),
            ):
                if done:
                    desk.mark_done(desk.current)
                watch.passed, watch.stamp, watch.where = bool(passed), 1, "x"
                watch.next()
                self.assertEqual((desk.current, watch.stamp), (three[at], None))
                self.assertIsNone(watch.where)
            self.assertEqual(said.getvalue().count("stays on the list"), 5)
            self.assertEqual(marks(), ["done", "done", "here"])
            desk.mark_done(three[2])
            watch.next()
            self.assertEqual(desk.current, three[2])
            self.assertIn("All exercises are done.", said.getvalue())
            file = watch.path()
            file.write_text("mine")
            for key, kept in (("q", "mine"), ("x", three[2].unsolved())):
                watch.stamp = 1
                with mock.patch.object(watch.keys, "next", lambda seconds: key):
                    watch.reset()
                self.assertEqual((file.read_text(), watch.stamp), (kept, 1 if key == "q" else None))

    def test_the_course_names_each_exercise_and_its_number(self):
        rows = re.findall(r"(?m)^\| \d+\. .*", (ROOT / "docs/teaching.md").read_text())
        named = [pair for row in rows for pair in re.findall(r"(\d+) `(\w+)`", row)]
        self.assertEqual(named, [(str(e.number), e.name) for e in EXERCISES])


class Watching(Classroom):
    """The bare command, in a terminal and without one."""

    def watch(self, terminal):
        command = [sys.executable, LEARN, *self.command()]
        kind = {"cwd": ROOT, "env": {**os.environ, "TERM": "xterm"}}
        if terminal:
            master, slave = self.terminal()
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 80, 0, 0))
            ends = {"stdin": slave, "stdout": slave, "stderr": slave}
            process = subprocess.Popen(command, **ends, **kind)
            os.close(slave)
            self.type = lambda keys: os.write(master, keys.encode())
            self.read_from = master
        else:
            ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            process = subprocess.Popen(command, stderr=subprocess.STDOUT, **ends, **kind)
            self.addCleanup(process.stdout.close)
            self.addCleanup(process.stdin.close)

            def write(keys):
                process.stdin.write("".join(key + "\n" for key in keys).encode())
                process.stdin.flush()

            self.type, self.read_from = write, process.stdout.fileno()
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def until(self, words):
        """Waits until `words` are printed; keeps later output. Returns the earlier output."""
        end = time.monotonic() + 60
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
        """As editors do: another file replaces it."""
        path = self.folder / "learn" / f"{e.label}.cuh"
        os.replace(self.write(path.with_suffix(".new"), text), path)

    def session(self, terminal):
        e, second = EXERCISES[:2]
        self.printed = ""
        process = self.watch(terminal)
        self.until("not yet: the hole is empty")
        self.until("q: quit")
        self.type("h")
        self.until("hint 1 of")
        self.save(e, e.solution())
        self.until(f"done: {e.title}")
        page = self.until("n: next")
        # A screen of 12 rows does not hold the page: the verdict is repeated at its end.
        self.assertEqual(page.count(f"done: {e.title}"), terminal, page)
        self.until("q: quit")
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
        self.session(terminal=True)

    def test_line_by_line(self):
        self.session(terminal=False)

    def test_another_step_is_built_before_its_first_check(self):
        first, other = EXERCISES[0], exercise("banks")
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
            for look in (watcher.look, watcher.look, watcher.check_all, watcher.check_all):
                look()
        one, two = f"check {first.name}", f"check {other.name}"
        everything = f"build {sorted({e.step for e in EXERCISES})}"
        expected = [one, f"build ['{other.step}']", two, two, everything, one, two, one, two]
        self.assertEqual(calls, expected)

    def test_the_pages_in_the_documents(self):
        """docs/learn.md shows the real output, except for times."""

        def without_times(page):
            return re.sub(r"(in|compiler) \d+\.\d", r"\1 T", page)

        e = EXERCISES[0]
        desk = Desk(self.folder / "learn", EXERCISES)
        watcher = Watch(desk, lambda e: checked(e.name, desk.path(e).read_text()))

        def page(*looks):
            with contextlib.chdir(self.folder), contextlib.redirect_stdout(io.StringIO()) as out:
                for look in looks:
                    look()
            printed = re.sub(r"^checking .*\n", "", out.getvalue()).replace(f"{ROOT}/", "")
            return printed.rstrip() + "\n"

        everything = catalogue.replace_once(e.solution(), "if (!causal || c <= r) {", "{", "")
        all_keys = "    s = causal && c > r ? -INFINITY : s * scale;\n"
        everything = everything.replace("    s *= scale;\n", all_keys)
        path = desk.open(e)
        with mock.patch.dict(os.environ, COLUMNS="80", LINES="1000"):
            pages = {"first": page(watcher.look, watcher.hint)}
            path.write_text(e.heading() + everything)
            pages["all_keys"] = page(watcher.look)
        for name, recorded in pages.items():
            shown = without_times(on_page(LEARN_PAGE, name, recorded))
            again = f"record it again: {sys.argv[0]} BUILD --update"
            self.assertEqual(shown, without_times(recorded), again)


# --- grading ------------------------------------------------------------------------------------


class Grading(Classroom):
    def test_a_class_with_known_mistakes(self):
        scores, barrier = exercise("scores"), exercise("barrier")
        solution, unsolved = scores.solution(), scores.unsolved()
        texts = {"scores": {"ok": solution, "untouched": unsolved}}
        texts["scores"]["empty"] = unsolved + "// mine\n"
        texts["scores"]["does not compile"] = solution.replace("float", "flaot", 1)
        texts["barrier"] = {"missing": None, "ok": barrier.solution()}
        texts["barrier"]["race"] = mistaken(barrier, barrier.wrong[0])
        expected = {
            f"student{at}": {name: list(kinds)[at % len(kinds)] for name, kinds in texts.items()}
            for at in range(8)
        }
        for student, whats in expected.items():
            (self.folder / "class" / student / "learn").mkdir(parents=True)
            for name, what in whats.items():
                if texts[name][what] is not None:
                    self.file(exercise(name), texts[name][what], f"class/{student}/learn")

        junit, report = self.folder / "grades.xml", self.folder / "grades.json"
        outputs = ("--junit", junit, "--json", report, "--seed", SEED, "--jobs", JOBS)
        said = self.learn("grade", self.folder / "class", *outputs).stdout
        document = json.loads(report.read_text())
        self.assertEqual((document["schema"], document["seed"]), (1, SEED))
        self.assertEqual([s["name"] for s in document["students"]], sorted(expected))
        rows = {row[0]: row[2:] for row in map(re.compile(r" {2,}").split, said.splitlines())}
        suites = {suite.get("name"): suite for suite in ElementTree.parse(junit).getroot()}
        for student in document["students"]:
            got = {row["name"]: row for row in student["exercises"]}
            self.assertEqual(len(got), len(EXERCISES))
            whats = expected[student["name"]]
            for name, what in whats.items():
                row = got[name]
                word = row["kind"] if row["result"] == "wrong" else row["result"]
                self.assertEqual(word, what, f"{student['name']} {name}: {row['message']}")
            self.assertEqual(student["done"], list(whats.values()).count("ok"))
            words = {"untouched": "-", "missing": "."}
            self.assertEqual(rows[student["name"]], [words.get(w, w) for w in whats.values()])
            wrongs = sorted(w for w in whats.values() if w not in ("ok", *words))
            suite = suites[student["name"]]
            counts = [int(suite.get(name)) for name in ("failures", "errors", "skipped")]
            self.assertEqual(int(suite.get("tests")), sum(counts) + student["done"])
            failures = suite.iter("failure")
            self.assertEqual(sorted(failure.get("type") for failure in failures), wrongs)

    def test_a_checker_that_crashes(self):
        """One submission is without a verdict, and the next one has its own."""
        e, tools = exercise("scores"), checking.Toolchain(BUILD)
        tools.compile_words.append("-g0")
        once = f"#!/bin/sh\nmkdir {self.folder}/once 2>/dev/null && kill -SEGV $$\n"
        tools.checker = self.program("checker", f"{once}exec {tools.checker}\n")
        files = {
            name: {e.name: self.file(e, e.solution() + more, name)}
            for name, more in (("ann", ""), ("bo", "// more\n"))
        }
        grades = grading.Grader([e], tools, SEED, 1, lambda *_: None).run(files)
        self.assertEqual([grades[name][0].kind for name in files], ["not checked", ""])
        ended = "not checked: the checker ended by SIGSEGV: there is no verdict"
        self.assertIn(ended, grades["ann"][0].feedback())
        said = "because the checker ended (worth a look): ann 01_"
        self.assertIn(said, grading.table(grades, [e]))
        grading.write_junit(self.folder / "g.xml", grades, SEED)
        suites = list(ElementTree.parse(self.folder / "g.xml").getroot())
        counts = [[s.get(key) for key in ("failures", "errors")] for s in suites]
        self.assertEqual(counts, [["0", "1"], ["0", "0"]])

    def test_files_that_are_not_one_exercise(self):
        """One sentence each, and each file has its own."""
        e, other = exercise("scores"), exercise("tiles")
        both = (e.unsolved() + other.unsolved()).encode()
        stopped = checking.Verdict(False, "does not compile", "noise")
        for data, kind, words in (
            (b"", "no text", "is an empty file"),
            (codecs.BOM_UTF8 + b"\r\n", "no text", "is an empty file"),
            (e.unsolved().encode("utf-16"), "no text", "is UTF-16 text: save it as UTF-8"),
            (b"\x7fELF\0", "no text", "holds zero bytes, so it is no text in UTF-8"),
            (other.unsolved().encode(), "another text", "holds exercise 'tiles'"),
            (both, "another text", "holds 2 exercises, scores and tiles: a file has one"),
            (b"{\\rtf1 void f();}", "another text", "holds 0 of the "),
            (e.solution().encode() + b"x", "does not compile", "noise"),
        ):
            path = self.folder / f"{e.label}.cuh"
            path.write_bytes(data)
            with self.subTest(words=words), mock.patch.object(checking.Check, "try_text") as tried:
                tried.return_value = stopped
                verdict = checking.check(e, path, toolchain())
                self.assertEqual((verdict.ok, verdict.kind), (False, kind), verdict.message)
                start = "" if words == "noise" else f"{path.name} "
                self.assertTrue(verdict.message.startswith(start + words), verdict.message)

    def test_how_a_text_is_saved_does_not_matter(self):
        """Two students, one text: neither is judged by the other's file, nor under its name."""
        e = exercise("scores")
        text = e.unsolved() + "// mine\n"
        desk = Desk(self.folder / "learn", EXERCISES)
        path, judged = desk.open(e), []
        for ends in (b"\n", b"\r\n", b"\r"):
            path.write_bytes(codecs.BOM_UTF8 + e.unsolved().encode().replace(b"\n", ends))
            self.assertTrue(desk.is_untouched(e))
            self.assertEqual(catalogue.student_text(path), e.unsolved())
            path.write_bytes(e.unsolved().encode().replace(b"\n", ends).rstrip())
            self.assertEqual(len(e.holes(catalogue.student_text(path))), 1)
        files = {}
        for student, name, data in (
            ("ann", "01_scores", text.replace("\n", "\r\n")),
            ("ben", "01_scores", text),
            ("eve", "1_scores", text),
        ):
            files[student] = {e.name: self.folder / student / f"{name}.cuh"}
            self.write(files[student][e.name], "").write_bytes(data.encode())
        wrong = lambda e, path, *_, **how: judged.append(path) or checking.Verdict(False, path.name)
        with mock.patch.object(grading, "check", wrong):
            grader = grading.Grader([e], toolchain(), SEED, 1, lambda *_: None)
            grades = grader.run(files)
        self.assertEqual(judged, [files["ann"][e.name], files["eve"][e.name]])
        kinds = [grades[student][0].kind for student in files]
        self.assertEqual(kinds, ["01_scores.cuh", "01_scores.cuh", "1_scores.cuh"])

    def test_changes_outside_the_holes_are_pointed_out(self):
        """Also in a long file, for which difflib took 15 s."""
        e = exercise("banks")
        lines = "".join(f"  const float x{i} = q[{i}] * k[{i}];\n" for i in range(2500))
        cheat = e.unsolved().replace("s += sQ[ty][x] * sK", "s += 1 * sQ[ty][x] * sK") + lines
        before = time.process_time()
        self.assertEqual(grading.lines_outside(e, cheat), 1)
        self.assertEqual(grading.lines_outside(e, e.solution() + "int more;\n// and why\n"), 1)
        more = e.solution().replace("float s = 0.f;", "float s = 0.f;\n  ++s;", 1)
        self.assertEqual(grading.lines_outside(e, more), 1)
        e = exercise("scores")  # a hole that ends its function and begins another
        ends = filled(e.unsolved(), e.holes(e.unsolved())[0], "}\nvoid f() {\n")
        self.assertEqual(grading.lines_outside(e, ends), 1)
        self.assertLess(time.process_time() - before, 1)
        self.assertEqual(grading.common_lines("abcbdab", "bdcaba"), 4)

    def test_the_solution_itself_is_pointed_out(self):
        """A hard link, the file of learn/solutions, a long hole with its comments."""
        scores, banks = exercise("scores"), exercise("banks")
        own = self.write("own.cuh", banks.solution())
        for e, text, why in (
            (scores, scores.solution(), "the file of learn/solutions"),
            (scores, scores.heading() + scores.solution(), "the solution, to the comments"),
            (banks, banks.heading() + banks.solution(), ""),  # one number: all are the same
        ):
            self.assertEqual(grading.copied(e, own, text), why)
        os.link(own, self.folder / "link.cuh")
        self.assertEqual(grading.copied(banks, self.folder / "link.cuh", ""), "a hard link")
        grade = grading.Grade("a", banks, "ok", copied="a hard link")
        missing = [grading.Grade("a", e, "missing") for e in EXERCISES if e is not banks]
        said = grading.table({"a": [grade, *missing]}, EXERCISES)
        self.assertIn("the solution itself (worth a look): a 07_banks", said)

    def test_the_tables_of_a_class(self):
        """Words, counts, times, seeds of several students; only touched columns; split tables."""
        few = EXERCISES[:3]

        def row(name, *results):
            made = zip(few, results)
            return [grading.Grade(name, e, *(r if isinstance(r, tuple) else (r,))) for e, r in made]

        wrong = ("wrong", "race", "two\nlines\x01", 1.234)
        grades = {"ann": row("ann", ("ok", "", "", 0.5), wrong, "missing")}
        grades["bo"] = row("bo", "untouched", ("ok", "", "", 0.25), "missing")
        grades["cy"] = row("cy", "missing", "missing", "untouched")
        first, second = (e.label for e in few[:2])
        self.assertEqual(
            [line.split() for line in grading.table(grades, few).splitlines() if "---" not in line],
            [
                ["student", "done", first, second],
                ["ann", "1", "ok", "race"],
                ["bo", "1", "-", "ok"],
                ["cy", "0", ".", "."],
                [],
                "- untouched . not handed in".split(),
            ],
        )
        for holes, word in (
            (["right", "empty"], "race 1/2"),
            (["right", "filled"], "race"),
            (["empty", "empty"], "race"),
            (["filled", "right", "empty"], "race 2/3"),
        ):
            self.assertEqual(grading.Grade("a", few[0], "wrong", "race", holes=holes).word, word)
        grades["ann"][1].outside, grades["bo"][1].copied = 3, "a hard link"
        said = " ".join(grading.table(grades, few).split())
        self.assertIn(
            f"lines outside the holes were changed or added (worth a look): ann {second}", said
        )
        self.assertIn(f"the solution itself (worth a look): bo {second}", said)
        every = {"a": [grading.Grade("a", e, "ok") for e in EXERCISES]}
        lines = grading.table(every, EXERCISES).splitlines()
        heads = [line.split() for line in lines if line.startswith("student")]
        self.assertGreater(len(heads), 1)
        self.assertEqual([x for head in heads for x in head[2:]], [e.label for e in EXERCISES])
        self.assertTrue(all(head[:2] == ["student", "done"] for head in heads))
        self.assertLessEqual(max(map(len, lines)), show.width())

        junit, report, aside = self.folder / "g.xml", self.folder / "g.json", grading.Aside()
        aside.leave("bo/x.zip", "an archive", "bo")
        grading.write_junit(junit, grades, 42, due=True)
        suites = list(ElementTree.parse(junit).getroot())
        counts = [(suite.get("failures"), suite.get("skipped")) for suite in suites]
        self.assertEqual(counts, [("2", "0"), ("2", "0"), ("3", "0")])
        self.assertEqual([e.number for e in grading.only(EXERCISES, "2-4,1")], [1, 2, 3, 4])
        for wrong in ("0", "1-", "x", "99", "-3", "x-3"):
            with self.assertRaises(BadInput):
                grading.only(EXERCISES, wrong)
        self.write(self.folder / "r.toml", "late = 0.25\npoints.2 = 4\npoints.scores = 2\n")
        rules, days = course.Rules(self.folder / "r.toml"), {"ann": 1, "bo": 0, "cy": 9}
        grading.write_csv(self.folder / "g.csv", grades, days, rules)
        rows = [line.split(",") for line in (self.folder / "g.csv").read_text().splitlines()]
        self.assertEqual(
            [(row[0], *row[-2:]) for row in rows[1:]],
            [("ann", "1", "1.5"), ("bo", "0", "4"), ("cy", "9", "0")],
        )
        course.write_gradescope(self.folder / "results.json", grades["ann"], 1, rules)
        tests = json.loads((self.folder / "results.json").read_text())["tests"]
        self.assertEqual([(t["score"], t["max_score"]) for t in tests[:2]], [(1.5, 2), (0, 4)])
        self.assertIn("Two threads access", tests[1]["output"])
        grading.write_feedback(self.folder / "back", grades)
        feedback = (self.folder / "back/ann.txt").read_text()
        self.assertIn(f"{second}: race: two\nlines\n\nTwo threads access the same word", feedback)
        words = ["still empty", "right", "not handed in"]
        said = "\n".join(f"{e.label}: {word}\n" for e, word in zip(few, words))
        self.assertEqual((self.folder / "back/bo.txt").read_text(), said)
        grading.write_junit(junit, grades, 42)
        self.assertTrue(junit.read_text().startswith("<?xml "))
        suites = list(ElementTree.parse(junit).getroot())
        keys = "name tests failures errors skipped time".split()
        self.assertEqual(
            [[suite.get(key) for key in keys] for suite in suites],
            [
                ["ann", "3", "1", "0", "1", "1.73"],
                ["bo", "3", "0", "0", "2", "0.25"],
                ["cy", "3", "0", "0", "3", "0.00"],
            ],
        )
        self.assertEqual({x.get("value") for x in suites[0].iter("property")}, {"42"})
        cases = [
            (c.get("classname"), c.get("name"), c.get("time")) for c in suites[0].iter("testcase")
        ]
        self.assertEqual(cases[1], ("ann", second, "1.23"))
        (failure,) = suites[0].iter("failure")
        self.assertEqual((failure.get("type"), failure.text), ("race", "two\nlines"))
        self.assertEqual(failure.get("message"), "race")
        skipped = [x.get("message") for x in suites[1].iter("skipped")]
        self.assertEqual(skipped, ["untouched", "missing"])
        grading.write_json(report, grades, 42, aside)
        students = json.loads(report.read_text())["students"]
        self.assertEqual([s["done"] for s in students], [1, 1, 0])
        left = [s["left_aside"] for s in students]
        self.assertEqual(left, [{}, {"an archive": ["bo/x.zip"]}, {}])
        shown = students[0]["exercises"][1]
        self.assertEqual((shown["seconds"], shown["lines_outside"]), (1.23, 3))
        self.assertEqual((shown["name"], shown["number"], shown["kind"]), (few[1].name, 2, "race"))
        self.assertEqual(students[1]["exercises"][1]["copied"], "a hard link")

    def test_submissions_of_a_platform(self):
        """Moodle's folders and zips, Canvas's flat names."""
        text = exercise("scores").solution()
        moodle = self.folder / "Ann Lee_123_assignsubmission_file_"
        moodle.mkdir()
        with zipfile.ZipFile(moodle / "learn.zip", "w") as zip:
            zip.writestr(zipfile.ZipInfo("learn/01_scores.cuh", (2026, 12, 3, 12, 0, 0)), text)
            zip.writestr("../../out.cuh", "")
        with zipfile.ZipFile(self.folder / "all.zip", "w") as zip:
            zip.write(moodle / "learn.zip", f"{moodle.name}/learn.zip")
            zip.writestr("bobo_LATE_12_345_01_scores-2.cuh", text)
        scratch = self.folder / "scratch"
        found = course.handed_in(self.folder / "all.zip", scratch)
        own = {s.name: grading.submitted(s, EXERCISES, grading.Aside()) for s in found.iterdir()}
        self.assertEqual({name: list(files) for name, files in own.items()},
                         {"Ann Lee": ["scores"], "bobo": ["scores"]})  # fmt: skip
        self.assertFalse((self.folder / "out.cuh").exists() or (scratch / "out.cuh").exists())
        self.write(self.folder / "r.toml", "due = 2026-12-01T23:59:00\nlate = 0.1\n")
        rules = course.Rules(self.folder / "r.toml")
        self.assertEqual(rules.days(own["Ann Lee"].values()), 2)
        self.write(self.folder / "r.toml", "dew = 1\n")
        with self.assertRaisesRegex(BadInput, "r.toml: dew"):
            course.Rules(self.folder / "r.toml")
        names = course.pseudonyms(self.folder / "names.csv", ["Lee, Ann", "bobo"])
        self.assertEqual(course.pseudonyms(self.folder / "names.csv", ["bobo"]), names)
        self.assertEqual(len({*names.values()}), 2)

    def test_grading_leaves_nothing_running(self):
        """Not even processes that left its process group."""
        if not checking.isolated():
            self.skipTest("an ordinary user may not have name spaces here")
        folder = self.folder / "run"
        folder.mkdir()
        stays = [*checking.isolated(), "/bin/sh", "-c", "setsid sleep 4711 & sleep 0.2"]
        status, _ = checking.limited(stays, folder, 7, seconds=5, resident=1 << 30)
        self.assertEqual(status, 0)
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # another program that has just ended
                self.assertNotEqual(path.read_bytes(), b"sleep\x004711\x00")

    def test_what_cannot_be_graded_is_named(self):
        """Links, folders and pipes in place of a file; of two files the newer one counts."""
        student = self.folder / "class" / "student"
        new = self.write(student / "4_barrier.cuh", exercise("barrier").unsolved())
        os.utime(self.write(student / "old" / "04_barrier.cuh", new.read_text()), (1, 1))
        self.write(student / "99_unknown.cuh", "void f();")
        self.write(student / "03_tiles.cuh", "x" * (grading.LARGEST_FILE + 1))
        (student / "01_scores.cuh").symlink_to("/etc/passwd")
        (student / "07_banks.cuh").mkdir()
        os.mkfifo(student / "02_reduction.cuh")
        for name in ("01_scores.cu", "01_scores.cuh.txt", "08_swizzle.cuh.bak-1", "a.zip", ".b"):
            self.write(student / name, "")
        swizzle = exercise("swizzle").solution()
        self.write(student / "solutions" / "07_banks.cuh", "mine")
        self.write(student / "solutions" / "08_swizzle.cuh", swizzle)
        (student / "more").symlink_to("/etc")
        for name in ("student_01_scores.cuh", "grades.xml"):
            self.write(student.parent / name, "")
        done = self.ended(self.typed("grade", self.folder / "class", "--seed", SEED))
        self.assertRegex(done.stdout, r"(?m)^student     0  too large$")
        expected = {
            "in no student's folder": "student_01_scores.cuh",
            "not a regular file": "07_banks.cuh more 01_scores.cuh 02_reduction.cuh",
            "a name that does not end in .cuh": "01_scores.cu 01_scores.cuh.txt",
            "an older copy that reset has kept": "08_swizzle.cuh.bak-1",
            "not the name of an exercise": "99_unknown.cuh",
            "an archive to be unpacked": "a.zip",
            "another file of the student counts for this exercise": "old/04_barrier.cuh",
            "in the folder solutions": "solutions/07_banks.cuh",
        }
        left = re.sub(r"\n(?!left|seed)", " ", done.stdout)
        left = dict(re.findall("(?m)^left aside, (.*): (.*)$", left.replace("student/", "")))
        self.assertEqual({why: names.replace(",", "") for why, names in left.items()}, expected)
        for number in range(9):
            self.write(student / f"{number}.zip", "")
        left = grading.Aside()
        grading.submitted(student, EXERCISES, left)
        named = ", ".join(f"student/{number}.zip" for number in range(grading.Aside.SHOWN))
        line = f"left aside, an archive to be unpacked: {named}, 6 more of student"
        self.assertIn(line, list(left.lines()))
        found = grading.submitted(student, EXERCISES, grading.Aside())
        self.assertEqual(found, {"barrier": new, "tiles": student / "03_tiles.cuh"})
        # The student's work counts, even if an untouched copy is newer.
        old = self.write(student / "old" / "04_barrier.cuh", exercise("barrier").solution())
        os.utime(old, (1, 1))
        found = grading.submitted(student, EXERCISES, grading.Aside())
        self.assertEqual(found["barrier"], old)


if __name__ == "__main__":
    if NAMED:
        steps = sorted({e.step for e in NAMED})
        if not checking.is_built(BUILD, steps):
            checking.build_library(BUILD, "sim", print, steps)
        unittest.main(argv=[sys.argv[0], *(f"Guards.{name}" for name in OF_ONE)])
    main()
