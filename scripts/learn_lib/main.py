"""The classroom: exercises that check themselves. Needs no GPU.

  ./scripts/learn              watches the current exercise: edit its file in
                               learn/ and save
  ./scripts/learn run NAME     checks one exercise (name, number or file); for a
                               bug to find, --where also shows the lines
  ./scripts/learn hint NAME    the next hint
  ./scripts/learn answer NAME  the answer to its question, once it is done
  ./scripts/learn reset NAME   a fresh copy; yours is kept beside it
  ./scripts/learn list         all exercises, with what is done
  ./scripts/learn check-all    checks every file in learn/
  ./scripts/learn grade DIR    grades a folder of submissions, one per student

Exit status: 0 right, 1 not yet right, 2 bad use or a file that cannot be read
or written, 3 the checker could not be built or has no device, the disk is full,
or Python is older than 3.11, 130 stopped with Ctrl-C.
"""

import os
import random
import sys
import tempfile
from pathlib import Path

from flash_steps import command
from flash_steps.command import BadInput
from flash_steps.files import require_writable

from . import check as checking
from . import course, show
from . import exercises as catalogue
from . import grade as grading
from .desk import Desk
from .watch import Watch

OPTIONS = {  # of which command, its value, what --help says
    "where": ("run", None, "also show the lines of a bug to find"),
    "junit": ("grade", Path, "write JUnit XML"),
    "json": ("grade", Path, "write JSON"),
    "csv": ("grade", Path, "write a row per student, with points"),
    "gradescope": ("grade", Path, "write results.json, of one student"),
    "feedback": ("grade", Path, "write a file per student there, to hand back"),
    "rules": ("grade", Path, "TOML: points, due, late (docs/teaching.md)"),
    "pseudonyms": ("grade", Path, "CSV of names and what replaces them"),
    "similar": ("grade", None, "name submissions that are alike"),
    "only": ("grade", str, "exercises that are due, as 1-7,13: a missing one is a failure"),
    "seed": ("grade", int, "seed of the inputs (default: random)"),
    "jobs": ("grade", int, "number of parallel checks (default: cores)"),
}


def parse():
    parser = command.parser(__doc__)
    parser.prog, parser.usage = "learn", "learn [COMMAND] [NAME] [OPTION...]"
    add, root = parser.add_argument, catalogue.ROOT
    add("command", nargs="?", choices=COMMANDS, metavar="COMMAND", default="watch")
    add("name", nargs="?", metavar="NAME", help="default: the current exercise")
    said = "check on the GPU: only right or wrong, no traffic and no races"
    add("--gpu", action="store_true", help=said)
    add("--folder", type=Path, default=root / "learn", help="default: learn")
    add("--build", type=Path, help="default: build/sim")
    for name, (of, type, said) in OPTIONS.items():
        how = {"type": type} if type else {"action": "store_const", "const": True}
        add(f"--{name}", **how, help=f"{of}: {said}")
    arguments = parser.parse_intermixed_args()
    for name, (of, *_) in OPTIONS.items():
        if getattr(arguments, name) is not None and arguments.command != of:
            raise BadInput(f"--{name} belongs to './scripts/learn {of}'")
    if arguments.name and arguments.command in ("watch", "list", "check-all"):
        raise BadInput(f"{arguments.command} knows no '{arguments.name}': see --help")
    arguments.preset = "gpu" if arguments.gpu else "sim"
    arguments.build = (arguments.build or root / "build" / arguments.preset).absolute()
    return arguments


def say(line):
    print(show.prose(line, indent=0), flush=True)


def build_for(arguments, exercises):
    """Builds what is missing for checks of these exercises. On the GPU no step predicts bytes."""
    steps = () if arguments.gpu else sorted({e.step for e in exercises})
    if not checking.is_built(arguments.build, steps):
        checking.build_library(arguments.build, arguments.preset, say, steps)


def toolchain_of(arguments, exercises):
    """Builds what is missing, once and before any check."""
    build_for(arguments, exercises)
    return checking.Toolchain(arguments.build)


def wanted(arguments, desk):
    if arguments.name is None:
        return desk.current
    if "/" in arguments.name and not Path(arguments.name).exists():
        raise BadInput(f"there is no file {arguments.name}")
    exercise = catalogue.find(desk.exercises, arguments.name)
    if exercise is None:
        raise BadInput(f"no exercise '{arguments.name}': ./scripts/learn list shows them all")
    return exercise


def run(arguments, desk):
    exercise = wanted(arguments, desk)
    toolchain = toolchain_of(arguments, [exercise])
    path = desk.open(exercise)
    desk.go_to(exercise)
    verdict = checking.check(exercise, path, toolchain)
    if verdict.kind == "no GPU":
        raise checking.NotBuilt(verdict.message)
    how = f"./scripts/learn run {exercise.name} --where"
    untouched = desk.is_untouched(exercise)
    parts = [show.title(exercise)]
    parts.append(show.verdict(exercise, path, verdict, untouched, arguments.where, how))
    if verdict.ok:
        desk.mark_done(exercise)
        parts.append(show.after_success(exercise, desk))
        following = desk.next_open(exercise)
        parts += [f"  next: ./scripts/learn run {following.name}"] if following else []
    print(show.page(parts, show.short_verdict(exercise, path, verdict, arguments.where)))
    return 0 if verdict.ok else 1


