"""Compiles a student's file, runs it under limits and says what is wrong.

Nothing here uses a network. The program runs in a separate folder below build/<preset>/learn.
"""

import contextlib
import dataclasses
import errno
import functools
import json
import os
import random
import re
import select
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from flash_steps import building, checker
from flash_steps.building import group_of
from flash_steps.command import NotHere
from flash_steps.steps import all_needs_of, runs_on

from .exercises import ROOT, code_lines, line_at, no_text, student_text
from .judging import judge

COMPILE_SECONDS = 60  # of CPU time
COMPILE_BYTES = 4 << 30
RUN_SECONDS = 20  # of wall time
LOOP_SECONDS = 5  # of CPU time in one kernel without a barrier or an end
RUN_BYTES = 1 << 30  # resident; the simulator reserves far more addresses than it uses
FILE_BYTES = 16 << 20  # of a file that a submission writes
HEARD = 10000  # bytes kept of the start and of the end of standard error
NOT_CHECKED = "not checked"  # the checker itself has crashed
STILL_EMPTY = "\nStill empty, and filled in from a solution here: "  # after a finding
SIZES = ("b", "h", "hkv", "n", "nk", "d")  # of a problem, as the steps' programs name them

# What a kind of fault means, and where to look; the other kinds need no advice.
ADVICE = {
    "does not compile": "The compiler stops here. Only the first error is shown: the others often "
    "follow from it.",
    "race": "Two threads access the same word, one of them writes, and nothing orders them. Which "
    "barrier must be between the two accesses, or which thread owns that word?",
    "race on registers": "A wgmma writes its accumulators until a wgmma_wait covers its group. "
    "Which wait stands before this line, and which groups may still run after it?",
    "wrong result": "The kernel runs without a finding, but computes something else. Look at the "
    "element above: which thread writes it, and from what? Its indices say whether it is at the "
    "edge of a tile, at the end of the sequence, or in the middle. Each check draws new inputs, so "
    "another element may be named next time.",
    "unwritten": "Some elements still hold what was there before the kernel ran: no thread stores "
    "them.",
    "not a number": "A NaN or an infinity. Look for -inf - -inf, inf * 0, 0 / 0, and an exp whose "
    "exponent is above 88.",
    "traffic": "The result is right, but the kernel moves more bytes than it needs to. Which "
    "elements are loaded twice, or loaded and not used?",
    "bank conflicts": "Lanes of one warp access different words of the same shared-memory bank, so "
    "the accesses run one after the other. Bank = word index mod 32: write down the "
    "banks of lanes 0, 1 and 2.",
    "coalescing": "The lanes of a warp access words that are far apart in HBM, and each costs a "
    "sector of 32 bytes. Consecutive lanes should access consecutive words.",
    "uninitialised": "A word is read before anything was written to it. Which thread should write "
    "it, and when?",
    "out of bounds": "The index is past the end. N need not be a multiple of the tile: what does "
    "the last tile hold?",
    "deadlock": "Some threads wait at a barrier that others never reach. Find the branch between "
    "them; a barrier with a count also waits for threads that have returned.",
    "endless loop": "A loop whose condition never becomes false, or a wait for something that "
    "never comes.",
    "misaligned": "A vector access needs an address that is a multiple of its size.",
    "wrong limiter": "Each part of a GPU has its own time: what the kernel asks of it, divided by "
    "what the part does in a second. The part with the longest time limits the kernel.",
    "wrong time": "25% off is allowed. Which part is forgotten, counted too often, or divided by "
    'too much? The step\'s program names the parts with --details, under "estimated".',
    "not reset": "The next launch finds what this one leaves. Who is the last to need the counter, "
    "and how does it know?",
    "messages": "A message is under way from start() to finish(): until then nothing may write "
    "what is sent, or read or write the place where it arrives. Which hop uses which buffer?",
    "order": "The result is right, but a copy that is needed early is issued late, and the kernel "
    "waits for it. Write down which product needs which copy, and the order of the products.",
    "wrong bytes": "Each request counts: a tile that is loaded twice counts twice. How "
    "many blocks are there, what does each load or keep, and how often?",
    "wrong choice": "Which part of the GPU limits each of the two? Which of them needs it less?",
    "not in a kernel": "The result is right, but the kernels did not make it.",
    "too slow": "The problems are small: a loop runs far too often, or never ends.",
    NOT_CHECKED: "Not the submission's fault: the teacher should grade it again.",
    "crash": "The program ended before a verdict: an index into a register array past its end, or "
    "an endless recursion.",
}


