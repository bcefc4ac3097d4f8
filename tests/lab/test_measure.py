"""gpu_check.sh and maintain measure without a GPU: in a copy of the scripts, with programs that
only pretend; and merging and publishing results."""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from basis import HAVE_GIT, SCRIPTS, commit_all, copy_scripts, gpu, maintain, sim, write
from flash_steps.command import BadInput
from flash_steps.gpu_table import model_of
from flash_steps.problems import tag
from lab import merge, peers_table


class Roofs(unittest.TestCase):
    def notes(self, *changes, device="NVIDIA H200"):
        runs = [sim()] + [gpu() for _ in changes]
        for run, change in zip(runs[1:], changes):
            run["roofs"].update(change)
        return merge.roof_notes(runs, device)

    def test_what_looks_wrong_is_noted(self):
        slow = {"fp32_flops": 4.88e13}
        all_slow = {**slow, "bf16_flops": 5.57e14, "copy_bytes_per_s": 3.9e12}
        differs = "differs between runs, {}: do not compare their times."
        for changes, device, notes in (
            (({}, {"bf16_flops": 7.3e14}), "NVIDIA H200", []),  # 4% less
            (({"bf16_flops": 0}, {"bf16_flops": 0}), "NVIDIA H200", []),  # a card without bf16
            ((), None, []),
            ((slow,), "Voodoo 2", []),
            (
                (slow,),
                "NVIDIA H200",
                [
                    "1 of 1 runs have an FMA roof under 90% of the 66.9 TFLOP/s of this GPU's "
                    "highest clock (least: 48.8): the GPU was slowed down; measure them again."
                ],
            ),
            (
                ({}, all_slow),
                "NVIDIA H200",
                [
                    "1 of 2 runs have an FMA roof under 90% of the 66.9 TFLOP/s of this GPU's "
                    "highest clock (least: 48.8): the GPU was slowed down; measure them again.",
                    "The copy roof " + differs.format("3.90 TB/s to 4.20 TB/s"),
                    "The FMA roof " + differs.format("48.8 TFLOP/s to 65 TFLOP/s"),
                    "The bf16 matmul roof " + differs.format("557 TFLOP/s to 760 TFLOP/s"),
                ],
            ),
        ):
            with self.subTest(changes=changes, device=device):
                self.assertEqual(self.notes(*changes, device=device), notes)

    def test_the_model_of_a_device(self):
        for device, row in (
            ("NVIDIA H200", "H200"),
            ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
            ("NVIDIA A100-SXM4-40GB", "A100"),
            ("Tesla T4", "T4"),
            ("NVIDIA GeForce RTX 4090", "RTX 4090"),
            ("Voodoo 2", None),
        ):
            self.assertEqual(model_of(device), row)


