"""What a course adds to grades: submissions as learning platforms deliver them, points, names."""

import math
import os
import re
import secrets
import shutil
import tomllib
import zipfile
from datetime import datetime
from pathlib import Path

from flash_steps.command import BadInput, NotHere
from flash_steps.files import write_json

LARGEST_ZIP, MOST_FILES = 64 << 20, 2000
# Moodle: a folder per student. Canvas: one for all, in whose files -1, -2 are later attempts.
MOODLE = re.compile(r"(.+?)_\d+_assignsubmission_(?:file|onlinetext)_?$")
CANVAS = re.compile(r"([^_]+)(?:_LATE)?_\d+_\d+_(.+?)(?:-\d+)?(\.\w+)$")


def unpack(archive, folder):
    """Keeps the times of the files, which are when they were handed in."""
    with zipfile.ZipFile(archive) as zip:
        files = [f for f in zip.infolist() if not f.is_dir()]
        if sum(f.file_size for f in files) > LARGEST_ZIP or len(files) > MOST_FILES:
            raise BadInput(f"{archive}: more than {LARGEST_ZIP >> 20} MiB or {MOST_FILES} files")
        for file in files:
            moment = datetime(*file.date_time).timestamp()
            path = zip.extract(file, folder)  # never outside the folder
            os.utime(path, (moment, moment))


def handed_in(given, folder):
    """The folder with a folder per student: `given` itself, or in `folder` what its archives and
    the names of Moodle and Canvas say."""
    given = Path(given)
    if given.is_file() and zipfile.is_zipfile(given):
        unpack(given, folder / "all")
        given = folder / "all"
    if not given.is_dir():
        raise BadInput(f"{given} is not a folder, and not a zip")
    named = [(path, MOODLE if path.is_dir() else CANVAS) for path in sorted(given.iterdir())]
    named = [(path, pattern.fullmatch(path.name)) for path, pattern in named]
    zips = [path for path in given.glob("*/*.zip") if zipfile.is_zipfile(path)]
    if not zips and not any(match for _, match in named):
        return given
    for path, match in named:
        to = folder / "class" / (match[1] if match else path.name)
        if path.is_dir():
            shutil.copytree(path, to, symlinks=True, dirs_exist_ok=True)
        elif match:
            to.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, to / (match[2] + match[3]))
    for path in sorted((folder / "class").glob("*/*.zip")):
        if zipfile.is_zipfile(path):
            unpack(path, path.parent)
            path.unlink()
    return folder / "class"


class Rules:
    """--rules FILE.toml: `points` by exercise (others: 1), `due`, and `late`, the part of the
    points that each day begun after it costs."""

    def __init__(self, path=None):
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8")) if path else {}
            self.points = {str(name): float(n) for name, n in found.pop("points", {}).items()}
            self.due, self.late = found.pop("due", None), float(found.pop("late", 0))
            if found or self.due and not isinstance(self.due, datetime):
                raise ValueError(", ".join(found) or "due is no date and time")
        except (OSError, ValueError, AttributeError) as error:
            raise BadInput(f"--rules {path}: {error}") from None

    def days(self, files):
        """How many days begun after the deadline the newest file is."""
        newest = max((path.stat().st_mtime for path in files), default=0)
        return max(0, math.ceil((newest - self.due.timestamp()) / 86400)) if self.due else 0

    def most(self, exercise):
        return self.points.get(exercise.name, self.points.get(str(exercise.number), 1))

    def score(self, grade, days):
        return self.most(grade.exercise) * max(0, 1 - self.late * days) * (grade.result == "ok")


def pseudonyms(path, names):
    """{name: pseudonym}, kept in the CSV file, which only the teacher has."""
    known = {}
    if path.exists():
        known = dict(line.rsplit(",", 1) for line in path.read_text(encoding="utf-8").splitlines())
    known |= {name: f"s{secrets.token_hex(4)}" for name in names if name not in known}
    path.write_text("".join(f"{n},{p}\n" for n, p in known.items()), encoding="utf-8")
    return known


def write_gradescope(path, grades, days, rules):
    """The results.json of an autograder, of the only student."""
    tests = []
    for grade in next(iter(grades.values())):
        score, most = rules.score(grade, days[grade.student]), rules.most(grade.exercise)
        tests.append({"name": grade.exercise.label, "score": score, "max_score": most})
        status = "passed" if grade.result == "ok" else "failed"
        tests[-1] |= {"status": status, "output": grade.feedback()}
    write_json(path, {"tests": tests}, indent=1)


def similar(files, exercises, folder):
    """Sentences about the pairs that copydetect (a package) finds alike beyond the exercise."""
    try:
        from copydetect import CopyDetector
    except ImportError:
        raise NotHere("--similar needs a package: pip install copydetect") from None
    found = []
    for e in exercises:
        given = folder / e.name / "given"
        given.mkdir(parents=True)
        (given / f"{e.label}.cuh").write_text(e.unsolved(), encoding="utf-8")
        paths = {}
        for student, own in files.items():
            if e.name in own:
                to = given.parent / "all" / student / f"{e.label}.cuh"
                to.parent.mkdir(parents=True)
                shutil.copyfile(own[e.name], to)
                paths[str(to)] = student
        if len(paths) < 2:
            continue
        words = {"boilerplate_dirs": [str(given)], "extensions": ["cuh"], "display_t": 0.8}
        words |= {"force_language": "cpp", "silent": True, "noise_t": 12, "guarantee_t": 16}
        detector = CopyDetector([str(given.parent / "all")], **words)
        detector.run()
        for share, _, first, second, *_ in detector.get_copied_code_list():
            found.append(f"{e.label}: {paths[first]} and {paths[second]}, {100 * share:.0f}%")
    return found
