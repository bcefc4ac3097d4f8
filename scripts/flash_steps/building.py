"""Builds for interactive scripts, and shows progress.

    -m flash_steps.building LOG PRESET [TARGET...]    prints one line, and why it failed; LOG has
                                                      the rest

A terminal shows the progress and the current file on one line; elsewhere a line is printed after
15 s without one. All targets are built at once; `cmake --build --target A B` builds one at a time.
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
    """The current activity on one line of a terminal; closing it removes the line."""

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
        with contextlib.suppress(OSError):  # the reader is gone; its writer reports that
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
    """A process in its own group, which ends with the block; it gets no Ctrl-C of a terminal."""
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
    """Ends the processes that other threads have started, and prevents further ones."""
    global _stopping
    with _lock:
        _stopping = True
        for process in _running:
            _kill_group(process)


def run(command, log, progress):
    """The exit status; writes output line by line to the open file `log`."""
    ends = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with group_of(command, cwd=ROOT, text=True, errors="replace", **ends) as process:
        for line in process.stdout:
            log.write(line)
            log.flush()
            progress.heard(line)
        return process.wait()


def made_for(tree):
    """The folder for which a build folder was configured, if the tree was renamed or copied since:
    everything built there names files of that folder. Else None."""
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
    r"""The commands that configure and build; no target means all. An existing tree keeps its
    generator, ninja or make. \raises NotHere where it was made for another folder."""
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
    """Two builds in one folder would write the same files."""
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
    with Progress(stream, "cmake configures the build") as progress:
        with alone(folder or os.path.join(ROOT, "build", preset), progress):
            for command in commands(preset, targets, folder):
                if run(command, log, progress):
                    return command
    return None


def reason(said, lines=25):
    r"""Why a build failed: the end of its output. \raises NotHere with flash-steps's own sentence,
    if there is one (CMake does not wrap it), or the line about a full disk."""
    if own := re.search(r"^ *flash-steps: (.*)$", said, re.MULTILINE):
        raise NotHere(own[1])
    if full := no_room(said):
        raise NotHere(full)
    return "\n".join(said.splitlines()[-lines:])


def build_or_say(preset, targets, path, stream=None, folder=None, lines=25):
    r"""As build(), logging to `path`: (the command that failed, why), or None. \raises NotHere"""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "a+", encoding="utf-8", errors="replace") as log:
        start = log.seek(0, os.SEEK_END)
        failed = build(preset, targets, log, stream, folder)
        log.seek(start)
        return failed and (failed, reason(log.read(), lines))


def is_newer(stamp, files):
    """Is a build's stamp newer than all files, and not dated in the future, hiding later edits?"""
    try:
        made = os.stat(stamp).st_mtime
        return made < time.time() + 10 and all(os.stat(file).st_mtime <= made for file in files)
    except OSError:
        return False


def first_error(said, lines=5):
    """The first error of a compiler's output, with at most `lines` lines that show it; or ""."""
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
    except OSError as error:  # no cmake, or a folder of another user
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
