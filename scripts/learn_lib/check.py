"""Compiles a student's file, runs it under limits and says what is wrong.

Nothing here uses a network. The program runs in its own folder under build/<preset>/learn.
"""

import contextlib
import dataclasses
import errno
import fcntl
import functools
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from flash_steps import building
from flash_steps.steps import all_needs_of, runs_on

from .exercises import ROOT

COMPILE_SECONDS = 60  # of CPU time
COMPILE_BYTES = 4 << 30
RUN_SECONDS = 20  # of wall time
PREDICT_SECONDS = 20  # of wall time; a step's program predicts in some milliseconds
LOOP_SECONDS = 5  # of CPU time in one kernel without a barrier or an end
RUN_BYTES = 1 << 30  # resident; the simulator reserves far more addresses than it uses
STILL_EMPTY = "\nStill empty, and filled in from a solution here: "  # behind a finding
SIZES = ("b", "h", "hkv", "n", "nk", "d")  # of a problem, as the steps' programs call them

# What a kind of fault means, and where to look.
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
    'too much? The screen of the step\'s program names the parts under "estimated".',
    "part right": "",
    "not in a kernel": "The result is right, but the kernels did not make it.",
    "refused": "",
    "too slow": "The problems are small: a loop runs far too often, or never ends.",
    "too much memory": "",
    "crash": "The program ended before a verdict: an index into a register array past its end, or "
    "an endless recursion.",
    "no verdict": "",
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
    holes: list = dataclasses.field(default_factory=list)  # "right", "filled", "empty"
    problems: list = dataclasses.field(default_factory=list)  # as exercise.cpp wrote them

    @property
    def finding(self):
        """The message without the holes that are still empty, whose lines are not the fault's."""
        return self.message.partition(STILL_EMPTY)[0]

    @property
    def advice(self):
        registers = self.kind == "race" and self.message.startswith("race on registers")
        return ADVICE.get("race on registers" if registers else self.kind, "")


# --- the build tree -----------------------------------------------------------------------------


def for_gpus(words, needs):
    """nvcc's words for a step that needs these architectures. Code of an "a" GPU runs on that one
    only: where no GPU is one, there may be older kernels, as in common/gpu/architectures.cmake."""
    if not needs or not needs[-1].endswith("a"):
        return words
    newest = needs[-1]
    gpus = [
        f"sm_{n}" for word in words for n in re.findall(r"^--generate-code=arch=\D*(\d+)", word)
    ]
    if (
        gpus
        and len(needs) > 1
        and all(runs_on(g, needs[0]) and not runs_on(g, newest) for g in gpus)
    ):
        return [*words, "-DFA_NO_WGMMA"]
    code = f"--generate-code=arch={newest.replace('sm', 'compute')},code=[{newest}]"
    return [w for w in words if not w.startswith("--generate-code")] + [code]


