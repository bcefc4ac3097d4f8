"""A folder of submissions: one folder a student, with the .cuh files somewhere in it."""

import concurrent.futures
import dataclasses
import difflib
import json
import os
import queue
import threading
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from .check import check
from .desk import digest
from .exercises import find
from .show import WIDTH, prose

LARGEST_FILE = 1 << 20


@dataclasses.dataclass
class Grade:
    student: str
    exercise: object
    result: str  # "ok", "wrong", "untouched", "missing"
    kind: str = ""
    message: str = ""
    seconds: float = 0.0
    outside: int = 0  # lines changed that the exercise had not opened

    @property
    def word(self):
        return {"ok": "ok", "untouched": "-", "missing": "."}.get(self.result, self.kind)


def submitted(folder, exercises):
    """({exercise name: path}, a sentence for each thing left aside) of one student.

    Of two files for one exercise the newer one counts."""
    found, aside = {}, []

    def leave(path, why):
        aside.append(f"left aside: {Path(path).relative_to(folder.parent)}, {why}")

    for here, folders, files in os.walk(
        folder, onerror=lambda error: leave(error.filename, "a folder that cannot be read")
    ):
        folders[:] = sorted(name for name in folders if name != "solutions")
        for path in sorted(Path(here, name) for name in files if name.endswith(".cuh")):
            exercise = find(exercises, path.name)
            if path.is_symlink() or not path.is_file():
                leave(path, "which is no plain file")
            elif exercise is None:
                leave(path, "whose name is no exercise's")
            elif (
                exercise.name not in found
                or path.stat().st_mtime > found[exercise.name].stat().st_mtime
            ):
                found[exercise.name] = path
    return found, aside


def lines_outside(exercise, text):
    """How many lines of the original a submission has changed or dropped."""
    before = exercise.unsolved().removeprefix(exercise.heading()).splitlines()
    opened = set()
    for change in exercise.changes:
        opened.update(change.exercise.splitlines())
    lost = 0
    for line in difflib.ndiff(before, text.splitlines()):
        if line.startswith("- ") and line[2:] not in opened:
            lost += 1
    return lost


class Grader:
    def __init__(self, exercises, toolchain, folder, seed, jobs, say):
        self.exercises = exercises
        self.toolchain = toolchain
        self.folder = Path(folder)  # where programs are compiled
        self.seed = seed
        self.jobs = jobs
        self.say = say
        self.aside = []  # sentences about what was handed in and not graded
        self.known = {}  # (exercise, digest of the text): a future of the verdict
        self.lock = threading.Lock()
        self.desks = queue.Queue()
        for job in range(jobs):
            self.desks.put(self.folder / f"job{job}")

    def _verdict(self, exercise, path):
        desk = self.desks.get()
        try:
            return check(
                exercise,
                path,
                self.toolchain,
                seed=self.seed,
                folder=desk / exercise.name,
                isolate=True,
            )
        finally:
            self.desks.put(desk)

    def _grade(self, pool, student, exercise, path):
        """A function that waits for the grade."""
        if path is None:
            return lambda: Grade(student, exercise, "missing")
        if path.stat().st_size > LARGEST_FILE:
            return lambda: Grade(
                student,
                exercise,
                "wrong",
                "too large",
                f"{path.name} has more than {LARGEST_FILE >> 20} MiB",
            )
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            sentence = f"{path.name}: {error.strerror}"
            return lambda: Grade(student, exercise, "wrong", "unreadable", sentence)
        if digest(text) == digest(exercise.unsolved()):
            return lambda: Grade(student, exercise, "untouched")
        key = (exercise.name, digest(text))
        if key not in self.known:  # the same text, the same verdict
            self.known[key] = pool.submit(self._verdict, exercise, path)

        def wait():
            v = self.known[key].result()
            return Grade(
                student,
                exercise,
                "ok" if v.ok else "wrong",
                v.kind,
                v.message,
                v.seconds,
                lines_outside(exercise, text),
            )

        return wait

    def run(self, students):
        """Grades, a list for each of the students' folders."""
        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            waiting = []
            for folder in students:
                files, aside = submitted(folder, self.exercises)
                self.aside += aside
                waiting.append(
                    (
                        folder.name,
                        [
                            self._grade(pool, folder.name, e, files.get(e.name))
                            for e in self.exercises
                        ],
                    )
                )
            grades = {}
            for name, functions in waiting:
                grades[name] = [f() for f in functions]
                self.say(name, grades[name])
        return grades