class NotBuilt(NotHere):
    """Something that checks need is missing: one sentence."""


@dataclasses.dataclass
class Verdict:
    ok: bool
    kind: str = ""  # usually one of ADVICE
    message: str = ""
    seconds: float = 0.0  # compiling and running
    compile_seconds: float = 0.0
    holes: list = dataclasses.field(default_factory=list)  # "right", "filled", "empty"
    problems: list = dataclasses.field(default_factory=list)  # as judging.py saw them

    @property
    def finding(self):
        """The message without the holes that are still empty, whose lines are not at fault."""
        return self.message.partition(STILL_EMPTY)[0]

    @property
    def advice(self):
        registers = self.kind == "race" and self.message.startswith("race on registers")
        return ADVICE.get("race on registers" if registers else self.kind, "")


# --- the build tree -----------------------------------------------------------------------------


def for_gpus(words, needs):
    """nvcc's options for a step that needs these architectures. Code for an "a" GPU runs only
    there: without one there may be older kernels, as in common/gpu/architectures.cmake."""
    if not needs or not needs[-1].endswith("a"):
        return words
    newest = needs[-1]
    numbers = re.findall(r"(?m)^--generate-code=arch=\D*(\d+)", "\n".join(words))
    gpus = [f"sm_{n}" for n in numbers]
    older = all(runs_on(gpu, needs[0]) and not runs_on(gpu, newest) for gpu in gpus)
    if gpus and len(needs) > 1 and older:
        return [*words, "-DFA_NO_WGMMA"]
    code = f"--generate-code=arch={newest.replace('sm', 'compute')},code=[{newest}]"
    return [w for w in words if not w.startswith("--generate-code")] + [code]