class Toolchain:
    """How a build tree compiles and links an exercise, and what the step itself predicts."""

    def __init__(self, build):
        self.build = Path(build)
        folder = self.build / "steps" / "exercise_checker"
        try:
            commands = json.loads((self.build / "compile_commands.json").read_text())
            link = (folder / "link.txt").read_text().splitlines()
        except (OSError, json.JSONDecodeError):
            raise NotBuilt(f"{self.build} holds no built exercise checker") from None
        own = [c for c in commands if c["file"].endswith("steps/exercise_checker/prelude.cu")]
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
        self.lock = threading.Lock()
        self.predictions = {}
        self.gpu = Path(link[0]).name.startswith("nvcc")

    def compile(self, step, shadow, beside, source, target):
        """`shadow` is looked through before the repository, `beside` after it. The files that were
        read stand in target.d."""
        first, *rest = self.compile_words
        if self.gpu:
            rest = for_gpus(rest, all_needs_of(step))
        kind = [] if self.gpu else ["-fmax-errors=1", "-fdiagnostics-color=never"]
        kind += ["-MMD", "-MF", f"{target}.d"]
        out = ["-c", str(source), "-o", str(target)]
        return [first, f"-I{shadow}", *rest, f"-I{beside}", *kind, *out]

    def predicted(self, exercise):
        """Of each problem {buffer: {"read", "write", "atomic"}} in bytes, or, where the student
        predicts the time, the kernel's estimate {"ms", "parts", ...}; both by the step's program,
        which is_built() and build_library() see to. Raises NotBuilt."""
        key = exercise.step, json.dumps(exercise.program), json.dumps(exercise.check)
        with self.lock:
            if key not in self.predictions:
                ask = self._estimates if exercise.predicts else self._bytes
                self.predictions[key] = ask(exercise)
        return self.predictions[key]

    def _estimates(self, exercise):
        program, kernel = str(self.build / "steps" / exercise.step), exercise.program["kernel"]
        found = []
        for problem in exercise.check["problems"]:
            command = [program, "--variant", problem["variant"], "--input=normal"]
            command += [f"--{key}={problem[key]}" for key in ("n", "d")]
            # One head is simulated; the others would be like it.
            command += ["--h=1", f"--estimate-heads={problem['h']}"]
            try:
                kernels = report_of(command)["estimate"]["kernels"]
                found.append(next(k for k in kernels if k["name"] == kernel))
            except (KeyError, TypeError, StopIteration):
                raise NotBuilt(f"{shlex.join(command)} estimates no time of {kernel}") from None
        return found

    def _bytes(self, exercise):
        command = [str(self.build / "steps" / exercise.step), "--predict"]
        command += ["--variant", exercise.program["variant"]]
        backward = exercise.check.get("pass") == "backward"
        specs = []
        for problem in exercise.check["problems"]:
            words = [f"--{key}={problem[key]}" for key in SIZES if key in problem]
            words += ["--h=1"] if "h" not in problem else []
            words += ["--causal"] if problem.get("causal") else []
            report = report_of([*command, *words])
            try:
                report = report["backward"] if backward else report
                buffers = report["traffic"]["requested"]["buffers"]
                specs.append({name: row["predicted"] for name, row in buffers.items()})
            except (AttributeError, KeyError, TypeError):
                raise NotBuilt(f"{shlex.join([*command, *words])} predicts no bytes") from None
        return specs

    def link(self, obj, target):
        at = self.link_words.index("PROGRAM")
        return [*self.link_words[:at], str(obj), "-o", str(target), *self.link_words[at + 1 :]]


