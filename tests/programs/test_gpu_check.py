"""counters_vs_sim.py and gpu_check.sh without a GPU: JSON and programs made by hand."""

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

from copies import HAVE_GIT, SCRIPTS, commit_all, copy_scripts, maintain
from flash_steps import counters_vs_sim, merge, peers_table
from flash_steps.command import BadInput
from flash_steps.gpu_table import model_of
from flash_steps.problems import tag
from flash_steps.results import Run
from sample_results import gpu, sim, with_backward, with_prepare, write


class Folders(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name in ("gpu", "sim"):
            os.makedirs(os.path.join(self.folder, name))

    def file(self, kind, data, name="run"):
        return write(os.path.join(self.folder, kind, name + ".json"), data)

    def compare(self):
        return maintain(
            "counters_vs_sim", os.path.join(self.folder, "gpu"), os.path.join(self.folder, "sim")
        )


class Compare(Folders):
    def test_equal_counters(self):
        self.file("sim", sim())
        self.file("gpu", gpu())
        done = self.compare()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("all 4 figures are equal; the largest difference is 0", done.stdout)

    def test_one_sector_too_many(self):
        measured = gpu()
        measured["traffic"]["sectors"]["store"] += 1
        self.file("sim", sim())
        self.file("gpu", measured)
        done = self.compare()
        self.assertEqual(done.returncode, 1)
        self.assertIn(
            "1 of 4 figures differ; the largest difference is 2.5e-05%: store sectors of 01 naive",
            done.stdout,
        )

    def test_lines_are_compared_where_both_counted_them(self):
        """Results from before they were counted have none."""
        counted, measured = sim(), gpu()
        counted["traffic"]["lines"] = {"load": 9000000, "store": 1000000, "atomic": 0}
        self.file("sim", counted)
        self.file("gpu", measured)
        self.assertIn("all 4 figures are equal", self.compare().stdout)
        measured["traffic"]["lines"] = {"load": 9000001, "store": 1000000, "atomic": 0}
        self.file("gpu", measured)
        done = self.compare()
        self.assertEqual(done.returncode, 1)
        self.assertIn("1 of 6 figures differ", done.stdout)
        self.assertIn("load lines of 01 naive", done.stdout)

    def test_wavefronts_are_shown_and_need_not_be_equal(self):
        """Results from before they were measured have none: a dash."""
        counted, measured = sim(), gpu()
        counted["traffic"]["shared_wavefronts"] = {"load": 1000, "store": 0}
        self.file("sim", counted)
        self.file("gpu", measured)
        done = self.compare()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"load wavefronts +1,000 +- +not measured\n")
        self.assertNotIn("store wavefronts", done.stdout)
        self.assertNotIn("figures of wavefronts", done.stdout)
        self.assertIn("all 4 figures are equal", done.stdout.splitlines()[-1])
        measured["traffic"]["shared_wavefronts"] = {"load": 980, "store": 0}
        self.file("gpu", measured)
        done = self.compare()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"load wavefronts +1,000 +980 +2% \*\n")
        self.assertIn("* 1 of 1 figures of wavefronts differ, by 2% at most", done.stdout)
        self.assertIn("all 4 figures are equal", done.stdout.splitlines()[-1])
        measured["traffic"]["shared_wavefronts"] = {"load": 1000, "store": 0}
        self.file("gpu", measured)
        self.assertIn("all 1 figures of wavefronts are equal", self.compare().stdout)
        self.file("sim", sim())  # counted by an older program
        done = self.compare()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"load wavefronts +- +1,000 +not measured\n")

    def test_an_atomic_that_only_one_side_saw(self):
        measured = gpu()
        measured["traffic"]["requests"]["atomic"] = 7
        self.file("sim", sim())
        self.file("gpu", measured)
        self.assertEqual(self.compare().returncode, 1)

    def test_backward_passes_and_atomics_are_compared_and_named(self):
        self.file("sim", with_backward(sim(step="06_x", variant="backward"), atomic=7))
        self.file("gpu", with_backward(gpu(step="06_x", variant="backward"), atomic=7))
        done = self.compare()
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn(
            "6 of the figures are of backward passes, 2 of atomics\nall 10 figures are equal",
            done.stdout,
        )
        self.file("gpu", with_backward(gpu(step="06_x", variant="backward"), atomic=8))
        done = self.compare()
        self.assertEqual(done.returncode, 1)
        self.assertIn(
            "2 of 10 figures differ; the largest difference is 14.3%: atomic requests of "
            "06 backward bwd",
            done.stdout,
        )

    def test_prepare_passes_are_compared_and_named(self):
        self.file("sim", with_prepare(sim(step="12_x", variant="e4m3")))
        measured = with_prepare(gpu(step="12_x", variant="e4m3"))
        self.file("gpu", measured)
        done = self.compare()
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn(
            "0 of the figures are of backward passes, 0 of atomics, 4 of prepare passes\n"
            "all 8 figures are equal",
            done.stdout,
        )
        measured["prepare"]["traffic"]["sectors"]["store"] += 1
        self.file("gpu", measured)
        done = self.compare()
        self.assertEqual(done.returncode, 1)
        self.assertIn("1 of 8 figures differ", done.stdout)
        self.assertIn("store sectors of 12 e4m3 prep", done.stdout)

    def test_runs_with_other_shared_memory_are_not_compared(self):
        self.file("sim", [sim(smem=32768), sim(smem=65536)])
        self.file("gpu", gpu(smem=65536))
        done = self.compare()
        self.assertEqual(done.stdout.count("smem=65536"), 4, done.stdout)
        self.assertNotIn("32768", done.stdout)
        self.file("gpu", gpu())
        self.assertEqual(self.compare().returncode, 1)

    def test_refused_counters_are_no_success(self):
        measured = gpu()
        measured["traffic"].update(requests=None, sectors=None, note="hardware counters refused")
        self.file("sim", sim())
        self.file("gpu", measured)
        done = self.compare()
        self.assertEqual(done.returncode, 1)
        self.assertIn("note: hardware counters refused", done.stdout)
        self.assertIn("no figure was measured", done.stdout)

    def test_other_problems_are_not_compared(self):
        self.file("sim", sim(n=512))
        self.file("gpu", gpu())
        done = self.compare()
        self.assertEqual(done.returncode, 1)
        self.assertIn("nothing to compare", done.stdout)

    def test_bad_input(self):
        self.file("sim", sim())
        with open(os.path.join(self.folder, "gpu", "x.json"), "w", encoding="utf-8") as file:
            file.write("{")
        done = self.compare()
        self.assertEqual(done.returncode, 2)
        self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)