class Toolchain:
    """How a build tree compiles and links an exercise, and the step's predictions."""

    def __init__(self, build):
        self.build = Path(build)
        try:
            commands = json.loads((self.build / "compile_commands.json").read_text())
            link = (self.build / "steps/exercise_checker/link.txt").read_text().splitlines()
            own = next(c for c in commands if c["file"].endswith("exercise_checker/prelude.cu"))
        except (OSError, ValueError, StopIteration):
            raise NotBuilt(f"{self.build} holds no built exercise checker") from None
        self.directory = own["directory"]
        words = shlex.split(own["command"])
        if Path(words[0]).name == "ccache":  # has limited support for precompiled headers
            words = words[1:]
        out = words.index("-o")
        del words[out : out + 2]
        own = ("-c", "-M", "-MD", "-MT", "-MF")
        self.compile_words = [w for w in words if w not in own and not w.endswith("prelude.cu")]
        self.link_words = link
        self.checker = self.build / "steps/exercise_checker/checker"
        self.gpu = Path(link[0]).name.startswith("nvcc")
        self.lock = threading.Lock()
        self.predictions = {}

    def folder_of(self, prefix):
        """A temporary folder in the build tree: another program may have filled /tmp."""
        parent = self.build / "learn"
        parent.mkdir(parents=True, exist_ok=True)
        how = {"prefix": prefix, "ignore_cleanup_errors": True}
        return tempfile.TemporaryDirectory(dir=parent, **how)

    def compile(self, step, shadow, source, target):
        """`shadow` is searched before the repository."""
        first, *rest = self.compile_words
        if self.gpu:
            rest = for_gpus(rest, all_needs_of(step))
        kind = [] if self.gpu else ["-fmax-errors=1", "-fdiagnostics-color=never"]
        return [first, f"-I{shadow}", *rest, *kind, "-c", str(source), "-o", str(target)]

    def link(self, obj, target):
        at = self.link_words.index("PROGRAM")
        return [*self.link_words[:at], str(obj), "-o", str(target), *self.link_words[at + 1 :]]

    def predicted(self, exercise):
        """Of each problem {buffer: {"read", "write", "atomic"}} in bytes, or what the student
        should predict: a kernel's estimate {"ms", "parts", ...}, bytes, or {variant: measured ms}.
        Runs the step's program, which is_built() and build_library() provide. Raises NotBuilt."""
        ask = self._expected if exercise.predicts else self._bytes
        with self.lock:
            if exercise.name not in self.predictions:
                try:
                    found = [ask(exercise, problem) for problem in exercise.check["problems"]]
                except (KeyError, TypeError, StopIteration):
                    raise NotBuilt(f"step {exercise.step} predicts no '{exercise.name}'") from None
                self.predictions[exercise.name] = found
        return self.predictions[exercise.name]

    def _expected(self, exercise, problem):
        if "variants" in problem:
            return measured(exercise.step, problem)
        if "buffer" in problem:
            return self._bytes(exercise, problem)[problem["buffer"]][problem["way"]]
        # One head is simulated; the others would be the same.
        words = [f"--{key}={problem[key]}" for key in ("variant", "n", "d")]
        words += ["--input=normal", "--h=1", f"--estimate-heads={problem['h']}"]
        kernels = self._report(exercise, words)["estimate"]["kernels"]
        return next(k for k in kernels if k["name"] == exercise.program["kernel"])

    def _bytes(self, exercise, problem):
        # Estimated for the exercise's heads: splits depend on their number.
        variant = exercise.program.get("variant") or problem["variant"]
        words = ["--predict", "--estimate-heads=0", f"--variant={variant}"]
        words += [f"--{key}={value}" for key, value in {"h": 1, **problem}.items() if key in SIZES]
        words += ["--causal"] if problem.get("causal") else []
        for key in ("window", "lengths"):
            if key in problem:
                words.append(f"--{key}=" + ",".join(map(str, problem[key])))
        report = self._report(exercise, words)
        of = exercise.check.get("pass") or problem.get("pass")
        report = report["backward"] if of == "backward" else report
        buffers = report["traffic"]["requested"]["buffers"]
        return {name: row["predicted"] for name, row in buffers.items()}

    def _report(self, exercise, words):
        command = [str(self.build / "steps" / exercise.step), *words]
        with self.folder_of("predicted-") as folder:
            path = Path(folder, "run.json")
            try:
                done = subprocess.run(
                    [*command, f"--json={path}"], capture_output=True, text=True, errors="replace"
                )
                if done.returncode == 0:
                    return json.loads(path.read_text(encoding="utf-8"))
                said = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
            except (OSError, ValueError) as error:
                said = getattr(error, "strerror", None) or "wrote no JSON"
        raise NotBuilt(f"{shlex.join(command)}: {said}")


def measured(step, problem):
    """{variant: median ms} of a problem on the H200, from docs/results."""
    path = ROOT / "docs" / "results" / "h200_bf16.json"
    sizes = {key: problem[key] for key in SIZES if key in problem}
    sizes["causal"] = problem.get("causal", False)
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    runs = [run for run in runs if run["step"] == step and run["variant"] in problem["variants"]]
    runs = [run for run in runs if run.get("time") and sizes.items() <= run["problem"].items()]
    return {run["variant"]: run["time"]["median_ms"] for run in runs}


def is_built(build, steps=()):
    """Are the checker and the programs of `steps` no older than their sources, and of this tree?"""
    common = ("common/**/*.h", "common/**/*.cpp", "common/CMakeLists.txt", "CMakeLists.txt")

    def is_new(stamp, *sources):
        files = [path for pattern in (*common, *sources) for path in ROOT.glob(pattern)]
        return building.is_newer(Path(build, "steps/exercise_checker", stamp), files)

    here = not building.made_for(build)
    return (
        here
        and is_new("built", "steps/exercise_checker/*.*")
        and all(is_new(f"{step}_built", "steps/*/*.cuh", "steps/*/main.cu") for step in steps)
    )


