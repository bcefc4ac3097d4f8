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

from copies import BUILD, ROOT, Folder, for_all, main, on_page, said, typed
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


def exercise(name):
    return catalogue.find(EXERCISES, name)


FIRST, SECOND, THIRD = EXERCISES[:3]
BARRIER, BANKS, GRADIENTS, LINES = map(exercise, "barrier banks gradients lines".split())


def mistaken(e, wrong):
    text = e.solution()
    for edit in wrong.change:
        text = catalogue.replace_once(text, edit["solution"], edit["wrong"], e.path.name)
    return text


def text_of(e, what):
    """The "solution", "unsolved", a wrong solution by its name, or this text itself."""
    if what in ("solution", "unsolved"):
        return getattr(e, what)()
    return next((mistaken(e, wrong) for wrong in e.wrong if wrong.name == what), what)


def filled(e, code, at=0, text=None):
    """A text of an exercise, by default unsolved, with this code in one of its holes."""
    text = text or e.unsolved()
    hole = e.holes(text)[at]
    return text[: hole.begin] + (code or hole.change.solution) + text[hole.end :]


def scored(line, before="  float* S = t.scratch", includes=(), text=None):
    """scores, solved, with an additional line, in its host function or before another text."""
    text = text or FIRST.solution()
    more = "".join(f"\n#include <{name}>" for name in includes)
    text = text.replace("#pragma once", "#pragma once" + more)
    assert before in text
    return text.replace(before, f"  {line}\n{before}", 1)


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


# --- submissions: exercise, text, the kind of its verdict, a part of the message, of the page ----

VERDICT = r"{\"ok\": true, \"problems\": []}\n"
LEAVES = "static struct Cheat { Cheat() { %s _Exit(0); } } cheat;\nnamespace"
TALKS = LEAVES % f'for (int to = 3; to < 64; ++to) dprintf(to, "{VERDICT}");'
WRITES = LEAVES % f'FILE* f = fopen("result.json", "w"); fputs("{VERDICT}", f); fclose(f);'
UNIFORM = """extern "C" double exp(double) noexcept { return 1; }
extern "C" float expf(float) noexcept { return 1; }
namespace"""
REFERENCE = """namespace fa {
struct Sample;
struct ReferenceForward;
ReferenceForward attention_fp64(const Problem&, const Inputs&, const Sample&);
}  // namespace fa
static void* volatile answer = reinterpret_cast<void*>(&fa::attention_fp64);
namespace"""
READS = """  char answer[4096] = "";
  if (FILE* f = fopen("request.json", "r")) fread(answer, 1, sizeof answer - 1, f), fclose(f);
  return {strstr(answer, "HBM") ? "HBM" : "", 1.};
"""


def line_of(e, text):
    return catalogue.line_at(e.unsolved(), e.unsolved().index(text))


def solved(e, before, after):
    return catalogue.replace_once(e.solution(), before, after, e.name)


def cheat(before_it):
    return FIRST.solution().replace("namespace", before_it, 1)


def submissions():
    product = exercise("which_product")
    called = f"{product.label}.cuh:{line_of(product, 'dQ_part.add(rdQ);')}"
    misspelt = solved(FIRST, "s *= scale;", "s *= sale;\n    alos wrong;")
    return (
        ("gradients", "no delta", "wrong result",
         r"^dQ\[b=0, h=0, row=\d+, feature=\d+\] is \S+, expected ",
         "  on B=1 H=1 N=45 d=32 fp32", "Its indices say"),
        # Two bytes each, where six query heads read one key head
        ("blind_rows", "solution", "", "", r"\n  K read +35,840 +35,840  = ",
         "\n  B=1 H=2 Hkv=1 N=33 Nk=70 d=128 causal bf16\n"),
        ("tiles", "each thread reads K from HBM", "traffic",
         "844,800 bytes read from K, most of them at 03_tiles.cuh:",
         r"\n  K read +844,800 +25,600  33\.0x too many +\d+\.\d\n",
         r"\n  V read +25,600 +25,600  = +4\.0\n"),
        (product.name, "unsolved", "race",
         rf"accumulators, element 3, at parts\.cuh:\d+ \(called at {called}\)"),
        ("scores", misspelt, "does not compile",  # the first error only
         r"\A01_scores\.cuh:\d+:\d+: error: .*sale(?!(?s:.*)alos)([^\n]*\n?){1,6}\Z"),
        ("scores", cheat(TALKS), "no verdict", "ended after 0 of 2 problems"),
    )  # fmt: skip


def more_submissions():
    no_time = solved(LINES, '"L1 lines", l1', '"L1 lines", std::nan("")')
    other_name = solved(LINES, '{"L1 lines"', '{"L1"')
    product = exercise("which_product")  # right too, as its question says
    waits = product.unsolved().replace("wait_for<1>(rdQ)", "wait_for<0>(rdQ)", 1)
    one_of_two = filled(GRADIENTS, None)
    second = GRADIENTS.holes(GRADIENTS.unsolved())[1].change.solution
    return (
        (product.name, waits, "", ""),
        ("scores", cheat(WRITES), "no verdict", "ended after 0 of 2 problems"),
        ("scores", cheat(UNIFORM), "wrong result", "^O"),
        ("scores", cheat(REFERENCE), "does not compile", "undefined reference.*attention_fp64"),
        ("lines", filled(LINES, READS), "wrong limiter", 'is ""'),
        ("producer", "V of a tile before K of the next one", "order", "order KVKV"),
        ("gradients", one_of_two, "part right", "Hole 1 of 2 is right"),
        ("gradients", filled(GRADIENTS, second.replace("scale * ", ""), 1), "wrong result",
         "Still empty"),
        ("lines", "one SM does it all", "wrong time", "times too long: .* 132 SMs share"),
        ("lines", "a load of K is one line", "wrong limiter", r"but L1 lines: \d+ us\. Is"),
        ("lines", "nothing but the bytes", "wrong limiter", "^HBM: .* Is L1 lines forgotten"),
        ("lines", "sectors instead of lines", "wrong time", r"^\S+ us is 7\d% too short: "),
        ("few_blocks", "all SMs have a block", "wrong time", "64 blocks for 132 SMs: the"),
        ("few_blocks", "only the longer of the two", "wrong time", "what instructions alone"),
        ("lines", no_time, "wrong time", "is no time"),
        ("lines", other_name, "wrong limiter", '^the limiter is "L1", '),
    )  # fmt: skip


