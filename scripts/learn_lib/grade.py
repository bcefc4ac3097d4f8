"""A folder of submissions: one folder per student, with the .cuh files somewhere in it."""

import concurrent.futures
import csv
import dataclasses
import functools
import os
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from flash_steps import files as whole_files
from flash_steps.building import stop_all
from flash_steps.checker import CheckerEnded
from flash_steps.command import BadInput
from flash_steps.text import aligned, common_lines

from .check import ADVICE, NOT_CHECKED, Verdict, check
from .exercises import code_lines, find, student_text
from .show import prose, width

LARGEST_FILE = 1 << 20
ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")


@dataclasses.dataclass
class Grade:
    student: str
    exercise: object
    result: str  # "ok", "wrong", "untouched", "missing"
    kind: str = ""
    message: str = ""
    seconds: float = 0.0
    outside: int = 0  # lines changed or added outside the places that the exercise opens
    copied: str = ""  # why it is taken for the solution itself
    holes: list = dataclasses.field(default_factory=list)  # "right", "filled", "empty"

    @property
    def word(self):
        """The word for the table; of several holes, how many are filled."""
        word = {"ok": "ok", "untouched": "-", "missing": "."}.get(self.result, self.kind)
        filled = len(self.holes) - self.holes.count("empty")
        return f"{word} {filled}/{len(self.holes)}" if 0 < filled < len(self.holes) else word

    def feedback(self):
        """What is right; else the line and the advice."""
        said = {"ok": "right", "missing": "not handed in", "untouched": "still empty"}
        advice = f"{self.kind}: {printable(self.message)}\n\n{ADVICE.get(self.kind, '')}"
        return said.get(self.result, advice).strip()


class Aside:
    """Files that are not graded, and why: no submission disappears silently."""

    SHOWN = 4  # per student and reason

    def __init__(self):
        self.files = {}  # {reason: {student: [path]}}

    def leave(self, path, why, student=""):
        self.files.setdefault(why, {}).setdefault(student, []).append(str(path))

    def of(self, student):
        return {why: found[student] for why, found in self.files.items() if student in found}

    def lines(self):
        for why, found in self.files.items():
            words = []
            for student, paths in found.items():
                words += paths[: self.SHOWN]
                if len(paths) > self.SHOWN:
                    words.append(f"{len(paths) - self.SHOWN} more of {student}")
            yield f"left aside, {why}: {', '.join(words)}"


def looks_handed_in(name, exercises):
    """Is a file's name like that of a submission, in any folder?"""
    words = re.findall(r"[a-z0-9]+(?:_[a-z]+)*", name.lower())
    known = {e.name for e in exercises}
    return name.lower().endswith((".cuh", ".cu", *ARCHIVES)) or any(
        word in known or word.partition("_")[2] in known for word in words
    )


def submitted(folder, exercises, aside):
    """{exercise name: path} of one student; files that are not taken are left in `aside`. Of two
    files for one exercise the newer one counts, and a changed one before an unchanged one."""
    found = {}

    def leave(path, why):
        aside.leave(Path(path).relative_to(folder.parent), why, folder.name)

    def rank(exercise, path):
        try:
            changed = student_text(path) != exercise.unsolved()
        except OSError:  # not the student's fault: the check reports it
            changed = False
        return changed, path.stat().st_mtime

    for here, folders, files in os.walk(
        folder, onerror=lambda error: leave(error.filename, "a folder that cannot be read")
    ):
        for name in sorted(folders):
            if name.endswith(".cuh") or Path(here, name).is_symlink():
                leave(Path(here, name), "not a regular file")
        folders[:] = sorted(n for n in folders if n[0] != "." and n != "__MACOSX")
        for path in sorted(Path(here, name) for name in files if name[0] != "."):
            exercise = find(exercises, path.name)
            if path.is_symlink() or not path.is_file():
                leave(path, "not a regular file")
            elif path.name.lower().endswith(ARCHIVES):
                leave(path, "an archive to be unpacked")
            elif re.search(r"\.bak-\d+$", path.name):
                leave(path, "an older copy that reset has kept")
            elif path.suffix != ".cuh":
                leave(path, "a name that does not end in .cuh")
            elif exercise is None:
                leave(path, "not the name of an exercise")
            elif "solutions" in path.relative_to(folder).parts[:-1]:
                if student_text(path) != exercise.solution():
                    leave(path, "in the folder solutions")
            elif exercise.name not in found:
                found[exercise.name] = path
            else:
                pair = sorted([found[exercise.name], path], key=lambda p: rank(exercise, p))
                found[exercise.name] = pair[1]
                leave(pair[0], "another file of the student counts for this exercise")
    return found


