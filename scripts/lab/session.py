"""A call of gpu_check.sh or `maintain measure`: its folder, its report, the programs it runs.

The next call continues from the folder: gpu/ and sim/, the programs' JSON; results.json, the
machine and the result of each section. Results of changed sources are repeated.
"""

import concurrent.futures
import datetime
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
from flash_steps.command import Failure, NotHere
from flash_steps.commits import here, is_current
from flash_steps.files import read_json, write_json, write_text
from flash_steps.gpu_table import find_model
from flash_steps.nvcc import find_nvcc, version_of
from flash_steps.problems import flags, tag
from flash_steps.results import get, load, load_folder
from flash_steps.standing import mark_slowed
from flash_steps.steps import ROOT, find_steps, program_of, runs_on

SHORTEST_RUN = 8  # seconds; with less time left no run starts
OUT_OF_TIME = "out of time: run the same command again to continue"
DONE = "done in an earlier call"


def ask_gpu(fields):
    """nvidia-smi's answer for the first GPU: values separated by commas."""
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        answer = None
    if answer is None or answer.returncode != 0 or not answer.stdout.strip():
        raise NotHere("no GPU found: nvidia-smi does not answer")
    return answer.stdout.splitlines()[0].strip()


def machine():
    device, driver = (part.strip() for part in ask_gpu("name,driver_version").rsplit(",", 1))
    nvcc = find_nvcc()
    if not nvcc:
        raise NotHere("nvcc was not found: install the CUDA toolkit, 12.4 or newer")
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return {"device": device, "driver": driver, "toolkit": version_of(nvcc), "date": date}


def last_line(text):
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def answer(text):
    """The start of a step program's output: its answer, and the reason."""
    entries = [" ".join(entry.split()) for entry in re.split(r"\n(?=\S)", text.strip())]
    return "; ".join([entry for entry in entries if not entry.startswith("note: ")][:2])


def name_of(case):
    """The file name of a (step, variant, problem), as all `case` and `cases` here are."""
    step, variant, problem = case
    return f"{step}.{variant}.{tag(problem)}"