MORE = "for (;;) for (int i = 0, *more = new int[1 << 18]; i < 1 << 18; i += 16) more[i] = 1;"
STORE = "  S[(bh * N + r) * N + c] = s;"
LIMITS = (  # attribute of check.py, its value, a line of scores, before which text; verdict
    ("RUN_SECONDS", 2, "for (volatile int x = 0;; ++x) {}", (), "too slow", "limit of 2 s"),
    ("RUN_BYTES", 1 << 28, MORE, (), "too much memory", "MiB"),
    ("RUN_SECONDS", 20, "__builtin_trap();", (), "crash", "SIGILL|SIGTRAP"),
    ("LOOP_SECONDS", 1, "while (causal) s += Q[0];", (STORE,), "endless loop",
     "spins at 01_scores.cuh"),
    ("LOOP_SECONDS", 1, "for (volatile int x = 0; causal;) ++x;", (STORE,), "endless loop",
     "without a memory access"),
)  # fmt: skip
HOLE, OUTSIDE = "    s *= scale;", "inline void forward("
REFUSED = (  # a line, before which text, and what is named
    ('asm volatile("" ::: "memory");', HOLE, "asm"),
    ('__asm__("");', HOLE, "__asm__"),
    ('a\\\nsm("");', HOLE, "asm"),
    ("#define A(x, y) x##y", OUTSIDE, "##"),
    ('static __attribute__((no_sanitize("thread"))) void f();', OUTSIDE, "__attribute__"),
    ("const auto f = [] [ [gnu::noinline]] {};", HOLE, "[ ["),
    ("[[gnu::constructor]] static void f() {}", OUTSIDE, "[["),
    ('#pragma GCC optimize("O3")', OUTSIDE, "#pragma"),
    ("cudaMemcpy(0, t.Q, 4, cudaMemcpyDeviceToHost);", "  float* S = t.s", "cudaMemcpy"),
    ('#include "common/harness/reference.h"', OUTSIDE, "#include"),
    ('# include "steps/06_work_partitioning/2_registers.cuh"', OUTSIDE, "# include"),
    ("%:include <fstream>", OUTSIDE, "%:"),
)
# Right results through cudaMemcpy, copied to O by a kernel, with the word let through
HOST = """
  fa::Inputs in;
  for (auto [from, to] : {std::pair(t.Q, &in.Q), {t.K, &in.K}, {t.V, &in.V}}) {
    to->resize(p.q_size());
    cudaMemcpy(to->data(), from, 4 * p.q_size(), cudaMemcpyDeviceToHost);
  }
  const fa::Definition<double> want(p, in, [](double x) { return x; });
  const std::vector<float> o(want.O.begin(), want.O.end());
  float* by = %s;
  cudaMemset(t.O, 0, 4 * o.size());
  cudaMemcpy(by, o.data(), 4 * o.size(), cudaMemcpyHostToDevice);
  if (by != t.O) fa::launch(carry, {dim3(1), dim3(1)}, (const float*)by, t.O, int(o.size()));
  return;
"""
CARRY = """static __global__ void carry(const float* from, float* to, int n) {
  for (int i = 0; i < n; ++i) to[i] = from[i];
}"""


class Classroom(Folder):
    def file(self, e, text, folder=""):
        return self.write(Path(folder, f"{e.label}.cuh"), text)

    def desk(self, exercises=EXERCISES):
        return Desk(self.folder / "learn", exercises)

    def page(self, e, text, **how):
        return show.verdict(e, self.file(e, text), checked(e.name, text), **how)

    def verdict(self, name, what, kind, words="", *of_page):
        """The verdict on a text: of this kind ("": right), with these words in it and on a page."""
        e = exercise(name)
        text = text_of(e, what)
        verdict = checked(name, text)
        self.assertEqual((verdict.kind, verdict.ok), (kind, not kind), verdict.message)
        self.assertRegex(verdict.message, words or "^")
        for one in of_page:
            self.assertRegex(self.page(e, text), one)
        return verdict

    def judge_each(self, rows):
        for row in rows:
            with self.subTest(name=row[0], kind=row[2], words=row[3]):
                self.verdict(*row)

    def command(self, *arguments):
        return [*map(str, [*arguments, "--build", BUILD, "--folder", self.folder / "learn"])]

    def typed(self, *arguments):
        return typed("learn", *self.command(*arguments))

    def learn(self, *arguments, status=0):
        return self.ended(self.typed(*arguments), status).stdout


# --- the author's guards ------------------------------------------------------------------------


class Guards(Classroom):
    def test_every_exercise_keeps_its_promises(self):
        """Unsolved: fails. Solution: passes. Each third: its first wrong one fails as announced."""
        self.check_all(lambda e, all: ["solution", "unsolved", *all[: self.wrongs_now(e)]])

    @for_all
    def test_every_wrong_solution_fails_for_the_reason_given(self):
        self.check_all(lambda e, wrongs: wrongs[self.wrongs_now(e) :])

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

    def check_all(self, chosen):
        """Checks these texts of each exercise, with debug information only for expected lines."""
        texts = [
            (e, name, text_of(e, name))
            for e in NAMED or EXERCISES
            for name in chosen(e, [wrong.name for wrong in e.wrong])
        ]
        words = {"unsolved": ()}
        with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
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
        first, asked = (self.page(e, text, where=where) for where in (False, True))
        if e.kind != "find the bug":
            words = rf"^not yet: the (hole is|holes are) empty; write your lines at .*{e.label}"
            line = line_of(e, "FILL IN")
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
                self.assertTrue(e.question.endswith("?") and e.answer.strip())
                shapes = e.check["problems"]
                self.assertGreaterEqual(len(shapes), 2)
                self.assertTrue(any(p["n"] % 32 for p in shapes), "no ragged problem")
                if e.kind == "fill in":
                    self.assertRegex(e.unsolved(), r"FILL IN \((about \d+ lines|1 line)\)")
                for line in "".join([e.heading(), *(c.exercise for c in e.change)]).splitlines():
                    self.assertLessEqual(len(line), 100, line)
        reasons = {w.because for e in EXERCISES for w in e.wrong}
        kinds = "race,coalescing,bank conflicts,wrong result,uninitialised,deadlock".split(",")
        self.assertLessEqual(set(kinds), reasons)
        self.assertRegex("".join(reasons), "^[a-z ]+$")
        steps = {p.parent.name for p in ROOT.glob("steps/[0-9][0-9]_*/exercises/")}
        self.assertEqual({e.step for e in EXERCISES if e.kind == "fill in"}, steps)
        self.assertGreaterEqual(len([e for e in EXERCISES if e.kind == "find the bug"]), 8)
        files = {p.stem for p in ROOT.glob("steps/*/exercises/*.toml")}
        self.assertEqual(files, {e.name for e in EXERCISES}, "each file stands in the order once")
        rows = re.findall(r"(?m)^\| \d+\. .*", (ROOT / "docs/teaching.md").read_text())
        named = [pair for row in rows for pair in re.findall(r"(\d+) `(\w+)`", row)]
        self.assertEqual(named, [(str(e.number), e.name) for e in EXERCISES])

    def test_holes_and_what_is_in_them(self):
        for e in NAMED or EXERCISES:
            with self.subTest(exercise=e.name):
                unsolved, solved = e.unsolved(), e.heading() + e.solution()
                for text in (unsolved, solved):  # outside the holes they equal the step
                    self.assertEqual(grading.lines_outside(e, text), 0)
                    self.assertEqual(checking.refused_words(e, "", text), "")
                self.assertNotEqual(unsolved, solved)
                holes = e.holes(unsolved)
                self.assertEqual(len(holes), unsolved.count("FILL IN ("))
                self.assertTrue(all(hole.empty for hole in holes))
                self.assertFalse(any(hole.empty for hole in e.holes(solved)))
                for hole in holes:
                    self.assertIn("FILL IN", unsolved.splitlines()[hole.line - 1])
                if len(holes) < 2:
                    continue
                one = filled(e, None)
                words = [hole.empty for hole in e.holes(one)]
                self.assertEqual(words, [False] + [True] * (len(holes) - 1))
                full = re.sub("(?m)^#line .*\n", "", e.completed(one, e.holes(one)))
                self.assertEqual(catalogue.code_of(full), catalogue.code_of(e.solution()))
                self.assertEqual(e.holes(unsolved.replace("namespace", "namespaces")), [])

    def test_what_an_author_mistypes_is_named(self):
        """A copy of the steps' exercises with an edited scores.toml, or a step that has changed."""
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
        for text, times in (("void nothing() {}\n", 0), (BARRIER.step_text() * 2, 2)):
            with mock.patch.object(type(BARRIER), "step_text", lambda self, text=text: text):
                for made in (BARRIER.unsolved, BARRIER.solution):
                    words = f"{times} times instead of once"
                    self.assertRaisesRegex(catalogue.Broken, words, made)


OF_ONE = ("holes_and_what_is_in_them", "every_exercise_keeps_its_promises",
          "every_wrong_solution_fails_for_the_reason_given", "each_has_what_a_student_needs",
          "a_hole_that_is_left_empty_compiles")  # fmt: skip


# --- one check ----------------------------------------------------------------------------------

