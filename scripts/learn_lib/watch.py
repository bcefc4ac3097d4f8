"""The bare ./scripts/learn: re-checks on save and listens to keys.

It polls the file's time four times a second. In a terminal a key acts at once, elsewhere a line.
"""

import contextlib
import os
import select
import sys
import textwrap
import time

from . import show


@contextlib.contextmanager
def keys_at_once():
    """A terminal that delivers each key without Enter; restored afterwards."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


class Keys:
    """Standard input, key by key. Not through sys.stdin, whose buffer select() does not see."""

    def __init__(self):
        self.typed = ""

    def next(self, seconds):
        """A key, "" after `seconds` without one, None at the end of the input."""
        if not self.typed:
            ready, _, _ = select.select([0], [], [], seconds)
            if not ready:
                return ""
            read = os.read(0, 100)
            if not read:
                return None
            self.typed = "".join(read.decode(errors="replace").split())  # without the Enters
        key, self.typed = self.typed[:1], self.typed[1:]
        return key


def clear():
    if show.in_terminal():
        print("\033[2J\033[H", end="")


class Watch:
    def __init__(self, desk, check, build=lambda exercises: None):
        self.desk = desk
        self.check = check  # of an exercise: a Verdict
        self.build = build  # builds what checks of these exercises need; prints a line
        self.built_for = {desk.current.step}  # the steps
        self.keys = Keys()
        self.stamp = None
        self.passed = False
        self.verdict = None  # of the last check
        self.where = None  # the exercise whose lines are shown

    def path(self):
        """The path, without creating the file: an editor may remove it briefly while it saves."""
        return self.desk.path(self.desk.current)

    def changed(self):
        try:
            stat = self.path().stat()
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        except OSError:  # an editor is just replacing it
            return False
        if stamp == self.stamp:
            return False
        self.stamp = stamp
        return True

    def head(self):
        return show.progress(self.desk) + "\n" + show.title(self.desk.current)

    def foot(self):
        """The keys that have an effect here."""
        exercise = self.desk.current
        keys = ["n: next exercise", "h: hint"]
        keys += ["w: show the lines of the bug"] if exercise.kind == "find the bug" else []
        keys += ["a: answer to the question"] if self.desk.is_done(exercise) else []
        keys += ["l: list", "c: check all", "x: fresh copy of the file", "q: quit"]
        line = "   ".join(key.replace(" ", "\0") for key in keys)  # keeps a key next to its words
        how = {"initial_indent": "Keys  ", "subsequent_indent": "      "}
        lines = textwrap.wrap(line, show.width(), **how, break_on_hyphens=False)
        return "\n".join(show.paint("dim", line.replace("\0", " ")) for line in lines)

    def prepare(self, exercises):
        """Called before a check, when the student has moved to a step that is not yet built."""
        if {e.step for e in exercises} - self.built_for:
            self.build(exercises)
            self.built_for |= {e.step for e in exercises}

    def look(self):
        exercise, path = self.desk.current, self.path()
        clear()
        if show.in_terminal():
            print(self.head() + "\n")
        self.prepare([exercise])
        print(show.paint("dim", f"checking {show.relative(path)} ..."), flush=True)
        self.verdict = self.check(exercise)
        self.passed = self.verdict.ok
        if self.passed:
            self.desk.mark_done(exercise)
        self.page()

    def page(self):
        """The last check's result, repeated at the end where its start is off the screen."""
        exercise, path, verdict = self.desk.current, self.path(), self.verdict
        where = self.where == exercise.name
        clear()
        parts = [self.head()]
        if self.desk.has_changed(exercise):
            newer = "The repository has a newer version of this exercise. Your file stays as it "
            parts.append(show.prose(f"{newer}is; x makes a fresh copy and keeps yours."))
        untouched = self.desk.is_untouched(exercise)
        parts.append(show.verdict(exercise, path, verdict, untouched, where, "The key w"))
        if verdict.ok:
            parts.append(show.after_success(exercise, self.desk))
            parts.append(show.paint("green", "  n: the next exercise"))
        short = show.short_verdict(exercise, path, verdict, where)
        print(show.page(parts, short, [self.foot()]), flush=True)

    def show_where(self):
        self.where = self.desk.current.name
        if self.verdict:
            self.page()

    def next(self):
        following = self.desk.next_open(self.desk.current)
        if following is None:
            print("\n" + show.paint("green", "All exercises are done."))
            return
        if not self.passed and not self.desk.is_done(self.desk.current):
            print("\nThis one is not done yet; it stays on the list.")
            time.sleep(0.5)
            at = self.desk.exercises.index(self.desk.current) + 1
            following = self.desk.exercises[at % len(self.desk.exercises)]
        self.desk.go_to(following)
        self.desk.open(following)
        self.stamp = self.verdict = self.where = None

    def hint(self):
        print("\n" + show.hint(self.desk, self.desk.current), flush=True)

    def answer(self):
        said = f"{show.paint('bold', '  answer')}\n{show.prose(self.desk.current.answer)}"
        if not self.desk.is_done(self.desk.current):
            said = "  The question and its answer come when the exercise is done."
        print("\n" + said, flush=True)

    def listing(self):
        print("\n" + show.listing(self.desk), flush=True)

    def check_all(self):
        print()
        self.prepare(self.desk.exercises)
        show.check_all(self.desk, self.check)

    def reset(self):
        exercise = self.desk.current
        print(
            f"\n  Press x again for a fresh copy of {show.relative(self.path())}; yours is kept\n"
            "  beside it. Any other key cancels.",
            flush=True,
        )
        if self.keys.next(30) != "x":
            return
        kept = self.desk.reset(exercise)
        said = f"yours is now {show.relative(kept)}" if kept else "made a fresh copy"
        print(f"  {said}", flush=True)
        time.sleep(1)
        self.stamp = None

    def run(self):
        actions = {"n": self.next, "w": self.show_where, "h": self.hint, "a": self.answer}
        actions |= {"c": self.check_all, "x": self.reset, "l": self.listing}
        self.desk.open(self.desk.current)
        with keys_at_once():
            while True:
                if self.changed():
                    self.look()
                key = self.keys.next(0.25)
                if key is None or key == "q":
                    print()
                    return
                if key in actions:
                    actions[key]()
