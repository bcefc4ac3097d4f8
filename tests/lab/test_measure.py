"""gpu_check.sh and maintain measure without a GPU: in a copy of the scripts, with programs that
only pretend; and publishing results."""

import copy
import json
import os
import re
import subprocess
import tempfile
import unittest

from basis import HAVE_GIT, SCRIPTS, commit_all, copy_scripts, gpu, sim, with_prepare, write
from flash_steps.command import BadInput
from lab import publish

# 02_tiled keeps S and P; 04_fused does not, has --smem, a prepare, and a backward with atomics;
# 13_cache decodes. Hundreds of runs: no Python, which starts seven times as slowly. What they
# write: template().
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
echo 'right     every checked error
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


class Copy(unittest.TestCase):
    """A copy of the repository's scripts, with programs that only pretend."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.join(folder.name, "repo")
        copy_scripts(self.root)
        with open(os.path.join(SCRIPTS, "..", "common", "data", "gpus.json")) as file:
            self.write("common/data/gpus.json", file.read())
        self.template("sim", sim())
        self.template("gpu", gpu())
        for path, text in (
            ("bin/nvidia-smi", SMI),
            ("bin/nvcc", "#!/bin/sh\necho 'release 13.0, V13.0.88'\n"),
            ("bin/ctest", CTEST),
            ("bin/compute-sanitizer", SANITIZER),
            ("scripts/peers.py", NO_PEERS),
        ):
            self.write(path, text)
        self.add_steps(*STEPS)

    def add_steps(self, *steps):
        for step in steps:
            self.write(f"steps/{step}/main.cu", f'#include "steps/{step}/lesson.cuh"')
            self.write(f"steps/{step}/lesson.cuh", "")
            for preset in ("sim", "gpu", "gpu-check"):
                self.write(f"build/{preset}/steps/{step}", PROGRAM)
        commit_all(self.root)

    def template(self, kind, run):
        """What the programs write with --json: `run` with their own arguments in place of @...@."""
        keys = ("b", "h", "n", "d", "causal", "smem", "hkv", "nk", "page", "lengths")
        run["problem"].update({key: f"@{key}@" for key in keys})
        run.update(step="@step@", variant="@variant@", workspace_bytes="@scratch@")
        run["estimate_heads"] = "@heads@" if kind == "sim" else None
        self.write(f"build/{kind}.json", json.dumps(run))
        run["backward"] = copy.deepcopy({key: run[key] for key in ("traffic", "time", "flops")})
        run["backward"]["traffic"]["requests"]["atomic"] = "@n@"
        self.write(f"build/{kind}.04_fused.json", json.dumps(with_prepare(run)))

    def write(self, path, text):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o755)

    def call(self, *args, tool="gpu_check.sh"):
        env = {**os.environ, "PATH": f"{self.root}/bin:/usr/bin:/bin"}
        line = [os.path.join(self.root, "scripts", *tool.split()[:1]), *tool.split()[1:], *args]
        return subprocess.run(line, capture_output=True, text=True, env=env, cwd=self.root)

    def check(self, sections, *args, status=0, said=(), tool="gpu_check.sh"):
        """What a call without a build says, of these sections ("": all)."""
        chosen = ("--sections", sections) if sections else ()
        done = self.call("--no-build", "--out", "out", *chosen, *args, tool=tool)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        for words in [said] if isinstance(said, str) else said:
            self.assertIn(words, done.stdout)
        return done.stdout

    def ran(self):
        """What the last call has run on the GPU: {(step, variant, problem)}."""
        with open(os.path.join(self.root, "out", "results.json"), encoding="utf-8") as file:
            names = [command["name"] for command in json.load(file)["commands"]]
        return {tuple(name[4:].split(".")) for name in names if name.startswith("gpu ")}


class Check(Copy):
    def test_everything(self):
        said = self.check("")
        for words in (
            "NVIDIA H200, driver 580.1, CUDA 13.0.88, the simulator models H200",
            "ok: all 2 tests passed",
            "all 236 figures are equal",
            "HBM: 112 of 112 figures within 10%",
            "of the figures are of backward passes",
            "ok: 24 runs clean, 0 not",
            "ok: N=10240: 02_tiled exit status 3, 04_fused exit status 0",
            "GB of workspace, 80 GB free",
        ):
            self.assertIn(words, said)
        self.assertIn("smem=98304", said)
        ran = self.ran()
        for case, there in (
            (("02_tiled", "registers", "b1_h32_n16384_d64"), True),
            (("02_tiled", "shared", "b1_h32_n16384_d64"), False),  # not a step's result
            (("02_tiled", "shared", "b4_h32_n4096_d64_causal"), True),
            (("02_tiled", "shared", "b4_h16_n4096_d128_causal"), False),  # no table has it
            (("04_fused", "fused", "b2_h1_n257_d128_causal"), True),
        ):
            self.assertEqual(case in ran, there, case)

    def test_a_step_that_decodes_has_problems_of_its_own(self):
        self.add_steps("13_cache")
        said = self.check("counters timing sanitizer", "--steps", "13")
        for words in ("0 problems timed, 0 failed", "9 of 9 problems simulated", "12 runs clean"):
            self.assertIn(words, said)
        for words in ("N=1 Nk=257", "lengths=0,1,700,1500", "page=16", "N=16", "causal"):
            self.assertIn(words, said)
        wrong = """[ $kind$page != gpu16 ] || sed -i 's/load": 4000000/load": 4000001/' "$json"\n"""
        self.write(
            "build/gpu/steps/13_cache", PROGRAM.replace('echo "${step', wrong + 'echo "${step')
        )
        self.write("steps/13_cache/lesson.cuh", "int changed;")
        self.check("counters", "--steps", "13", "--quick", status=1, said="1 of 16 figures differ")

    @unittest.skipUnless(HAVE_GIT, "git is not installed")
    def test_a_call_continues_and_a_change_of_a_step_is_measured_again(self):
        sections = "tests counters sanitizer timing"
        self.check(sections, "--quick", said="ok: 12 runs clean, 0 not")
        first = self.ran()
        self.assertEqual({step for step, *_ in first}, set(STEPS))
        self.write("bin/compute-sanitizer", "#!/bin/sh\nexit 9\n")
        said = self.check(sections, "--quick", said="done in an earlier call")
        self.assertEqual(self.ran(), set())
        for words in ("figures are equal", "ok: 12 runs clean, 0 not"):
            self.assertIn(words, said)
        self.write("steps/02_tiled/lesson.cuh", "// a comment is no change")
        self.check("timing", "--quick")
        self.assertEqual(self.ran(), set())
        self.write("steps/02_tiled/lesson.cuh", "int changed;")
        self.check(sections, "--quick", status=1, said="FAILED: 4 runs clean, 8 not")
        self.assertEqual(self.ran(), {case for case in first if case[0] == "02_tiled"})
        self.check("tests", said="done in an earlier call")

    def test_what_would_take_too_long_is_left_out(self):
        late = PROGRAM.replace("\nscratch=", "\n[ $n != 4096 ] || sleep 0.3\nscratch=", 1)
        self.write("build/gpu/steps/04_fused", late)
        with open(os.path.join(SCRIPTS, "lab", "measure.py"), encoding="utf-8") as file:
            self.write("scripts/lab/measure.py", file.read().replace("CE = 150", "CE = 0.5"))
        self.check("timing", "--steps", "04", said="04_fused fused: N=8192 left out")
        sizes = {int(re.search(r"_n(\d+)", problem)[1]) for _, _, problem in self.ran()}
        self.assertEqual(max(sizes), 4096)

    def test_each_failure_is_recorded_and_the_rest_goes_on(self):
        wrong = gpu()
        wrong["traffic"]["requests"]["load"] += 1
        self.template("gpu", wrong)
        failing = CTEST.replace("   Passed    1.00", "***Failed    1.00") + "exit 8\n"
        self.write("bin/ctest", failing)
        self.write("bin/compute-sanitizer", SANITIZER.replace("exit 5", "exit 5\nexit 9"))
        said = self.check("", "--quick", status=1, said="1 of 2 tests failed: test_b")
        failed = re.findall(r"^FAILED  (\w+)", said, re.MULTILINE)
        self.assertEqual(failed, ["tests", "counters", "sanitizer"])
        self.write("build/sim/steps/02_tiled", "#!/bin/sh\necho cannot start\nexit 2\n")
        self.write("steps/02_tiled/lesson.cuh", "int changed;")
        self.check("counters", "--quick", status=1, said="02_tiled --describe: cannot start")

    def test_the_reason_of_a_failed_run_is_said(self):
        for step, status, word in (("02_tiled", 1, "WRONG"), ("04_fused", 4, "not checkable:")):
            text = PROGRAM.replace(": right,", f": {word.rstrip(':')},") + f"exit {status}\n"
            text = text.replace("right     every checked error", f"{word} this")
            self.write(f"build/gpu/steps/{step}", text)
        output = self.check("timing", "--quick", status=1)
        for sentence in (
            "wrong result: 02 shared: WRONG, HBM 60.0 MB; WRONG this is allowed.\n",
            "exit 4: 04 fused: not checkable, HBM 60.0 MB; not checkable: this is allowed.\n",
        ):
            self.assertIn(sentence, output)

    def test_hbm_fails_on_a_miss_where_the_model_promises(self):
        run = gpu()
        run["traffic"]["hbm"]["measured"]["read"] = 40000000
        self.template("gpu", run)
        said = "figures are equal; the largest difference is 0; HBM: 8 of 16 figures within 10%"
        self.check("counters", "--quick", "--steps", "02", status=1, said=said)

    def test_a_budget_that_ends_is_called_so(self):
        """And is no failure of what was stopped, nor a wrong result."""
        slow = "#!/bin/sh\nexec sleep 5\n"
        rest = PROGRAM.replace("\nif", '\n[ "$n" ] && exec sleep 5\nif', 1)
        quick = ("--quick", "--budget", "1", "--steps", "02")
        self.write("bin/cmake", "#!/bin/sh\necho -- 1 error so far\nexec sleep 5\n")
        done = self.call(*quick, "--sections", "sanitizer")
        self.assertEqual(done.returncode, 1)
        self.assertIn("FAILED: gpu: stopped: out of time\n", done.stdout)
        self.write("bin/compute-sanitizer", slow)
        for section, text, said in (
            ("sanitizer", PROGRAM, "FAILED: 0 runs clean, 0 not, 8 out of time: run the same"),
            ("timing", PROGRAM, "out of time: run the same command again"),
            ("memory", rest, ": stopped: out of time"),
            ("timing", slow, "FAILED: 02_tiled --describe: stopped: out of time\n"),
        ):
            self.write("build/gpu/steps/02_tiled", text)
            output = self.check(section, *quick, status=1, said=said)
            self.assertNotRegex(output, "None|took too long")

    def test_the_rivals(self):
        self.add_steps("07_x", "10_y", "11_z")  # the last one keeps S and P, so `memory` fails
        self.write("scripts/peers.py", PEERS)
        self.check("peers", "--peers-runs", "2", said="2 comparisons")
        with open(os.path.join(self.root, "peers.log"), encoding="utf-8") as file:
            forward, backward = file.read().splitlines()
        self.assertRegex(
            forward, "--steps 07_x 10_y --variants=all --directions=forward .* --turns 2"
        )
        self.assertRegex(backward, "--steps 11_z .*backward.* --json .*/out/peers.json")
        self.write("scripts/peers.py", NO_PEERS)
        self.check("", "--quick", status=1, said="not available: peers.py: no PyTorch")
        for text, said in (
            (NO_PEERS, "FAILED: peers.py: no PyTorch"),  # asked for by name
            ("print('Left out, there was no time'); exit(1)", "FAILED: out of time: run the same"),
            ("print('07 x is wrong'); exit(1)", "FAILED: 07 x is wrong"),
        ):
            self.write("scripts/peers.py", text)
            self.check("peers", status=1, said=said)

    def test_a_slowed_gpu_is_noted_and_measured_again(self):
        self.assertNotIn("note:", self.check("timing", "--quick"))
        slow = gpu()
        slow["roofs"]["fp32_flops"] = 4.88e13
        self.template("gpu", slow)
        self.write("steps/02_tiled/lesson.cuh", "int changed;")
        self.check("timing", "--quick", said="note: 5 of 14 runs have an FMA roof under 90%")
        self.check("timing", "--quick")
        self.assertEqual({step for step, *_ in self.ran()}, {"02_tiled"})

    def test_bad_use(self):
        for args, word in (
            (("--steps", "77"), "no step '77'"),
            (("--sections", "nosuch"), "'nosuch' is not one of tests counters"),
            (("--publish", "/nowhere"), "/nowhere"),
            (("--frobnicate",), "--frobnicate"),
        ):
            done = self.call(*args)
            self.assertEqual(done.returncode, 2, args)
            self.assertIn(word, done.stderr)
            self.assertNotIn("Traceback", done.stderr)
        self.write("bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
        done = self.call()
        self.assertEqual((done.returncode, "no GPU found" in done.stderr), (3, True))

    def test_what_tables_show_is_measured_and_published(self):
        self.check("", "--peers-runs", "1", tool="maintain measure")
        self.assertIn(("02_tiled", "registers", "b1_h32_n16384_d64"), self.ran())
        self.assertNotIn(("02_tiled", "registers", "b1_h2_n17_d64_causal"), self.ran())
        folder = os.path.join(self.root, "docs", "results")
        os.makedirs(folder)
        write(os.path.join(folder, "h200.json"), {"runs": [gpu(step="03_x")], "peers": None})
        (path,) = publish.publish([os.path.join(self.root, "out")], folder)
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        self.assertEqual((found["device"], found["driver"]), ("NVIDIA H200", "580.1"))
        self.assertEqual({run["step"] for run in found["runs"]}, {"03_x", *STEPS})
        self.assertTrue(all(run["commit"] for run in found["runs"]))
        self.assertNotIn("max_abs_err", json.dumps(found))
        before = len(found["runs"])
        publish.publish([os.path.join(self.root, "out")], folder)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(len(json.load(file)["runs"]), before)


def peers_result(*ms, torch="2.11", slow=1, step="07_x"):
    """Of peers.py: a step beside a backend that takes 12 ms, in repeats of these times."""
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
    def test_roofs_that_look_wrong_are_noted(self):
        slow = {"fp32_flops": 4.88e13}
        under = "of 1 runs have an FMA roof under 90% of the 66.9 TFLOP/s"
        for changes, device, words in (
            (({}, {"bf16_flops": 7.3e14}), "NVIDIA H200", []),  # 4% less
            (({"bf16_flops": 0}, {"bf16_flops": 0}), "NVIDIA H200", []),  # a card without bf16
            ((slow,), "Voodoo 2", []),
            ((slow,), "NVIDIA H200", [under]),
            (({}, {"copy_bytes_per_s": 3.9e12}), "NVIDIA H200", ["copy roof differs between runs"]),
        ):
            runs = [gpu() for _ in changes]
            for run, change in zip(runs, changes):
                run["roofs"].update(change)
            notes = publish.roof_notes([sim(), *runs], device)
            self.assertEqual(len(notes), len(words), notes)
            for note, word in zip(notes, words):
                self.assertIn(word, note)

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


if __name__ == "__main__":
    unittest.main(argv=["test"])