def lines_outside(exercise, text):
    """The number of lines that differ outside the places to change: original lines that were
    changed or dropped, and added code. At least 1 where lines were added between the original's."""
    _, pieces = exercise.fixed()
    fixed = [line for piece in pieces for line in piece.splitlines()]
    dropped = len(fixed) - common_lines(fixed, text.splitlines())
    places = exercise.places(text)
    if dropped or not places:
        return max(dropped, 1)
    around = text[: text.find(pieces[0])] + text[places[-1][1] + len(pieces[-1]) :]
    added = sum(bool(line.strip()) for line in code_lines(around).splitlines())
    return added + sum(leaves_its_block(text[begin:end]) for begin, end in places)


def leaves_its_block(text):
    """Does a text close a brace that it has not opened, so that another function follows?"""
    depth = 0
    for c in code_lines(text):
        depth += (c == "{") - (c == "}")
        if depth < 0:
            return True
    return False


def copied(exercise, path, text):
    """Why a submission is taken for the solution itself, or ""."""
    if path.stat().st_nlink > 1:
        return "a hard link"
    solution = exercise.solution()
    new = set(solution.splitlines()) - set(exercise.unsolved().splitlines())
    if text == solution:
        return "the file of learn/solutions"
    if text == exercise.heading() + solution and len(new) > 4:
        return "the solution, to the comments"
    return ""


def checked(*words, **how):
    """check(), but a crash of its checker does not end the other checks."""
    try:
        return check(*words, **how)
    except CheckerEnded as ended:
        return Verdict(False, NOT_CHECKED, str(ended))


class Grader:
    def __init__(self, exercises, toolchain, seed, jobs, say):
        self.exercises = exercises
        self.toolchain = toolchain
        self.seed = seed
        self.jobs = jobs
        self.say = say
        self.known = {}  # (exercise, file name, text): a future of the verdict

    def _grade(self, pool, student, exercise, path):
        """A function that waits for the grade."""

        made = functools.partial(Grade, student, exercise)
        if path is None:
            return lambda: made("missing")
        if path.stat().st_size > LARGEST_FILE:
            most = f"{path.name} is larger than {LARGEST_FILE >> 20} MiB"
            return lambda: made("wrong", "too large", most)
        try:
            text = student_text(path)
        except OSError as error:
            what = f"{path.name}: {error.strerror}"
            return lambda: made("wrong", "unreadable", what)
        if text == exercise.unsolved():
            return lambda: made("untouched")
        key = exercise.name, path.name, text
        if key not in self.known:  # the same text, the same verdict, which names the file
            how = {"seed": self.seed, "isolate": True}
            self.known[key] = pool.submit(checked, exercise, path, self.toolchain, **how)

        def wait():
            v = self.known[key].result()
            result = "ok" if v.ok else "wrong", v.kind, v.message, v.seconds
            if v.kind in ("no text", "another text"):
                return made(*result)
            seen = lines_outside(exercise, text), copied(exercise, path, text)
            return made(*result, *seen, v.holes)

        return wait

    def run(self, files):
        """{student: a list of grades}, of {student: {exercise: path}}."""
        grades = {}
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            try:
                for student, found in files.items():
                    one = lambda e: self._grade(pool, student, e, found.get(e.name))
                    grades[student] = list(map(one, self.exercises))
                for count, (student, waiting) in enumerate(grades.items(), 1):
                    grades[student] = [wait() for wait in waiting]
                    self.say(count, student, grades[student])
            except BaseException:  # Ctrl-C, or a full disk
                pool.shutdown(wait=False, cancel_futures=True)
                stop_all()
                raise
        return grades


# --- tables and files ---------------------------------------------------------------------------