class Hbm(unittest.TestCase):
    def entry(self, working_set, read=31e6, write_=29e6):
        measured = gpu()
        measured["traffic"]["hbm"]["measured"] = {"read": read, "write": write_}
        row = counters_vs_sim.join([Run(sim(), "forward"), Run(measured, "forward")])[0]
        return counters_vs_sim.hbm_entry(row, working_set, l2_bytes=50e6)

    def test_ratio(self):
        entry = self.entry(10e6, read=31e6 * 1.05)
        self.assertAlmostEqual(entry["read_ratio"], 1.05)
        self.assertAlmostEqual(entry["write_ratio"], 1.0)
        self.assertTrue(entry["within_10_percent"])
        self.assertFalse(self.entry(10e6, read=31e6 * 1.2)["within_10_percent"])

    def test_what_the_model_promises(self):
        self.assertEqual(
            [self.entry(x * 50e6)["promised"] for x in (0.25, 0.5, 1, 3, 4)],
            [True, False, False, False, True],
        )
        self.assertIn("promises no accuracy", counters_vs_sim.hbm_text([self.entry(50e6)]))
        self.assertNotIn("promises no accuracy", counters_vs_sim.hbm_text([self.entry(10e6)]))

    def test_the_working_set_is_that_of_the_buffers_a_pass_touches(self):
        data = sim(b=2, h=3, hkv=3, n=8, nk=8, d=4)
        buffers = data["traffic"]["requested"]["buffers"]
        for names, elements in (
            (["Q"], 8 * 4),
            (["S", "dP"], 2 * 8 * 8),
            (["m", "LSE"], 2 * 8),
            (["delta", "dO", "V"], 8 + 2 * 8 * 4),
        ):
            buffers.clear()
            buffers.update(dict.fromkeys(names, {}))
            self.assertEqual(
                counters_vs_sim.working_set(Run(data, "forward")), 4 * 2 * 3 * elements, names
            )


class Machine(unittest.TestCase):
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


class Roofs(unittest.TestCase):
    def notes(self, *changes, device="NVIDIA H200"):
        runs = [sim()] + [gpu() for _ in changes]
        for run, change in zip(runs[1:], changes):
            run["roofs"].update(change)
        return merge.roof_notes(runs, device)

    def test_one_session_on_a_gpu_at_full_speed(self):
        self.assertEqual(self.notes({}, {"bf16_flops": 7.3e14}), [])  # 4% less
        self.assertEqual(merge.roof_notes([sim()], None), [])

    def test_a_gpu_that_was_slowed_down(self):
        (low,) = self.notes({"fp32_flops": 4.88e13})
        self.assertEqual(
            low,
            "1 of 1 runs have an FMA roof under 90% of the 66.9 TFLOP/s of this "
            "GPU's highest clock (least: 48.8): the GPU was slowed down; measure "
            "them again.",
        )
        self.assertEqual(self.notes({"fp32_flops": 4.88e13}, device="Voodoo 2"), [])

    def test_sessions_that_differ(self):
        notes = self.notes(
            {}, {"fp32_flops": 4.88e13, "bf16_flops": 5.57e14, "copy_bytes_per_s": 3.9e12}
        )
        self.assertEqual(len(notes), 4)
        self.assertTrue(notes[0].startswith("1 of 2 runs have an FMA roof"))
        self.assertEqual(
            notes[1],
            "The copy roof differs between runs, 3.90 TB/s to 4.20 TB/s: "
            "do not compare their times.",
        )
        self.assertIn("The FMA roof differs between runs, 48.8 TFLOP/s to 65 TFLOP/s: ", notes[2])
        self.assertIn("The bf16 matmul roof differs between runs, 557 TFLOP/s to 760 ", notes[3])

    def test_a_card_without_bf16(self):
        self.assertEqual(self.notes({"bf16_flops": 0}, {"bf16_flops": 0}), [])


