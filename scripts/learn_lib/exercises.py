"""Exercises: small files that describe how a step's kernel file becomes a student's file.

steps/exercises.toml holds their order. steps/NN_name/exercises/NAME.toml holds one exercise; its
format is described in docs/teaching.md. An exercise never repeats a kernel: it quotes the lines of
the step that it changes, which must occur there exactly once. Only an exercise of the kind
"predict" may contain an answer: what limits a kernel and for how long, or which variant is faster.
The bytes of a run are given by the step's formula, which the exercise quotes.
"""

import codecs
import dataclasses
import functools
import re
import textwrap
import tomllib
from pathlib import Path

from flash_steps import commits
from flash_steps.command import NotHere

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("fill in", "find the bug", "predict")
CHECKED_WITH = "check  ./scripts/learn run "  # in the heading of a student's file


class Broken(NotHere):
    """An exercise that its author must fix: one sentence."""


@dataclasses.dataclass
class Change:
    step: str  # as in the step's file; empty: nowhere (see `solution`)
    exercise: str
    solution: str | None  # None: as in the step's file

    def __post_init__(self):
        self.solution = self.step if self.solution is None else self.solution


@dataclasses.dataclass
class Hole:
    """A place in a student's file to be filled in."""

    number: int  # 1, 2, ...
    begin: int  # its text is file[begin:end]
    end: int
    line: int  # of its FILL IN, or of its start
    empty: bool  # unchanged, apart from comments
    change: Change


@dataclasses.dataclass
class Wrong:
    """A plausible wrong solution, as changes to the solution."""

    name: str
    because: str
    change: list  # {"solution", "wrong"}


@dataclasses.dataclass
class Exercise:
    name: str  # "scores"
    number: int  # 1, 2, ...
    step: str  # "01_naive"
    difficulty: int  # 1 to 3
    minutes: int
    path: Path  # of the .toml
    title: str
    kind: str
    made_from: str  # "1_naive.cuh", in the step's folder
    task: str
    hints: list
    question: str
    answer: str
    program: dict  # variant, yours, include; to predict: function, kernel
    check: dict  # pass, problems, banks, coalesced, any_bytes, copies
    change: list
    wrong: list
    text: str | None  # to predict: the solved file, if it is not the step's

    @property
    def predicts(self):
        return self.kind == "predict"

    @property
    def label(self):
        return f"{self.number:02}_{self.name}"

    @property
    def source(self):
        return f"steps/{self.step}/{self.made_from}"

    # --- the texts ------------------------------------------------------------------------------

    def step_text(self):
        return self.text or (ROOT / self.source).read_text(encoding="utf-8")

    def _made(self, which):
        text, where = self.step_text(), f"{self.path.name}: {self.source}"
        for change in self.change:
            text = replace_once(text, change.step, getattr(change, which), where)
        return text

    def solution(self):
        return self._made("solution")

    def unsolved(self):
        """The student's initial file, with the task on top."""
        return self.heading() + self._made("exercise")

    def fixed(self):
        """The changes in line order, and the texts around them, which a student need not touch."""
        text = self.step_text()
        changes = sorted(self.change, key=lambda change: text.find(change.step))
        pieces = []
        for change in changes:
            before, _, text = text.partition(change.step)
            pieces.append(before)
        return changes, [*pieces, text]

    def places(self, text):
        """(begin, end) of each change in a student's file; [] if the text around them changed."""
        _, (first, *others) = self.fixed()
        at, found = text.find(first) + len(first), []
        for number, piece in enumerate(others, 1):
            find = text.rfind if number == len(others) and piece else text.find
            found.append((at, find(piece, at)))
            at = found[-1][1] + len(piece)
        return found if first in text and all(end >= 0 for _, end in found) else []

    def holes(self, text):
        """The holes of a student's file; [] if the text around them changed, or there are none."""
        holes = []
        for change, (begin, end) in zip(self.fixed()[0], self.places(text)):
            if "FILL IN" in change.exercise:
                empty = code_of(text[begin:end]) == code_of(change.exercise)
                line = line_at(text, max(begin, text.find("FILL IN", begin, end)))
                holes.append(Hole(len(holes) + 1, begin, end, line, empty, change))
        return holes

    def completed(self, text, holes):
        """A student's file with its empty holes filled; later lines keep their numbers."""
        for hole in reversed(holes):
            if hole.empty:
                first, after = line_at(text, hole.begin), line_at(text, hole.end)
                filled = f"#line {first}\n{hole.change.solution}#line {after}\n"
                text = text[: hole.begin] + filled + text[hole.end :]
        return text

    def heading(self):
        stars = "*" * self.difficulty
        rule = "=" * 97
        about = f"({stars}, about {self.minutes} minutes)"
        lines = [rule, f"Exercise {self.number}, {self.kind}: {self.title}   {about}", ""]
        for paragraph in self.task.strip().split("\n\n"):
            lines += [*textwrap.wrap(paragraph, 97), ""]
        lines += [CHECKED_WITH + self.name]
        lines += [f"hint   ./scripts/learn hint {self.name}", rule]
        return "".join(f"// {line}".rstrip() + "\n" for line in lines)

    def mixed_up(self, name, text):
        """A sentence when a file holds another exercise, else ""."""
        held = held_in(text)
        return f"{name} holds exercise '{held[0]}'" if held and self.name not in held else ""

    def damaged(self, name, text):
        """A sentence when a file that does not compile is more, or far less, than the exercise."""
        held = held_in(text)
        if len(held) > 1:
            return f"{name} holds {len(held)} exercises, {' and '.join(held)}: a file has one"
        _, pieces = self.fixed()
        lines = {line for piece in pieces for line in piece.splitlines() if line.strip()}
        there = len(lines.intersection(text.splitlines()))
        few = f"{name} holds {there} of the {len(lines)} lines around the exercise's holes"
        return f"{few}: hand in the whole file" if there < len(lines) / 10 else ""

    def main(self):
        """The program around the student's file. Only what is checked is compiled."""
        p = self.program
        includes = p.get("include", self.source)  # the student's file, or what includes it
        includes = [includes] if isinstance(includes, str) else includes
        without = {32, 64, 96, 128, 256} - {problem["d"] for problem in self.check["problems"]}
        kind, yours = ("prediction", p.get("function")) if self.predicts else ("exercise", "yours")
        lines = [f'#include "steps/exercise_checker/{kind}.h"']
        for d in sorted(without):
            lines += ["template <>", f"inline constexpr bool fa::has_kernels_of<{d}> = false;"]
        lines += [*(f'#include "{name}"' for name in includes), ""]
        lines += ["int main(int argc, char** argv) {"]
        if not self.predicts:
            lines += [f"  const fa::Variant yours{{{p['yours'].strip()}}};"]
        return "\n".join([*lines, f"  return fa::{kind}_main(argc, argv, {yours});", "}", ""])