def build_library(build, preset, say, steps=()):
    """Builds the checker and the programs of `steps`, for bounds; `say` prints. Raises NotBuilt."""
    started, log = time.time(), ROOT / "build" / "learn.log"
    what = f"step {steps[0]}" if len(steps) == 1 else f"{len(steps)} steps"
    say(
        f"building the checker{f' and {what}' if steps else ''}: the first time takes two to three "
        f"minutes on two cores ({log.relative_to(ROOT)})"
    )
    if subprocess.run(["./scripts/setup.sh"], cwd=ROOT).returncode:
        missing = "something is missing, as shown above"
        raise NotBuilt(f"{missing}: install it, and run ./scripts/learn again")
    targets = ["exercises", *[f"{step}_built" for step in steps]]
    failed = building.build_or_say(preset, targets, log, folder=build, lines=12)
    if failed:
        raise NotBuilt(f"{shlex.join(failed[0])} failed; the end of {log}:\n{failed[1]}")
    say(f"built in {time.time() - started:.0f} s")


# --- running under limits -----------------------------------------------------------------------


@functools.cache
def isolated():
    """A prefix that cuts off the network and ends all child processes, where permitted."""
    words = ["unshare", "--map-root-user", "--net", "--pid", "--fork", "--kill-child"]
    if not shutil.which(words[0]):
        return []
    tried = subprocess.run([*words, "true"], capture_output=True, check=False)
    return words if tried.returncode == 0 else []


# Sets the limits and becomes the program. A preexec_fn may hang in a process with threads.
LIMITED = """
{ ulimit -c 0; ulimit -S -t "$1"; ulimit -H -t $(($1 + 1)); } 2> /dev/null
[ "$2" = 0 ] || ulimit -v "$2" 2> /dev/null
[ "$3" = 0 ] || ulimit -f "$3" 2> /dev/null
shift 3
exec "$@"
"""


