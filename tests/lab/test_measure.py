"""gpu_check.sh, maintain measure and publishing, without a GPU: a copy with stub programs."""

import copy
import json
import os
import re
import shutil
import unittest

import basis
from basis import (
    HAVE_GIT,
    ROOT,
    Folder,
    commit_all,
    copy_scripts,
    for_all,
    gpu,
    main,
    sim,
    with_prepare,
    write,
)
from flash_steps.command import BadInput
from flash_steps.files import read_json
from lab import publish

# 02_tiled keeps S and P; 04_fused does not, has --smem, a prepare, and a backward with atomics;
# 13_cache decodes. Not in Python, which would start hundreds of times, slowly. See template().
PROGRAM = r"""#!/bin/sh
step=${0##*/} root=${0%/build/*} kind=gpu smem=null causal=false json= page=null lengths=null
heads=128
case $0 in */sim/steps/*) kind=sim ;; esac
for word; do
  case $word in
  --describe)
    smem=false lengths=false variants='{"name": "shared"}, {"name": "registers"}'
    [ $step != 04_fused ] || smem=true variants='{"name": "fused"}'
    [ $step != 13_cache ] || lengths=true variants='{"name": "once"}'
    supports="{\"lengths\": $lengths, \"smem\": $smem}"
    echo "{\"needs\": \"\", \"supports\": $supports, \"variants\": [$variants]}"
    exit
    ;;
  --causal) causal=true ;;
  --estimate-heads=0) heads= ;;
  --lengths=*) lengths="[${word#*=}]" ;;
  --[bhnd]=* | --hkv=* | --nk=* | --page=* | --smem=* | --variant=* | --json=*)
    export "${word#--}" ;;
  esac
done
: ${hkv=$h} ${nk=$n}
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
s/\"@b@\"/$b/g; s/\"@h@\"/$h/g; s/\"@n@\"/$n/g; s/\"@d@\"/$d/g; s/\"@hkv@\"/$hkv/; s/\"@nk@\"/$nk/
s/\"@causal@\"/$causal/; s/\"@smem@\"/$smem/; s/\"@page@\"/$page/; s/\"@lengths@\"/$lengths/
s/\"@heads@\"/${heads:-$((b * h))}/" \
  "$root/build/$template.json" > "$json"
echo "${step%%_*} $variant: right, HBM 60.0 MB"
echo 'right     every error
          is allowed.'
echo
echo 'more      --details: errors, bytes, kernels'
"""
CTEST = """#!/bin/sh
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
NO_PEERS = "import sys; print('peers.py: no PyTorch'); sys.exit(3)"
PEERS = """import sys
open("peers.log", "a").write(" ".join(sys.argv[1:]) + "\\n")
"""
STEPS = ("02_tiled", "04_fused")


class Copy(Folder):
    """A copy of the repository's scripts, with stub programs."""

    def setUp(self):
        super().setUp()
        copy_scripts(self.folder)
        (self.folder / "common/data").mkdir(parents=True)
        shutil.copy(f"{ROOT}/common/data/gpus.json", self.folder / "common/data")
        self.template("sim", sim())
        self.template("gpu", gpu())
        for path, text in (
            ("bin/nvidia-smi", SMI),
            ("bin/nvcc", "#!/bin/sh\necho 'release 13.0, V13.0.88'\n"),
            ("bin/ctest", CTEST),
            ("bin/compute-sanitizer", SANITIZER),
            ("scripts/peers.py", NO_PEERS),
            ("scripts/tour.sh", "#!/bin/sh\necho the table"),
        ):
            self.program(path, text)
        self.tour(1.0)
        self.add_steps(*STEPS)

    def add_steps(self, *steps):
        for step in steps:
            self.write(f"steps/{step}/main.cu", f'#include "steps/{step}/lesson.cuh"')
            self.write(f"steps/{step}/lesson.cuh", "")
            for preset in ("sim", "gpu", "gpu-check"):
                self.program(f"build/{preset}/steps/{step}", PROGRAM)
        made = sorted(path.name for path in (self.folder / "steps").iterdir() if path.is_dir())
        needs = {"16_other": " NEEDS sm_100a"}
        self.write(
            "steps/CMakeLists.txt",
            "".join(f"fa_step({step}{needs.get(step, '')})\n" for step in made),
        )
        commit_all(self.folder)

    def tour(self, slower):
        """The files of a tour; `slower`: the time of 02 relative to 01."""
        (self.folder / "build/tour").mkdir(parents=True, exist_ok=True)
        steps = gpu(), gpu(step="02_tiled", variant="registers", median_ms=0.5 * slower)
        for run in steps:
            self.write(f"build/tour/{run['step']}.json", json.dumps(run))

    def template(self, kind, run):
        """The JSON of the programs: `run`, with their arguments in place of @...@."""
        keys = ("b", "h", "n", "d", "causal", "smem", "hkv", "nk", "page", "lengths")
        run["problem"].update({key: f"@{key}@" for key in keys})
        run.update(step="@step@", variant="@variant@", workspace_bytes="@scratch@")
        run["estimate_heads"] = "@heads@" if kind == "sim" else None
        self.write(f"build/{kind}.json", json.dumps(run))
        run["backward"] = copy.deepcopy({key: run[key] for key in ("traffic", "time", "flops")})
        run["backward"]["traffic"]["requests"]["atomic"] = "@n@"
        self.write(f"build/{kind}.04_fused.json", json.dumps(with_prepare(run)))

    def call(self, *args, tool="gpu_check.sh"):
        env = {**os.environ, "PATH": f"{self.folder}/bin:/usr/bin:/bin"}
        script, *more = tool.split()
        return basis.said(
            [self.folder / "scripts" / script, *more, *args], env=env, cwd=self.folder
        )

    def check(self, sections, *args, status=0, said=(), tool="gpu_check.sh"):
        """The output of a call without a build, of these sections ("": all)."""
        chosen = ("--sections", sections) if sections else ()
        done = self.call("--no-build", "--out", "out", *chosen, *args, tool=tool)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        for words in [said] if isinstance(said, str) else said:
            self.assertIn(words, done.stdout)
        return done.stdout

    def ran(self):
        """What the last call ran on the GPU: {(step, variant, problem)}."""
        commands = json.loads((self.folder / "out/results.json").read_text())["commands"]
        names = [command["name"] for command in commands]
        return {tuple(name[4:].split(".")) for name in names if name.startswith("gpu ")}