def report_of(command):
    """What a step's program writes with --json. Raises NotBuilt."""
    shown = shlex.join(command)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "report.json"
        try:
            status, _, errors = run_group(
                [*command, f"--json={path}"],
                seconds=PREDICT_SECONDS,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
        except subprocess.TimeoutExpired:
            raise NotBuilt(f"{shown}: stopped at the limit of {PREDICT_SECONDS} s") from None
        except OSError as error:
            raise NotBuilt(f"{shown}: {error.strerror}") from None
        if status:
            last = errors.strip().splitlines()[-1:] or [f"status {status}"]
            raise NotBuilt(f"{shown}: {last[0]}")
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise NotBuilt(f"{shown} wrote no JSON") from None


def newest(*patterns):
    return max((p.stat().st_mtime for pattern in patterns for p in ROOT.glob(pattern)), default=0)


def is_built(build, steps=()):
    """Whether the tree's checker and the programs of `steps` are there and no older than their
    sources."""
    folder = Path(build) / "steps" / "exercise_checker"
    made = [
        folder / "libfa_exercise.a",
        folder / "link.txt",
        Path(build) / "common/libfa_common.a",
        folder / "CMakeFiles/exercise_prelude.dir/prelude.cu.o",
        *[Path(build) / "steps" / step for step in steps],
    ]
    if not all(p.exists() for p in made):
        return False
    common = newest("common/**/*.h", "common/**/*.cpp", "common/CMakeLists.txt", "CMakeLists.txt")

    def is_new(stamp, *sources):
        path = folder / stamp
        return path.exists() and path.stat().st_mtime >= max(common, newest(*sources))

    if not is_new("built", "steps/exercise_checker/*.*"):
        return False
    sources = "steps/*/*.cuh", "steps/*/main.cu"
    return all(is_new(f"{step}_built", *sources) for step in steps)


def _setup(log):
    """Runs setup.sh, whose words go to the terminal and to `log`: (its status, its words)"""
    said = []
    with subprocess.Popen(
        ["./scripts/setup.sh"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        while chunk := os.read(process.stdout.fileno(), 4096):  # not line by line: it may ask
            text = chunk.decode(errors="replace")
            sys.stdout.write(text)
            sys.stdout.flush()
            log.write(text)
            said.append(text)
    return process.returncode, "".join(said)


def _what_to_ask_for(said):
    """The command that setup.sh could not run, in a sentence; "" where it missed nothing."""
    if not re.search(r"^setup: .* is missing", said, re.MULTILINE):
        return ""
    ends = r"(?=  | *\(|: |$)"  # what else the line says
    command = re.findall(r"(?:sudo )?apt(?:-get)? install .*?" + ends, said, re.MULTILINE)
    how = f"run  {command[-1]}  and" if command else "install it, and run"
    return f"something is missing, as shown above: {how} then ./scripts/learn again"


def build_library(build, preset, say, steps=()):
    """Sets up and builds the checker and the programs of `steps`, whose bytes are the bound; `say`
    prints a line. Raises NotBuilt."""
    log = ROOT / "build" / "learn.log"
    log.parent.mkdir(exist_ok=True)
    with open(log.with_suffix(".lock"), "w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another ./scripts/learn is building the checker: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
            if is_built(build, steps):
                return
        _build(build, preset, say, log, steps)


def _build(build, preset, say, log, steps):
    started = time.time()
    what = "the checker"
    if steps:
        what += f" and step {steps[0]}" if len(steps) == 1 else f" and {len(steps)} steps"
    say(f"building {what}: the first time takes a minute or two ({log.relative_to(ROOT)})")
    targets = ["exercises", *[f"{step}_built" for step in steps]]
    with open(log, "w", encoding="utf-8") as file:
        status, said = _setup(file)
        if status:
            raise NotBuilt(_what_to_ask_for(said) or said.strip().splitlines()[-1])
        file.flush()
        try:
            failed = building.build(preset, targets, file, None, build, group_of)
        except FileNotFoundError as error:
            raise NotBuilt(
                _what_to_ask_for(said) or f"{error.filename} is not installed: ./scripts/setup.sh"
            ) from None
        if failed:
            tail = building.reason(log.read_text(encoding="utf-8", errors="replace"), 12)
            end = _what_to_ask_for(said)
            raise NotBuilt(
                "\n".join(
                    [
                        f"{shlex.join(failed)} failed; the end of {log}:",
                        tail,
                        *([end] if end else []),
                    ]
                )
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


# Sets the limits and becomes the program. A preexec_fn may hang where there are threads.
LIMITED = """
{ ulimit -c 0; ulimit -S -t "$1"; ulimit -H -t $(($1 + 1)); } 2> /dev/null
[ "$2" = 0 ] || ulimit -v "$2" 2> /dev/null
shift 2
exec "$@"
"""


def limited(command, seconds, address_space=0):
    """The command under limits: seconds of CPU time, bytes of addresses (0: any)."""
    return ["/bin/sh", "-c", LIMITED, "learn", str(seconds), str(address_space >> 10), *command]


_running = set()  # process groups
_lock = threading.Lock()
_stopping = False


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
        _kill(process)
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()
        with _lock:
            _running.discard(process)


def run_group(command, seconds=None, **options):
    """Waits for the end: (status, output, error output). After `seconds` it raises
    subprocess.TimeoutExpired."""
    with group_of(command, **options) as process:
        out, errors = process.communicate(timeout=seconds)
        return process.returncode, out, errors


def stop_all():
    """Ends what other threads have started, and lets them start nothing more."""
    global _stopping
    with _lock:
        _stopping = True
        for process in _running:
            _kill_group(process)


def _resident(pid):
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return 0


def _kill_group(process):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _kill(process):
    _kill_group(process)
    process.wait()


def _watched(command, folder, seconds, resident):
    """Runs to the end or to a limit. (status or the kind of fault, standard error)"""
    with open(folder / "stderr.txt", "w+", encoding="utf-8", errors="replace") as errors:
        with group_of(
            limited(command, 2 * seconds),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
        ) as process:
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
        if status == -signal.SIGXCPU:
            status = "too slow"
        errors.seek(0)
        return status, errors.read(10000)


# --- a check ------------------------------------------------------------------------------------


def _first_error(text, folder):
    """The first error of a compiler's output, with the lines that show it."""
    text = text.replace(f"{folder}/", "").replace(f"{ROOT}/", "")
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


def steps_included(text):
    """{"steps/NN_name/file": line} of a text's own include lines."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        directive, _, name = line.replace("<", '"').replace(">", '"').partition('"')
        path = name.partition('"')[0].split("/")[-3:]
        if "".join(directive.split()) == "#include" and path[0] == "steps" and len(path) == 3:
            found.setdefault("/".join(path), number)
    return found


def _may_include(exercise):
    """The steps' files that the unchanged exercise itself reads."""
    allowed, waiting = {exercise.source}, [exercise.unsolved(), exercise.main()]
    while waiting:
        for name in steps_included(waiting.pop()):
            if name not in allowed and (ROOT / name).is_file():
                allowed.add(name)
                waiting.append((ROOT / name).read_text(encoding="utf-8"))
    return allowed


def _refused_include(exercise, name, text, made=None):
    """A sentence when a file of a step is included that the exercise does not include; `made`: the
    compiler's list of what it read."""
    allowed = _may_include(exercise)
    lines = steps_included(text)
    if made is None:
        seen = [step for step in lines if step not in allowed or step == exercise.source]
    else:
        folder = str((ROOT / "steps").resolve()) + "/"
        words = re.split(r"(?<!\\)\s+", made.replace("\\\n", " "))  # a rule for make
        files = [str(Path(word.replace("\\ ", " ")).resolve()) for word in words[1:]]
        steps = [f.removeprefix(str(ROOT.resolve()) + "/") for f in files if f.startswith(folder)]
        seen = [
            f for f in steps if f not in allowed and not f.startswith("steps/exercise_checker/")
        ]
        seen += [f for f in steps if f == exercise.source]
    if not seen:
        return ""
    at = f":{lines[seen[0]]}" if seen[0] in lines else ""
    return (
        f"{name}{at} includes {seen[0]}: write it yourself; of the steps you may use only what "
        "the exercise itself includes"
    )


def check(exercise, student, toolchain, *, seed=None, folder=None, isolate=False):
    """The verdict on the file `student`. `folder`: where to compile, one per check at a time; else
    one that is gone afterwards."""
    student = Path(student).resolve()
    with contextlib.ExitStack() as stack:
        if folder is None:
            parent = toolchain.build / "learn"
            parent.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(
                    prefix=f"{exercise.name}-", dir=parent, ignore_cleanup_errors=True
                )
            )
        one = Check(exercise, student, toolchain, seed, Path(folder).resolve(), isolate)
        return one.verdict()


class Check:
    """One check of one file."""

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
        text = self.student.read_bytes().decode(errors="replace")
        refused = _refused_include(self.exercise, self.student.name, text)
        if self.exercise.predicts and self.toolchain.gpu:
            refused = "a prediction is compared with the simulator's estimate: check without --gpu"
        if refused:
            return self.wrong("refused", refused)
        holes = self.exercise.holes(text)
        words = ["empty" if hole.empty else "filled" for hole in holes]
        if len(set(words)) == 2:  # some are filled: what are they worth?
            verdict = self.try_text(self.exercise.completed(text, holes), text)
            if verdict.kind != "does not compile":
                return self.part(verdict, holes, words)
        verdict = self.try_text(text, text)
        verdict.holes = words
        return verdict

    def part(self, verdict, holes, words):
        """The verdict on the filled holes, from one on a text in which none is empty."""
        empty = [hole for hole in holes if hole.empty]
        name = self.student.name
        todo = _and([f"hole {hole.number} at {name}:{hole.line}" for hole in empty])
        if verdict.ok:
            right = [str(hole.number) for hole in holes if not hole.empty]
            one = len(right) == 1
            verdict.holes = ["right" if word == "filled" else word for word in words]
            verdict.ok, verdict.kind = False, "part right"
            verdict.message = (
                f"{'Hole' if one else 'Holes'} {_and(right)} of {len(holes)} "
                f"{'is' if one else 'are'} right: with the rest filled in from a solution, all "
                f"problems pass. Still empty: {todo}."
            )
        else:
            verdict.holes = words
            verdict.message += f"{STILL_EMPTY}{todo}."
        return verdict

    def wrong(self, kind, message, problems=()):
        return self.made(ok=False, kind=kind, message=message, problems=list(problems))

    def made(self, **fields):
        return Verdict(
            seconds=time.monotonic() - self.started, compile_seconds=self.compiled, **fields
        )

    def compile(self, text):
        """The compiler's words where it fails, else None."""
        folder, tools = self.folder, self.toolchain
        # The step's other files include each other by path; the shadow puts the student's in its
        # place. A copy: its path holds no character that an include could not spell.
        _write(folder / self.student.name, text)
        _write(folder / self.exercise.source, f'#include "{self.student.name}"\n')
        _write(folder / "main.cu", self.exercise.main())
        obj = folder / "main.o"
        started = time.monotonic()
        for command, cwd in (
            (
                tools.compile(
                    self.exercise.step, folder, self.student.parent, folder / "main.cu", obj
                ),
                tools.directory,
            ),
            (tools.link(obj, folder / "check"), folder),
        ):
            status, out, errors = run_group(
                limited(command, COMPILE_SECONDS, 0 if tools.gpu else COMPILE_BYTES),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
            if status in (126, 127) and "error" not in errors:
                raise NotBuilt(f"{command[0]} cannot be run: {errors.strip()}")
            if status:
                break
        self.compiled += time.monotonic() - started
        if status and "No space left on device" in errors + out:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
        return errors + out if status else None

    def try_text(self, text, original):
        words = self.compile(text)
        if words is not None:
            return self.wrong("does not compile", _first_error(words, self.folder))
        made = (self.folder / "main.o.d").read_text(encoding="utf-8", errors="replace")
        refused = _refused_include(self.exercise, self.student.name, original, made)
        if refused:
            return self.wrong("refused", refused)
        return self.run()

    def run(self):
        folder, exercise = self.folder, self.exercise
        check = dict(exercise.check)
        if not self.toolchain.gpu:
            name = "estimate" if exercise.predicts else "spec"
            specs = self.toolchain.predicted(exercise)
            check["problems"] = [{**p, name: s} for p, s in zip(check["problems"], specs)]
        request = {
            "seed": self.seed,
            "pass": "forward",
            "watchdog": LOOP_SECONDS,
            **check,
        }
        _write(folder / "request.json", json.dumps(request))
        result = folder / "result.json"
        result.unlink(missing_ok=True)
        prefix = without_network() if self.isolate else []
        command = [*prefix, str(folder / "check"), "request.json", "result.json"]
        status, errors = _watched(command, folder, RUN_SECONDS, RUN_BYTES)
        if isinstance(status, str):
            limit = f"{RUN_SECONDS} s" if status == "too slow" else f"{RUN_BYTES >> 20} MiB"
            return self.wrong(status, f"stopped at the limit of {limit}")
        last = errors.strip().splitlines()[-1:] or [f"status {status}"]
        if status == 3:
            none = "no GPU found" in errors
            return self.wrong(
                "no GPU",
                "no GPU found: without --gpu the check runs in the simulator"
                if none
                else errors.strip(),
            )
        if "without a memory access" in last[0]:  # nothing but the end of all stops it
            return self.wrong("endless loop", last[0])
        if status == 2 and "result.json: cannot be written" in errors:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(result))
        try:
            seen = json.loads(result.read_text(encoding="utf-8"))
            ok, kind, message = seen["ok"] is True, seen.get("kind", ""), seen.get("message", "")
            problems = [p for p in seen["problems"] if p["problem"]]
            if not ok and not (kind and message):
                raise ValueError
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            name = signal.Signals(-status).name + ": " if status < 0 else ""
            return self.wrong("crash", name + last[0])
        if ok and status:
            return self.wrong("crash", f"the program ended with status {status}: {last[0]}")
        if ok and len(problems) != len(exercise.check["problems"]):
            return self.wrong(
                "no verdict",
                f"the program ended after {len(problems)} of {len(exercise.check['problems'])} "
                "problems",
            )
        if kind == "wrong result":
            first = message.splitlines()[0]
            if "never written" in first:
                kind = "unwritten"
            elif re.search(r" is -?(nan|inf)", first):
                kind = "not a number"
        return self.made(ok=ok, kind=kind, message=message, problems=problems)


def _and(words):
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