COUNTED = """
A read 0 4 8: A read 0 4 fewer 4.0
B write 8 8 3: B write 8 8 = 1.5
C atomic 9 0 4: C atomic 9 0 none is needed 2.0
D read 990 10 2: D read 990 10 99.0x too many 1.0
E read 1000 10 2: E read 1,000 10 100x too many 1.0
F read 0 0 0:"""


class Checks(Classroom):
    def test_submissions(self):
        self.judge_each(submissions())
        self.assertGreater(grading.lines_outside(FIRST, cheat(TALKS)), 0)

    @for_all
    def test_more_submissions(self):
        self.judge_each(more_submissions())

    @for_all
    def test_limits(self):
        for name, limit, line, before, kind, words in LIMITS:
            with self.subTest(words=words), mock.patch.object(checking, name, limit):
                self.verdict("scores", scored(line, *before), kind, words)

    @for_all
    def test_the_host_does_the_kernels_work(self):
        for by, words in (
            ("t.O", "O has 10,240 bytes, and kernels wrote 0 of them"),
            ('t.scratch<float>("S")', "no kernel read Q"),
        ):
            at = '  float* S = t.scratch<float>("S");\n  float* P'
            text = scored(HOST % by, at, ("common/harness/definition.h",), scored(CARRY, OUTSIDE))
            with self.subTest(words=words), mock.patch.object(checking, "NOT_YOURS", ()):
                self.assertEqual(self.verdict("scores", text, "not in a kernel").message, words)

    def test_what_is_refused(self):
        """In a hole, elsewhere in the file, or outside functions; grade also reports the latter."""
        for line, before, word in REFUSED:
            with self.subTest(line=line):
                text, word = scored(line, before), re.escape(word)
                self.verdict("scores", text, "refused", rf"^01_scores\.cuh:\d+ holds '{word}'?")
                self.assertEqual(grading.lines_outside(FIRST, text) > 0, before != HOLE)
        top = checking.refused_words(FIRST, "f", "#include <cstdlib>\n" + FIRST.unsolved())
        self.assertRegex(top, "^f:1 holds '#include <cstdlib>':")
        fine = scored("#pragma unroll\n    // asm [[", "    for (int x = 0; x < d; ++x)")
        self.assertEqual(checking.refused_words(FIRST, "", fine), "")

    def test_each_word_of_a_table(self):
        none, ways = dict.fromkeys(("read", "write", "atomic"), 0), ("yours", "spec", "sectors")
        rows, expected = {}, []
        for line in COUNTED.strip().splitlines():
            (name, way, *figures), words = line.partition(":")[0].split(), line.partition(":")[2]
            rows[name] = {key: {**none, way: int(n)} for key, n in zip(ways, figures)}
            rows[name]["requests"] = {**none, way: 2}
            expected += [words.strip()] if words else []
        for (yours, ideal), last in (
            ((0, 0), []),
            ((5, 5), ["bank wavefronts 5 5 ="]),
            ((5, 2), ["bank wavefronts 5 2 2.5x"]),
        ):
            totals = {"wavefronts": yours, "wavefronts_ideal": ideal}
            text = show.traffic({"problem": "N=1", "traffic": rows, "totals": totals})
            head, _, *lines = (" ".join(line.split()) for line in show.visible(text).splitlines())
            self.assertEqual([head, *lines], ["N=1", *expected, *last])
        yours = {"problem": "N=2", "prediction": {"ms": 3, "estimated_ms": 4, "limit": "HBM"}}
        said = show.visible(show.predictions([yours])).splitlines()[1]
        self.assertEqual(said.split(), ["N=2", "3.00", "ms", "4.00", "ms", "-25%", "HBM"])

    def test_what_filled_holes_are_worth(self):
        """Each by its content, empty ones not at all; here without a compiler."""
        e, path = GRADIENTS, self.folder / f"{GRADIENTS.label}.cuh"
        broken = "does not compile", "no ;"
        for at, whole, kind, holes, words, grade in (
            (0, ("", ""), "part right", "right empty", "Hole 1 of 2 is right: with the ", " 1/2"),
            (0, ("race", "two"), "race", "filled empty", "two" + checking.STILL_EMPTY, " 1/2"),
            (1, ("race", "two"), "race", "empty filled", "two" + checking.STILL_EMPTY, " 1/2"),
            (0, broken, "race", "filled empty", "of the text", " 1/2"),
        ):
            text = filled(e, None, at)
            path.write_text(text)
            empty, own = sorted(e.holes(text), key=lambda hole: not hole.empty)

            def tried(check, tried_text, whole=whole, text=text):
                return check.made(*(("race", "of the text") if tried_text == text else whole))

            with mock.patch.object(checking.Check, "try_text", tried):
                verdict = checking.check(e, path, toolchain())
            self.assertEqual((verdict.ok, verdict.kind), (False, kind))
            self.assertEqual(verdict.holes, holes.split())
            self.assertTrue(verdict.message.startswith(words), verdict.message)
            of_grade = grading.Grade("a", e, "wrong", verdict.kind, holes=verdict.holes)
            self.assertEqual(of_grade.word, kind + grade)
            if whole != broken:
                end = f"hole {empty.number} at {path.name}:{empty.line}."
                self.assertTrue(verdict.message.endswith(end))
                line = own.line if kind == "race" else empty.line
                self.assertEqual(show.head_of(e, path, verdict), (kind, line))
                if kind == "race":
                    self.assertNotRegex(show.verdict(e, path, verdict), r"\n +\d+ \| ")

    def test_what_the_end_of_the_program_means(self):
        """Its status, its last output, and what the judge has seen."""
        e = FIRST
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

    def test_a_bug_without_a_line_and_one_with_several(self):
        path = self.file(BARRIER, BARRIER.unsolved())
        crash = checking.Verdict(False, "crash", "SIGSEGV: status -11")
        self.assertIn("No line is known: only races", show.verdict(BARRIER, path, crash))
        message = f"deadlock:\na at {path.name}:3\nb at {path.name}:5"
        deadlock = checking.Verdict(False, "deadlock", message)
        page = show.verdict(BARRIER, path, deadlock)
        for words in ("  a at", "  b at", "\n      3 | ", "\n      5 | "):
            self.assertIn(words, page)
        self.assertNotIn(".cuh:", show.verdict(BARRIER, path, deadlock, where=False))
        at, waits = "the __syncthreads", "32 threads wait at mbarrier wait"
        for message, *places in (
            (f"it is at {at}@ while others wait at {at}@; all", " of 04_b.cuh:71", " of c.cuh:80"),
            (f"deadlock:\n  {waits}@ (ids 0-31)", " 26_free_buffer.cuh:180 (called at a.cuh:7)"),
            ("that other threads issued@", " (04_b.cuh:9)"),
        ):
            told = message.replace("@", "{}").format(*places)
            self.assertEqual(show.without_places(told), message.replace("@", ""))

    def test_what_the_step_predicts(self):
        """Its program may be missing or fail: one sentence."""
        self.assertGreater(toolchain().predicted(FIRST)[0]["Q"]["read"], 0)
        tools = checking.Toolchain(BUILD)
        tools.build = self.folder
        writes = "for w; do :; done; echo '{}' > \"${w#--json=}\""
        for text, one, words in (
            (None, FIRST, "--predict.*: No such file or directory"),
            ("echo loader >&2; echo 'naive: bad use' >&2; exit 2", FIRST, ": naive: bad use"),
            ("exit 0", FIRST, ": No such file or directory"),
            (writes, FIRST, "step 01_naive predicts no 'scores'"),
            (writes, LINES, "step 01_naive predicts no 'lines'"),
        ):
            if text:
                self.program("steps/01_naive", f"#!/bin/sh\n{text}\n")
            with self.subTest(text=text):
                self.assertRaisesRegex(checking.NotBuilt, f"{words}$", tools.predicted, one)

    @for_all
    def test_a_prediction_is_compared_with_the_run(self):
        """Another estimate, another verdict: the exercise contains no answer."""
        e = LINES
        for problem in self.verdict(e.name, "solution", "").problems:
            seen = problem["prediction"]
            off = seen["ms"] / seen["estimated_ms"] - 1
            self.assertLess(abs(off), 0.25)
            row = rf"(?m)  {re.escape(problem['problem'])} .* {re.escape(f'{off:+.0%}')}  L1 lines$"
            self.assertRegex(self.page(e, e.solution()), row)
        tools = checking.Toolchain(BUILD)
        runs, path = tools.predicted(e), self.file(e, e.solution())
        for factor, parts, kind in (
            (1.4, {}, "wrong time"),
            (0.7, {}, "wrong time"),
            (1, {"HBM": 0.99}, "wrong limiter"),
        ):
            other = lambda run: {"ms": factor * run["ms"], "parts": {**run["parts"], **parts}}
            tools.predictions[e.name] = [{**run, **other(run)} for run in runs]
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
        the check's."""
        path = self.file(BARRIER, "", 'a "quoted" folder')
        path.write_bytes(codecs.BOM_UTF8 + BARRIER.unsolved().replace("\n", "\r\n").encode())
        with mock.patch.dict(os.environ, TMPDIR="/proc"):
            verdict = checking.check(BARRIER, path, toolchain(), isolate=True)
        self.assertEqual(verdict.kind, "race", verdict.message)
        self.assertEqual(verdict.message.count(f" at {path.name}:"), 2, verdict.message)
        checks = [checking.Check(BARRIER, path, toolchain(), None, path, False) for _ in range(3)]
        self.assertEqual(len({check.seed for check in checks}), 3)

    def test_a_program_within_limits(self):
        """They are set without running Python in the child. Of its standard error the start and
        the end are kept; the memory of its children is its own."""
        big = f"""{sys.executable} -c "import time; x = b'x' * (200 << 20); time.sleep(20)"; :"""
        much = "echo first >&2; head -c 50000000 /dev/zero | tr '\\0' x >&2; echo; echo last >&2"
        for command, how, status, errors in (
            ("{ ulimit -c; ulimit -S -t; ulimit -H -t; ulimit -v; } >&2", {"addresses": 1 << 30},
             0, r"0\n7\n8\n1048576\n"),
            (big, {"seconds": 20, "resident": 100 << 20}, "too much memory", ""),
            (much, {"seconds": 60, "resident": 1 << 30}, 0, r"first\nx+last\n"),
            ("exec cat /dev/zero > file", {"file": 1 << 20}, "too much output", ""),
        ):  # fmt: skip
            found = checking.limited(["/bin/sh", "-c", command], self.folder, 7, **how)
            with self.subTest(command=command):
                self.assertEqual(found[0], status)
                self.assertRegex(found[1], rf"\A{errors}\Z")
                self.assertLessEqual(len(found[1]), 2 * checking.HEARD)
        self.assertEqual((self.folder / "file").stat().st_size, 1 << 20)
        if not checking.isolated():
            self.skipTest("an ordinary user may not have name spaces here")
        # Nothing is left running, not even a process that left its process group.
        stays = [*checking.isolated(), "/bin/sh", "-c", "setsid sleep 4711 & sleep 0.2"]
        self.assertEqual(checking.limited(stays, self.folder, 7)[0], 0)
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # another program that has just ended
                self.assertNotEqual(path.read_bytes(), b"sleep\x004711\x00")