class Peers(unittest.TestCase):
    """What peers.py --json wrote, in a merge."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def file(self, name, rows, **changes):
        result = {"schema": 2, "device": "NVIDIA H200", "torch": "2.99", "rounds": 10, "iters": 2}
        result |= {"commands": [f"./scripts/peers.py --steps {name}"], "notes": [name]}
        return write(os.path.join(self.folder, name), {**result, "rows": rows, **changes})

    def test_later_rows_take_the_place_of_earlier_ones(self):
        def rows(*texts):
            keys = ("step", "variant", "direction", "problem", "ms")
            return [dict(zip(keys, text)) for text in texts]

        forward, backward = ("forward", "p"), ("backward", "p")
        first = [("07", "mma", *forward, 1), (None, "flash", *forward, 2)]
        first += [("08", "roles", *backward, 3), (None, "flash", *backward, 4)]
        second = [("08", "roles", *backward, 5), ("08", "atomics", *backward, 6)]
        second += [(None, "flash", *backward, 7)]
        files = [self.file("a", rows(*first)), self.file("b", rows(*second))]
        merged = merge.merge(files)
        self.assertEqual([row["ms"] for row in merged["peers"]["rows"]], [1, 2, 5, 6, 7])
        commands = ["./scripts/peers.py --steps a", "./scripts/peers.py --steps b"]
        self.assertEqual([c["command"] for c in merged["commands"]], commands)
        self.assertEqual(merged["peers"]["commands"], commands)
        self.assertEqual(merged["peers"]["notes"], ["a", "b"])
        again = write(os.path.join(self.folder, "results.json"), merged)
        self.assertEqual(merge.merge([again])["peers"], merged["peers"])
        other = self.file("c", [], rounds=3)
        with self.assertRaisesRegex(BadInput, "'rounds' 3, those before have 10"):
            merge.merge([files[0], other])

    def run_of(self, name, ms, commit="abc"):
        """One call of peers.py: a step beside a backend that takes 12 ms, met twice."""
        common = {"direction": "forward", "problem": "p", "dtype": "bf16", "of_matmul": 0.5}
        mine = {"step": "07", "variant": "mma", "ms": ms, "flops_per_s": 1e12 / ms}
        mine |= {"commit": commit, "ratios": {"flash": 12 / ms}}
        peer = {"step": None, "variant": "flash", "ms": 12, "flops_per_s": 1e12 / 12, "ratios": {}}
        rows = [{**mine, **common}] + [{**peer, **common}] * 2
        return self.file(name, rows, run=name)

    def test_runs_of_one_text_add_up_to_medians(self):
        runs = [self.run_of(name, ms) for name, ms in (("a", 10), ("b", 8), ("c", 6))]
        mine, peer = merge.merge(runs)["peers"]["rows"]
        self.assertEqual((mine["ms"], mine["ratios"]), (8, {"flash": 1.5}))
        self.assertEqual([run["run"] for run in mine["repeats"]], ["a", "b", "c"])
        self.assertEqual((peer["ms"], len(peer["repeats"])), (12, 6))
        self.assertEqual(peers_table.least_of([mine], "flash"), (1.2, mine, 3))
        # The same run again is no further run; one of another text is the only one.
        self.assertEqual(len(merge.merge(runs + runs[:1])["peers"]["rows"][0]["repeats"]), 3)
        other = self.run_of("d", 5, commit="def")
        (mine, _) = merge.merge(runs + [other])["peers"]["rows"]
        self.assertEqual(([run["run"] for run in mine["repeats"]], mine["ms"]), (["d"], 5))


# 02_tiled keeps S and P; 04_fused does not, has --smem, a prepare, and a backward with atomics.
# Hundreds of runs: no Python, which starts seven times as slowly. What they write: template().
PROGRAM = r"""#!/bin/sh
step=${0##*/} root=${0%/build/*} kind=gpu smem=null causal=false json=
case $0 in */sim/steps/*) kind=sim ;; esac
for word; do
  case $word in
  --describe)
    smem=false variants='{"name": "shared"}, {"name": "registers"}'
    [ $step != 04_fused ] || smem=true variants='{"name": "fused"}'
    supports="{\"lengths\": false, \"smem\": $smem}"
    echo "{\"needs\": \"\", \"supports\": $supports, \"variants\": [$variants]}"
    exit
    ;;
  --causal) causal=true ;;
  --b=* | --h=* | --n=* | --d=* | --smem=* | --variant=* | --json=*) export "${word#--}" ;;
  esac
done
if [ $n = 100 ]; then
  echo 'x: --n 100: this step does not like it' >&2
  exit 2
fi
scratch=$((8 * b * n * n * h)) template=$kind
[ $step != 04_fused ] || scratch=$((4 * n * h)) template=$kind.04_fused
if [ $kind = gpu ] && [ $scratch -gt 80000000000 ]; then
  echo "$step: needs $((scratch / 1000000000)) GB of workspace, 80 GB free" >&2
  exit 3
fi
[ ! "$json" ] || sed "s/@step@/$step/; s/@variant@/$variant/; s/\"@scratch@\"/$scratch/
s/\"@b@\"/$b/g; s/\"@h@\"/$h/g; s/\"@n@\"/$n/g; s/\"@d@\"/$d/g
s/\"@causal@\"/$causal/; s/\"@smem@\"/$smem/" "$root/build/$template.json" > "$json"
echo 'right     as it should be'
"""
# A step that decodes: it takes few queries, lengths and pages. JSON as `run`, with its problem.
DECODES = r"""#!{python}
import json, sys
flags = dict(word.removeprefix("--").partition("=")[::2] for word in sys.argv[1:])
if "describe" in flags:
    supports = {{"lengths": True, "smem": False}}
    about = {{"needs": "sm_80", "supports": supports, "variants": [{{"name": "once"}}]}}
    sys.exit(print(json.dumps(about)))
if int(flags["n"]) > 16:
    sys.exit(2)
run, problem = json.loads('{run}'), dict(smem=None, dtype="bf16", lengths=None, page=None)
problem.update((key, int(flags[key])) for key in ("b", "h", "n", "d", "page") if key in flags)
problem["hkv"], problem["nk"] = int(flags.get("hkv", flags["h"])), int(flags["nk"])
if "lengths" in flags:
    problem["lengths"] = [int(n) for n in flags["lengths"].split(",")]
run.update(step="13_cache", variant="once", problem=problem | dict(causal="causal" in flags))
run["traffic"]["requests"]["load"] += (problem["page"] or 0) * {wrong}
if "json" in flags:
    json.dump(run, open(flags["json"], "w"))
"""
CTEST = """#!/bin/sh
echo '    Start 1: test_a'
echo '1/2 Test #1: test_a ...................   Passed    0.50 sec'
echo '2/2 Test #2: test_b ...................   Passed    1.00 sec'
"""
SANITIZER = """#!/bin/sh
[ "$FLASH_STEPS_UNDER_TOOL" ] || exit 5
tool=$2; shift 4
"$@" || exit
[ $tool = racecheck ] &&
  echo '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)'
[ $tool = racecheck ] || echo '========= ERROR SUMMARY: 0 errors'
"""
SMI = """#!/bin/sh
case "$1" in *memory*) echo '80000 MiB' ;; *) echo 'NVIDIA H200, 580.1' ;; esac
"""
FIGURE2 = """import json, sys
json.dump({"rows": [1, 2, 3]}, open(sys.argv[-1], "w"))
"""
NO_PEERS = "import sys; print('peers.py: no PyTorch'); sys.exit(3)"
PEERS = """import json, os, sys, time
a = dict(zip(sys.argv[1:], sys.argv[2:]))
direction = "backward" if "--directions=backward" in sys.argv else "forward"
runs = open("peers.log", "a+")
runs.write(a["--steps"] + "\\n")
runs.seek(0)
if len(runs.readlines()) == 1:
    time.sleep(float(os.environ.get("FIRST_PEERS_SECONDS", "0")))
runs.seek(0)
sys.path.insert(0, "scripts")
from flash_steps import commits
row = dict(variant="mma", direction=direction, problem="p", dtype="bf16", flops_per_s=1e14,
           of_matmul=0.5, ms=1.0)
row["commit"] = commits.here()
rows = [dict(row, step=s, ratios={"flash": 1.5}) for s in a["--steps"].split()]
rows.append(dict(row, step=None, variant="flash", ratios={}))
json.dump(dict(schema=2, device="NVIDIA H200", torch="2", rounds=1, iters=1, notes=[], commands=[],
               run=str(len(runs.readlines())), rows=rows), open(a["--json"], "w"))
"""


class Copy(unittest.TestCase):
    """A copy of the repository's scripts, with programs that only pretend."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.join(folder.name, "repo")
        os.makedirs(os.path.join(self.root, "build", "sim", "steps"))
        copy_scripts(self.root)
        with open(os.path.join(SCRIPTS, "..", "common", "data", "gpus.json")) as file:
            self.write("common/data/gpus.json", file.read())
        for step in ("02_tiled", "04_fused"):
            self.write(f"steps/{step}/main.cu", "")
        self.template("sim", sim())
        self.template("gpu", gpu())
        for preset in ("sim", "gpu", "gpu-check"):
            self.programs(preset, PROGRAM)
        for path, text in (
            ("bin/nvidia-smi", SMI),
            ("bin/nvcc", "#!/bin/sh\necho 'release 13.0, V13.0.88'\n"),
            ("bin/ctest", CTEST),
            ("bin/compute-sanitizer", SANITIZER),
            ("scripts/peers.py", NO_PEERS),
            ("scripts/figure2.py", FIGURE2),
        ):
            self.write(path, text, 0o755)
        commit_all(self.root)

    def template(self, kind, run):
        """What the programs write with --json: `run` with their own arguments in place of @...@."""
        sizes = {key: f"@{key}@" for key in ("b", "h", "n", "d", "causal", "smem")}
        run["problem"].update(sizes, hkv="@h@", nk="@n@")
        run.update(step="@step@", variant="@variant@", workspace_bytes="@scratch@")
        buffers = run["traffic"]["requested"]["buffers"] = dict.fromkeys("SP")
        self.write(f"build/{kind}.json", json.dumps(run))
        buffers.clear()
        buffers.update(dict.fromkeys("QKVO"))
        run["backward"] = copy.deepcopy({key: run[key] for key in ("traffic", "time", "flops")})
        run["backward"]["traffic"]["requests"]["atomic"] = "@n@"
        prepare = copy.deepcopy({key: run[key] for key in ("traffic", "time")})
        run["prepare"] = {**prepare, "flops": 0}
        self.write(f"build/{kind}.04_fused.json", json.dumps(run))

    def programs(self, preset, text, *steps):
        for step in steps or ("02_tiled", "04_fused"):
            self.write(f"build/{preset}/steps/{step}", text, 0o755)

    def write(self, path, text, mode=0o644):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)

    def with_a_lesson(self, step):
        self.write(f"steps/{step}/main.cu", f'#include "steps/{step}/lesson.cuh"')
        self.write(f"steps/{step}/lesson.cuh", "")
        commit_all(self.root)

    def call(self, *args):
        return subprocess.run(
            [os.path.join(self.root, "scripts", "gpu_check.sh"), *args],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": f"{self.root}/bin:/usr/bin:/bin"},
        )

    def check(self, sections, *args, status=0, said=(), out="out"):
        """What a call without a build says, of these sections ("": all)."""
        chosen = ("--sections", sections) if sections else ()
        done = self.call("--no-build", "--out", out, *chosen, *args)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        for words in [said] if isinstance(said, str) else said:
            self.assertIn(words, done.stdout)
        return done.stdout

    def results(self, out="out"):
        with open(os.path.join(self.root, out, "results.json"), encoding="utf-8") as file:
            return json.load(file)


class Sections(Copy):
    def test_everything(self):
        said = self.check("", said="not available: peers.py: no PyTorch")
        results = self.results()
        self.assertIn("NVIDIA H200, driver 580.1, CUDA 13.0.88, the simulator models H200", said)
        self.assertEqual([t["name"] for t in results["tests"]], ["test_a", "test_b"])
        self.assertTrue(all(e["equal"] for e in results["counters"]))
        compared = {(e["step"], e["figure"]) for e in results["counters"]}
        for label, figure in (
            ("04 fused bwd", "atomic requests"),
            ("04 fused prep", "store sectors"),
            ("02 shared", "store sectors"),
        ):
            self.assertIn((label, figure), compared)
        self.assertEqual(
            {e["problem"] for e in results["counters"] if "smem=" in e["problem"]},
            {f"B=1 H=2 N=257 d=32 smem={smem} fp32" for smem in (32768, 98304)},
        )
        entries = [e for e in results["sanitizer"] if e["verdict"] == "clean"]
        tools = {(e["step"], e["variant"], e["tool"]) for e in entries}
        self.assertEqual(len(tools), 3 * 4)
        self.assertEqual({round(e["of_l2"], 1) for e in results["hbm"]}, {0.2, 1.0, 4.0})
        self.assertEqual(
            {e["step"] for e in results["hbm"]},
            {"02 shared", "02 registers", "04 fused prep", "04 fused", "04 fused bwd"},
        )
        on_gpu = [run for run in results["runs"] if run["device"]["kind"] == "gpu"]
        ran = {(r["step"], r["variant"], tag(r["problem"])) for r in on_gpu}
        self.assertIn(("02_tiled", "registers", "b2_h32_n8192_d64"), ran)
        self.assertIn(("04_fused", "fused", "b1_h32_n16384_d64"), ran)
        self.assertNotIn(("02_tiled", "shared", "b2_h32_n8192_d64"), ran)  # not a step's result
        self.assertIn(("02_tiled", "shared", "b4_h16_n4096_d128_causal"), ran)
        naive, fused = results["memory"]
        self.assertEqual(
            (naive["step"], naive["exit_status"], fused["step"], fused["exit_status"]),
            ("02_tiled", 3, "04_fused", 0),
        )
        self.assertIn("GB of workspace", naive["line"])
        self.assertNotIn(naive["problem"], {tag for _, _, tag in ran})
        self.assertEqual(results["figure2"], {"rows": [1, 2, 3]})
        self.assertGreater(len(results["runs"]), len(on_gpu))
        # What scale had run, timing did not run again.
        names = [c["name"] for c in results["commands"]]
        self.assertEqual(names.count("gpu 02_tiled.registers.b4_h32_n4096_d64"), 1)

    def test_a_step_that_decodes_has_problems_of_its_own(self):
        self.write("steps/13_cache/main.cu", "")

        def program(preset, run, wrong=0):
            text = DECODES.format(python=sys.executable, run=json.dumps(run), wrong=wrong)
            self.programs(preset, text, "13_cache")

        for preset, run in (("sim", sim()), ("gpu", gpu()), ("gpu-check", gpu())):
            program(preset, run)
        said = self.check("counters hbm timing sanitizer", "--steps", "13")
        self.assertIn("3 problems timed, 0 failed", said)
        results = self.results()
        caches = [int(re.search(r"Nk=(\d+)", e["problem"])[1]) for e in results["hbm"]]
        self.assertEqual([nk // caches[0] for nk in caches], [1, 4, 16])
        problems = {entry["problem"] for entry in results["counters"]}
        self.assertEqual(len(problems), 9)
        for words in ("N=1 Nk=257", "lengths=0,1,700,1500", "page=16", "N=16", "causal"):
            self.assertTrue([p for p in problems if words in p], words)
        checked = {entry["problem"] for entry in results["sanitizer"]}
        self.assertEqual(len(checked), 3)
        self.assertTrue([tag for tag in checked if tag.endswith("_p16")], checked)
        program("gpu", gpu(), wrong=1)
        self.check("counters", "--steps", "13", status=1)
        wrong = {e["problem"] for e in self.results()["counters"] if e["equal"] is False}
        self.assertEqual(len(wrong), 3)  # those with pages
        self.check("counters", "--steps", "13", "--quick", out="few", status=1)
        self.assertEqual(len({e["problem"] for e in self.results("few")["counters"]}), 2)

    def test_sections_are_selectable(self):
        self.check("memory figure2")
        self.assertEqual(set(self.results()["sections"]), {"variants", "memory", "figure2"})
        self.check("peers", status=1, said="FAILED: peers.py: no PyTorch")  # asked for by name
        # A step of one's own is not the last of the ladder.
        self.write("steps/mine/main.cu", "")
        self.programs("gpu", "#!/bin/sh\nexit 1\n", "mine")
        self.check("memory", "--steps", "02")
        steps = [entry["step"] for entry in self.results()["memory"]]
        self.assertEqual(steps, ["02_tiled", "04_fused"])

    @unittest.skipUnless(HAVE_GIT, "git is not installed")
    def test_calls_add_to_a_folder_until_the_sources_change(self):
        self.with_a_lesson("02_tiled")

        def runs_after(section, step):
            self.check(section, "--quick", "--steps", step)
            return {(run["step"], run["problem"]["n"]) for run in self.results()["runs"]}

        self.assertEqual(runs_after("timing", "02"), {("02_tiled", 512), ("02_tiled", 1024)})
        both = runs_after("timing", "04")
        self.assertEqual({step for step, _ in both}, {"02_tiled", "04_fused"})
        self.write("steps/02_tiled/lesson.cuh", "// a comment is no change")
        self.assertEqual(runs_after("timing", "04"), both)
        self.write("steps/02_tiled/lesson.cuh", "int changed;")
        fused = {(step, n) for step, n in both if step == "04_fused"}
        self.assertEqual(runs_after("scale", "04"), fused | {("04_fused", 2048)})

    def test_scale_leaves_out_what_would_take_too_long(self):
        late = PROGRAM.replace("\nscratch=", "\n[ $n != 4096 ] || sleep 0.3\nscratch=", 1)
        self.programs("gpu", late, "04_fused")
        with open(os.path.join(SCRIPTS, "lab", "measure.py"), encoding="utf-8") as file:
            text = file.read().replace("SCALE_PATIENCE = 150", "SCALE_PATIENCE = 0.5")
        self.write("scripts/lab/measure.py", text)
        self.check("scale", "--steps", "04", said="d=64: N=8192 left out, N=4096 took 0 s")
        sizes = {run["problem"]["n"] for run in self.results()["runs"]}
        self.assertEqual(sizes, {1024, 2048, 4096})

    def test_results_of_several_calls_become_one(self):
        for out, steps in (("a", "02"), ("b", "04"), ("c", "04")):
            self.check("counters timing", "--quick", "--steps", steps, out=out)
        self.assertEqual({run["step"] for run in self.results("b")["runs"]}, {"04_fused"})
        files = [os.path.join(self.root, out, "results.json") for out in "abc"]
        into = ("--out", os.path.join(self.root, "merged"))
        done = self.call("--merge", *files, *into)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        parts, merged = [self.results(out) for out in "ab"], self.results("merged")
        for key in ("runs", "counters"):
            self.assertEqual(len(merged[key]), sum(len(part[key]) for part in parts), key)
        self.assertTrue(merged["sections"]["timing"]["ok"])
        self.assertEqual(merged["sections"]["timing"]["summary"].count("problems timed"), 3)
        self.assertNotIn("note:", done.stdout)
        for run in parts[0]["runs"]:  # the simulated ones on a machine with other cores
            if run["device"]["kind"] == "sim":
                run["device"]["name"] = "simulator (x86_64, 99 cores)"
        files.append(write(os.path.join(self.root, "elsewhere.json"), parts[0]))
        again = merge.merge(files)
        self.assertEqual(len(again["runs"]), len(merged["runs"]))
        self.assertIn("simulator (x86_64, 99 cores)", {r["device"]["name"] for r in again["runs"]})
        self.write("steps/02_tiled/lesson.cuh", "// changed since")
        self.check("timing", "--quick", "--steps", "04", out="d")
        done = self.call("--merge", *files, os.path.join(self.root, "d", "results.json"), *into)
        self.assertIn("differs in 'sources' from", done.stdout)

    def test_each_failure_is_recorded_and_the_rest_goes_on(self):
        wrong = gpu()
        wrong["traffic"]["requests"]["load"] += 1
        self.template("gpu", wrong)
        failing = CTEST.replace("   Passed    1.00", "***Failed    1.00") + "exit 8\n"
        self.write("bin/ctest", failing, 0o755)
        self.write("bin/compute-sanitizer", SANITIZER.replace("exit 5", "exit 5\nexit 9"), 0o755)
        self.check("", "--quick", status=1, said="1 of 2 tests failed: test_b")
        sections = self.results()["sections"].items()
        failed = {name for name, section in sections if not section["ok"]}
        self.assertEqual(failed, {"tests", "sanitizer", "counters"})

    def test_hbm_fails_on_a_miss_only_where_the_model_promises(self):
        for n, promised in ((1280, True), (2560, False)):  # a quarter of the L2, and all of it
            miss = f'\n[ $n != {n} ] || sed -i s/32000000/62000000/ "$json"\necho \'right'
            self.programs("gpu", PROGRAM.replace("\necho 'right", miss), "02_tiled")
            self.check("hbm", "--quick", "--steps", "02", status=int(promised))
            results = self.results()
            missed = [e for e in results["hbm"] if not e["within_10_percent"]]
            self.assertEqual([e["promised"] for e in missed], [promised] * 2)
            failed = [name for name, s in results["sections"].items() if not s["ok"]]
            self.assertEqual(failed, ["hbm"] * promised)

    def test_a_budget_that_ends_is_called_so(self):
        """And is no failure of what was stopped, nor a wrong result."""
        slow = "#!/bin/sh\nexec sleep 5\n"
        rest = PROGRAM.replace("\nif", '\n[ "$n" ] && exec sleep 5\nif', 1)
        quick = ("--quick", "--budget", "1", "--steps", "02")
        self.write("bin/cmake", "#!/bin/sh\necho -- 1 error so far\nexec sleep 5\n", 0o755)
        done = self.call(*quick, "--out", "out", "--sections", "sanitizer")
        self.assertEqual(done.returncode, 1)
        self.assertIn("FAILED: gpu: stopped: out of time\n", done.stdout)
        self.assertNotIn("did not build", done.stdout)
        self.write("bin/compute-sanitizer", slow, 0o755)
        for section, text, said in (
            ("sanitizer", PROGRAM, "FAILED: 0 runs clean, 0 not, 8 stopped: out of time\n"),
            ("timing", rest, ": stopped: out of time"),
            ("memory", rest, ": stopped: out of time"),
            ("timing", slow, "FAILED: 02_tiled --describe: stopped: out of time\n"),
        ):
            self.programs("gpu", text, "02_tiled")
            output = self.check(section, *quick, status=1, said=said)
            self.assertNotRegex(output, "None|took too long")

    def test_roofs_that_look_wrong_are_noted(self):
        self.assertNotIn("note:", self.check("timing", "--quick"))
        slow = gpu()
        slow["roofs"]["fp32_flops"] = 4.88e13
        self.template("gpu", slow)
        said = self.check("timing", "--quick")  # the results are right, only late
        (note,) = self.results()["notes"]
        self.assertIn("the GPU was slowed down", note)
        with open(os.path.join(self.root, "out", "report.txt"), encoding="utf-8") as file:
            for text in (said, file.read()):
                self.assertIn(f"note: {note}\n", text)

    def test_bad_use(self):
        for args, word in (
            (("--steps", "77", "--sim-only"), "no step '77'"),
            (("--model-gpu", "Voodoo", "--sim-only"), "no such row"),
            (("--sim-json", "/nowhere"), "no such folder"),
            (("--sections", "nosuch"), "'nosuch' is not one of tests counters"),
            (("--merge", "/nowhere"), "/nowhere"),
            (("--publish", "/nowhere"), "/nowhere"),
            (("--frobnicate",), "--frobnicate"),
        ):
            done = self.call(*args)
            self.assertEqual(done.returncode, 2, args)
            self.assertIn(word, done.stderr)
            self.assertNotIn("Traceback", done.stderr)
        self.write("bin/nvidia-smi", "#!/bin/sh\nexit 9\n", 0o755)
        done = self.call()
        self.assertEqual(done.returncode, 3)
        self.assertIn("no GPU found", done.stderr)


class SimulatorsSide(Copy):
    def test_made_before_and_of_the_same_sources(self):
        self.check("", "--sim-only", out="side")
        results = self.results("side")
        self.assertEqual(results["model_gpu"], "H200")
        ran = {(r["variant"], r["problem"]["n"], r["problem"]["causal"]) for r in results["runs"]}
        for variant in ("shared", "registers"):
            self.assertLessEqual({(variant, 257, False), (variant, 257, True)}, ran)
        os.remove(os.path.join(self.root, "build/sim/steps/02_tiled"))
        args = ("--sim-json", "side/sim", "--steps", "02")
        self.check("counters hbm", *args)
        self.assertTrue(self.results()["counters"])
        self.write("steps/02_tiled/lesson.cuh", "// changed since")
        self.check("counters hbm", *args, status=1, said="made from other sources")

    def test_a_program_that_dies_is_reported_and_the_rest_goes_on(self):
        for text, said in (
            (
                PROGRAM.replace("\nscratch=", "\n[ $n != 257 ] || exit 1\nscratch=", 1),
                ("02_tiled registers b1_h2_n257_d64: exit 1", "FAILED  simulate"),
            ),
            (
                "#!/bin/sh\necho cannot start\nexit 2\n",
                "02_tiled --describe: cannot start",
            ),
        ):
            self.programs("sim", text, "02_tiled")
            self.check("", "--sim-only", "--quick", status=1, said=said)


class Figures(Copy):
    """maintain measure: gpu_check.sh --figures."""

    def measure(self, sections, *args, out="out", status=None):
        path = f"{self.root}/bin:/usr/bin:/bin"
        chosen = ("--no-build", "--out", os.path.join(self.root, out), "--sections", sections)
        done = maintain("measure", *chosen, *args, root=self.root, PATH=path)
        if status is not None:
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def commands_since(self, before, out="out"):
        """What the last call has run."""
        names = [c["name"] for c in self.results(out)["commands"][len(before["commands"]) :]]
        return [name for name in names if not name.startswith("describe ")]

    @unittest.skipUnless(HAVE_GIT, "git is not installed")
    def test_a_call_goes_on_where_the_last_one_ended(self):
        self.write("scripts/peers.py", PEERS)
        for step in ("06_parts", "07_cores"):
            self.with_a_lesson(step)
            self.programs("gpu", PROGRAM, step)
            self.programs("gpu-check", PROGRAM, step)
        chosen = "scale timing peers tests"
        self.measure(chosen, "--budget", "0.001", status=1)
        with mock.patch.dict(os.environ, FIRST_PEERS_SECONDS="4.5"):
            self.measure(chosen, "--budget", "12", status=1)  # no run begins with 8 seconds left
        self.measure(chosen, status=0)
        first = self.results()
        steps = {row["step"] for row in first["peers"]["rows"]}
        self.assertEqual(steps, {"06_parts", "07_cores", None})
        for row in first["peers"]["rows"]:
            self.assertEqual(len(row["repeats"]), 6 if row["step"] is None else 3)
        with open(os.path.join(self.root, "peers.log"), encoding="utf-8") as file:
            self.assertEqual(sorted(file.read().split()), ["06_parts"] * 3 + ["07_cores"] * 3)
        shapes = {(r["step"][:2], r["problem"]["n"], r["problem"]["d"]) for r in first["runs"]}
        for shape, shown in (
            (("06", 16384, 64), True),
            (("07", 16384, 64), False),  # no table has it
            (("07", 4096, 128), True),
            (("02", 4096, 128), False),  # though it has registers too
            (("06", 4096, 128), True),
        ):
            self.assertEqual(shape in shapes, shown, shape)

        # On another machine that one file is enough: nothing is run again.
        os.makedirs(os.path.join(self.root, "moved"))
        write(os.path.join(self.root, "moved", "results.json"), first)
        self.programs("gpu", PROGRAM.replace("\nfor", "\nexit 9\nfor", 1), "07_cores")
        self.measure(chosen, out="moved", status=1)  # 07_cores cannot even name its variants
        self.programs("gpu", PROGRAM, "07_cores")
        self.measure(chosen, out="moved", status=0)
        again = self.results("moved")
        self.assertEqual(self.commands_since(first, "moved"), [])
        self.assertEqual(len(again["runs"]), len(first["runs"]))

        # After a change of one kernel its runs, and those only, are made again.
        self.write("steps/06_parts/lesson.cuh", "int changed;")
        self.measure("scale timing", out="moved", status=0)
        names = self.commands_since(again, "moved")
        self.assertEqual({name.split(".")[0] for name in names}, {"gpu 06_parts"})

    def peers_of(self, text, count):
        """(what a call with this peers.py gives, the runs of step 07 that it has kept)"""
        self.write("scripts/peers.py", text)
        done = self.measure("peers", "--steps", "07", "--peers-runs", str(count))
        rows = [row for row in self.results()["peers"]["rows"] if row["step"]]
        return done, [run["run"] for row in rows for run in row.get("repeats", [row])]

    def test_runs_of_peers_are_kept_whatever_comes_of_a_later_one(self):
        self.write("steps/07_cores/main.cu", "")
        self.programs("gpu", PROGRAM, "07_cores")
        stopped = "import os, signal, time\nos.kill(os.getppid(), signal.SIGINT)\ntime.sleep(9)"
        for text, count, status, said in (
            (PEERS, 2, 0, ""),
            (PEERS.replace('torch="2"', 'torch="3"'), 3, 1, "'torch' 3, those before have 2"),
            (stopped, 3, None, ""),
        ):
            done, runs = self.peers_of(text, count)
            self.assertEqual((done.returncode if status is not None else None), status)
            self.assertEqual(runs, ["1", "2"])
            self.assertIn(said, done.stdout)
        # A run on a slowed GPU does not count, and leaves the file when others come.
        done, runs = self.peers_of(PEERS.replace("flops_per_s=1e14", "flops_per_s=8e13"), 3)
        self.assertEqual((done.returncode, len(runs)), (1, 3))
        self.assertIn("the GPU was slowed down in some runs", done.stdout)
        done, again = self.peers_of(PEERS, 3)
        self.assertEqual((done.returncode, len(again)), (0, 3), done.stdout)
        self.assertNotIn(runs[-1], again)

    def test_kept_runs_that_are_wrong_or_slow_or_without_a_time_are_made_again(self):
        slow = gpu()
        slow["roofs"]["fp32_flops"] = 4.88e13
        self.template("gpu", slow)
        self.measure("timing", "--steps", "04")
        self.template("gpu", gpu())
        # The folder of runs is another machine's; what came back is results.json.
        shutil.rmtree(os.path.join(self.root, "out", "gpu"))
        self.measure("timing", "--steps", "04")
        kept = self.results()
        self.assertEqual({run["roofs"]["fp32_flops"] for run in kept["runs"]}, {6.5e13})
        missing = {"time": None}
        changes = ({"ok": False}, missing, {"prepare": missing}, {"backward": missing})
        for run, change in zip(kept["runs"], changes):
            run.update(change)
        write(os.path.join(self.root, "out", "results.json"), kept)
        self.measure("timing", "--steps", "04")
        self.assertEqual(
            sorted(name.rpartition(".")[2] for name in self.commands_since(kept)),
            sorted(tag(run["problem"]) for run in kept["runs"][: len(changes)]),
        )

    def test_published_results_are_short_and_of_one_type(self):
        self.measure("counters timing")
        both = self.results()
        for run in both["runs"]:
            if run["step"] == "04_fused":
                run["problem"]["dtype"] = "bf16"
        source = write(os.path.join(self.root, "out", "results.json"), both)
        folder = os.path.join(self.root, "docs", "results")
        os.makedirs(folder)
        for tool in ("tables", "plots"):
            self.write(f"scripts/lab/{tool}.py", "def main(): return 0")
            self.write(f"scripts/flash_steps/{tool}.py", "def main(): return 0")
        self.measure("timing", "--publish", status=0)
        self.measure("timing", "--publish", out="nothing", status=2)
        self.assertEqual(sorted(os.listdir(folder)), ["h200.json", "h200_bf16.json"])
        for name, step in (("h200.json", "02_tiled"), ("h200_bf16.json", "04_fused")):
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8") as file:
                published = json.load(file)
            self.assertEqual({run["step"] for run in published["runs"]}, {step})
            self.assertTrue(all(run["commit"] for run in published["runs"]))
            self.assertNotIn("counters", published)
            self.assertFalse([c for c in published["commands"] if c["name"].startswith("gpu ")])
            self.assertNotIn("buffers", json.dumps(published))
            self.assertLess(os.path.getsize(path), os.path.getsize(source) / 2)


if __name__ == "__main__":
    unittest.main(argv=["test"])