# --- tables and files ---------------------------------------------------------------------------


def table(grades, exercises):
    """Student x exercise, only exercises that somebody has touched; as many tables, one below the
    other, as it takes to fit the width."""
    columns = [
        i
        for i, _ in enumerate(exercises)
        if any(g[i].result not in ("missing", "untouched") for g in grades.values())
    ]
    name_width = max([len("student")] + [len(name) for name in grades])
    widths = [
        max([len(exercises[i].label)] + [len(g[i].word) for g in grades.values()]) for i in columns
    ]
    parts, width = [[]], 0
    for column in zip(columns, widths):
        if parts[-1] and width + 2 + column[1] > WIDTH:
            parts.append([])
        if not parts[-1]:
            width = name_width + 6
        parts[-1].append(column)
        width += 2 + column[1]
    lines = []
    for part in parts:
        head = "  ".join(
            ["student".ljust(name_width), "done"] + [exercises[i].label.ljust(w) for i, w in part]
        ).rstrip()
        lines += [head, "-" * len(head)]
        for name, row in grades.items():
            done = sum(g.result == "ok" for g in row)
            cells = [name.ljust(name_width), f"{done:4}"]
            cells += [row[i].word.ljust(w) for i, w in part]
            lines.append("  ".join(cells).rstrip())
        lines.append("")
    lines.append("- untouched   . not handed in")
    changed = [
        f"{g.student} {g.exercise.label}" for row in grades.values() for g in row if g.outside
    ]
    if changed:
        lines.append(
            prose(
                "lines outside the holes were changed, have a look: " + ", ".join(changed), indent=0
            )
        )
    return "\n".join(lines)


def write_junit(path, grades, seed):
    root = ElementTree.Element("testsuites", name="flash-steps")
    for name, row in grades.items():
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=name,
            tests=str(len(row)),
            failures=str(sum(g.result == "wrong" for g in row)),
            errors="0",
            skipped=str(sum(g.result in ("missing", "untouched") for g in row)),
            time=f"{sum(g.seconds for g in row):.2f}",
        )
        properties = ElementTree.SubElement(suite, "properties")
        ElementTree.SubElement(properties, "property", name="seed", value=str(seed))
        for g in row:
            case = ElementTree.SubElement(
                suite, "testcase", classname=name, name=g.exercise.label, time=f"{g.seconds:.2f}"
            )
            if g.result == "wrong":
                failure = ElementTree.SubElement(case, "failure", type=g.kind, message=g.kind)
                failure.text = printable(g.message)
            elif g.result != "ok":
                ElementTree.SubElement(case, "skipped", message=g.result)
    ElementTree.indent(root)
    ElementTree.ElementTree(root).write(path, encoding="utf-8", xml_declaration=True)


def printable(text):
    """Without what XML cannot hold."""
    return "".join(c for c in text if c in "\n\t" or c.isprintable())


def write_json(path, grades, seed):
    students = []
    for name, row in grades.items():
        students.append(
            {
                "name": name,
                "done": sum(g.result == "ok" for g in row),
                "exercises": [
                    {
                        "name": g.exercise.name,
                        "number": g.exercise.number,
                        "result": g.result,
                        "kind": g.kind,
                        "message": g.message,
                        "seconds": round(g.seconds, 2),
                        "lines_outside": g.outside,
                    }
                    for g in row
                ],
            }
        )
    document = {"schema": 1, "seed": seed, "students": students}
    Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
