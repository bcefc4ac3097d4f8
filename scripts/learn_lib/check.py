"""Compiles a student's file, runs it under limits and says what is wrong.

Nothing here uses a network. The program runs in a folder of its own under build/<preset>/learn.
"""

import dataclasses
import functools
import json
import os
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

from .exercises import ROOT

COMPILE_SECONDS = 60  # of CPU time
COMPILE_BYTES = 4 << 30
RUN_SECONDS = 20  # of wall time
RUN_BYTES = 1 << 30  # resident; the simulator reserves far more addresses than it uses

# What a kind of fault means, and where to look.
ADVICE = {
    "does not compile": "The compiler stops here. Only the first error is shown: the others often "
    "follow from it.",
    "race": "Two threads touch the same word, one of them writes, and nothing orders them. Look at "
    "the two lines: which barrier must stand between them, or who else owns that word?",
    "wrong result": "The kernel runs clean and computes something else. Take the element above: "
    "which thread writes it, and from what? Its indices say whether it lies at the "
    "edge of a tile, at the end of the sequence, or in the middle.",
    "unwritten": "Some elements still hold what was there before the kernel ran: no thread stores "
    "them.",
    "not a number": "A NaN or an infinity. Look for -inf - -inf, 0 / 0, and an exp whose exponent "
    "is above 88.",
    "traffic": "The result is right, but the kernel moves more bytes than it needs to. Which "
    "elements are loaded twice, or loaded and not used?",
    "bank conflicts": "Lanes of one warp want different words of the same shared-memory bank, and "
    "are served one after the other. Bank = word index mod 32: write down the "
    "banks of lanes 0, 1 and 2.",
    "coalescing": "The lanes of a warp touch words that lie far apart in HBM, and each costs a "
    "sector of 32 bytes. Consecutive lanes should touch consecutive words.",
    "uninitialised": "Something is read that nobody has written. Who should have, and when?",
    "out of bounds": "The index passes the end. N need not be a multiple of the tile: what does "
    "the last tile hold?",
    "deadlock": "Some threads wait at a barrier that others never reach. Find the branch between "
    "them; a barrier with a count waits for threads that have returned, too.",
    "endless loop": "A loop whose condition never becomes false, or a wait for something that "
    "never comes.",
    "misaligned": "A vector access needs an address that is a multiple of its size.",
    "refused": "",
    "too slow": "The problems are small: a loop runs far too often, or never ends.",
    "too much memory": "",
    "crash": "The program ended before a verdict: an index into a register array past its end, or "
    "an endless recursion.",
    "no GPU": "",
}


class NotBuilt(Exception):
    """The library that exercises are compiled with is missing: one sentence."""


@dataclasses.dataclass
class Verdict:
    ok: bool
    kind: str = ""  # a key of ADVICE
    message: str = ""
    seconds: float = 0.0  # compiling and running
    compile_seconds: float = 0.0
    problems: list = dataclasses.field(default_factory=list)  # as exercise.cpp wrote them

    @property
    def advice(self):
        return ADVICE.get(self.kind, "")


# --- the build tree -----------------------------------------------------------------------------


class Toolchain:
    """How a build tree compiles and links an exercise."""

    def __init__(self, build):
        self.build = Path(build)
        folder = self.build / "steps" / "exercises"
        try:
            commands = json.loads((self.build / "compile_commands.json").read_text())
            link = (folder / "link.txt").read_text().splitlines()
        except (OSError, json.JSONDecodeError):
            raise NotBuilt(f"{self.build} holds no built classroom") from None
        own = [c for c in commands if c["file"].endswith("steps/exercises/prelude.cu")]
        if not own:
            raise NotBuilt(f"{self.build}/compile_commands.json does not name prelude.cu")
        self.directory = own[0]["directory"]
        words = shlex.split(own[0]["command"])
        if Path(words[0]).name == "ccache":  # knows little of precompiled headers
            words = words[1:]
        out = words.index("-o")
        del words[out : out + 2]
        self.compile_words = [
            w
            for w in words
            if not w.endswith("prelude.cu") and w not in ("-c", "-M", "-MD", "-MT", "-MF")
        ]
        self.link_words = link
        self.gpu = Path(link[0]).name.startswith("nvcc")

    def compile(self, shadow, source, target):
        first, *rest = self.compile_words
        kind = [] if self.gpu else ["-fmax-errors=1", "-fdiagnostics-color=never"]
        return [first, f"-I{shadow}", *rest, *kind, "-c", str(source), "-o", str(target)]

    def link(self, obj, target):
        at = self.link_words.index("PROGRAM")
        return [*self.link_words[:at], str(obj), "-o", str(target), *self.link_words[at + 1 :]]


def newest(*patterns):
    return max((p.stat().st_mtime for pattern in patterns for p in ROOT.glob(pattern)), default=0)


def is_built(build):
    """Whether the tree's library is there and no older than its sources."""
    folder = Path(build) / "steps" / "exercises"
    made = [
        folder / "libfa_exercise.a",
        folder / "link.txt",
        Path(build) / "common/libfa_common.a",
        folder / "CMakeFiles/exercise_prelude.dir/prelude.cu.o",
    ]
    if not all(p.exists() for p in made):
        return False
    sources = newest(
        "common/**/*.h",
        "common/**/*.cpp",
        "steps/exercises/*.*",
        "steps/*/*.cuh",
        "common/CMakeLists.txt",
        "CMakeLists.txt",
    )
    stamp = folder / "built"
    return stamp.exists() and stamp.stat().st_mtime >= sources