class Peers(unittest.TestCase):
    """What peers.py --json wrote, in a merge."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def file(self, name, rows, **changes):
        return write(
            os.path.join(self.folder, name),
            {
                "schema": 2,
                "device": "NVIDIA H200",
                "torch": "2.99",
                "rounds": 10,
                "iters": 2,
                "commands": [f"./scripts/peers.py --steps {name}"],
                "notes": [name],
                "rows": [
                    dict(zip(("step", "variant", "direction", "problem", "ms"), row))
                    for row in rows
                ],
                **changes,
            },
        )

    def test_later_rows_take_the_place_of_earlier_ones(self):
        forward, backward = ("forward", "p"), ("backward", "p")
        first = self.file(
            "a",
            [
                ("07", "mma", *forward, 1),
                (None, "flash", *forward, 2),
                ("08", "roles", *backward, 3),
                (None, "flash", *backward, 4),
            ],
        )
        second = self.file(
            "b",
            [
                ("08", "roles", *backward, 5),
                ("08", "atomics", *backward, 6),
                (None, "flash", *backward, 7),
            ],
        )
        merged = merge.merge([first, second])
        self.assertEqual([row["ms"] for row in merged["peers"]["rows"]], [1, 2, 5, 6, 7])
        self.assertEqual(
            [c["command"] for c in merged["commands"]],
            ["./scripts/peers.py --steps a", "./scripts/peers.py --steps b"],
        )
        self.assertEqual(merged["peers"]["commands"], [c["command"] for c in merged["commands"]])
        self.assertEqual(merged["peers"]["notes"], ["a", "b"])
        again = write(os.path.join(self.folder, "results.json"), merged)
        self.assertEqual(merge.merge([again])["peers"], merged["peers"])

    def run_of(self, name, ms, commit="abc"):
        """One call of peers.py: a step beside a backend that takes 12 ms, met twice."""
        common = {"direction": "forward", "problem": "p", "dtype": "bf16", "of_matmul": 0.5}
        mine = {"step": "07", "variant": "mma", "ms": ms, "flops_per_s": 1e12 / ms}
        mine["commit"] = commit
        peer = {"step": None, "variant": "flash", "ms": 12, "flops_per_s": 1e12 / 12, "ratios": {}}
        rows = [{**mine, **common, "ratios": {"flash": 12 / ms}}] + [{**peer, **common}] * 2
        path = self.file(name, [], run=name)
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
        return write(path, {**result, "rows": rows})

    def test_runs_of_one_text_add_up_to_medians(self):
        runs = [self.run_of(name, ms) for name, ms in (("a", 10), ("b", 8), ("c", 6))]
        mine, peer = merge.merge(runs)["peers"]["rows"]
        self.assertEqual((mine["ms"], mine["ratios"]), (8, {"flash": 1.5}))
        self.assertEqual([run["run"] for run in mine["repeats"]], ["a", "b", "c"])
        self.assertEqual((peer["ms"], len(peer["repeats"])), (12, 6))
        ratio, row, count = peers_table.least_of([mine], "flash")
        self.assertEqual((ratio, row, count), (1.2, mine, 3))
        # The same run again is no further run; one of another text is the only one.
        self.assertEqual(len(merge.merge(runs + runs[:1])["peers"]["rows"][0]["repeats"]), 3)
        other = self.run_of("d", 5, commit="def")
        (mine, _) = merge.merge(runs + [other])["peers"]["rows"]
        self.assertEqual(([run["run"] for run in mine["repeats"]], mine["ms"]), (["d"], 5))

    def test_runs_of_another_kind_are_refused(self):
        first, second = self.file("a", []), self.file("b", [], rounds=3)
        with self.assertRaisesRegex(BadInput, "'rounds' 3, those before have 10"):
            merge.merge([first, second])


class Command(unittest.TestCase):
    """gpu_check.sh in a copy of the repository's scripts, with programs that only pretend."""

    # 02_tiled keeps S and P; 04_fused does not, has --smem, a prepare, and a backward with atomics.
    # Six hundred runs: no Python, which starts seven times as slowly. What they write: template().
    PROGRAM = r"""#!/bin/sh
step=${0##*/} root=${0%/build/*} kind=gpu smem=null causal=false json=
case $0 in */sim/steps/*) kind=sim ;; esac
for word; do
  case $word in
  --list-variants) [ $step = 04_fused ] && echo fused || printf '%s\n' shared registers; exit ;;
  --help) [ $step != 04_fused ] || echo '--smem BYTES'; exit ;;
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

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.join(folder.name, "repo")
        os.makedirs(os.path.join(self.root, "build", "sim", "steps"))
        copy_scripts(self.root)
        table = os.path.join(SCRIPTS, "..", "common", "data", "gpus.json")
        with open(table, encoding="utf-8") as file:
            self.write("common/data/gpus.json", file.read())
        for step in ("02_tiled", "04_fused"):
            self.write(f"steps/{step}/main.cu", "")
        self.template("sim", sim())
        self.template("gpu", gpu())
        self.programs("sim", self.PROGRAM)
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
        run["prepare"] = {
            **copy.deepcopy({key: run[key] for key in ("traffic", "time")}),
            "flops": 0,
        }
        self.write(f"build/{kind}.04_fused.json", json.dumps(run))

    def programs(self, preset, text):
        for step in ("02_tiled", "04_fused"):
            self.write(f"build/{preset}/steps/{step}", text, 0o755)

    def write(self, path, text, mode=0o644):
        path = os.path.join(self.root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)

    def check(self, *args):
        return subprocess.run(
            [os.path.join(self.root, "scripts", "gpu_check.sh"), *args],
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": f"{self.root}/bin:/usr/bin:/bin"},
        )

    def with_a_lesson(self, step):
        self.write(f"steps/{step}/main.cu", f'#include "steps/{step}/lesson.cuh"')
        self.write(f"steps/{step}/lesson.cuh", "")
        commit_all(self.root)

    def pretend_a_gpu(self):
        for preset in ("gpu", "gpu-check"):
            self.programs(preset, self.PROGRAM)
        self.write(
            "bin/nvidia-smi",
            """#!/bin/sh
case "$1" in *memory*) echo '80000 MiB' ;; *) echo 'NVIDIA H200, 580.1' ;; esac
""",
            0o755,
        )
        self.write("scripts/peers.py", "import sys; print('peers.py: no PyTorch'); sys.exit(3)")
        self.write(
            "scripts/figure2.py",
            """import json, sys