class Published(Copy):
    def test_the_reason_of_a_failed_run_is_said(self):
        for step, status, word in (("02_tiled", 1, "WRONG"), ("04_fused", 4, "not checkable:")):
            text = PROGRAM.replace(": right,", f": {word.rstrip(':')},") + f"exit {status}\n"
            text = text.replace("right     every error", f"{word} this")
            self.program(f"build/gpu/steps/{step}", text)
        output = self.check("timing", status=1)
        for sentence in (
            "wrong result: 02 shared: WRONG, HBM 60.0 MB; WRONG this is allowed.\n",
            "exit 4: 04 fused: not checkable, HBM 60.0 MB; not checkable: this is allowed.\n",
        ):
            self.assertIn(sentence, output)

    def test_what_tables_show_is_measured_and_published(self):
        said = self.check("", tool="maintain measure")
        self.assertEqual(re.findall("== (.*)", said), ["timing", "peers", "counters", "summary"])
        ran = self.ran()
        self.assertIn(("02_tiled", "registers", "b1_h32_n16384_d64"), ran)
        for case in (
            ("registers", "b1_h2_n17_d64_causal"),
            ("shared", "b1_h32_n16384_d64"),  # not a step's result
            ("registers", "b4_h16_n4096_d128_causal"),  # no table has it
        ):
            self.assertNotIn(("02_tiled", *case), ran)
        folder, out = self.folder / "docs/results", self.folder / "out"
        folder.mkdir(parents=True)
        write(folder / "h200.json", {"runs": [gpu(step="03_x")], "peers": None})
        (path,) = publish.publish([out], folder)
        found = read_json(path)
        self.assertEqual((found["device"], found["driver"]), ("NVIDIA H200", "580.1"))
        self.assertEqual({run["step"] for run in found["runs"]}, {"03_x", *STEPS})
        self.assertTrue(all(run["commit"] for run in found["runs"]))
        self.assertNotIn("prediction_ok", json.dumps(found))
        publish.publish([out], folder)  # takes its own place
        self.assertEqual(len(read_json(path)["runs"]), len(found["runs"]))