def table(grades, exercises):
    """Student x exercise, without untouched exercises, as tables that fit the width."""
    rows = {name: {g.exercise.name: g for g in row} for name, row in grades.items()}
    columns = [
        [e.label, *[row[e.name].word for row in rows.values()]]
        for e in exercises
        if any(row[e.name].result not in ("missing", "untouched") for row in rows.values())
    ]
    names = ["student", *rows]
    done = [f"{sum(g.result == 'ok' for g in row):4}" for row in grades.values()]
    first = [names, ["done", *done]]
    lines, part = [], list(first)
    for column in [*columns, None]:
        wide = sum(max(map(len, c)) + 2 for c in [*part, column or [""]]) - 2
        if column and (part == first or wide <= width()):
            part.append(column)
            continue
        head, *body = aligned(zip(*part), range(len(part)))
        lines += [head, "-" * len(head), *body, ""]
        part = [*first, column]
    lines.append("- untouched   . not handed in")
    for what, seen in (
        ("lines outside the holes were changed or added", lambda g: g.outside),
        ("the solution itself", lambda g: g.copied),
        ("without a verdict, because the checker ended", lambda g: g.kind == NOT_CHECKED),
    ):
        found = [
            f"{g.student} {g.exercise.label}" for row in grades.values() for g in row if seen(g)
        ]
        if found:
            lines.append(prose(f"{what} (worth a look): {', '.join(found)}", indent=0))
    return "\n".join(lines)


def only(exercises, text):
    """Those whose numbers "1-7,13" lists. Raises BadInput."""
    found = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not (first.isdigit() and (last if dash else first).isdigit()):
            raise BadInput(f"--only {text}: must be numbers and ranges, as 1-7,13")
        found |= set(range(int(first), int(last or first) + 1))
    unknown = found - {e.number for e in exercises}
    if unknown:
        raise BadInput(f"--only {text}: there is no exercise {min(unknown)}")
    return [e for e in exercises if e.number in found]


def printable(text):
    """Without what XML does not allow."""
    return "".join(c for c in text if c in "\n\t" or c.isprintable())


def write_csv(path, grades, days, rules):
    """A row per student: the points of each exercise, how many days late, the sum."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        first = next(iter(grades.values()))
        rows.writerow(["student", *(g.exercise.label for g in first), "days late", "points"])
        for name, row in grades.items():
            points = [rules.score(g, days[name]) for g in row]
            rows.writerow([name, *(f"{n:g}" for n in points), days[name], f"{sum(points):g}"])


def write_feedback(folder, grades):
    """A file per student to hand back."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name, row in grades.items():
        parts = [f"{g.exercise.label}: {g.feedback()}\n" for g in row]
        Path(folder, f"{name}.txt").write_text("\n".join(parts), encoding="utf-8")


def write_junit(path, grades, seed, due=False):
    """`due`: what is not handed in is a failure, else skipped."""
    none = ("missing", "untouched")
    inside = ElementTree.SubElement
    root = ElementTree.Element("testsuites", name="flash-steps")
    for name, row in grades.items():
        results = [g.result for g in row]
        suite = inside(root, "testsuite", name=name, tests=str(len(row)))
        absent = sum(map(results.count, none))
        errors = sum(g.kind == NOT_CHECKED for g in row)
        suite.set("failures", str(results.count("wrong") - errors + (absent if due else 0)))
        suite.set("errors", str(errors))
        suite.set("skipped", str(0 if due else absent))
        suite.set("time", f"{sum(g.seconds for g in row):.2f}")
        inside(inside(suite, "properties"), "property", name="seed", value=str(seed))
        for g in row:
            of = {"classname": name, "name": g.exercise.label, "time": f"{g.seconds:.2f}"}
            case = inside(suite, "testcase", of)
            if g.result == "wrong":
                word = "error" if g.kind == NOT_CHECKED else "failure"
                failure = inside(case, word, type=g.kind, message=g.kind)
                failure.text = printable(g.message)
            elif g.result != "ok":
                inside(case, "failure" if due else "skipped", message=g.result)
    ElementTree.indent(root)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def write_json(path, grades, seed, aside):
    def of(g):
        found = {"name": g.exercise.name, "number": g.exercise.number, "result": g.result}
        found |= {"kind": g.kind, "message": g.message, "seconds": round(g.seconds, 2)}
        return {**found, "lines_outside": g.outside, "copied": g.copied, "holes": g.holes}

    students = []
    for name, row in grades.items():
        done = sum(g.result == "ok" for g in row)
        one = {"name": name, "done": done, "exercises": list(map(of, row))}
        students.append({**one, "left_aside": aside.of(name)})
    whole_files.write_json(path, {"schema": 1, "seed": seed, "students": students}, indent=1)