def build_library(build, preset, say):
    """Sets up and builds; `say` prints a line. Raises NotBuilt."""
    started = time.time()
    log = ROOT / "build" / "learn.log"
    log.parent.mkdir(exist_ok=True)
    say(f"building the checker, a minute or two when it is new ({log.relative_to(ROOT)})")
    configure = ["cmake", "--preset", preset, "-B", str(build)]
    make = ["cmake", "--build", str(build), "-j", str(os.cpu_count()), "--target", "exercises"]
    with open(log, "w", encoding="utf-8") as file:
        for command in (["./scripts/setup.sh"], configure, make):
            done = subprocess.run(
                command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT, check=False
            )
            if done.returncode:
                tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:]
                raise NotBuilt(
                    "\n".join([f"{shlex.join(command)} failed; the end of {log}:"] + tail)
                )
    say(f"built in {time.time() - started:.0f} s")


# --- running under limits -----------------------------------------------------------------------


@functools.cache
def without_network():
    """A prefix that takes the network away, where the kernel lets an ordinary user do that."""
    words = ["unshare", "--map-root-user", "--net"]
    if not shutil.which(words[0]):
        return []
    tried = subprocess.run([*words, "true"], capture_output=True, check=False)
    return words if tried.returncode == 0 else []


def _limits(seconds, address_space):
    def apply():
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        if address_space:
            resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))

    return apply


def _resident(pid):
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _kill(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def _watched(command, folder, seconds, resident):
    """Runs to the end or to a limit. (status or the kind of fault, standard error)"""
    with open(folder / "stderr.txt", "w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            preexec_fn=_limits(2 * seconds, 0),
        )
        end = time.monotonic() + seconds
        status = None
        while status is None:
            try:
                process.wait(0.02)
                status = process.returncode
            except subprocess.TimeoutExpired:
                if time.monotonic() > end:
                    status = "too slow"
                elif _resident(process.pid) > resident:
                    status = "too much memory"
            except KeyboardInterrupt:
                _kill(process)
                raise
        _kill(process)
        errors.seek(0)
        return status, errors.read(10000)


# --- a check ------------------------------------------------------------------------------------


def _first_error(text, student):
    """The first error of a compiler's output, with the lines that show it."""
    text = text.replace(str(student), student.name).replace(str(ROOT) + "/", "")
    lines = text.splitlines()
    for i, line in enumerate(lines):
        if re.search(r"\berror\b", line):
            shown = [line]
            for more in lines[i + 1 : i + 6]:
                if not re.match(r"\s+(\d+ )?\|", more):
                    break
                shown.append(more)
            return "\n".join(shown)
    return "\n".join(lines[:5])


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def check(exercise, student, toolchain, *, seed=None, folder=None, isolate=False):
    """The verdict on the file `student`. `folder`: where to compile (one per check at a time)."""
    student = Path(student).resolve()
    folder = Path(folder or toolchain.build / "learn" / exercise.name).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    # The step's other files include each other by path; the shadow puts the student's in its place.
    _write(folder / exercise.source, f'#include "{student}"\n')
    _write(folder / "main.cu", exercise.main())
    started = time.monotonic()

    def verdict(**kind):
        return Verdict(seconds=time.monotonic() - started, compile_seconds=compiled, **kind)

    compiled = 0.0
    built = subprocess.run(
        toolchain.compile(folder, folder / "main.cu", folder / "main.o"),
        cwd=toolchain.directory,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        preexec_fn=_limits(COMPILE_SECONDS, 0 if toolchain.gpu else COMPILE_BYTES),
    )
    if built.returncode == 0:
        built = subprocess.run(
            toolchain.link(folder / "main.o", folder / "check"),
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
    compiled = time.monotonic() - started
    if built.returncode:
        return verdict(
            ok=False,
            kind="does not compile",
            message=_first_error(built.stderr + built.stdout, student),
        )

    seed = random.randrange(1, 1 << 31) if seed is None else seed
    request = {"spec": exercise.program["spec"], "seed": seed, "pass": "forward", **exercise.check}
    _write(folder / "request.json", json.dumps(request))
    result = folder / "result.json"
    result.unlink(missing_ok=True)
    prefix = without_network() if isolate else []
    command = [*prefix, str(folder / "check"), "request.json", "result.json"]
    status, errors = _watched(command, folder, RUN_SECONDS, RUN_BYTES)
    if isinstance(status, str):
        limit = f"{RUN_SECONDS} s" if status == "too slow" else f"{RUN_BYTES >> 20} MiB"
        return verdict(ok=False, kind=status, message=f"stopped at the limit of {limit}")
    if status == 3:
        none = "no GPU found" in errors
        return verdict(
            ok=False,
            kind="no GPU",
            message="no GPU found: without --gpu the simulator checks" if none else errors.strip(),
        )
    try:
        seen = json.loads(result.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        last = errors.strip().splitlines()[-1:] or [f"status {status}"]
        name = signal.Signals(-status).name + ": " if status < 0 else ""
        return verdict(ok=False, kind="crash", message=name + last[0])
    kind, message = seen.get("kind", ""), seen.get("message", "")
    if kind == "wrong result":
        if "never written" in message:
            kind = "unwritten"
        elif re.search(r" is -?(nan|inf)", message):
            kind = "not a number"
    return verdict(ok=seen["ok"], kind=kind, message=message, problems=seen["problems"])