json.dump({"rows": [1, 2, 3]}, open(sys.argv[-1], "w"))
""",
        )
        self.write("bin/nvcc", "#!/bin/sh\necho 'release 13.0, V13.0.88'\n", 0o755)
        self.write("bin/ctest", self.CTEST, 0o755)
        self.write("bin/compute-sanitizer", self.SANITIZER, 0o755)

    def results(self, out="out"):
        with open(os.path.join(self.root, out, "results.json"), encoding="utf-8") as file:
            return json.load(file)

    def test_everything(self):
        self.pretend_a_gpu()
        done = self.check("--no-build", "--out", "out")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        results = self.results()
        self.assertEqual(
            (results["device"], results["driver"], results["toolkit"]),
            ("NVIDIA H200", "580.1", "13.0.88"),
        )
        self.assertEqual([t["name"] for t in results["tests"]], ["test_a", "test_b"])
        self.assertTrue(all(e["equal"] for e in results["counters"]))
        compared = {(e["step"], e["figure"]) for e in results["counters"]}
        self.assertIn(("04 fused bwd", "atomic requests"), compared)
        self.assertIn(("04 fused prep", "store sectors"), compared)
        self.assertIn(("02 shared", "store sectors"), compared)
        self.assertEqual(
            {e["problem"] for e in results["counters"] if "smem=" in e["problem"]},
            {f"B=1 H=2 N=257 d=32 smem={smem} fp32" for smem in (32768, 98304)},
        )
        # Two variants and a step with its prepare and its backward, eight problems.
        self.assertEqual(len(results["timing"]), 5 * 8)
        for e in results["timing"]:
            self.assertEqual(e["share_of_roof"] is None, e["step"] == "04 fused prep")
        tools = {
            (e["step"], e["variant"], e["tool"])
            for e in results["sanitizer"]
            if e["verdict"] == "clean"
        }
        self.assertEqual(len(tools), 3 * 4)
        self.assertEqual({round(e["of_l2"], 1) for e in results["hbm"]}, {0.2, 1.0, 4.0})
        self.assertEqual(
            {e["step"] for e in results["hbm"]},
            {"02 shared", "02 registers", "04 fused prep", "04 fused", "04 fused bwd"},
        )
        scale = {(e["step"], e["problem"]) for e in results["scale"]}
        self.assertIn(("02 registers", "B=2 H=32 N=8192 d=64 fp32"), scale)
        self.assertIn(("04 fused bwd", "B=1 H=32 N=16384 d=64 fp32"), scale)
        self.assertNotIn(("02 shared", "B=2 H=32 N=8192 d=64 fp32"), scale)  # not a step's result
        naive, fused = results["memory"]
        self.assertEqual(
            (naive["step"], naive["exit_status"], fused["step"], fused["exit_status"]),
            ("02_tiled", 3, "04_fused", 0),
        )
        self.assertIn("GB of workspace", naive["line"])
        self.assertIn("not available: peers.py: no PyTorch", done.stdout)
        self.assertEqual(results["figure2"], {"rows": [1, 2, 3]})
        kinds = {run["device"]["kind"] for run in results["runs"]}
        self.assertEqual(kinds, {"sim", "gpu"})
        # What timing had run, scale did not run again; the memory section's run is no result.
        names = [c["name"] for c in results["commands"]]
        self.assertEqual(names.count("gpu 02_tiled.registers.b4_h32_n4096_d64"), 1)
        self.assertNotIn(naive["problem"], {tag(r["problem"]) for r in results["runs"]})

    # A step that decodes: it takes few queries, lengths and pages. JSON as `run`, with its problem.
    DECODES = r"""#!{python}