# --- the student's files ------------------------------------------------------------------------


class Desks(Classroom):
    def test_a_copy_is_made_once_and_never_overwritten(self):
        e, desk = FIRST, self.desk()
        path = desk.open(e)
        self.assertEqual(path.read_text(), e.unsolved())
        self.assertTrue(desk.is_untouched(e))
        with mock.patch.object(e, "task", "Another task."):  # an update of the repository
            self.assertTrue(desk.has_changed(e))
            self.assertEqual(desk.open(e).read_text(), path.read_text())
            self.assertTrue(desk.is_untouched(e))
        self.assertFalse(desk.has_changed(e))
        path.write_text("mine")
        self.assertEqual(self.desk().open(e).read_text(), "mine")
        self.assertFalse(desk.is_untouched(e))
        for number, text in enumerate(("mine", "second"), 1):  # a reset keeps what was there
            path.write_text(text)
            kept = desk.reset(e)
            self.assertEqual((kept.name, kept.read_text()), (f"{path.name}.bak-{number}", text))
            self.assertEqual(path.read_text(), e.unsolved())
        path.rename(path.with_name(f"77_{e.name}.cuh"))  # the order has changed
        self.assertEqual(desk.path(e).name, f"77_{e.name}.cuh")
        for ends in (b"\n", b"\r\n", b"\r"):  # of lines: they do not matter
            desk.path(e).write_bytes(codecs.BOM_UTF8 + e.unsolved().encode().replace(b"\n", ends))
            self.assertTrue(desk.is_untouched(e))

    def test_a_damaged_state_is_kept_aside(self):
        desk = self.desk()
        desk.mark_done(FIRST)
        good = json.loads(desk.state_file.read_text())
        texts = [json.dumps({**good, **odd}) for odd in ({"hints": {"a": "two"}}, {"made": []})]
        for number, text in enumerate([*texts, "{ not json", "[]"], 1):
            desk.state_file.write_text(text)
            again = self.desk()
            self.assertIn(f".state.json.bak-{number}", again.damaged)
            again.go_to(SECOND)
            self.assertEqual((self.desk().damaged, self.desk().current.name), ("", SECOND.name))
        desk.state_file.write_text(json.dumps({**good, "current": 5}))
        self.assertIs(self.desk().current, FIRST)
        self.assertTrue(self.desk().is_done(FIRST))

    def test_a_full_disk_leaves_the_file_or_none(self):
        """ulimit -f 1: a file may have 512 bytes, the next one does not fit."""
        limit = ["/bin/sh", "-c", 'ulimit -f 1; exec "$@"', "sh", sys.executable, LEARN]
        done = said([*limit, *self.command("reset", FIRST.name)])
        self.refused(done, 3, f"{FIRST.label}.cuh")
        self.assertEqual([*(self.folder / "learn").glob("*.cuh*")], [])
        self.assertEqual([*(self.folder / "learn").glob(".*.cuh*")], [])
        done = said(["/bin/sh", "-c", '"$@" > /dev/full', *limit[3:], *self.command("list")])
        self.refused(done, 3, "No space left on device")

    def test_two_at_once_lose_nothing(self):
        one, other, e = self.desk(), self.desk(), THIRD
        one.mark_done(FIRST)
        other.mark_done(SECOND)
        shown = [one.next_hint(e)[0] for _ in range(len(e.hints) + 1)]
        self.assertEqual(shown, [*range(1, len(e.hints) + 1), len(e.hints)])
        self.assertTrue(self.desk().is_done(FIRST) and self.desk().is_done(SECOND))

    def test_the_next_open_one(self):
        desk = self.desk(EXERCISES[:5])
        for done, after, found in (
            (1, 0, 2), (None, 2, 3), (4, 2, 3), (3, 2, 0), (0, 2, 2), (1, 4, 2), (2, 2, None),
        ):  # fmt: skip
            if done is not None:
                desk.mark_done(EXERCISES[done])
            wanted = None if found is None else EXERCISES[found]
            self.assertIs(desk.next_open(EXERCISES[after]), wanted, (done, after))
        self.assertEqual(desk.solution_path(SECOND).read_text(), SECOND.solution())
        desk.state["done"][FIRST.name] = "earlier"
        desk.mark_done(FIRST)
        self.assertEqual(desk.state["done"][FIRST.name], "earlier")
        desk.next_hint(FIRST)
        desk.reset(FIRST)
        self.assertFalse(desk.is_done(FIRST) or desk.state["hints"])
        self.assertTrue(desk.is_done(SECOND) and desk.is_untouched(FIRST))
        self.assertTrue(desk.is_untouched(THIRD))
        self.assertFalse(desk.has_changed(THIRD))
        self.assertIsNone(desk.reset(THIRD))


