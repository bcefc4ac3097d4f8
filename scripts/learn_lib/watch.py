"""The bare ./scripts/learn: re-checks on save and listens to keys.

It looks at the file's time four times a second, so it needs no file watching. In a terminal a key
acts at once; elsewhere a line does.
"""

import contextlib
import os
import select
import sys
import time

from . import show

KEYS = "n next   h hint   a answer   l list   c check all   x reset   q quit"


@contextlib.contextmanager
def keys_at_once():
    """A terminal that hands over each key without Enter; afterwards as it was."""
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
    def __init__(self, desk, check):
        self.desk = desk
        self.check = check  # of an exercise: a Verdict
        self.keys = Keys()
        self.stamp = None
        self.passed = False

    def path(self):
        """Without making it: an editor may take a file away for a moment while it saves."""
        return self.desk.path(self.desk.current)

    def changed(self):
        """Whether the file was saved since the last look."""
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
        done = sum(self.desk.is_done(e) for e in self.desk.exercises)
        print(show.progress(done, len(self.desk.exercises)))
        print(show.title(self.desk.current))
        print()

    def foot(self):
        print()
        print(show.paint("dim", KEYS))
        sys.stdout.flush()

    def look(self):
        """Checks the current exercise and shows what came out."""
        exercise, path = self.desk.current, self.path()
        clear()
        self.head()
        print(show.paint("dim", f"checking {show.relative(path)} ..."), flush=True)
        verdict = self.check(exercise)
        self.passed = verdict.ok
        if verdict.ok:
            self.desk.mark_done(exercise)
        clear()
        if show.in_terminal():
            self.head()
        if self.desk.has_changed(exercise):
            print(
                show.prose(
                    "The repository has a newer version of this exercise. Your file stays "
                    "as it is; x makes a fresh copy and keeps yours."
                )
                + "\n"
            )
        print(show.verdict(exercise, path, verdict, self.desk.is_untouched(exercise)))
        if verdict.ok:
            print("\n" + show.after_success(exercise, self.desk))
            print("\n" + show.paint("green", "  n: the next exercise"))
        self.foot()

    def next(self):
        following = self.desk.next_open(self.desk.current)
        if following is None:
            print("\n" + show.paint("green", "All exercises are done."))
            return
        if not self.passed and not self.desk.is_done(self.desk.current):
            print("\nThis one is not done yet; going on all the same (it stays on the list).")
            time.sleep(0.5)
            at = self.desk.exercises.index(self.desk.current) + 1
            following = self.desk.exercises[at % len(self.desk.exercises)]
        self.desk.go_to(following)
        self.desk.open(following)
        self.stamp = None

    def hint(self):
        exercise = self.desk.current
        number, text = self.desk.next_hint(exercise)
        print("\n" + show.paint("bold", f"  hint {number} of {len(exercise.hints)}"))
        print(show.prose(text))
        sys.stdout.flush()

    def answer(self):
        if not self.desk.is_done(self.desk.current):
            print("\n  The question and its answer come when the exercise is done.")
        else:
            print(
                "\n" + show.paint("bold", "  answer") + "\n" + show.prose(self.desk.current.answer)
            )
        sys.stdout.flush()

    def check_all(self):
        print()
        show.check_all(self.desk, self.check)

    def reset(self):
        exercise = self.desk.current
        print(
            f"\n  x again makes a fresh copy of {show.relative(self.path())}; yours is kept "
            "beside it. Any other key: nothing happens.",
            flush=True,
        )
        if self.keys.next(30) != "x":
            return
        kept = self.desk.reset(exercise)
        print(f"  yours is now {show.relative(kept)}" if kept else "  made anew", flush=True)
        time.sleep(1)
        self.stamp = None

    def run(self):
        actions = {
            "n": self.next,
            "h": self.hint,
            "a": self.answer,
            "c": self.check_all,
            "x": self.reset,
            "l": lambda: print("\n" + show.listing(self.desk), flush=True),
        }
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