@for_all
class Check(Copy):
    def test_the_tour_has_the_ladders_order(self):
        said = "the table", "ok: 2 rows measured, in the order of the ladder"
        self.check("tour", said=said)
        self.check("tour", said="done in an earlier call")
        self.write("steps/02_tiled/lesson.cuh", "int changed;")
        self.tour(1.2)
        wrong = "FAILED: 02 registers takes longer than 01 naive"
        self.check("tour", status=1, said=wrong)
        self.tour(1.0)
        self.program("scripts/tour.sh", "#!/bin/sh\nexit 1")
        self.check("tour", status=1, said="FAILED: 2 rows")

    def test_everything(self):
        said = self.check("")
        for words in (
            "NVIDIA H200, driver 580.1, CUDA 13.0.88, the simulator models H200",
            "ok: all 2 tests passed",
            "all 236 figures are equal",
            "of the figures are of backward passes",
            "ok: 24 runs clean, 0 not",
            "ok: N=10240: 02_tiled exit status 3, 04_fused exit status 0",
            "GB of workspace, 80 GB free",
            "smem=98304",
        ):
            self.assertIn(words, said)
        self.assertRegex(said, r"HBM: (\d+) of \1 figures within 10%")
        ran = self.ran()
        for case, there in (
            (("02_tiled", "registers", "b1_h32_n16384_d64"), True),
            (("02_tiled", "shared", "b1_h32_n16384_d64"), False),  # not a step's result
            (("02_tiled", "shared", "b4_h32_n4096_d64_causal"), True),
            (("02_tiled", "shared", "b4_h16_n4096_d128_causal"), False),  # in no table
            (("04_fused", "fused", "b2_h1_n257_d128_causal"), True),
        ):
            self.assertEqual(case in ran, there, case)

    def test_the_last_step_is_the_last_that_this_gpu_runs(self):
        self.add_steps("16_other")
        self.check("memory", said="ok: N=10240: 02_tiled exit status 3, 04_fused exit status 0")

    def test_a_b200_measures_step_16(self):
        self.add_steps("16_other")
        self.program("bin/nvidia-smi", SMI.replace("H200", "B200"))
        self.program("scripts/peers.py", PEERS)
        self.check("timing peers", tool="maintain measure", said="the simulator models B200")
        self.assertIn("16_other", {step for step, *_ in self.ran()})
        self.assertIn("--steps 16_other", (self.folder / "peers.log").read_text())

    def test_a_step_that_decodes_has_problems_of_its_own(self):
        self.add_steps("13_cache")
        said = self.check("counters timing sanitizer", "--steps", "13")
        for words in ("0 problems timed, 0 failed", "9 of 9 problems simulated", "12 runs clean"):
            self.assertIn(words, said)
        for words in ("N=1 Nk=257", "lengths=0,1,700,1500", "page=16", "N=16", "causal"):
            self.assertIn(words, said)

    @unittest.skipUnless(HAVE_GIT, "git is not installed")
    def test_a_call_continues_and_a_change_of_a_step_is_measured_again(self):
        sections = "tests counters sanitizer timing"
        self.check(sections, said="ok: 24 runs clean, 0 not")
        first = self.ran()
        self.assertEqual({step for step, *_ in first}, set(STEPS))
        self.program("bin/compute-sanitizer", "#!/bin/sh\nexit 9\n")
        said = self.check(sections, said="done in an earlier call")
        refused = {case for case in first if "_n100_" in case[2]}
        self.assertEqual(self.ran(), refused)
        for words in ("figures are equal", "ok: 24 runs clean, 0 not"):
            self.assertIn(words, said)
        self.write("steps/02_tiled/lesson.cuh", "// a comment is no change")
        self.check("timing")
        self.assertEqual(self.ran(), set())
        self.write("steps/02_tiled/lesson.cuh", "int changed;")
        self.check(sections, status=1, said="FAILED: 8 runs clean, 16 not")
        self.assertEqual(self.ran() - refused, {c for c in first - refused if c[0] == "02_tiled"})

    def test_what_would_take_too_long_is_left_out(self):
        late = PROGRAM.replace("\nscratch=", "\n[ $n != 4096 ] || sleep 0.3\nscratch=", 1)
        self.program("build/gpu/steps/04_fused", late)
        path = self.folder / "scripts/lab/measure.py"
        path.write_text(path.read_text().replace("CE = 150", "CE = 0.5"))
        self.check("timing", "--steps", "04", said="04_fused fused: N=8192 left out")
        sizes = {int(re.search(r"_n(\d+)", problem)[1]) for _, _, problem in self.ran()}
        self.assertEqual(max(sizes), 4096)

    def test_each_failure_is_recorded_and_the_rest_goes_on(self):
        wrong = gpu()
        wrong["traffic"]["requests"]["load"] += 1
        self.template("gpu", wrong)
        failing = CTEST.replace("   Passed    1.00", "***Failed    1.00") + "exit 8\n"
        self.program("bin/ctest", failing)
        self.program("bin/compute-sanitizer", SANITIZER.replace("exit 5", "exit 5\nexit 9"))
        said = self.check("", status=1, said="1 of 2 tests failed: test_b")
        failed = re.findall(r"^FAILED  (\w+)", said, re.MULTILINE)
        self.assertEqual(failed, ["tests", "counters", "sanitizer"])
        self.program("build/sim/steps/02_tiled", "#!/bin/sh\necho cannot start\nexit 2\n")
        self.write("steps/02_tiled/lesson.cuh", "int changed;")
        self.check("counters", status=1, said="02_tiled --describe: cannot start")

    def test_a_budget_that_ends_is_called_so(self):
        """And counts neither as a failure of what was stopped, nor as a wrong result."""
        slow = "#!/bin/sh\nexec sleep 5\n"
        rest = PROGRAM.replace("\nif", '\n[ "$n" ] && exec sleep 5\nif', 1)
        short = ("--budget", "1", "--steps", "02")
        self.program("bin/cmake", "#!/bin/sh\necho -- 1 error so far\nexec sleep 5\n")
        done = self.ended(self.call(*short, "--sections", "sanitizer"), 1)
        self.assertIn("FAILED: gpu: stopped: out of time\n", done.stdout)
        self.program("bin/compute-sanitizer", slow)
        for section, text, said in (
            ("sanitizer", PROGRAM, "FAILED: 0 runs clean, 0 not, 24 out of time: run the same"),
            ("timing", PROGRAM, "out of time: run the same command again"),
            ("memory", rest, ": stopped: out of time"),
            ("timing", slow, "FAILED: 02_tiled --describe: stopped: out of time\n"),
        ):
            self.program("build/gpu/steps/02_tiled", text)
            output = self.check(section, *short, status=1, said=said)
            self.assertNotRegex(output, "None|took too long")

    def test_the_rivals(self):
        self.add_steps("07_x", "10_y", "11_z")  # the last one keeps S and P, so `memory` fails
        self.program("scripts/peers.py", PEERS)
        self.check("peers", said="2 comparisons")
        forward, backward = (self.folder / "peers.log").read_text().splitlines()
        self.assertRegex(
            forward, "--steps 07_x 10_y --variants=all --directions=forward .* --turns=3"
        )
        self.assertRegex(backward, "--steps 11_z .*backward.* --json .*/out/peers.json")
        self.program("scripts/peers.py", NO_PEERS)
        self.check("", status=1, said="not available: peers.py: no PyTorch")
        for text, said in (
            (NO_PEERS, "FAILED: peers.py: no PyTorch"),  # requested by name
            ("print('Left out, there was no time'); exit(1)", "FAILED: out of time: run the same"),
            ("print('07 x is wrong'); exit(1)", "FAILED: 07 x is wrong"),
        ):
            self.program("scripts/peers.py", text)
            self.check("peers", status=1, said=said)

    def test_a_slowed_gpu_is_noted_and_measured_again(self):
        self.assertNotIn("note:", self.check("timing", "--steps", "02"))
        slow = gpu()
        slow["roofs"]["fp32_flops"] = 4.88e13
        self.template("gpu", slow)
        self.write("steps/02_tiled/lesson.cuh", "int changed;")
        said = self.check("timing")
        self.assertRegex(said, "note: .* runs were measured while the GPU was slowed down: run the")
        self.check("timing")
        self.assertEqual({step for step, *_ in self.ran()}, set(STEPS))

    def test_bad_use(self):
        for args, word in (
            (("--steps", "77"), "no step '77'"),
            (("--sections", "nosuch"), "'nosuch' is not one of tests tour counters"),
            (("--publish", "/nowhere"), "/nowhere"),
            (("--frobnicate",), "--frobnicate"),
        ):
            done = self.call(*args)
            self.assertEqual((done.returncode, word in done.stderr), (2, True), done.stderr)
            self.assertNotIn("Traceback", done.stderr)
        self.program("bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
        self.refused(self.call(), 3, "no GPU found")


def peers_result(*ms, torch="2.11", slow=1, step="07_x"):
    """A result of peers.py: a step beside a backend that takes 12 ms, in repeats of these times."""
    p = {"b": 1, "h": 32, "hkv": 32, "n": 512, "nk": 512, "d": 64, "causal": False}
    p |= {"dtype": "bf16", "problem": "p", "direction": "forward", "commit": "abc"}
    rates = [0.5 / slow if i == 0 else 0.5 for i in range(len(ms))]
    repeats = [
        {"ms": t, "of_matmul": 0.5 * 6 / t * (slow if i == 0 else 1), "ratios": {"flash": 12 / t}}
        for i, t in enumerate(ms)
    ]
    mine = {**p, "step": step, "variant": "mma", "label": "07 mma", "repeats": repeats}
    other = [{"ms": 12, "of_matmul": 0.25, "ratios": {}} for _ in rates]
    flash = {**p, "step": None, "variant": "flash", "label": "torch flash", "repeats": other}
    about = {"device": "NVIDIA H200", "torch": torch, "rounds": 10, "iters": 2}
    return {**about, "commands": [], "notes": [], "rows": [mine, flash]}


class Publish(unittest.TestCase):
    def test_what_takes_the_place_of_an_earlier_run(self):
        other = sim()
        other["device"]["name"] = "another host"
        for run, same in ((sim(), other), (gpu(), gpu(model_gpu="A100"))):
            self.assertEqual(publish.identity(run), publish.identity(same))
        for run, another in ((sim(), sim(model_gpu="A100")), (gpu(), gpu("NVIDIA A100"))):
            self.assertNotEqual(publish.identity(run), publish.identity(another))

    def test_repeats_become_medians_without_slowed_ones(self):
        for slow, ms, count in ((1, 8, 3), (1.2, 7, 2)):
            found = publish.published_peers(peers_result(10, 8, 6, slow=slow))
            mine, flash = found["rows"]
            self.assertEqual((mine["ms"], len(mine["repeats"])), (ms, count))
            self.assertEqual((flash["ms"], "repeats" in flash), (12, False))

    def test_newer_rows_take_the_place_of_older_ones(self):
        old = publish.published_peers(peers_result(10))
        new = publish.published_peers(peers_result(8, step="09_x"))
        rows = publish.merge_peers(old, new, "f.json")["rows"]
        self.assertEqual([row["step"] for row in rows], ["07_x", None, "09_x"])
        again = publish.merge_peers(old, publish.published_peers(peers_result(6)), "f.json")
        self.assertEqual([row["ms"] for row in again["rows"]], [6, 12])
        with self.assertRaisesRegex(BadInput, "f.json has 'torch' 2.11, what was measured now 3"):
            publish.merge_peers(old, publish.published_peers(peers_result(6, torch="3")), "f.json")


main()
