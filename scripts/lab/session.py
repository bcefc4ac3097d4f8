"""A call of gpu_check.sh or `maintain measure`: its folder, its report, the programs it runs."""

import concurrent.futures
import glob
import json
import math
import os
import re
import shlex
import subprocess
import threading
import time

from flash_steps import building
from flash_steps.command import Failure
from flash_steps.commits import here, is_current, source_digest
from flash_steps.files import read_json, read_text, write_json, write_rows, write_text
from flash_steps.gpu_table import find_model
from flash_steps.problems import flags, tag
from flash_steps.results import Run, get, load, load_folder
from flash_steps.standing import mark_slowed
from flash_steps.steps import ROOT, find_steps, program_of, runs_on

from .merge import roof_notes, without_slowed

SHORTEST_RUN = 8  # seconds; with less time left no run starts
RESUMED = ("tests", "sanitizer", "memory", "figure2")  # which --figures does once
OUT_OF_TIME = "out of time: run the same command again to continue"


class NoTime(Failure):
    """One sentence: the section is not finished."""


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def name_of(case):
    """Of a (step, variant, problem), as all `case` and `cases` here are."""
    step, variant, problem = case
    return f"{step}.{variant}.{tag(problem)}"


class Session:
    """What sections are made of."""

    def __init__(self, options):
        self.options, self.out = options, os.path.abspath(options.out)
        self.logs = os.path.join(self.out, "logs")
        os.makedirs(self.logs, exist_ok=True)
        self.results = {"schema": 1, "sources": source_digest()}
        self.commands, self.lock = [], threading.Lock()
        self.deadline = math.inf if options.sim_only else time.monotonic() + options.budget
        self.keep_runs_of_this_text()
        if options.figures:
            self.resume()
        self.steps = find_steps(options.steps)
        self.done = {}  # what gpu_run() gave in this call
        self.descriptions = {}  # of programs
        self.report, self.sections = [], {}
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

    def resume(self):
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
        self.commands = before.get("commands", [])
        for key in (*RESUMED, "peers", "peers_seconds", "done"):
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
        current = all(is_current(step, mark["commit"]) for step in self.steps)
        return mark["steps"] == self.steps and current

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
        if self.remaining() <= 0 and not always:
            ok, line = False, "not reached: out of time"
        else:
            try:
                ok, line = body()
            except Failure as error:
                ok, line = False, str(error)
            except Exception as error:  # a bug here must not cost the other sections
                ok, line = False, f"{type(error).__name__}: {error}"
        seconds = round(time.monotonic() - start, 1)
        self.sections[name] = {"ok": ok, "summary": line, "seconds": seconds}
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
        notes = roof_notes(runs, self.results.get("device"))
        self.results.update(sections=self.sections, commands=self.commands, runs=runs, notes=notes)
        write_rows(os.path.join(self.out, "results.json"), self.results)
        write_text(os.path.join(self.out, "report.txt"), "\n".join(self.report) + "\n")

    def summary(self):
        """The last lines. Returns the exit status."""
        self.say("== summary")
        for note in self.results.get("notes", []):
            self.say(f"note: {note}")
        for name, s in self.sections.items():
            verdict = "ok" if s["ok"] else "FAILED"
            self.say(f"{verdict:7} {name:16} {s['seconds']:6.1f} s  {s['summary']}")
        self.say(f"results: {os.path.relpath(self.out, os.getcwd())}")
        self.write()
        return 0 if all(s["ok"] for s in self.sections.values()) else 1

    # --- commands ---

    def remaining(self):
        return self.deadline - time.monotonic()

    def shell(self, name, command, timeout=None, environment=None):
        """(exit status, output), which logs/ keeps; status None: stopped because the time was
        over."""
        log = os.path.join(self.logs, re.sub(r"[^\w.-]+", "_", name) + ".txt")
        limit = min(timeout or math.inf, max(self.remaining(), 0.1))
        limit = None if limit == math.inf else limit
        start = time.monotonic()
        with open(log, "w+", encoding="utf-8", errors="replace") as file:
            how = {"stdout": file, "stderr": subprocess.STDOUT, "cwd": ROOT, "timeout": limit}
            try:
                env = {**os.environ, **(environment or {})}
                status = subprocess.run(command, env=env, **how).returncode
            except subprocess.TimeoutExpired:
                status = None
            except OSError as error:
                file.write(f"{command[0]}: {error.strerror}\n")
                status = 127
            file.seek(0)
            output = file.read()
        shown = shlex.join([f"{k}={v}" for k, v in (environment or {}).items()] + command)
        # No machine's paths in results.
        for path, name_of_it in ((self.options.python, "python3"), (self.out, "OUT"), (ROOT, ".")):
            shown = shown.replace(path, name_of_it)
        done = {"name": name, "command": shown, "exit_status": status}
        with self.lock:
            self.commands.append({**done, "seconds": round(time.monotonic() - start, 2)})
        return status, output

    def said(self, status, output):
        """The last line of a program's output, or why it was stopped before its end."""
        if status is None:
            return "stopped: out of time" if self.remaining() <= 0 else "took too long"
        return last_line(output)

    def build(self, preset, targets):
        configure, build = building.commands(preset, targets, jobs=self.jobs)
        status, output = self.shell(f"configure {preset}", configure)
        if status == 0:
            status, output = self.shell(f"build {preset}", build)
        if status == 0:
            return True, f"built {preset}"
        if status is None:
            return False, f"{preset}: {self.said(status, output)}"
        errors = [line.strip() for line in output.splitlines() if "rror" in line]
        return False, f"{preset} did not build (logs/): {[*errors, last_line(output)][0]}"

    def program(self, preset, step):
        return program_of(os.path.join(ROOT, "build", preset), step)

    def call_of(self, preset, case):
        step, variant, problem = case
        call = [self.program(preset, step), f"--variant={variant}"]
        return [*call, *flags(problem), "--input=normal"]

    def described(self, preset, step):
        """What the step's program says it is (--describe)."""
        if (preset, step) not in self.descriptions:
            call = [self.program(preset, step), "--describe"]
            status, text = self.shell(f"describe {step}", call, 60)
            if status is None:
                raise NoTime(f"{step} --describe: {self.said(status, text)}")
            try:
                self.descriptions[preset, step] = json.loads(text)
            except ValueError:
                raise Failure(f"{step} --describe: {last_line(text)}") from None
        return self.descriptions[preset, step]

    def variants_of(self, preset, step):
        return [variant["name"] for variant in self.described(preset, step)["variants"]]

    def variants(self, preset):
        """[(step, variant)] in reading order."""
        return [(step, name) for step in self.steps for name in self.variants_of(preset, step)]

    def run(self, kind, case, *more, timeout=None, environment=None, folder=None):
        """(exit status, JSON or None, last line of the output); the JSON lands in `folder`, which
        is gpu/ or sim/ where none is named."""
        path = self.path_of(folder or kind, case)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path):
            os.remove(path)  # of an earlier call
        call = [*self.call_of(kind, case), f"--json={path}", *more]
        name = f"{folder or kind} {name_of(case)}"
        status, output = self.shell(name, call, timeout, environment)
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

        def one(case):
            """A step that this GPU cannot run is simulated on the default one."""
            fits = runs_on(modelled["arch"], self.described("sim", case[0])["needs"])
            model = [f"--gpu={modelled['name']}"] if fits else []
            return self.run("sim", case, "--workers=1", *model)

        def work(case):
            p = case[2]
            return p["h"] * p["n"] * p.get("nk", p["n"]) * p["d"]

        # The largest first: the last to finish decides.
        ordered = sorted(cases, key=work, reverse=True)
        with concurrent.futures.ThreadPoolExecutor(max(1, workers)) as pool:
            done = list(pool.map(one, ordered))
        failed = [
            f"{step} {variant} {tag(problem)}: {'' if status is None else f'exit {status}: '}{line}"
            for (step, variant, problem), (status, _, line) in zip(ordered, done)
            if status not in (0, 2)
        ]
        right = len(done) - len(failed)
        return not failed, f"{right} of {len(done)} problems simulated", failed

    def is_kept(self, case, counters):
        """Whether an earlier call has left a right run of it, timed and, where wanted, counted."""
        path = self.path_of("gpu", case)
        data = load(path)[0].data if os.path.exists(path) else None
        counted = get(data, "traffic.requests") and get(data, "traffic.hbm.measured")
        passes = [run for run in (data, get(data, "prepare"), get(data, "backward")) if run]
        timed = all(get(run, "time.median_ms") for run in passes)
        return get(data, "ok") and timed and (counted or not counters)

    def gpu_run(self, case, *more, timeout=120):
        """(exit status, seconds); a problem that this call has already run is not run again."""
        step, variant, problem = case
        name = name_of(case)
        if name not in self.done and self.options.figures:
            if self.is_kept(case, counters="--no-counters" not in more):
                self.done[name] = 0, 0.0
            elif self.remaining() < SHORTEST_RUN:
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
        tags = {tag(p) for p in problems}
        ours = [run for run in runs if run.data["step"] in self.steps]
        return [run for run in ours if tag(run.data["problem"]) in tags]
