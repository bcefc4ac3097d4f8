"""A call of gpu_check.sh: its folder, its report, and the programs that it runs."""

import concurrent.futures
import glob
import os
import time

from . import building
from .command import Failure
from .commits import here, is_current, source_digest
from .files import read_json, read_text, write_json, write_text
from .gpu_table import find_model
from .merge import roof_notes, without_slowed, write_results
from .problems import flags, tag
from .results import Run, get, load, load_folder
from .shell import Shell, last_line
from .standing import mark_slowed
from .steps import ROOT, find_steps, needs_of, program_of, runs_on

TOOL_ENVIRONMENT = {"FLASH_STEPS_UNDER_TOOL": "1"}  # no counters and no timing of our own beside it
SHORTEST_RUN = 8  # seconds; with less time left no run starts
RESUMED = ("tests", "sanitizer", "memory", "figure2")  # which --figures does once
OUT_OF_TIME = "out of time: run the same command again to continue"


class NoTime(Failure):
    """One sentence: the section is not finished."""


def name_of(case):
    """Of a (step, variant, problem), as all `case` and `cases` here are."""
    step, variant, problem = case
    return f"{step}.{variant}.{tag(problem)}"


class Session:
    """What sections are made of."""

    def __init__(self, options):
        self.options = options
        self.out = os.path.abspath(options.out)
        self.results = {"schema": 1, "sources": source_digest()}
        self.keep_runs_of_this_text()
        self.earlier_commands = []
        if options.figures:
            self.go_on_from_an_earlier_call()
        deadline = None if options.sim_only else time.monotonic() + options.budget
        self.shell = Shell(self.out, deadline, options.python)
        self.steps = find_steps(options.steps)
        self.chosen = options.sections
        self.done = {}  # what run() gave in this call
        self.report = []
        self.sections = {}
        self.jobs = os.cpu_count() or 1

    def keep_runs_of_this_text(self):
        """Calls for other sections add to a folder; runs of another text are removed from it. What
        the simulator counts also depends on the simulator."""
        mark = os.path.join(self.out, "sources.sha256")
        same = os.path.exists(mark) and read_text(mark) == self.results["sources"]
        for name in ("gpu", "sim"):
            folder = os.path.join(self.out, name)
            os.makedirs(folder, exist_ok=True)
            for path in glob.glob(os.path.join(folder, "*.json")):
                data = load(path)[0].data
                if not is_current(data["step"], data.get("commit")) or (
                    name == "sim" and not same and folder != self.options.sim_json
                ):
                    os.remove(path)
        write_text(mark, self.results["sources"])

    def go_on_from_an_earlier_call(self):
        """What OUT/results.json has of this text is not run again. That one file is enough, so a
        call can resume where one on another machine ended."""
        path = os.path.join(self.out, "results.json")
        if not os.path.exists(path):
            return
        before = read_json(path)
        mark_slowed([Run(data, "forward") for data in before["runs"]])
        for data in before["runs"]:
            if not data.pop("slowed") and get(data, "device.kind") == "gpu":
                case = data["step"], data["variant"], data["problem"]
                write_json(self.path_of("gpu", case), data)
        self.keep_runs_of_this_text()
        self.earlier_commands = before.get("commands", [])
        for key in ("tests", "sanitizer", "memory", "figure2", "peers", "peers_seconds", "done"):
            if key in before:
                self.results[key] = before[key]
        if "peers" in before:
            self.results["peers"] = without_slowed(before["peers"])

    def path_of(self, folder, case):
        return os.path.join(self.out, folder, name_of(case) + ".json")

    def is_done(self, name):
        """Whether an earlier call ran this section, with these steps, unchanged since."""
        mark = self.results.get("done", {}).get(name)
        if name == "tests" or not mark:
            return mark is not None and mark == self.results["sources"]
        return mark["steps"] == self.steps and all(
            is_current(s, mark["commit"]) for s in self.steps
        )

    def say(self, text=""):
        print(text, flush=True)
        self.report.append(text)

    def section(self, name, body, always=False):
        """Runs body() -> (ok, one line). An error fails only this section; `always` is for sections
        that read results and take no time."""
        self.say(f"== {name}")
        start = time.monotonic()
        if name in RESUMED and self.is_done(name):
            self.sections[name] = {"ok": True, "summary": "done in an earlier call", "seconds": 0}
            self.say("done in an earlier call\n")
            return True
        if self.shell.remaining() <= 0 and not always:
            ok, line = False, "not reached: out of time"
        else:
            try:
                ok, line = body()
            except Failure as error:
                ok, line = False, str(error)
            except Exception as error:  # a bug here must not cost the other sections
                ok, line = False, f"{type(error).__name__}: {error}"
        self.sections[name] = {
            "ok": ok,
            "summary": line,
            "seconds": round(time.monotonic() - start, 1),
        }
        self.say(f"{'ok' if ok else 'FAILED'}: {line}\n")
        if self.options.figures:
            if ok and name in RESUMED:
                mark = {"commit": here(), "steps": self.steps}
                mark = self.results["sources"] if name == "tests" else mark
                self.results.setdefault("done", {})[name] = mark
            self.write()
        return ok

    def write(self):
        runs = []
        for folder in (
            os.path.join(self.out, "gpu"),
            self.options.sim_json or os.path.join(self.out, "sim"),
        ):
            for run in load_folder(folder):
                ours = not self.options.figures or run.data["step"] in self.steps
                if run.direction == "forward" and ours:  # the object holds all passes
                    runs.append(run.data)
        self.results.update(
            sections=self.sections,
            commands=self.earlier_commands + self.shell.commands,
            runs=runs,
            notes=roof_notes(runs, self.results.get("device")),
        )
        write_results(os.path.join(self.out, "results.json"), self.results)
        write_text(os.path.join(self.out, "report.txt"), "\n".join(self.report) + "\n")

    def program(self, preset, step):
        return program_of(os.path.join(ROOT, "build", preset), step)

    def call_of(self, preset, case):
        step, variant, problem = case
        return [
            self.program(preset, step),
            f"--variant={variant}",
            *flags(problem),
            "--input=normal",
        ]

    def build(self, preset, targets):
        configure, build = building.commands(preset, targets, jobs=self.jobs)
        status, output = self.shell(f"configure {preset}", configure)
        if status == 0:
            status, output = self.shell(f"build {preset}", build)
        if status == 0:
            return True, f"built {preset}"
        if status is None:
            return False, f"{preset}: {self.said(status, output)}"
        reason = next(
            (line.strip() for line in output.splitlines() if "rror" in line), last_line(output)
        )
        return False, f"{preset} did not build (logs/): {reason}"

    def said(self, status, output):
        """The last line of a program's output, or why it was stopped before its end."""
        if status is None:
            return "stopped: out of time" if self.shell.remaining() <= 0 else "took too long"
        return last_line(output)

    def variants(self, preset):
        """[(step, variant)] in reading order."""
        found = []
        for step in self.steps:
            found += [(step, name) for name in self.variants_of(preset, step)]
        return found

    def variants_of(self, preset, step):
        status, text = self.shell(
            f"variants {step}", [self.program(preset, step), "--list-variants"], 60
        )
        if status is None:
            raise NoTime(f"{step} --list-variants: {self.said(status, text)}")
        if status != 0 or not text.strip():
            raise Failure(f"{step} --list-variants printed no names: {last_line(text)}")
        return text.split()

    def run(self, kind, case, *more, timeout=None, environment=None, folder=None):
        """(exit status, JSON or None, last line of the output); the JSON lands in `folder`, which
        is gpu/ or sim/ where none is named."""
        step, variant, problem = case
        path = self.path_of(folder or kind, case)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path):
            os.remove(path)  # of an earlier call
        status, output = self.shell(
            f"{folder or kind} {name_of(case)}",
            [*self.call_of(kind, case), f"--json={path}", *more],
            timeout,
            environment,
        )
        data = None
        if status in (0, 1) and os.path.exists(path):
            data = load(path)[0].data
            data["commit"] = here()
            write_json(path, data)
        return status, data, self.said(status, output)

    def simulate(self, cases, workers):
        """Runs cases side by side, one simulator thread each. (ok, one line, a line for each that
        went wrong)."""
        modelled = find_model(self.results["model_gpu"])

        def model(case):
            """A step that this GPU cannot run is simulated on the default one."""
            fits = runs_on(modelled["arch"], needs_of(case[0]))
            return [f"--gpu={modelled['name']}"] if fits else []

        # The largest first: the last to finish decides.
        def work(case):
            p = case[2]
            return p["h"] * p["n"] * p.get("nk", p["n"]) * p["d"]

        ordered = sorted(cases, key=work, reverse=True)
        with concurrent.futures.ThreadPoolExecutor(max(1, workers)) as pool:
            done = list(
                pool.map(lambda case: self.run("sim", case, "--workers=1", *model(case)), ordered)
            )
        failed = [
            f"{step} {variant} {tag(problem)}: {'' if status is None else f'exit {status}: '}{line}"
            for (step, variant, problem), (status, _, line) in zip(ordered, done)
            if status not in (0, 2)
        ]
        right = len(done) - len(failed)
        return not failed, f"{right} of {len(done)} problems simulated", failed

    def gpu_run(self, case, *more, timeout=120):
        """(exit status, seconds); a problem that this call has already run is not run again."""
        step, variant, problem = case
        name = name_of(case)
        if name not in self.done and self.options.figures:
            path = self.path_of("gpu", case)
            data = load(path)[0].data if os.path.exists(path) else None
            counted = get(data, "traffic.requests") and get(data, "traffic.hbm.measured")
            passes = [data, get(data, "prepare"), get(data, "backward")]
            timed = all(get(run, "time.median_ms") for run in passes if run)
            if get(data, "ok") and timed and (counted or "--no-counters" in more):
                self.done[name] = 0, 0.0
            elif self.shell.remaining() < SHORTEST_RUN:
                raise NoTime(OUT_OF_TIME)
        if name not in self.done:
            start = time.monotonic()
            status, _, line = self.run("gpu", case, *more, timeout=timeout)
            if status != 0:
                # None and 2 (this step does not support it): the line says it.
                what = {None: "", 1: "wrong result: ", 2: ""}.get(status, f"exit {status}: ")
                self.say(f"{step} {variant} {tag(problem)}: {what}{line}")
            self.done[name] = status, time.monotonic() - start
        return self.done[name]

    def gpu_runs(self, cases, *more):
        """(how many were right, how many were not). Problems that a step refuses (2), or for which
        this GPU has too little memory or shared memory (3), count as neither."""
        statuses = [self.gpu_run(case, *more)[0] for case in cases]
        return statuses.count(0), sum(status not in (0, 2, 3) for status in statuses)

    def gpu_results(self):
        return load_folder(os.path.join(self.out, "gpu"))

    def of_this_call(self, problems, runs):
        """The runs of these problems, of the steps that this call is about."""
        wanted = {tag(p) for p in problems}
        return [
            run
            for run in runs
            if run.data["step"] in self.steps and tag(run.data["problem"]) in wanted
        ]