class Pieces(Folder):
    def test_exercises_are_found(self):
        first, tenth = FIRST.name, EXERCISES[9].name
        found = {first: 0, "1": 0, "01": 0, "10": 9, f"01_{first}": 0, f"a/99_{first}.cuh": 0,
                 f"7_{tenth}": 9}  # fmt: skip
        for wanted, at in found.items():
            self.assertIs(catalogue.find(EXERCISES, wanted), EXERCISES[at], wanted)
        for wanted in (f"x_{first}", "001", "0", "99", "", f"{first}.cu"):
            self.assertIsNone(catalogue.find(EXERCISES, wanted), wanted)

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
        leaves = [text for text in ("{ } { { } }", "} {", "// }", "{ } }", "{", "")
                  if grading.leaves_its_block(text)]  # fmt: skip
        self.assertEqual(leaves, ["} {", "{ } }"])
        heading = FIRST.heading() + SECOND.heading()
        self.assertEqual(catalogue.held_in(heading), [FIRST.name, SECOND.name])
        self.assertEqual(catalogue.held_in("x " + heading[:-9].splitlines()[0]), [])
        path = self.folder / "a.cuh"
        for data, text in (
            (b"", ""),
            (b"a", "a\n"),
            (b"\xef\xbb\xbfa\r\nb\rc\n", "a\nb\nc\n"),
            (b"\xff\n", "\ufffd\n"),
        ):
            path.write_bytes(data)
            self.assertEqual(catalogue.student_text(path), text)

    def test_what_looks_handed_in(self):
        name = FIRST.name
        names = ["x.cuh", "x.CU", "x.tar.gz", "x.Zip", f"{name}.txt", f"01_{name}"]
        names += [f"alice {name}.docx"]
        others = "notes.txt", "x.cpp", f"my{name}.txt"
        looks = lambda file: grading.looks_handed_in(file, EXERCISES)
        self.assertEqual([*filter(looks, [*names, *others])], names)
        aside = grading.Aside()
        for n in range(6):
            aside.leave(f"al/{n}", "so", "al")
        aside.leave("bo/0", "so", "bo")
        aside.leave("x", "else")
        so = "left aside, so: al/0, al/1, al/2, al/3, 2 more of al, bo/0"
        self.assertEqual(list(aside.lines()), [so, "left aside, else: x"])
        self.assertEqual(aside.of("bo"), {"so": ["bo/0"]})


# --- the commands -------------------------------------------------------------------------------