import json, sys
flags = dict(word.removeprefix("--").partition("=")[::2] for word in sys.argv[1:])
if "list-variants" in flags or "help" in flags:
    sys.exit(print("once" if "list-variants" in flags else "--lengths INT,INT,..."))
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

    def test_a_step_that_decodes_has_problems_of_its_own(self):
        self.pretend_a_gpu()
        self.write("steps/13_cache/main.cu", "")
        how = ("--no-build", "--steps", "13", "--out", "out", "--sections")
        for preset, run in (("sim", sim()), ("gpu", gpu()), ("gpu-check", gpu())):
            text = self.DECODES.format(python=sys.executable, run=json.dumps(run), wrong=0)
            self.write(f"build/{preset}/steps/13_cache", text, 0o755)
        done = self.check(*how, "counters hbm timing sanitizer")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
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
        self.assertEqual(len(results["timing"]), 3)
        text = self.DECODES.format(python=sys.executable, run=json.dumps(gpu()), wrong=1)
        self.write("build/gpu/steps/13_cache", text, 0o755)
        done = self.check(*how, "counters")
        self.assertEqual(done.returncode, 1)
        wrong = {e["problem"] for e in self.results()["counters"] if e["equal"] is False}
        self.assertEqual(len(wrong), 3)  # those with pages
        self.assertEqual(self.check(*how, "counters", "--quick", "--out", "few").returncode, 1)
        self.assertEqual(len({e["problem"] for e in self.results("few")["counters"]}), 2)

    def test_sections_are_selectable(self):
        self.pretend_a_gpu()
        done = self.check("--no-build", "--out", "out", "--sections", "memory figure2")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(set(self.results()["sections"]), {"variants", "memory", "figure2"})
        done = self.check("--no-build", "--out", "out", "--sections", "peers")
        self.assertEqual(done.returncode, 1)  # asked for by name
        self.assertIn("FAILED: peers.py: no PyTorch", done.stdout)
        done = self.check("--no-build", "--sections", "nosuch")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'nosuch' is not one of tests counters", done.stderr)

    @unittest.skipUnless(HAVE_GIT, "git is not installed")
    def test_calls_add_to_a_folder_until_the_sources_change(self):
        self.pretend_a_gpu()
        self.with_a_lesson("02_tiled")

        def runs_after(*args):
            self.check("--no-build", "--quick", "--out", "out", *args)
            return {(run["step"], run["problem"]["n"]) for run in self.results()["runs"]}

        self.assertEqual(
            runs_after("--sections", "timing", "--steps", "02"),
            {("02_tiled", 512), ("02_tiled", 1024)},
        )
        both = runs_after("--sections", "timing", "--steps", "04")
        self.assertEqual({step for step, _ in both}, {"02_tiled", "04_fused"})
        self.write("steps/02_tiled/lesson.cuh", "// a comment is no change")
        self.assertEqual(runs_after("--sections", "timing", "--steps", "04"), both)
        self.write("steps/02_tiled/lesson.cuh", "int changed;")
        self.assertEqual(
            runs_after("--sections", "scale", "--steps", "04"),
            {(step, n) for step, n in both if step == "04_fused"} | {("04_fused", 2048)},
        )

    def test_scale_leaves_out_what_would_take_too_long(self):
        self.pretend_a_gpu()
        self.write(
            "build/gpu/steps/04_fused",
            self.PROGRAM.replace("\nscratch=", "\n[ $n != 4096 ] || sleep 0.3\nscratch=", 1),
            0o755,
        )
        script = os.path.join(self.root, "scripts", "flash_steps", "gpu_sections.py")
        with open(script, encoding="utf-8") as file:
            text = file.read().replace("SCALE_PATIENCE = 150", "SCALE_PATIENCE = 0.5")
        self.write("scripts/flash_steps/gpu_sections.py", text)
        done = self.check("--no-build", "--out", "out", "--sections", "scale", "--steps", "04")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("04_fused fused d=64: N=8192 left out, N=4096 took 0 s", done.stdout)
        self.assertEqual(
            {run["problem"]["n"] for run in self.results()["runs"]}, {1024, 2048, 4096}
        )

    def test_results_of_several_calls_become_one(self):
        self.pretend_a_gpu()
        for out, steps in (("a", "02"), ("b", "04"), ("c", "04")):
            self.check(
                "--no-build",
                "--quick",
                "--out",
                out,
                "--steps",
                steps,
                "--sections",
                "counters timing",
            )
        self.assertEqual({run["step"] for run in self.results("b")["runs"]}, {"04_fused"})
        files = [os.path.join(self.root, out, "results.json") for out in "abc"]
        done = self.check("--merge", *files, "--out", os.path.join(self.root, "merged"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        parts, merged = [self.results(out) for out in "ab"], self.results("merged")
        for key in ("runs", "counters", "timing"):
            self.assertEqual(len(merged[key]), sum(len(part[key]) for part in parts), key)
        self.assertTrue(merged["sections"]["timing"]["ok"])
        self.assertEqual(merged["sections"]["timing"]["summary"].count("problems timed"), 3)
        self.assertNotIn("note:", done.stdout)
        for run in parts[0]["runs"]:  # the simulated ones on a machine with other cores
            if run["device"]["kind"] == "sim":
                run["device"]["name"] = "simulator (x86_64, 99 cores)"
        files.append(os.path.join(self.root, "elsewhere.json"))
        write(files[-1], parts[0])
        again = merge.merge(files)
        self.assertEqual(len(again["runs"]), len(merged["runs"]))
        self.assertIn("simulator (x86_64, 99 cores)", {r["device"]["name"] for r in again["runs"]})
        self.write("steps/02_tiled/lesson.cuh", "// changed since")
        self.check("--no-build", "--quick", "--out", "d", "--steps", "04", "--sections", "timing")
        files.append(os.path.join(self.root, "d", "results.json"))
        done = self.check("--merge", *files, "--out", os.path.join(self.root, "merged"))
        self.assertIn("differs in 'sources' from", done.stdout)
        self.assertEqual(self.check("--merge", "/nowhere").returncode, 2)

    def test_the_simulators_side_made_before(self):
        self.pretend_a_gpu()
        self.check("--sim-only", "--no-build", "--out", "side")
        os.remove(os.path.join(self.root, "build/sim/steps/02_tiled"))
        args = (
            "--no-build",
            "--out",
            "out",
            "--sim-json",
            "side/sim",
            "--sections",
            "counters hbm",
            "--steps",
            "02",
        )
        done = self.check(*args)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue(self.results()["counters"])
        self.write("steps/02_tiled/lesson.cuh", "// changed since")
        done = self.check(*args)
        self.assertEqual(done.returncode, 1)
        self.assertIn("made from other sources", done.stdout)

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

    def figures(self, *args, out="out"):
        return self.check("--no-build", "--figures", "--out", out, *args)

    @unittest.skipUnless(HAVE_GIT, "git is not installed")
    def test_figures_go_on_where_the_last_call_ended(self):
        self.pretend_a_gpu()
        self.write("scripts/peers.py", self.PEERS)
        for step in ("06_parts", "07_cores"):
            self.with_a_lesson(step)
            self.write(f"build/gpu/steps/{step}", self.PROGRAM, 0o755)
            self.write(f"build/gpu-check/steps/{step}", self.PROGRAM, 0o755)
        chosen = ("--sections", "scale timing peers tests")
        done = self.figures(*chosen, "--budget", "0.001")
        self.assertEqual(done.returncode, 1)
        with mock.patch.dict(os.environ, FIRST_PEERS_SECONDS="4.5"):
            done = self.figures(*chosen, "--budget", "12")  # no run begins with 8 seconds left
        self.assertEqual(done.returncode, 1, done.stdout)
        done = self.figures(*chosen)
        self.assertEqual(done.returncode, 0, done.stdout)
        first = self.results()
        self.assertEqual(
            {row["step"] for row in first["peers"]["rows"]}, {"06_parts", "07_cores", None}
        )
        for row in first["peers"]["rows"]:
            self.assertEqual(len(row["repeats"]), 6 if row["step"] is None else 3)
        with open(os.path.join(self.root, "peers.log"), encoding="utf-8") as file:
            self.assertEqual(sorted(file.read().split()), ["06_parts"] * 3 + ["07_cores"] * 3)
        shapes = {(r["step"][:2], r["problem"]["n"], r["problem"]["d"]) for r in first["runs"]}
        self.assertIn(("06", 16384, 64), shapes)
        self.assertNotIn(("07", 16384, 64), shapes)  # no table has it
        self.assertIn(("07", 4096, 128), shapes)
        self.assertNotIn(("02", 4096, 128), shapes)  # though it has registers too
        self.assertIn(("06", 4096, 128), shapes)

        # On another machine that one file is enough: nothing is run again.
        os.makedirs(os.path.join(self.root, "moved"))
        write(os.path.join(self.root, "moved", "results.json"), first)
        self.write("build/gpu/steps/07_cores", self.PROGRAM.replace("\nfor", "\nexit 9\nfor", 1))
        calls = len(first["commands"])
        done = self.figures(*chosen, out="moved")
        self.assertEqual(done.returncode, 1)  # 07_cores cannot even name its variants
        self.write("build/gpu/steps/07_cores", self.PROGRAM, 0o755)
        done = self.figures(*chosen, out="moved")
        self.assertEqual(done.returncode, 0, done.stdout)
        again = self.results("moved")
        names = [c["name"] for c in again["commands"][calls:]]
        self.assertFalse([n for n in names if not n.startswith(("variants ", "help "))], names)
        self.assertEqual(len(again["runs"]), len(first["runs"]))

        # After a change of one kernel its runs, and those only, are made again.
        self.write("steps/06_parts/lesson.cuh", "int changed;")
        done = self.figures("--sections", "scale timing", out="moved")
        names = {c["name"] for c in self.results("moved")["commands"][len(again["commands"]) :]}
        self.assertEqual({n.split(".")[0] for n in names if n.startswith("gpu ")}, {"gpu 06_parts"})

    def test_measure_runs_both_halves_and_goes_on(self):
        self.pretend_a_gpu()
        self.write("scripts/peers.py", self.PEERS)
        self.write("steps/07_cores/main.cu", "")
        self.write("build/gpu/steps/07_cores", self.PROGRAM, 0o755)
        smi = "echo 'NVIDIA H200, 580.1'"
        for count in (1, 2):
            gpus = "\n".join(f"echo 'GPU {i}: H200'" for i in range(count))
            script = f'#!/bin/sh\nif [ "$1" = -L ]; then\n{gpus}\nelse\n{smi}\nfi\n'
            self.write("bin/nvidia-smi", script, 0o755)
            out = os.path.join(self.root, f"out{count}")
            self.assertEqual(self.measure(out, "--budget", "0.001").returncode, 1)
            done = self.measure(out)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(
                sorted(os.listdir(out)), ["bf16.json", "bf16.txt", "fp32.json", "fp32.txt"]
            )
            for name, steps in (("fp32", {"02_tiled", "04_fused"}), ("bf16", {"07_cores"})):
                with open(os.path.join(out, name + ".json"), encoding="utf-8") as file:
                    result = json.load(file)
                self.assertEqual({run["step"] for run in result["runs"]}, steps)
            self.assertEqual(len(result["peers"]["rows"][0]["repeats"]), 3)
        self.write("bin/nvidia-smi", "#!/bin/sh\nexit 9\n", 0o755)
        self.assertEqual(self.measure("out").returncode, 3)
        self.assertEqual(self.measure("nothing", "--publish").returncode, 2)

    def test_measure_takes_the_gpus_that_it_may_and_sections_that_there_are(self):
        self.pretend_a_gpu()
        smi = "case $1 in -L) printf 'GPU %s: H200\\n' 0 1 2 3 ;; *) echo H200, 580 ;; esac"
        self.write("bin/nvidia-smi", f"#!/bin/sh\n{smi}\n", 0o755)
        seen = os.path.join(self.root, "seen")
        self.write("steps/07_cores/main.cu", "")
        for step in ("02_tiled", "07_cores"):
            tell = f'#!/bin/sh\necho "${{0##*/}} $CUDA_VISIBLE_DEVICES" >> {seen}\nexit 1\n'
            self.write(f"build/gpu/steps/{step}", tell, 0o755)
        both = ["02_tiled 4", "07_cores 5"]
        for gpus, sections, expected in (
            ("4,5", "timing", both),
            ("4", "timing", ["02_tiled 4", "07_cores 4"]),
            ("4,5", "scale", both[:1]),  # no section of the other half
            ("4,5", "tests", ["07_cores 4"]),
            ("", "timing", []),
            ("4,5", "scales", []),
            ("4,5", "hbm", []),
        ):
            out = os.path.join(self.root, "out")
            with mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=gpus):
                done = self.measure(out, "--sections", sections)
            status = 1 if expected else 2 if gpus else 3
            self.assertEqual(done.returncode, status, done.stderr)
            found = []
            if os.path.exists(seen):
                with open(seen, encoding="utf-8") as file:
                    found = sorted(file.read().splitlines())
                os.remove(seen)
            self.assertEqual(found, expected, sections)
        self.assertIn("--sections hbm: not a section of the halves", done.stderr)

    def measure(self, out, *args):
        chosen = ("--sections", "timing peers", "--out", out, *args)
        path = f"{self.root}/bin:/usr/bin:/bin"
        return maintain("measure", "--no-build", *chosen, root=self.root, PATH=path)

    def peers_of(self, text, count, **environment):
        """(what a call with this peers.py gives, the runs of step 07 that it has kept)"""
        self.write("scripts/peers.py", text)
        with mock.patch.dict(os.environ, environment):
            done = self.figures("--sections", "peers", "--steps", "07", "--peers-runs", str(count))
        rows = [row for row in self.results()["peers"]["rows"] if row["step"]]
        return done, [run["run"] for row in rows for run in row.get("repeats", [row])]

    def test_runs_of_peers_are_kept_whatever_comes_of_a_later_one(self):
        self.pretend_a_gpu()
        self.write("steps/07_cores/main.cu", "")
        self.write("build/gpu/steps/07_cores", self.PROGRAM, 0o755)
        done, runs = self.peers_of(self.PEERS, 2)
        self.assertEqual((done.returncode, runs), (0, ["1", "2"]), done.stdout)
        done, runs = self.peers_of(self.PEERS.replace('torch="2"', 'torch="3"'), 3)
        self.assertEqual((done.returncode, runs), (1, ["1", "2"]))
        self.assertIn("its peers have 'torch' 3, those before have 2", done.stdout)
        stopped = "import os, signal, time\nos.kill(os.getppid(), signal.SIGINT)\ntime.sleep(9)"
        done, runs = self.peers_of(stopped, 3)
        self.assertEqual((done.returncode != 0, runs), (True, ["1", "2"]))
        # A run on a slowed GPU does not count, and leaves the file when others come.
        slow = self.PEERS.replace("flops_per_s=1e14", "flops_per_s=8e13")
        done, runs = self.peers_of(slow, 3)
        self.assertEqual((done.returncode, len(runs)), (1, 3))
        self.assertIn("the GPU was slowed down in some runs", done.stdout)
        done, again = self.peers_of(self.PEERS, 3)
        self.assertEqual((done.returncode, len(again)), (0, 3), done.stdout)
        self.assertNotIn(runs[-1], again)

    def test_kept_runs_that_are_wrong_or_without_a_time_are_made_again(self):
        self.pretend_a_gpu()
        chosen = ("--sections", "timing", "--steps", "04")
        self.figures(*chosen)
        kept = self.results()
        missing = {"time": None}
        changes = ({"ok": False}, missing, {"prepare": missing}, {"backward": missing})
        for run, change in zip(kept["runs"], changes):
            run.update(change)
        write(os.path.join(self.root, "out", "results.json"), kept)
        self.figures(*chosen)
        commands = self.results()["commands"][len(kept["commands"]) :]
        self.assertEqual(
            sorted(c["name"].rpartition(".")[2] for c in commands if c["name"][:4] == "gpu "),
            sorted(tag(run["problem"]) for run in kept["runs"][: len(changes)]),
        )

    def test_a_run_on_a_slowed_gpu_is_made_again(self):
        self.pretend_a_gpu()
        slow = gpu()
        slow["roofs"]["fp32_flops"] = 4.88e13
        self.template("gpu", slow)
        chosen = ("--sections", "timing", "--steps", "04")
        self.figures(*chosen)
        self.template("gpu", gpu())
        # The folder of runs is another machine's; what came back is results.json.
        shutil.rmtree(os.path.join(self.root, "out", "gpu"))
        self.figures(*chosen)
        self.assertEqual({run["roofs"]["fp32_flops"] for run in self.results()["runs"]}, {6.5e13})

    def test_published_results_are_short_and_of_one_type(self):
        self.pretend_a_gpu()
        self.figures("--sections", "counters timing")
        folder = os.path.join(self.root, "docs")
        os.makedirs(folder)
        both = self.results()
        for run in both["runs"]:
            if run["step"] == "04_fused":
                run["problem"]["dtype"] = "bf16"
        source = write(os.path.join(self.root, "both.json"), both)
        written = merge.publish([source], folder)
        self.assertEqual(
            [os.path.basename(path) for path in written], ["h200.json", "h200_bf16.json"]
        )
        for path, step in zip(written, ("02_tiled", "04_fused")):
            with open(path, encoding="utf-8") as file:
                published = json.load(file)
            self.assertEqual({run["step"] for run in published["runs"]}, {step})
            self.assertTrue(all(run["commit"] for run in published["runs"]))
            self.assertNotIn("counters", published)
            self.assertFalse([c for c in published["commands"] if c["name"].startswith("gpu ")])
            self.assertNotIn("buffers", json.dumps(published))
        self.assertLess(os.path.getsize(written[0]), os.path.getsize(source) / 2)

    def test_a_step_of_ones_own_is_not_the_last_of_the_ladder(self):
        self.pretend_a_gpu()
        self.write("steps/mine/main.cu", "")
        self.write("build/gpu/steps/mine", "#!/bin/sh\nexit 1\n", 0o755)
        done = self.check("--no-build", "--out", "out", "--sections", "memory", "--steps", "02")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(
            [entry["step"] for entry in self.results()["memory"]], ["02_tiled", "04_fused"]
        )

    def test_roofs_that_look_wrong_are_noted(self):
        self.pretend_a_gpu()
        args = ("--no-build", "--quick", "--out", "out", "--sections", "timing")
        done = self.check(*args)
        self.assertEqual(self.results()["notes"], [])
        self.assertNotIn("note:", done.stdout)
        slow = gpu()
        slow["roofs"]["fp32_flops"] = 4.88e13
        self.template("gpu", slow)
        done = self.check(*args)
        self.assertEqual(done.returncode, 0)  # the results are right, only late
        (note,) = self.results()["notes"]
        self.assertIn("the GPU was slowed down", note)
        self.assertIn(f"note: {note}\n", done.stdout)
        with open(os.path.join(self.root, "out", "report.txt"), encoding="utf-8") as file:
            self.assertIn(f"note: {note}\n", file.read())

    def test_each_failure_is_recorded_and_the_rest_goes_on(self):
        self.pretend_a_gpu()
        wrong = gpu()
        wrong["traffic"]["requests"]["load"] += 1
        self.template("gpu", wrong)
        self.write(
            "bin/ctest",
            self.CTEST.replace("   Passed    1.00", "***Failed    1.00") + "exit 8\n",
            0o755,
        )
        self.write(
            "bin/compute-sanitizer", self.SANITIZER.replace("exit 5", "exit 5\nexit 9"), 0o755
        )
        done = self.check("--no-build", "--quick", "--out", "out")
        self.assertEqual(done.returncode, 1)
        sections = self.results()["sections"]
        failed = {name for name, section in sections.items() if not section["ok"]}
        self.assertEqual(failed, {"tests", "sanitizer", "counters"}, done.stdout)
        self.assertIn("1 of 2 tests failed: test_b", done.stdout)

    def test_hbm_fails_on_a_miss_only_where_the_model_promises(self):
        self.pretend_a_gpu()
        for n, promised in ((1280, True), (2560, False)):  # a quarter of the L2, and all of it
            self.write(
                "build/gpu/steps/02_tiled",
                self.PROGRAM.replace(
                    "\necho 'right",
                    f'\n[ $n != {n} ] || sed -i s/32000000/62000000/ "$json"\necho \'right',
                ),
                0o755,
            )
            done = self.check(
                "--no-build", "--quick", "--out", "out", "--sections", "hbm", "--steps", "02"
            )
            results = self.results()
            missed = [e for e in results["hbm"] if not e["within_10_percent"]]
            self.assertEqual([e["promised"] for e in missed], [promised] * 2, done.stdout)
            failed = {name for name, section in results["sections"].items() if not section["ok"]}
            self.assertEqual(failed, {"hbm"} if promised else set(), done.stdout)
            self.assertEqual(done.returncode, 1 if promised else 0)

    def test_a_budget_that_ends_is_called_so(self):
        """And is no failure of what was stopped, nor a wrong result."""
        self.pretend_a_gpu()
        slow = "#!/bin/sh\nexec sleep 5\n"
        self.write("bin/cmake", "#!/bin/sh\necho -- 1 error so far\nexec sleep 5\n", 0o755)
        quick = ("--quick", "--out", "out", "--budget", "1", "--steps", "02", "--sections")
        done = self.check(*quick, "sanitizer")
        self.assertEqual(done.returncode, 1)
        self.assertIn("FAILED: gpu: stopped: out of time\n", done.stdout)
        self.assertNotIn("did not build", done.stdout)
        self.write("bin/compute-sanitizer", slow, 0o755)
        done = self.check("--no-build", *quick, "sanitizer")
        self.assertIn("FAILED: 0 runs clean, 0 not, 8 stopped: out of time\n", done.stdout)
        rest = self.PROGRAM.replace("\nif", '\n[ "$n" ] && exec sleep 5\nif', 1)
        self.programs("gpu", rest)
        for section in ("timing", "memory"):
            done = self.check("--no-build", *quick, section)
            self.assertIn(": stopped: out of time", done.stdout)
            self.assertNotRegex(done.stdout, "None|took too long")
        self.write("build/gpu/steps/02_tiled", slow, 0o755)
        done = self.check("--no-build", *quick, "timing")
        self.assertIn("FAILED: 02_tiled --list-variants: stopped: out of time\n", done.stdout)

    def test_a_program_without_variants_is_named(self):
        self.write("build/sim/steps/02_tiled", "#!/bin/sh\necho cannot start\nexit 2\n", 0o755)
        done = self.check("--sim-only", "--no-build", "--out", "out")
        self.assertEqual(done.returncode, 1)
        self.assertIn("02_tiled --list-variants printed no names: cannot start", done.stdout)

    def test_the_simulators_side(self):
        done = self.check("--sim-only", "--no-build", "--quick", "--out", "out")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        results = self.results()
        self.assertEqual(results["model_gpu"], "H200")
        self.assertTrue(results["sections"]["simulate"]["ok"])
        ran = {(r["variant"], r["problem"]["n"], r["problem"]["causal"]) for r in results["runs"]}
        for variant in ("shared", "registers"):
            self.assertIn((variant, 257, False), ran)
            self.assertIn((variant, 257, True), ran)
        self.assertTrue(os.path.exists(os.path.join(self.root, "out/sim/sources.sha256")))
        self.assertTrue(any("02_tiled" in c["command"] for c in results["commands"]))

    def test_a_program_that_dies_is_reported_and_the_rest_goes_on(self):
        self.write(
            "build/sim/steps/02_tiled",
            self.PROGRAM.replace("\nscratch=", "\n[ $n != 257 ] || exit 1\nscratch=", 1),
            0o755,
        )
        done = self.check("--sim-only", "--no-build", "--quick", "--out", "out")
        self.assertEqual(done.returncode, 1)
        self.assertIn("02_tiled registers b1_h2_n257_d64: exit 1", done.stdout)
        self.assertIn("FAILED  simulate", done.stdout)

    def test_bad_use(self):
        for args in (
            ("--steps", "77", "--sim-only"),
            ("--model-gpu", "Voodoo", "--sim-only"),
            ("--sim-json", "/nowhere"),
            ("--frobnicate",),
        ):
            done = self.check(*args)
            self.assertEqual(done.returncode, 2, args)
            self.assertNotIn("Traceback", done.stderr)

    def test_no_gpu(self):
        self.write("bin/nvidia-smi", "#!/bin/sh\nexit 9\n", 0o755)
        done = self.check()
        self.assertEqual(done.returncode, 3)
        self.assertIn("no GPU found", done.stderr)

    def test_sources_of_another_commit_are_refused(self):
        self.check("--sim-only", "--no-build", "--quick", "--out", "out")
        digest = os.path.join(self.root, "out", "sim", "sources.sha256")
        probe = [
            sys.executable,
            "-c",
            "import sys; sys.path.insert(0, 'scripts'); from flash_steps import commits;"
            f"print(commits.source_digest() == open({digest!r}).read().strip())",
        ]
        for change, same in ((None, "True"), ("// changed\n", "False")):
            if change:
                self.write("steps/02_tiled/lesson.cuh", change)
            done = subprocess.run(probe, cwd=self.root, capture_output=True, text=True)
            self.assertEqual(done.stdout.strip(), same, done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