class Session:
    def __init__(self, options):
        self.options, self.out = options, os.path.abspath(options.out)
        self.steps = find_steps(options.steps)
        about = machine()
        os.makedirs(os.path.join(self.out, "logs"), exist_ok=True)
        self.lock = threading.Lock()
        self.deadline = time.monotonic() + options.budget
        self.descriptions = {}  # of programs
        self.report, self.sections, self.commands = [], {}, []
        path = os.path.join(self.out, "results.json")
        before = read_json(path) if os.path.exists(path) else {}
        self.results = {**about, **{key: before.get(key, {}) for key in ("done", "clean")}}
        self.remove_old_runs()

    def remove_old_runs(self):
        """Removes results of other sources, of a slowed GPU, or of another commit's simulator."""
        for kind in ("gpu", "sim"):
            folder = os.path.join(self.out, kind)
            os.makedirs(folder, exist_ok=True)
            runs = {path: load(path)[0] for path in glob.glob(os.path.join(folder, "*.json"))}
            mark_slowed(list(runs.values()))
            for path, run in runs.items():
                commit = run.data.get("commit")
                other = kind == "sim" and commit != here()
                if run.data["slowed"] or other or not is_current(run.data["step"], commit):
                    os.remove(path)

    def path_of(self, folder, case):
        return os.path.join(self.out, folder, name_of(case) + ".json")

    def is_done(self, name):
        """Did an earlier call run this section, with these steps, unchanged since?"""
        mark = self.results["done"].get(name)
        if not mark or mark["steps"] != self.steps:
            return False
        if name == "tests":  # depends on the whole tree
            return mark["commit"] == here()
        return all(is_current(step, mark["commit"]) for step in self.steps)

    def say(self, text=""):
        print(text, flush=True)
        self.report.append(text)

    def section(self, name, body, once=False):
        """Runs body() -> (ok, one line). An error fails only this section; `once`: not if right."""
        self.say(f"== {name}")
        start = time.monotonic()
        if once and self.is_done(name):
            ok, line = True, DONE
        elif self.remaining() <= 0:
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
        if ok and once and line != DONE:
            self.results["done"][name] = {"commit": here(), "steps": self.steps}
        self.write()
        return ok

    def write(self):
        self.results.update(sections=self.sections, commands=self.commands)
        write_json(os.path.join(self.out, "results.json"), self.results, indent=1)
        write_text(os.path.join(self.out, "report.txt"), "\n".join(self.report) + "\n")

    def summary(self):
        self.say("== summary")
        runs = self.runs("gpu")
        mark_slowed(runs)
        if slowed := sum(run.data["slowed"] for run in runs):
            words = f"{slowed} of {len(runs)} runs were measured while the GPU was slowed down"
            self.say(f"note: {words}: run the same command again")
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
        """(exit status, output), which logs/ keeps; status None: stopped because time was up."""
        log = os.path.join(self.out, "logs", re.sub(r"[^\w.-]+", "_", name) + ".txt")
        limit = min(timeout or math.inf, max(self.remaining(), 0.1))
        with open(log, "w+", encoding="utf-8", errors="replace") as file:
            how = {"stdout": file, "stderr": subprocess.STDOUT, "cwd": ROOT}
            how["timeout"] = None if limit == math.inf else limit
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
        with self.lock:
            self.commands.append({"name": name, "command": shlex.join(command)})
        return status, output

    def said(self, status, output):
        """The last line of a program's output, or why it was stopped before its end."""
        if status is None:
            return "stopped: out of time" if self.remaining() <= 0 else "took too long"
        return last_line(output)

    def build(self, preset, targets):
        configure, build = building.commands(preset, targets, jobs=os.cpu_count() or 1)
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
        """The program's description of the step (--describe)."""
        if (preset, step) not in self.descriptions:
            call = [self.program(preset, step), "--describe"]
            status, text = self.shell(f"describe {step}", call, 60)
            if status is None:
                raise Failure(f"{step} --describe: {self.said(status, text)}")
            try:
                self.descriptions[preset, step] = json.loads(text)
            except ValueError:
                raise Failure(f"{step} --describe: {last_line(text)}") from None
        return self.descriptions[preset, step]

    def variants_of(self, preset, step):
        return [variant["name"] for variant in self.described(preset, step)["variants"]]

    def run(self, kind, case, *more, timeout=None, folder=None):
        """(exit status, the program's words); writes JSON to `folder`, by default gpu/ or sim/."""
        path = self.path_of(folder or kind, case)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path):
            os.remove(path)  # from an earlier call
        call = [*self.call_of(kind, case), f"--json={path}", *more]
        status, output = self.shell(f"{folder or kind} {name_of(case)}", call, timeout)
        if status in (0, 1) and os.path.exists(path):
            write_json(path, {**load(path)[0].data, "commit": here()})
        ran = status in (0, 1, 4)
        return status, answer(output) if ran else self.said(status, output)

    def simulate(self, cases):
        """Runs the rest in parallel, one simulator thread each: (ok, one line)."""
        ok, line = (True, "") if self.options.no_build else self.build("sim", self.steps)
        if not ok:
            return ok, line
        modelled = find_model(self.results["model_gpu"])
        for step in {case[0] for case in cases}:
            self.described("sim", step)  # before the threads, which would share its log

        def one(case):
            """A step that this GPU cannot run is simulated on the default GPU."""
            if os.path.exists(self.path_of("sim", case)):
                return 0, ""
            if self.remaining() <= 0:
                return None, OUT_OF_TIME
            fits = runs_on(modelled["arch"], self.described("sim", case[0])["needs"])
            model = [f"--gpu={modelled['name']}"] if fits else []
            # For comparison with a GPU's run of as many heads.
            return self.run("sim", case, "--workers=1", "--estimate-heads=0", *model)

        def work(case):
            p = case[2]
            return p["h"] * p["n"] * p.get("nk", p["n"]) * p["d"]

        # The largest first: the last to finish decides. The GPU's programs have separate cores.
        ordered = sorted(cases, key=work, reverse=True)
        with concurrent.futures.ThreadPoolExecutor(max(1, (os.cpu_count() or 1) - 4)) as pool:
            done = list(pool.map(one, ordered))
        failed = [
            f"{name_of(case)}: {'' if status is None else f'exit {status}: '}{line}"
            for case, (status, line) in zip(ordered, done)
            if status not in (0, 2)
        ]
        line = f"{len(done) - len(failed)} of {len(done)} problems simulated"
        return not failed, "; ".join([line, *failed[:1]])

    def is_kept(self, case, counters):
        """Was an earlier run of it right, timed and, if required, counted?"""
        path = self.path_of("gpu", case)
        data = load(path)[0].data if os.path.exists(path) else None
        counted = get(data, "traffic.requests") and get(data, "traffic.hbm.measured")
        passes = [run for run in (data, get(data, "prepare"), get(data, "backward")) if run]
        timed = all(get(run, "time.median_ms") for run in passes)
        return get(data, "ok") and timed and (counted or not counters)

    def gpu_run(self, case, *more, timeout=120):
        """(exit status, seconds); a problem that has run is not repeated."""
        step, variant, problem = case
        if self.is_kept(case, counters="--no-counters" not in more):
            return 0, 0.0
        if self.remaining() < SHORTEST_RUN:
            raise Failure(OUT_OF_TIME)
        start = time.monotonic()
        status, line = self.run("gpu", case, *more, timeout=timeout)
        if status != 0:
            # For None and 2 (not supported by this step) the line is enough.
            what = {None: "", 1: "wrong result: ", 2: ""}.get(status, f"exit {status}: ")
            self.say(f"{step} {variant} {tag(problem)}: {what}{line}")
        return status, time.monotonic() - start

    def runs(self, kind):
        found = load_folder(os.path.join(self.out, kind))
        return [run for run in found if run.data["step"] in self.steps]

    def of_problems(self, problems, kind):
        tags = {tag(p) for p in problems}
        return [run for run in self.runs(kind) if tag(run.data["problem"]) in tags]