def replace_once(text, before, after, where):
    count = text.count(before)
    if before == "" or count != 1:
        first = before.strip().splitlines()[0] if before.strip() else ""
        raise Broken(f"{where} holds these lines {count} times instead of once: {first}")
    return text.replace(before, after)


def line_at(text, place):
    return text.count("\n", 0, place) + 1


def held_in(text):
    """The names of the exercises whose headings a text contains."""
    return re.findall(rf"(?m)^// {re.escape(CHECKED_WITH)}(\w+)$", text)


def student_text(path):
    """The text of a user's file, without an editor's line ends and byte order mark."""
    text = Path(path).read_bytes().decode("utf-8-sig", errors="replace")
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text if text.endswith("\n") or not text else text + "\n"


def no_text(path):
    """A sentence when a file does not contain text for a compiler, else ""."""
    data, name = Path(path).read_bytes(), Path(path).name
    if not data.removeprefix(codecs.BOM_UTF8).strip():
        return f"{name} is an empty file"
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return f"{name} is UTF-16 text: save it as UTF-8"
    return f"{name} holds zero bytes, so it is no text in UTF-8" if b"\0" in data else ""


def code_lines(text):
    """The text with blanks for its comments, strings and characters, which keeps all lines."""
    pattern = r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)


@functools.cache
def code_of(text):
    return "".join("".join(commits.code_of(text)).split())


# --- reading ------------------------------------------------------------------------------------


def _toml(path):
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise Broken(f"{path.relative_to(ROOT)}: {error}") from None


def _take(table, where, required, optional=""):
    """A table with the required keys and, None where absent, the optional ones."""
    names = f"{required} {optional}".split()
    for key in sorted(set(table) - set(names)):
        raise Broken(f"{where}: unknown key '{key}'; the keys are {', '.join(names)}")
    for key in required.split():
        if key not in table:
            raise Broken(f"{where}: '{key}' is missing")
    return {name: table.get(name) for name in names}


def _read(path, *facts):
    where = str(path.relative_to(ROOT))
    keys = "title kind made_from task hints question answer program check change wrong"
    t = _take(_toml(path), where, keys, "text")
    if t["kind"] not in KINDS:
        raise Broken(f"{where}: kind = '{t['kind']}'; the kinds are {', '.join(KINDS)}")
    predicts = t["kind"] == "predict"
    if t["text"] and not predicts:
        raise Broken(f"{where}: 'text' belongs to exercises of the kind 'predict', and to no other")
    if predicts:
        _take(t["program"], where, "function", "kernel")
        _take(t["check"], where, "problems")
    else:
        _take(t["program"], where, "variant yours", "include")
        _take(t["check"], where, "problems", "pass banks coalesced any_bytes copies")
    if not t["check"]["problems"]:
        raise Broken(f"{where}: 'problems' is empty: such a check passes everything")
    for problem in t["check"]["problems"] if predicts else ():
        _take(problem, where, "n d h", "variant variants buffer way pass b hkv nk causal")
    t["change"] = [
        Change(**_take(change, where, "step exercise", "solution")) for change in t["change"]
    ]
    t["wrong"] = [Wrong(**_take(wrong, where, "name because change")) for wrong in t["wrong"]]
    for wrong in t["wrong"]:
        for edit in wrong.change:
            _take(edit, where, "solution wrong")
    return Exercise(path.stem, *facts, path=path, **t)


def load(folder=ROOT / "steps"):
    """All exercises, in the order of steps/exercises.toml. Raises Broken."""
    order = folder / "exercises.toml"
    exercises = []
    for number, row in enumerate(_toml(order)["exercises"], 1):
        _take(row, order.name, "name difficulty minutes")
        step, _, name = row["name"].partition("/")
        path = folder / step / "exercises" / f"{name}.toml"
        exercises.append(_read(path, number, step, row["difficulty"], row["minutes"]))
    names = [e.name for e in exercises]
    for name in names:
        if names.count(name) > 1:
            raise Broken(f"{order.name}: two exercises are called '{name}'")
    return exercises


def find(exercises, wanted):
    """By name, number, "03_name", or the path of a student's file; None without such. The number
    before a name may differ: a file from before the order changed, or "7_banks"."""
    wanted = Path(wanted).name.removesuffix(".cuh")
    number, _, name = wanted.partition("_")
    for e in exercises:
        if wanted in (e.name, str(e.number), f"{e.number:02}"):
            return e
    return next((e for e in exercises if number.isdigit() and name == e.name), None)