def _resident(pid):
    """Of a process and its children: isolated() is between this program and the student's."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except (OSError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(map(_resident, children))


class Heard:
    """The start and the end of standard error, read while it is written."""

    def __init__(self, pipe):
        self.pipe, self.poll = pipe.fileno(), select.poll()
        self.poll.register(self.pipe, select.POLLIN)
        self.first = self.last = b""
        self.open = True

    def listen(self, seconds):
        """Waits at most this long. Returns whether there was output."""
        if not self.open or not self.poll.poll(1000 * seconds):
            return False
        read = os.read(self.pipe, 1 << 16)
        self.open = bool(read)
        room = HEARD - len(self.first)
        self.first += read[:room]
        self.last = (self.last + read[room:])[-HEARD:]
        return self.open

    def text(self):
        return (self.first + self.last).decode(errors="replace")


def limited(
    command, folder, cpu, addresses=0, *, seconds=None, resident=0, file=0, temporary=None, pipes=()
):
    """Runs to the end or to a limit: seconds of CPU time, bytes of addresses (0: any), seconds of
    wall time, resident bytes, bytes of a file that it writes (0: any). `temporary`: the folder for
    temporary files, by default `folder`. `pipes`: inherited by this process only. Returns (status
    or the kind of fault, standard error)."""
    numbers = cpu, addresses >> 10, file >> 9
    words = ["/bin/sh", "-c", LIMITED, "learn", *map(str, numbers), *command]
    ends = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    ends["env"] = {**os.environ, "TMPDIR": str(temporary or folder)}
    with group_of(words, cwd=folder, pass_fds=pipes, **ends) as process, process.stderr:
        for pipe in pipes:
            os.close(pipe)
        errors = Heard(process.stderr)
        begun, looked, status = time.monotonic(), 0.0, None
        while status is None:
            if errors.open:
                errors.listen(0.02)
            else:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.02)
            status, now = process.poll(), time.monotonic()
            if status is not None or not seconds or now - looked < 0.02:
                continue
            looked = now
            if now - begun > seconds:
                status = "too slow"
            elif _resident(process.pid) > resident:
                status = "too much memory"
        for _ in range(16):  # the rest of the pipe; another program may still hold its other end
            if not errors.listen(0):
                break
    ends_of = {-signal.SIGXCPU: "too slow", -signal.SIGXFSZ: "too much output"}
    return ends_of.get(status, status), errors.text()


# --- a check ------------------------------------------------------------------------------------


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


# What a file may not add to the exercise, and why.
NOT_YOURS = (
    (r"#\s*include\b.*|%:", "an exercise needs no more includes than it has"),
    (r"\b_*asm_*\b|##", "the simulator does not see what assembly loads and stores"),
    (
        r"\b__attribute(__)?\b|\[\s*\[|_Pragma|#\s*pragma(?!\s+unroll)",
        "attributes and pragmas change what the simulator sees",
    ),
    (r"\bcuda[A-Z]\w*", "the host functions are given, and call CUDA themselves"),
)


def refused_words(exercise, name, text):
    """A sentence when the file contains something of NOT_YOURS more often than the exercise."""
    own, given = text.replace("\\\n", ""), exercise.unsolved()
    for pattern, why in NOT_YOURS:
        allowed = Counter(match[0] for match in re.finditer(pattern, code_lines(given)))
        for match in re.finditer(pattern, code := code_lines(own)):
            allowed[match[0]] -= 1
            if allowed[match[0]] < 0:
                line = line_at(code, match.start())
                return f"{name}:{line} holds '{match[0].strip()}': {why}"
    return ""


def check(exercise, student, toolchain, *, seed=None, isolate=False):
    with toolchain.folder_of(f"{exercise.name}-") as folder:
        student, folder = Path(student).resolve(), Path(folder).resolve()
        return Check(exercise, student, toolchain, seed, folder, isolate).verdict()


class Check:
    def __init__(self, exercise, student, toolchain, seed, folder, isolate):
        self.exercise = exercise
        self.student = student
        self.toolchain = toolchain
        self.seed = random.randrange(1, 1 << 31) if seed is None else seed
        self.folder = folder
        self.isolate = isolate
        self.started = time.monotonic()
        self.compiled = 0.0

    def verdict(self):
        missing = no_text(self.student)
        if missing:
            return self.made("no text", missing)
        text, name = student_text(self.student), self.student.name
        other = self.exercise.mixed_up(name, text)
        if other:
            return self.made("another text", other)
        verdict = self.judged(text)
        if verdict.kind in ("does not compile", "refused"):
            other = self.exercise.damaged(name, text)
        return self.made("another text", other) if other else verdict

    def judged(self, text):
        refused = refused_words(self.exercise, self.student.name, text)
        if self.exercise.predicts and self.toolchain.gpu:
            refused = "a prediction is compared with the simulator's estimate: check without --gpu"
        if refused:
            return self.made("refused", refused)
        holes = self.exercise.holes(text)
        words = ["empty" if hole.empty else "filled" for hole in holes]
        places = _and([f"{self.student.name}:{hole.line}" for hole in holes if hole.empty])
        if set(words) == {"empty"}:
            return self.made("empty", f"write your lines at {places}", holes=words)
        if len(set(words)) == 2:  # some are filled: what are they worth?
            verdict = self.try_text(self.exercise.completed(text, holes))
            if verdict.kind != "does not compile":
                return self.part(verdict, holes, words)
        verdict = self.try_text(text)
        verdict.holes = words
        return verdict

    def part(self, verdict, holes, words):
        """The verdict on the filled holes, from a verdict on a text without empty holes."""
        name = self.student.name
        todo = _and([f"hole {h.number} at {name}:{h.line}" for h in holes if h.empty])
        if verdict.ok:
            right = [str(hole.number) for hole in holes if not hole.empty]
            subject = "Hole" if len(right) == 1 else "Holes"
            verb = "is" if len(right) == 1 else "are"
            verdict.holes = ["right" if word == "filled" else word for word in words]
            verdict.ok, verdict.kind = False, "part right"
            verdict.message = (
                f"{subject} {_and(right)} of {len(holes)} {verb} right: with the rest filled in "
                f"from a solution, all problems pass. Still empty: {todo}."
            )
        else:
            verdict.holes = words
            verdict.message += f"{STILL_EMPTY}{todo}."
        return verdict

    def made(self, kind, message, **fields):
        """The verdict; kind "" means right."""
        seconds = time.monotonic() - self.started
        return Verdict(not kind, kind, message, seconds, self.compiled, **fields)

    def compile(self, text):
        """The compiler's output if it fails, else None."""
        folder, tools = self.folder, self.toolchain
        # The step's other files include each other by path; the shadow replaces the step's file by
        # a copy of the student's, since the student's path may be impossible in an #include.
        _write(folder / self.student.name, text)
        _write(folder / self.exercise.source, f'#include "{self.student.name}"\n')
        _write(folder / "main.cu", self.exercise.main())
        source, obj = folder / "main.cu", folder / "main.o"
        compiler = tools.compile(self.exercise.step, folder, source, obj)
        linker = tools.link(obj, folder / "check")
        started = time.monotonic()
        for command, where in ((compiler, tools.directory), (linker, folder)):
            addresses = 0 if tools.gpu else COMPILE_BYTES
            status, errors = limited(command, where, COMPILE_SECONDS, addresses, temporary=folder)
            if status in (126, 127) and "error" not in errors:
                raise NotBuilt(f"{command[0]} cannot be run: {errors.strip()}")
            if status:
                break
        self.compiled += time.monotonic() - started
        if status and "No space left on device" in errors:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        return errors if status else None

    def try_text(self, text):
        words = self.compile(text)
        if words is not None:
            words = words.replace(f"{self.folder}/", "").replace(f"{ROOT}/", "")
            error = building.first_error(words) or "\n".join(words.splitlines()[:5])
            return self.made("does not compile", error)
        return self.run()

    def request(self):
        """What the program must not know."""
        check = dict(self.exercise.check)
        if not self.toolchain.gpu:
            name = "expected" if self.exercise.predicts else "spec"
            specs = self.toolchain.predicted(self.exercise)
            check["problems"] = [{**p, name: s} for p, s in zip(check["problems"], specs)]
        request = {"seed": self.seed, "pass": "forward", "watchdog": LOOP_SECONDS, **check}
        return {**request, "simulated": not self.toolchain.gpu}

    def converse(self):
        """Runs the program while a thread judges it: (its status, its errors, the verdict)."""
        request, found = self.request(), {}
        (to_program, write), (read, to_judge) = os.pipe(), os.pipe()
        program = [*(isolated() if self.isolate else []), str(self.folder / "check")]
        program += [str(to_program), str(to_judge)]
        limits = {"seconds": RUN_SECONDS, "resident": RUN_BYTES, "file": FILE_BYTES}

        def judged(checks):
            try:
                found["said"] = judge(request, checker.Channel(read, write), checks)
            except Exception as error:  # not the student's fault
                found["error"] = error
            finally:
                os.close(write)
                os.close(read)

        with checker.started(self.toolchain.checker) as checks:
            # A daemon: where the program does not start, its ends of the pipes stay open.
            thread = threading.Thread(target=judged, args=[checks], daemon=True)
            thread.start()
            pipes = to_program, to_judge
            status, errors = limited(program, self.folder, 2 * RUN_SECONDS, **limits, pipes=pipes)
            thread.join()
        if "error" in found:
            raise found["error"]
        return status, errors, found["said"]

    def run(self):
        count = len(self.exercise.check["problems"])
        status, errors, seen = self.converse()
        if isinstance(status, str):
            limit = {
                "too slow": f"{RUN_SECONDS} s",
                "too much memory": f"{RUN_BYTES >> 20} MiB",
                "too much output": f"{FILE_BYTES >> 20} MiB in a file",
            }[status]
            return self.made(status, f"stopped at the limit of {limit}")
        if status == 3:
            none = "no GPU found" in errors
            here = "no GPU found: without --gpu the check runs in the simulator"
            return self.made("no GPU", here if none else errors.strip())
        last = (errors.strip().splitlines() or [f"status {status}"])[-1][-500:]
        if "without a memory access" in last:  # only ending all processes stops it
            return self.made("endless loop", last)
        problems = [p for p in seen["problems"] if p]
        kind, message = seen.get("kind", ""), seen.get("message", "")
        if seen["ok"] and status or not seen["ok"] and not kind and status:
            name = signal.Signals(-status).name + ": " if status < 0 else ""
            return self.made("crash", name + last)
        if not seen["ok"] and not kind:
            words = f"the program ended after {len(problems)} of {count} problems"
            return self.made("no verdict", words)
        if kind == "wrong result":
            first = message.splitlines()[0]
            if "never written" in first:
                kind = "unwritten"
            elif re.search(r" is -?(nan|inf)", first):
                kind = "not a number"
        return self.made(kind, message, problems=problems)


def _and(words):
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