def hint(arguments, desk):
    exercise = wanted(arguments, desk)
    print(exercise.title + "\n" + show.hint(desk, exercise))


def answer(arguments, desk):
    exercise = wanted(arguments, desk)
    if not desk.is_done(exercise):
        words = "is not done yet; its question and answer come when it is"
        raise BadInput(f"'{exercise.name}' {words}")
    print(show.prose(exercise.question) + "\n\n" + show.prose(exercise.answer))


def reset(arguments, desk):
    exercise = wanted(arguments, desk)
    kept = desk.reset(exercise)
    yours = f"; yours is now {show.relative(kept)}" if kept else ""
    print(f"{show.relative(desk.path(exercise))} is a fresh copy{yours}")


def check_all(arguments, desk):
    toolchain = toolchain_of(arguments, desk.exercises)
    wrong = show.check_all(desk, lambda e: checking.check(e, desk.path(e), toolchain))
    print(show.progress(desk))
    return 1 if wrong else 0


def watch(arguments, desk):
    toolchain = toolchain_of(arguments, [desk.current])
    check = lambda e: checking.check(e, desk.path(e), toolchain)
    Watch(desk, check, lambda exercises: build_for(arguments, exercises)).run()


def listing(arguments, desk):
    print(show.listing(desk))


def students_of(arguments, folder):
    """Their folders. Says before the work, not after it, what cannot be read or written."""
    students = sorted(p for p in folder.iterdir() if p.is_dir() and p.name[0] != ".")
    if not students:
        raise BadInput(f"{folder} holds no folders: it needs one for each student")
    places = {student.resolve() for student in students}
    for name in ("junit", "json", "csv", "gradescope"):
        path = getattr(arguments, name)
        if path and not places.isdisjoint(path.resolve().parents):
            raise BadInput(f"--{name} {path} lies in a student's folder: give it another place")
        if path:
            require_writable(f"--{name}", path, arguments.json if name == "junit" else None)
    if arguments.gradescope and len(students) != 1:
        raise BadInput(f"--gradescope is of one student, and {folder} has {len(students)}")
    return students


def grade(arguments, desk):
    if arguments.name is None:
        raise BadInput("grade needs the folder with the submissions")
    with tempfile.TemporaryDirectory(prefix="learn_grade_") as scratch:
        graded(arguments, desk, Path(scratch))


def graded(arguments, desk, scratch):
    folder = course.handed_in(arguments.name, scratch)
    students, rules = students_of(arguments, folder), course.Rules(arguments.rules)
    jobs = os.cpu_count() if arguments.jobs is None else arguments.jobs
    if jobs < 1:
        raise BadInput(f"--jobs {jobs}: must be at least 1")
    seed = random.randrange(1, 1 << 31) if arguments.seed is None else arguments.seed
    due = grading.only(desk.exercises, arguments.only) if arguments.only else desk.exercises
    aside = grading.Aside()
    for path in sorted(folder.iterdir()):
        if path.is_file() and grading.looks_handed_in(path.name, desk.exercises):
            aside.leave(path.name, "in no student's folder")
    files = {s.name: grading.submitted(s, desk.exercises, aside) for s in students}
    if arguments.pseudonyms:
        other = course.pseudonyms(arguments.pseudonyms, files)
        files = {other[name]: found for name, found in files.items()}
    days = {name: rules.days(found.values()) for name, found in files.items()}
    needed = [e for e in due if any(e.name in found for found in files.values())]
    toolchain = toolchain_of(arguments, needed)

    def tell(count, name, row):
        done = sum(g.result == "ok" for g in row)
        print(f"[{count}/{len(students)}] {name}: {done} done", file=sys.stderr, flush=True)

    grades = grading.Grader(due, toolchain, seed, jobs, tell).run(files)
    print(grading.table(grades, due))
    for line in aside.lines():
        say(line)
    for line in course.similar(files, due, scratch) if arguments.similar else ():
        say(f"alike (worth a look): {line}")
    print(f"seed {seed}")
    for write, path, *more in (
        (grading.write_junit, arguments.junit, seed, bool(arguments.only)),
        (grading.write_json, arguments.json, seed, aside),
        (grading.write_csv, arguments.csv, days, rules),
        (course.write_gradescope, arguments.gradescope, days, rules),
        (grading.write_feedback, arguments.feedback),
    ):
        if path:
            write(path, grades, *more)


COMMANDS = {"watch": watch, "run": run, "hint": hint, "answer": answer, "reset": reset}
COMMANDS |= {"list": listing, "check-all": check_all, "grade": grade}


def main():
    """The exit status."""
    arguments = parse()
    desk = Desk(arguments.folder, catalogue.load())
    if desk.damaged:
        print(f"learn: {desk.damaged}", file=sys.stderr)
    return COMMANDS[arguments.command](arguments, desk) or 0
