"""Builds for the scripts that people type, and shows its progress.

    -m flash_steps.building LOG PRESET [TARGET...]    prints one line, and why it failed; LOG has
                                                      the rest

In a terminal a line shows how far the build is, and at what file; elsewhere there is a line when
15 s have passed without one. All targets are built at once; `cmake --build --target A B` builds one
after the other.
Exit status: 0 done, 1 the build failed.
"""

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

from .command import NotHere, no_room
from .files import ROOT, read_text

QUIET_SECONDS = 15
STEP = re.compile(r"\[ *(\d+%|\d+/\d+)\] (.*)")  # make's share or ninja's count
OBJECT = re.compile(r"Building \w+ object (?:(\S+)/)?CMakeFiles/[^/]+\.dir/(\S+)\.o\b")


class Progress:
    """What is being done, on one line of a terminal; closing it takes the line away."""

    def __init__(self, stream=None, what=""):
        self.stream = stream or sys.stdout
        self.what = what
        self.terminal = self.stream.isatty()
        self.begun = self.spoken = time.monotonic()
        self.end = threading.Event()
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self._tick, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.end.set()
        self.thread.join()
        self._clear()

    def heard(self, line):
        """A line of a build's output."""
        done = STEP.match(line)
        if done:
            file = OBJECT.search(done[2])
            self.set(f"{done[1]}  {'/'.join(filter(None, file.groups())) if file else done[2]}")

    def set(self, what):
        with self.lock:
            if what != self.what:
                self.what, self.begun = what, time.monotonic()
            if self.terminal:
                self._show()

    def _tick(self):
        while not self.end.wait(1):
            with self.lock:
                if self.terminal:
                    self._show()
                elif time.monotonic() - self.spoken >= QUIET_SECONDS:
                    self.spoken = time.monotonic()
                    self._write(f"  {self._text()}\n")

    def _text(self):
        seconds = time.monotonic() - self.begun
        return f"{self.what}  {seconds:.0f} s" if self.what and seconds >= 2 else self.what

    def _show(self):
        self._write(f"\r  {self._text()[: shutil.get_terminal_size((80, 24)).columns - 3]}\033[K")

    def _clear(self):
        if self.terminal:
            self._write("\r\033[K")

    def _write(self, text):
        with contextlib.suppress(OSError):  # the reader has gone: its own writer says so
            self.stream.write(text)
            self.stream.flush()


_running = set()  # process groups
_lock = threading.Lock()
_stopping = False


def _kill_group(process):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def group_of(command, **options):
    """A process in its own group, all of which ends with the block, however it is left. Ctrl-C
    of a terminal does not reach it, so that only this program says something."""
    with _lock:
        if _stopping:
            raise KeyboardInterrupt
        process = subprocess.Popen(command, start_new_session=True, **options)
        _running.add(process)
    try:
        yield process
    finally:
        _kill_group(process)
        process.wait()
        if process.stdout:
            process.stdout.close()
        with _lock:
            _running.discard(process)


def stop_all():
    """Ends what other threads have started, and lets them start nothing more."""
    global _stopping
    with _lock:
        _stopping = True
        for process in _running:
            _kill_group(process)


def run(command, log, progress):
    """The exit status; its output goes to the open file `log`, line by line."""
    ends = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with group_of(command, cwd=ROOT, text=True, errors="replace", **ends) as process:
        for line in process.stdout:
            log.write(line)
            log.flush()
            progress.heard(line)
        return process.wait()


def made_for(tree):
    """The folder for which a build folder was made, where the tree was renamed or copied since: all
    that is built there names files of that one. Else None."""
    try:
        cache = read_text(os.path.join(tree, "CMakeCache.txt"))
    except OSError:
        return None
    found = dict(re.findall(r"(?m)^CMAKE_(CACHEFILE|HOME)_DIR\w*:INTERNAL=(.+)$", cache))
    for name, here in ("HOME", ROOT), ("CACHEFILE", tree):
        made = found.get(name, here)
        if not os.path.exists(made) or not os.path.samefile(made, here):
            return made
    return None


def commands(preset, targets, folder=None, jobs=None):
    r"""What configures and builds; of no target, all. A tree that is there stays what it is, also
    where make, and not ninja, has built it.

    \raises NotHere where it was made for another folder."""
    configure, build = ["cmake", "--preset", preset], ["cmake", "--build", "--preset", preset]
    tree = folder or os.path.join(ROOT, "build", preset)
    if made := made_for(tree):
        tree = os.path.relpath(tree)
        raise NotHere(f"{tree} was built for {made}: rm -r {tree}, and it is built for this folder")
    here = os.path.exists(os.path.join(tree, "CMakeCache.txt"))
    if folder or here:
        configure = ["cmake", *(["-S", "."] if here else configure[1:]), "-B", str(tree)]
    if folder:
        build = ["cmake", "--build", str(folder)]
    if targets:
        configure.append(f"-DFA_TARGETS={';'.join(targets)}")
        targets = ["--target", "fa_targets"]
    return configure, [*build, "-j", str(jobs or os.cpu_count()), *targets]


@contextlib.contextmanager
def alone(folder, progress):
    """Two builds in one folder would write the same files, and count together."""
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "build.lock"), "w", encoding="utf-8") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                progress.set(f"waiting for another build in {os.path.relpath(folder, ROOT)}")
                time.sleep(0.2)
        yield


def build(preset, targets, log, stream=None, folder=None):
    """Configures and builds: None, or the command that failed."""
    with Progress(stream, "cmake configures the build") as progress:
        with alone(folder or os.path.join(ROOT, "build", preset), progress):
            for command in commands(preset, targets, folder):
                if run(command, log, progress):
                    return command
    return None


def reason(said, lines=25):
    r"""Why a build failed: the end of its words. \raises NotHere with our own sentence, if it has
    one (CMake breaks none of them), or the line that tells of a full disk."""
    if own := re.search(r"^ *flash-steps: (.*)$", said, re.MULTILINE):
        raise NotHere(own[1])
    if full := no_room(said):
        raise NotHere(full)
    return "\n".join(said.splitlines()[-lines:])


def build_or_say(preset, targets, path, stream=None, folder=None, lines=25):
    r"""As build(), which adds to the log at `path`: (the command that failed, why), or None.
    \raises NotHere as reason()."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "a+", encoding="utf-8", errors="replace") as log:
        start = log.seek(0, os.SEEK_END)
        failed = build(preset, targets, log, stream, folder)
        log.seek(start)
        return failed and (failed, reason(log.read(), lines))


def is_newer(stamp, files):
    """Whether a build's stamp and all files are there, and the stamp is no older than they, nor
    dated in the future, where it says nothing of what was edited since."""
    try:
        made = os.stat(stamp).st_mtime
        return made < time.time() + 10 and all(os.stat(file).st_mtime <= made for file in files)
    except OSError:
        return False


def first_error(said, lines=5):
    """The first error of a compiler's output, with at most so many lines that show it; or ""."""
    code = r"(?:\n[ \t]+(?:\d+ )?\|.*){0,%d}" % lines
    found = re.search(r"(?m)^.*\berror(?: #| *: ).*" + code, said)
    return found[0] if found else ""


def main():
    path, preset, *targets = sys.argv[1:]
    try:
        failed = build_or_say(preset, targets, path)
    except NotHere as error:
        print(error)
        return 1
    except OSError as error:  # no cmake, or a folder that is not the user's
        print(f"{error.filename}: {error.strerror}")
        return 1
    if failed:
        print(failed[1])
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