class Commands(Classroom):
    def test_from_the_first_look_to_done(self):
        e = FIRST
        path = self.folder / "learn" / f"{e.label}.cuh"
        said = self.learn("run", e.name, status=1)
        self.assertIn("its first lines say what to do", " ".join(said.split()))
        self.assertIn("not yet: the hole is empty", said)
        self.assertFalse((self.folder / "learn" / "solutions").exists())
        self.learn("answer", e.name, status=2)
        self.assertIn(f"hint 1 of {len(e.hints)}", self.learn("hint"))
        path.write_text(e.solution())
        said = self.learn("run", e.name)
        self.assertIn(f"done: {e.title}", said)
        self.assertIn(f"next: ./scripts/learn run {SECOND.name}", said)
        solution = self.folder / "learn" / "solutions" / f"{e.label}.cuh"
        self.assertEqual(solution.read_text(), e.solution())
        self.assertIn(e.answer[:30], self.learn("answer", "1"))
        self.assertRegex(self.learn("list"), r"(?m)^done   1  scores")
        self.assertIn(f"1/{len(EXERCISES)} done", self.learn("check-all"))
        self.assertIn(f"{e.label}.cuh.bak-1", self.learn("reset", e.name))
        self.assertEqual(path.read_text(), e.unsolved())
        self.assertRegex(self.learn("check-all", status=1), r"01_scores .* empty   \(unchanged\)")

    def test_bad_use(self):
        inside = self.write("class/alice/x", "").parent / "grades.json"
        grade = "grade", self.folder / "class"
        for arguments, *words in (
            (("run", "nothing"), "nothing", "list"),
            (("run", "no/01_scores.cuh"), "there is no file no/01_scores.cuh"),
            (("list", "scores"), "list", "scores"),
            (("hint", "--where"), "--where", "run"),
            (("grade",), "folder"),
            (("grade", "/no/such/folder"), "not a folder"),
            (("grade", inside.parent), "one for each student"),
            ((*grade, "--json", inside), "a student's folder"),
            ((*grade, "--jobs", "0"), "--jobs 0"),
            ((*grade, "--json", self.folder), "cannot be written"),
            *(((*grade, "--only", only), "--only") for only in ("0", "1-", "x", "99", "-3", "x-3")),
            (("run", "scores", "--build", ""), "its value is empty"),
        ):
            with self.subTest(arguments=arguments):
                self.refused(self.typed(*arguments), 2, *words)
        self.learn("learn", status=2)
        self.write("learn", "a file where the folder should be")
        done = said([sys.executable, LEARN, *self.command("hint")])
        self.refused(done, 2, "Not a directory")

    def asked(self, *arguments, setup=0):
        """What it builds where nothing is built, and how it ends: (targets, done)"""
        calls, run = [], mock.Mock(**{"run.return_value.returncode": setup})
        fails = {"side_effect": lambda *call: calls.append(call[:2]) or ["cmake", "."]}
        with (
            mock.patch.object(checking, "is_built", lambda *_: False),
            mock.patch.object(checking, "subprocess", run),
            mock.patch.object(checking.building, "build", **fails),
        ):
            done = self.ended(self.typed(*arguments), 3)
        self.assertEqual(done.stdout.count("building the checker and "), 1, done.stdout)
        return calls, done

    def test_what_is_asked_for_is_built_at_once(self):
        of = lambda *exercises: sorted({f"{e.step}_built" for e in exercises})
        self.file(BANKS, BANKS.solution(), "class/alice")
        for arguments, targets in (
            ((), of(FIRST)),
            (("run", "banks"), of(BANKS)),
            (("check-all",), of(*EXERCISES)),
            (("grade", self.folder / "class"), of(BANKS)),
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
            for path in filter(Path.exists, made + common + steps):
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
        started = self.folder / "started"
        text = f'fclose(fopen("{started}", "w"));\n  for (volatile int x = 0;; ++x) {{}}'
        for folder in ("class/a", "learn"):
            self.file(FIRST, scored(text), folder)
        for arguments in (("run", FIRST.name), ("grade", self.folder / "class")):
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
        problem = {"problem": "B=1 H=1 N=100 d=64 causal fp32"}
        yours, spec = {"read": 123456789, "write": 0, "atomic": 7}, {"read": 12345}
        problem["traffic"] = {"K": {"yours": yours, "spec": {**yours, "atomic": 0, **spec}}}
        problem["totals"] = {"wavefronts": 12345678, "wavefronts_ideal": 1234567}
        compiler = (
            f"{path.name}:5:70: error: a sentence of the compiler that is longer than the line is\n"
            "    5 | " + "a = " + "b + " * 25 + "c\n      | " + " " * 80 + "^~~"
        )
        row = [grading.Grade("a long name", x, "wrong", "does not compile") for x in EXERCISES]
        code = "   17 | " + 140 * "x", "      | " + 99 * " " + "^", "   18 | a " + 90 * "y"
        for columns, lengths in ((80, [80, 80, 40, 11, 80, 30]), (100, [100, 60, 20, 11, 100])):
            with mock.patch.dict(os.environ, COLUMNS=str(columns)):
                pages = [f"{show.title(x)}\n{show.prose(x.question)}" for x in EXERCISES]
                pages.append(show.listing(self.desk()))
                pages.append(table := grading.table({"a long name": row}, EXERCISES))
                right = checking.Verdict(True, problems=[problem])
                pages.append(show.verdict(e, path, right))
                for kind, text in (("traffic", message), ("does not compile", compiler)):
                    verdict = checking.Verdict(False, kind, text, problems=[problem])
                    pages.append(show.verdict(e, path, verdict))
                    words = set(re.findall(r"[\w=,.]+", pages[-1]))
                    self.assertLessEqual(set(re.findall(r"[\w=,.]+", text)), words)
                self.assertEqual(list(map(len, show.snippet(code))), lengths)
            for page in pages:
                self.assertLessEqual(max(map(len, page.splitlines())), columns, page)
            self.assertIn("b +", pages[-1])
            self.assertEqual(pages[-1].count("^~~"), 1)
            for x in EXERCISES:
                self.assertEqual(table.count(x.label), 1)
            self.assertEqual(table.count("does not compile"), len(EXERCISES))

    def test_where_the_keys_lead(self):
        """Those that do something. n: to the next open one, also past an unsolved one; x: asks."""
        desk = self.desk()
        for at, keys in ((0, "nhlcxq"), (0, "nhalcxq"), (1, "nhwlcxq")):
            desk.go_to(EXERCISES[at])
            if "a" in keys:
                desk.mark_done(EXERCISES[at])
            foot = Watch(desk, None).foot()
            self.assertLessEqual(max(map(len, foot.splitlines())), 80)
            self.assertEqual("".join(re.findall(r"(?<= )(\w): ", foot)), keys)
        desk.state_file.unlink()
        desk = self.desk(EXERCISES[:3])
        watch, said = Watch(desk, None), io.StringIO()

        def marks():
            return re.findall(r"(?m)^(here|done|    )  +\d", show.visible(show.listing(desk)))

        self.assertEqual(marks(), ["here", "    ", "    "])
        with contextlib.redirect_stdout(said), mock.patch("time.sleep"):
            for done, passed, at in (
                (0, 0, 1), (0, 0, 2), (0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 1, 0), (1, 1, 1),
                (1, 0, 2),
            ):  # fmt: skip
                if done:
                    desk.mark_done(desk.current)
                watch.passed, watch.stamp, watch.where = bool(passed), 1, "x"
                watch.next()
                found = desk.current, watch.stamp, watch.where
                self.assertEqual(found, (EXERCISES[at], None, None))
            self.assertEqual(said.getvalue().count("stays on the list"), 5)
            self.assertEqual(marks(), ["done", "done", "here"])
            desk.mark_done(THIRD)
            watch.next()
            self.assertEqual(desk.current, THIRD)
            self.assertIn("All exercises are done.", said.getvalue())
            file = watch.path()
            file.write_text("mine")
            for key, kept, stamp in (("q", "mine", 1), ("x", THIRD.unsolved(), None)):
                watch.stamp = 1
                with mock.patch.object(watch.keys, "next", lambda seconds: key):
                    watch.reset()
                self.assertEqual((file.read_text(), watch.stamp), (kept, stamp))


class Watching(Classroom):
    """The bare command, in a terminal and without one."""

    def watch(self, terminal):
        command = [sys.executable, LEARN, *self.command()]
        kind = {"cwd": ROOT, "env": {**os.environ, "TERM": "xterm"}}
        if terminal:
            ours, its = self.terminal()
            fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 80, 0, 0))
            self.process = subprocess.Popen(command, stdin=its, stdout=its, stderr=its, **kind)
            os.close(its)
            self.type = lambda keys: os.write(ours, keys.encode())
            self.read_from = ours
        else:
            ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 0}
            process = subprocess.Popen(command, stderr=subprocess.STDOUT, **ends, **kind)
            self.addCleanup(process.stdout.close)
            self.addCleanup(process.stdin.close)
            self.type = lambda keys: process.stdin.write("\n".join([*keys, ""]).encode())
            self.process, self.read_from = process, process.stdout.fileno()
        self.addCleanup(self.process.wait)
        self.addCleanup(self.process.kill)
        self.printed = ""

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
                more = b""
                with contextlib.suppress(OSError):
                    more = os.read(self.read_from, 4096)
                if not more:
                    break
                self.printed += more.decode(errors="replace")
        self.fail(f"'{words}' did not come; this did:\n{self.printed}")

    def goes(self, keys, *awaited):
        """Types; waits for each of these. Returns what was printed before the last."""
        if keys:
            self.type(keys)
        return [self.until(words) for words in awaited][-1]

    def session(self, terminal):
        self.watch(terminal)
        self.goes("", "not yet: the hole is empty", "q: quit")
        self.goes("h", "hint 1 of")
        path = self.folder / "learn" / f"{FIRST.label}.cuh"  # as editors save: another file
        os.replace(self.write(path.with_suffix(".new"), FIRST.solution()), path)
        page = self.goes("", f"done: {FIRST.title}", "n: next")
        # A screen of 12 rows does not hold the page: the verdict is repeated at its end.
        self.assertEqual(page.count(f"done: {FIRST.title}"), terminal, page)
        self.until("q: quit")
        self.assertLessEqual(max(map(len, page.splitlines())), 80)
        self.goes("a", "128 bytes requested")
        self.goes("l", EXERCISES[-1].title)
        page = self.goes("n", SECOND.title, "not yet: race", "q: quit")
        self.assertNotRegex(page, r"\.cuh:\d|\d \| ")
        self.assertIn("w shows the lines", page.replace("\n ", ""))
        page = self.goes("w", "not yet: race", "q: quit")
        self.assertRegex(page, r"reduction\.cuh:\d+[^|]*\d \|  +if \(lane < lanes\) part\[lane\]")
        self.goes("xx", "bak-1", "not yet: race")
        self.type("q")
        self.assertEqual(self.process.wait(20), 0)
        self.assertTrue((self.folder / "learn" / f"{SECOND.label}.cuh.bak-1").exists())

    @for_all
    def test_in_a_terminal(self):
        self.session(terminal=True)

    def test_line_by_line(self):
        self.session(terminal=False)

    def test_another_step_is_built_before_its_first_check(self):
        desk, calls = self.desk(), []
        steps = lambda exercises: f"build {sorted({e.step for e in exercises})}"
        check = lambda e: calls.append(f"check {e.name}") or checking.Verdict(True)
        watcher = Watch(desk, check, lambda exercises: calls.append(steps(exercises)))
        desk.open(FIRST)
        with contextlib.redirect_stdout(io.StringIO()):
            watcher.look()
            desk.go_to(BANKS)
            desk.open(BANKS)
            for look in (watcher.look, watcher.look, watcher.check_all, watcher.check_all):
                look()
        one, two = f"check {FIRST.name}", f"check {BANKS.name}"
        self.assertEqual(
            calls, [one, steps([BANKS]), two, two, steps(EXERCISES), one, two, one, two]
        )

    def test_the_pages_in_the_documents(self):
        """docs/learn.md shows the real output, except for times."""
        desk = self.desk()
        watcher = Watch(desk, lambda e: checked(e.name, desk.path(e).read_text()))
        without_times = lambda page: re.sub(r"(in|compiler) \d+\.\d", r"\1 T", page)

        def page(*looks):
            with contextlib.chdir(self.folder), contextlib.redirect_stdout(io.StringIO()) as out:
                for look in looks:
                    look()
            printed = re.sub(r"^checking .*\n", "", out.getvalue()).replace(f"{ROOT}/", "")
            return printed.rstrip() + "\n"

        everything = solved(FIRST, "if (!causal || c <= r) {", "{")
        all_keys = "    s = causal && c > r ? -INFINITY : s * scale;\n"
        path = desk.open(FIRST)
        with mock.patch.dict(os.environ, COLUMNS="80", LINES="1000"):
            pages = {"first": page(watcher.look, watcher.hint)}
            path.write_text(FIRST.heading() + everything.replace("    s *= scale;\n", all_keys))
            pages["all_keys"] = page(watcher.look)
        for name, recorded in pages.items():
            shown = without_times(on_page(ROOT / "docs" / "learn.md", name, recorded))
            again = f"record it again: {sys.argv[0]} BUILD --update"
            self.assertEqual(shown, without_times(recorded), again)


