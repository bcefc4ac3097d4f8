"""The student's desk: the folder learn/, which git ignores.

learn/NN_name.cuh    a copy of an exercise, made at its first use, then the student's
learn/NN_name.cuh.bak-1    an older copy; only `reset` makes these
learn/solutions/     one solution of each exercise that is done
learn/.state.json    exercises done, hints shown
"""

import contextlib
import fcntl
import hashlib
import json
import time
from pathlib import Path

from flash_steps.files import replace_text

from .exercises import student_text


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_whole(path, text):
    """Writes the whole file or nothing, even on a full disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(str(path), text)


class Desk:
    def __init__(self, folder, exercises):
        self.folder = Path(folder)
        self.exercises = exercises
        self.state_file = self.folder / ".state.json"
        self.damaged = ""  # a sentence, when the state could not be read
        self.state = {"current": exercises[0].name, "done": {}, "hints": {}, "made": {}}
        self._load()

    # --- state ----------------------------------------------------------------------------------

    def _load(self):
        try:
            found = json.loads(self.state_file.read_text(encoding="utf-8"))
            for key, kind in (("done", str), ("hints", int), ("made", str)):
                self.state[key] = {name: kind(x) for name, x in found.get(key, {}).items()}
            self.state["current"] = found.get("current")
        except FileNotFoundError:
            pass
        except (ValueError, AttributeError, TypeError):
            kept = backup(self.state_file)
            self.damaged = f"{self.state_file} could not be read; it is kept as {kept.name}"
        if self.state["current"] not in [e.name for e in self.exercises]:
            self.state["current"] = self.exercises[0].name

    @contextlib.contextmanager
    def change(self):
        """self.state, reloaded, to be changed and saved: another ./scripts/learn may be running."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / ".lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            current = self.state["current"]
            self._load()
            self.state["current"] = current
            yield self.state
            write_whole(self.state_file, json.dumps(self.state, indent=1) + "\n")

    @property
    def current(self):
        return next(e for e in self.exercises if e.name == self.state["current"])

    def go_to(self, exercise):
        with self.change() as state:
            state["current"] = exercise.name

    def is_done(self, exercise):
        return exercise.name in self.state["done"]

    def mark_done(self, exercise):
        write_whole(self.solution_path(exercise), exercise.solution())
        if not self.is_done(exercise):
            with self.change() as state:
                state["done"][exercise.name] = time.strftime("%Y-%m-%d %H:%M:%S")

    def next_hint(self, exercise):
        """(number, text) of the next hint; after the last one, the last again."""
        with self.change() as state:
            number = min(state["hints"].get(exercise.name, 0) + 1, len(exercise.hints))
            state["hints"][exercise.name] = number
        return number, exercise.hints[number - 1]

    def next_open(self, after):
        """The next exercise that is not done, after `after` and then from the start."""
        at = self.exercises.index(after)
        for e in self.exercises[at + 1 :] + self.exercises[: at + 1]:
            if not self.is_done(e):
                return e
        return None

    # --- files ----------------------------------------------------------------------------------

    def path(self, exercise):
        """The student's file, also under an older number."""
        path = self.folder / f"{exercise.label}.cuh"
        if not path.exists():
            for other in sorted(self.folder.glob(f"[0-9][0-9]_{exercise.name}.cuh")):
                return other
        return path

    def solution_path(self, exercise):
        return self.folder / "solutions" / f"{exercise.label}.cuh"

    def open(self, exercise):
        """The student's file, created if necessary."""
        path = self.path(exercise)
        if not path.exists():
            self._make(exercise, path)
        return path

    def _make(self, exercise, path):
        text = exercise.unsolved()
        write_whole(path, text)
        with self.change() as state:
            state["made"][exercise.name] = digest(text)

    def is_untouched(self, exercise):
        path = self.path(exercise)
        if not path.exists():
            return True
        return digest(student_text(path)) in (
            self.state["made"].get(exercise.name),
            digest(exercise.unsolved()),
        )

    def has_changed(self, exercise):
        """Has the repository's exercise changed since the copy was made?"""
        made = self.state["made"].get(exercise.name)
        same = made in (None, digest(exercise.unsolved()))
        return self.path(exercise).exists() and not same

    def reset(self, exercise):
        """Makes a fresh copy. Returns the new name of the old one, or None."""
        path = self.path(exercise)
        kept = backup(path) if path.exists() else None
        with self.change() as state:
            state["done"].pop(exercise.name, None)
            state["hints"].pop(exercise.name, None)
        self._make(exercise, self.folder / f"{exercise.label}.cuh")
        return kept


def backup(path):
    """Renames a file to the first free path.bak-N."""
    number = 1
    while (kept := path.with_name(f"{path.name}.bak-{number}")).exists():
        number += 1
    path.rename(kept)
    return kept