# --- grading ------------------------------------------------------------------------------------

TABLE = """student  done  01_scores  02_reduction
ann         1  ok         race
bo          1  -          ok
cy          0  .          .

- untouched   . not handed in"""
JUNIT = """testsuite ann 3 1 0 1 1.73
properties
property seed 42
testcase ann 01_scores 0.50
testcase ann 02_reduction 1.23
failure race race two
lines
testcase ann 03_tiles 0.00
skipped missing"""
SUITES = "ann 3 1 0 1 1.73,bo 3 0 0 2 0.25,cy 3 0 0 3 0.00"
SUITES_DUE = "ann 3 2 0 0 1.73,bo 3 2 0 0 0.25,cy 3 3 0 0 0.00"
ASIDE = {
    "in no student's folder": "student_01_scores.cuh",
    "not a regular file": "07_banks.cuh more 01_scores.cuh 02_reduction.cuh",
    "a name that does not end in .cuh": "01_scores.cu 01_scores.cuh.txt",
    "an older copy that reset has kept": "08_swizzle.cuh.bak-1",
    "not the name of an exercise": "99_unknown.cuh",
    "an archive to be unpacked": "a.zip",
    "another file of the student counts for this exercise": "old/04_barrier.cuh",
    "in the folder solutions": "solutions/07_banks.cuh",
}


def words_of(element):
    return " ".join([element.tag, *element.attrib.values(), (element.text or "").strip()]).strip()


class Grading(Classroom):
    def test_a_class_with_known_mistakes(self):
        texts = {"scores": {"ok": "solution", "untouched": "unsolved"}}
        texts["scores"]["empty"] = FIRST.unsolved() + "// mine\n"
        texts["scores"]["does not compile"] = FIRST.solution().replace("float", "flaot", 1)
        texts["barrier"] = {"missing": None, "ok": "solution", "race": BARRIER.wrong[0].name}
        expected = {
            f"student{at}": {name: list(kinds)[at % len(kinds)] for name, kinds in texts.items()}
            for at in range(8)
        }
        for student, whats in expected.items():
            for e, what in ((exercise(name), texts[name][what]) for name, what in whats.items()):
                if what:
                    self.file(e, text_of(e, what), f"class/{student}/learn")
        junit, report = self.folder / "grades.xml", self.folder / "grades.json"
        outputs = ("--junit", junit, "--json", report, "--seed", SEED, "--jobs", JOBS)
        said = self.learn("grade", self.folder / "class", *outputs)
        document = json.loads(report.read_text())
        self.assertEqual((document["schema"], document["seed"]), (1, SEED))
        self.assertEqual([s["name"] for s in document["students"]], sorted(expected))
        rows = {row[0]: row[2:] for row in map(re.compile(r" {2,}").split, said.splitlines())}
        suites = {suite.get("name"): suite for suite in ElementTree.parse(junit).getroot()}
        for student in document["students"]:
            name, whats = student["name"], expected[student["name"]]
            got = {r["name"]: r["kind"] or r["result"] for r in student["exercises"]}
            self.assertEqual(len(got), len(EXERCISES))
            self.assertEqual({exercise: got[exercise] or "ok" for exercise in whats}, whats)
            self.assertEqual(student["done"], list(whats.values()).count("ok"))
            words = {"untouched": "-", "missing": "."}
            self.assertEqual(rows[name], [words.get(w, w) for w in whats.values()])
            failures = sorted(failure.get("type") for failure in suites[name].iter("failure"))
            self.assertEqual(failures, sorted({*whats.values()} - {"ok", *words}))

    def test_a_checker_that_crashes(self):
        """One submission is without a verdict, and the next one has its own."""
        e, tools = FIRST, checking.Toolchain(BUILD)
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
        other, path = exercise("tiles"), self.folder / f"{FIRST.label}.cuh"
        both = (FIRST.unsolved() + other.unsolved()).encode()
        for data, kind, words in (
            (b"", "no text", "is an empty file"),
            (b" \n", "no text", "is an empty file"),
            (codecs.BOM_UTF8 + b"\r\n", "no text", "is an empty file"),
            (FIRST.unsolved().encode("utf-16"), "no text", "is UTF-16 text: save it as UTF-8"),
            (b"\xfe\xff\0a", "no text", "is UTF-16 text: save it as UTF-8"),
            (b"\x7fELF\0", "no text", "holds zero bytes, so it is no text in UTF-8"),
            (other.unsolved().encode(), "another text", "holds exercise 'tiles'"),
            (both, "another text", "holds 2 exercises, scores and tiles: a file has one"),
            (b"{\\rtf1 void f();}", "another text", "holds 0 of the "),
            (FIRST.solution().encode() + b"x", "does not compile", ""),
        ):
            path.write_bytes(data)
            with self.subTest(words=words), mock.patch.object(checking.Check, "try_text") as tried:
                tried.return_value = checking.Verdict(False, "does not compile", f"{path.name} ")
                verdict = checking.check(FIRST, path, toolchain())
                self.assertEqual((verdict.ok, verdict.kind), (False, kind), verdict.message)
                self.assertTrue(verdict.message.startswith(f"{path.name} {words}"), verdict.message)

    def test_how_a_text_is_saved_does_not_matter(self):
        """Two students, one text: neither is judged by the other's file, nor under its name."""
        text, judged, files = FIRST.unsolved() + "// mine\n", [], {}
        for student, name, data in (
            ("ann", "01_scores", text.replace("\n", "\r\n")),
            ("ben", "01_scores", text),
            ("eve", "1_scores", text),
        ):
            files[student] = {FIRST.name: self.write(f"{student}/{name}.cuh", "")}
            files[student][FIRST.name].write_bytes(data.encode())
        wrong = lambda e, path, *_, **how: judged.append(path) or checking.Verdict(False, path.name)
        with mock.patch.object(grading, "check", wrong):
            grader = grading.Grader([FIRST], toolchain(), SEED, 1, lambda *_: None)
            grades = grader.run(files)
        self.assertEqual(judged, [files["ann"][FIRST.name], files["eve"][FIRST.name]])
        kinds = [grades[student][0].kind for student in files]
        self.assertEqual(kinds, ["01_scores.cuh", "01_scores.cuh", "1_scores.cuh"])
        file = files["ann"][FIRST.name]
        file.write_bytes(file.read_bytes().rstrip())
        self.assertEqual(len(FIRST.holes(catalogue.student_text(file))), 1)

    def test_what_is_pointed_out(self):
        """Changes outside the holes, also in a long file, for which difflib took 15 s; and the
        solution itself: a hard link, the file of learn/solutions, a long hole with its comments."""
        lines = "".join(f"  const float x{i} = q[{i}] * k[{i}];\n" for i in range(2500))
        product = "s += sQ[ty][x] * sK"
        before = time.process_time()
        for e, text in (
            (BANKS, BANKS.unsolved().replace(product, "s += 1 * sQ[ty][x] * sK") + lines),
            (BANKS, BANKS.solution() + "int more;\n// and why\n"),
            (BANKS, BANKS.solution().replace("float s = 0.f;", "float s = 0.f;\n  ++s;", 1)),
            (FIRST, filled(FIRST, "}\nvoid f() {\n")),  # ends its function, begins another
        ):
            self.assertEqual(grading.lines_outside(e, text), 1)
        self.assertLess(time.process_time() - before, 1)
        self.assertEqual(grading.common_lines("abcbdab", "bdcaba"), 4)
        own = self.write("own.cuh", BANKS.solution())
        for e, text, why in (
            (FIRST, FIRST.solution(), "the file of learn/solutions"),
            (FIRST, FIRST.heading() + FIRST.solution(), "the solution, to the comments"),
            (BANKS, BANKS.heading() + BANKS.solution(), ""),  # one number: all are the same
        ):
            self.assertEqual(grading.copied(e, own, text), why)
        os.link(own, self.folder / "link.cuh")
        self.assertEqual(grading.copied(BANKS, self.folder / "link.cuh", ""), "a hard link")

    def test_the_tables_of_a_class(self):
        """Words, counts, times, seeds of several students; only touched columns; split tables."""
        few, right = EXERCISES[:3], lambda seconds: ("ok", "", "", seconds)
        grades = {
            name: [grading.Grade(name, e, *result) for e, result in zip(few, results)]
            for name, results in {
                "ann": [right(0.5), ("wrong", "race", "two\nlines\x01", 1.234), ("missing",)],
                "bo": [("untouched",), right(0.25), ("missing",)],
                "cy": [("missing",), ("missing",), ("untouched",)],
            }.items()
        }
        shown = re.sub("(?m)^-+\n", "", grading.table(grades, few))
        self.assertEqual(re.sub("(?m) +$", "", shown), TABLE)
        for holes, word in (
            ("right empty", "race 1/2"),
            ("right filled", "race"),
            ("empty empty", "race"),
            ("filled right empty", "race 2/3"),
        ):
            grade = grading.Grade("a", few[0], "wrong", "race", holes=holes.split())
            self.assertEqual(grade.word, word)
        grades["ann"][1].outside, grades["bo"][1].copied = 3, "a hard link"
        said = " ".join(grading.table(grades, few).split())
        outside = "lines outside the holes were changed or added"
        self.assertIn(f"{outside} (worth a look): ann 02_reduction", said)
        self.assertIn("the solution itself (worth a look): bo 02_reduction", said)
        every = {"a": [grading.Grade("a", e, "ok") for e in EXERCISES]}
        lines = grading.table(every, EXERCISES).splitlines()
        heads = [line.split() for line in lines if line.startswith("student")]
        self.assertGreater(len(heads), 1)
        self.assertEqual([x for head in heads for x in head[2:]], [e.label for e in EXERCISES])
        self.assertTrue(all(head[:2] == ["student", "done"] for head in heads))
        self.assertLessEqual(max(map(len, lines)), show.width())
        self.assertEqual([e.number for e in grading.only(EXERCISES, "2-4,1")], [1, 2, 3, 4])

        out = self.folder / "out"
        for due, expected in ((True, SUITES_DUE), (False, SUITES)):
            grading.write_junit(out, grades, 42, due)
            suites = list(ElementTree.parse(out).getroot())
            self.assertEqual([words_of(s)[10:] for s in suites], expected.split(","))
        self.assertTrue(out.read_text().startswith("<?xml "))
        self.assertEqual("\n".join(map(words_of, suites[0].iter())), JUNIT)
        rules = course.Rules(self.write("r.toml", "late=0.25\npoints.2 = 4\npoints.scores = 2\n"))
        grading.write_csv(out, grades, {"ann": 1, "bo": 0, "cy": 9}, rules)
        rows = [line.split(",") for line in out.read_text().splitlines()]
        last = [(row[0], *row[-2:]) for row in rows[1:]]
        self.assertEqual(last, [("ann", "1", "1.5"), ("bo", "0", "4"), ("cy", "9", "0")])
        course.write_gradescope(out, grades, {"ann": 1}, rules)
        tests = json.loads(out.read_text())["tests"]
        self.assertEqual([(t["score"], t["max_score"]) for t in tests[:2]], [(1.5, 2), (0, 4)])
        self.assertIn("Two threads access", tests[1]["output"])
        grading.write_feedback(self.folder / "back", grades)
        feedback = (self.folder / "back/ann.txt").read_text()
        self.assertIn("02_reduction: race: two\nlines\n\nTwo threads access the same", feedback)
        said = "01_scores: still empty\n\n02_reduction: right\n\n03_tiles: not handed in\n"
        self.assertEqual((self.folder / "back/bo.txt").read_text(), said)
        aside = grading.Aside()
        aside.leave("bo/x.zip", "an archive", "bo")
        grading.write_json(out, grades, 42, aside)
        students = json.loads(out.read_text())["students"]
        found = [(s["done"], s["left_aside"]) for s in students]
        self.assertEqual(found, [(1, {}), (1, {"an archive": ["bo/x.zip"]}), (0, {})])
        row = {"name": "reduction", "number": 2, "result": "wrong", "kind": "race", "copied": ""}
        row |= {"message": "two\nlines\x01", "seconds": 1.23, "lines_outside": 3, "holes": []}
        self.assertEqual(students[0]["exercises"][1], row)
        self.assertEqual(students[1]["exercises"][1]["copied"], "a hard link")

    def test_submissions_of_a_platform(self):
        """Moodle's folders and zips, Canvas's flat names."""
        text = FIRST.solution()
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
        rules = self.write("r.toml", "due = 2026-12-01T23:59:00\nlate = 0.1\n")
        self.assertEqual(course.Rules(rules).days(own["Ann Lee"].values()), 2)
        rules.write_text("dew = 1\n")
        with self.assertRaisesRegex(BadInput, "r.toml: dew"):
            course.Rules(rules)
        names = course.pseudonyms(self.folder / "names.csv", ["Lee, Ann", "bobo"])
        self.assertEqual(course.pseudonyms(self.folder / "names.csv", ["bobo"]), names)
        self.assertEqual(len({*names.values()}), 2)

    def test_what_cannot_be_graded_is_named(self):
        """Links, folders and pipes in place of a file; of two files the newer one counts."""
        student = self.folder / "class" / "student"
        new = self.write(student / "4_barrier.cuh", BARRIER.unsolved())
        old = self.write(student / "old" / "04_barrier.cuh", new.read_text())
        os.utime(old, (1, 1))
        self.write(student / "99_unknown.cuh", "void f();")
        self.write(student / "03_tiles.cuh", "x" * (grading.LARGEST_FILE + 1))
        (student / "01_scores.cuh").symlink_to("/etc/passwd")
        (student / "07_banks.cuh").mkdir()
        os.mkfifo(student / "02_reduction.cuh")
        for name in ("01_scores.cu", "01_scores.cuh.txt", "08_swizzle.cuh.bak-1", "a.zip", ".b",
                     "../student_01_scores.cuh", "../grades.xml"):  # fmt: skip
            self.write(student / name, "")
        self.write(student / "solutions" / "07_banks.cuh", "mine")
        self.file(exercise("swizzle"), exercise("swizzle").solution(), student / "solutions")
        (student / "more").symlink_to("/etc")
        said = self.learn("grade", self.folder / "class", "--seed", SEED)
        self.assertRegex(said, r"(?m)^student     0  too large$")
        left = re.sub(r"\n(?!left|seed)", " ", said)
        left = dict(re.findall("(?m)^left aside, (.*): (.*)$", left.replace("student/", "")))
        self.assertEqual({why: names.replace(",", "") for why, names in left.items()}, ASIDE)
        found = grading.submitted(student, EXERCISES, grading.Aside())
        self.assertEqual(found, {"barrier": new, "tiles": student / "03_tiles.cuh"})
        # The student's work counts, even if an untouched copy is newer.
        old.write_text(BARRIER.solution())
        os.utime(old, (1, 1))
        found = grading.submitted(student, EXERCISES, grading.Aside())
        self.assertEqual(found["barrier"], old)


if __name__ == "__main__":
    if NAMED:
        steps = sorted({e.step for e in NAMED})
        if not checking.is_built(BUILD, steps):
            checking.build_library(BUILD, "sim", print, steps)
        unittest.main(argv=[sys.argv[0], *(f"Guards.test_{name}" for name in OF_ONE)])
    main()
