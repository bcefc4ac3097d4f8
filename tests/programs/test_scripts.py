"""setup.sh, tour.sh and test.sh with stand-ins for apt, cmake, ctest and the programs."""

import errno
import fcntl
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

from copies import HAVE_GIT, ROOT, SCRIPTS, Folder, main, said
from flash_steps import building, command, cuda_program, files, mpi, steps
from flash_steps.command import NotHere
from sample_results import gpu, sim, write

TOOLS = (
    "bash env sed awk grep sort head tail cat tee tr mkdir rm id nproc basename dirname date "
    "mktemp ls cp printf wc sleep flock"
).split()
SETUP, TOUR, TEST = (f"./scripts/{name}.sh" for name in ("setup", "tour", "test"))
INSTALLS = "apt-get install -y --no-install-recommends"


class Sandbox(Folder):
    """A copy of the scripts, and a PATH with only the standard tools."""

    def setUp(self):
        super().setUp()
        self.root = self.folder / "repository"
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(SCRIPTS, self.root / "scripts", ignore=unwanted)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.tool("python3", f'exec {sys.executable} -S "$@"')

    def tool(self, name, script=":"):
        (self.bin / name).unlink(missing_ok=True)
        self.program(self.bin / name, f"#!/usr/bin/env bash\n{script}\n")

    def stand_in(self, path, script=":"):
        self.program(self.root / path, f"#!/usr/bin/env bash\n{script}\n")

    @property
    def environment(self):
        return {"PATH": str(self.bin), "HOME": str(self.root), "CUDA_HOME": str(self.root)}

    def run_script(self, *command, status=None, stdin=subprocess.DEVNULL):
        done = said(command, cwd=self.root, stdin=stdin, env=self.environment)
        if status is not None:
            self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done

    def in_terminal(self, *command):
        """(the process, our end of the terminal that shows its output)"""
        ours, script_end = self.terminal()
        no = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        kind = {"cwd": self.root, "env": self.environment, **no}
        process = subprocess.Popen(command, stdout=script_end, **kind)
        os.close(script_end)  # reading fails, and does not wait, when the script ends early
        return process, ours

    def text(self, name):
        return (self.root / name).read_text()


class Setup(Sandbox):
    def setUp(self):
        super().setUp()
        self.tool("cmake", "echo cmake version 3.25.1")
        for name in ("ninja", "addr2line", "g++"):
            self.tool(name)
        self.tool("id", "echo 0")
        self.apt("")

    def apt(self, script):
        """A stand-in for apt-get, which also writes its calls to apt.log."""
        self.tool(
            "apt-get", f'echo "$DEBIAN_FRONTEND $RES_OPTIONS $*" >> {self.root}/apt.log\n{script}'
        )

    def setup(self, *words, **how):
        return self.run_script(SETUP, *words, **how)

    def without_gpp(self):
        (self.bin / "g++").unlink()

    def test_without_root_prints_the_line_to_ask_for(self):
        self.without_gpp()
        self.tool("id", "echo 1000")
        self.tool("sudo", "exit 1")
        self.apt("exit 1")
        done = self.setup("--yes", status=1)  # without a compiler nothing works
        self.assertIn(f"administrator to run:  sudo {INSTALLS} g++", done.stdout)
        words = f"setup: cannot continue without g++: install with sudo {INSTALLS} g++\n"
        self.assertEqual(done.stderr, words)
        self.tool("g++")  # the libraries are optional
        self.assertEqual(self.setup("docs", status=0).stderr, "")

    def test_nothing_is_installed_without_a_word(self):
        done = self.setup("gdb", status=0)
        words = rf"nothing was installed; run:  {INSTALLS} .*gdb   \(or add --yes\)"
        self.assertRegex(done.stdout, words)
        self.assertFalse((self.root / "apt.log").exists())
        self.apt("echo Hit:1")  # a terminal is asked
        for answer, installs in (("n", False), ("\n", True), ("y\n", True)):
            ours, script_end = self.terminal()
            os.write(ours, (answer + "\n").encode())
            done = self.setup("gdb", stdin=script_end, status=0)
            os.close(script_end)
            self.assertRegex(done.stderr, r"as root: apt-get install .*gdb.*\[Y/n\]")
            log = self.root / "apt.log"
            self.assertEqual(log.exists(), installs, answer)
            log.unlink(missing_ok=True)

    def test_have_only_looks(self):
        self.setup("--have", "gdb", status=1)
        self.tool("gdb")
        for arguments in (("--have", "gdb"), ("gdb", "--have")):
            self.assertEqual(self.setup(*arguments, status=0).stdout, "")
        self.setup("docs", "--have", status=1)
        self.refused(self.setup("--have"), 2, "--have needs a group: mpi, docs, gdb")
        self.refused(self.setup("everything"), 2, "unknown group 'everything'")

    def test_sudo_may_ask_for_a_password_only_where_somebody_can_type_it(self):
        self.tool("id", "echo 1000")
        self.tool("sudo", f'echo "$*" >> {self.root}/sudo.log; echo Hit:1')
        script_end = self.terminal()[1]
        self.addCleanup(os.close, script_end)
        for stdin, calls in (
            (subprocess.DEVNULL, ("-n true", "-n env ", "-n env ")),
            (script_end, ("true", "env ", "env ")),
        ):
            done = self.setup("--yes", "gdb", stdin=stdin, status=0)
            self.assertIn("as root: apt-get install", done.stdout)
            made = self.text("sudo.log").splitlines()
            (self.root / "sudo.log").unlink()
            self.assertEqual(len(made), 3)
            for line, start in zip(made, calls):
                self.assertTrue(line.startswith(start), made)

    def test_as_root_updates_and_installs(self):
        self.without_gpp()
        self.apt(f"echo Hit:1; [[ $* != *install* ]] || cp {self.bin}/ninja {self.bin}/g++")
        self.setup("--yes", status=0)
        update, install = self.text("apt.log").splitlines()
        self.assertTrue(update.endswith(" update"), update)
        self.assertRegex(install, r"^noninteractive .* install -y --no-install-recommends .*g\+\+")

    def test_it_says_all_the_time_how_far_it_is(self):
        self.apt("echo Hit:1; [[ $* == *update ]] || { echo Unpacking a; sleep 0.7; }")
        process, ours = self.in_terminal(SETUP, "--yes", "gdb")
        with process:
            shown = b""
            while b"Unpacking a" not in shown:
                shown += os.read(ours, 1000)  # fails when it ends without

    def test_what_apt_cannot_do(self):
        """A broken source does not prevent installing; without a network apt is called once."""
        log = self.root / "apt.log"
        self.apt("[[ $* != *update ]] || { echo Hit:1; echo E: no Release file; exit 100; }")
        done = self.setup("--yes", "gdb", status=0)
        self.assertIn("apt-get update failed: E: no Release file", done.stdout)
        self.assertIn(" install -y", self.text("apt.log").splitlines()[1])
        self.apt("echo Hit:1; echo E: the disk is full; exit 100")
        done = self.setup("--yes", "gdb", status=0)
        self.assertRegex(done.stdout, "continuing without .*gdb")
        self.without_gpp()
        done = self.setup("--yes", status=1)
        self.assertIn("E: the disk is full", done.stdout)
        self.assertIn("cannot continue without g++", done.stderr)
        log.unlink()
        self.apt("echo 'Err:1 http://deb.debian.org Temporary failure resolving'")
        done = self.setup("--yes", status=1)
        self.assertIn("apt reached no server: check the network", done.stdout)
        (call,) = self.text("apt.log").splitlines()
        self.assertRegex(call, r" timeout:3 attempts:1 .*Acquire::http::Timeout=15 .*update$")

    def test_another_distribution_gets_the_list(self):
        self.without_gpp()
        (self.bin / "apt-get").unlink()
        done = self.setup()
        self.assertIn("not Debian or Ubuntu", done.stdout)
        words = "setup: cannot continue without g++: install with your package manager\n"
        self.assertEqual(done.stderr, words)

    def test_the_documentation_needs_its_tools(self):
        """They are requested under the typed command, may be installed, and are required."""
        self.apt("echo Hit:1")
        docs = ("bash", "scripts/flash_steps/docs.sh")  # as ./scripts/maintain docs calls it
        done = self.run_script(*docs)
        self.refused(done, 3, "setup: cannot continue without doxygen", "install with")
        self.assertNotIn("continuing", done.stdout)
        self.refused(self.run_script(*docs, "--yes"), 3, "setup: cannot continue without doxygen")
        self.assertRegex(self.text("apt.log"), "install .*doxygen")
        done = self.run_script(*docs, "--no")
        self.refused(done, 2, "maintain docs: unknown option '--no'; see --help\n")
        # A group is optional.
        self.assertNotIn("doxygen ", self.setup().stdout)
        self.assertIn("doxygen ", self.setup("docs").stdout)

    def test_what_is_too_old_is_named(self):
        self.tool("cmake", "echo cmake version 3.22.1")
        self.refused(self.setup(), 1, "setup: CMake 3.22.1 is too old", "pip install cmake ninja")
        self.tool("cmake", "echo cmake version 3.25.1")
        self.tool("python3", "echo 3.8.18")
        self.refused(self.setup(), 1, "setup: Python 3.8.18 is too old: 3.9 or newer", "3.11 for")
        for version, count in (("3.9.2", 1), ("3.10.12", 1), ("3.11.0", 0), ("3.13.1", 0)):
            self.tool("python3", f"echo {version}")
            self.assertEqual(self.setup(status=0).stdout.count("./scripts/test.sh"), count, version)


class OldPython(unittest.TestCase):
    def test_a_command_says_what_it_needs(self):
        code = (
            "import runpy, sys; sys.version_info = tuple(map(int, sys.argv.pop().split('.')))\n"
            "sys.argv.pop(0); runpy.run_path(sys.argv[0], run_name='__main__')"
        )
        for script, version, needs in (
            *((name, "3.8.18", "3.9") for name in ("sim", "new", "diff", "maintain")),
            ("learn", "3.10.12", "3.11"),
        ):
            with self.subTest(script=script):
                done = said([sys.executable, "-c", code, script, version], cwd=SCRIPTS)
                words = f"{script}: needs Python {needs} or newer, and python3 is {version}\n"
                self.assertEqual((done.returncode, done.stderr), (3, words))


class Tour(Sandbox):
    VARIANTS = {"01_naive": ["naive"], "02_tiled": ["shared", "registers", "after"]}
    MORE = {"13_decode": ["warps", "splits", "fp8"], "14_ring": ["fp32"]}
    MORE["15_masks"] = ["window", "packed", "lists", "wgmma"]
    MORE["16_blackwell"] = ["tmem"]

    def setUp(self):
        super().setUp()
        self.stand_in("scripts/setup.sh")
        self.tool("cmake")
        gpus = os.path.join("common", "data", "gpus.json")
        self.write(self.root / gpus, (ROOT / gpus).read_text())
        (self.root / "docs").mkdir()
        (self.root / "docs/explorer").symlink_to(ROOT / "docs/explorer")
        for name, variants in self.VARIANTS.items():
            self.add(name, variants)

    def add(self, name, variants):
        """A step: the last variant's forward is that of the previous one."""
        self.write(self.root / "steps" / name / "main.cu", "")
        more = {"forward_of": None, "needs": "", "supports": {"d": [64]}}
        described = [{"name": variant, **more} for variant in variants]
        described[-1]["forward_of"] = " ".join([name[:2], *variants[-2:-1]])
        supports = {"lengths": name == "13_decode", "window": name == "15_masks"}
        tree = {"step": name, "supports": supports, "variants": described}
        write(self.root / f"{name}.describe.json", tree)
        for variant in variants:
            write(self.root / f"{name}.{variant}.json", sim(step=name, variant=variant))
            size = {"b": 4, "h": 32, "hkv": 32, "n": 4096, "nk": 4096, "causal": False}
            data = gpu(step=name, variant=variant, median_ms=8 / len(variant), **size)
            write(self.root / f"{name}.{variant}.gpu.json", data)
        self.step("sim", name, 'echo "$@" >> calls; cp "$step.$variant.json" "$json"')

    def step(self, backend, name, body='cp "$step.$variant.json" "$json"'):
        """A program with its description, its --variant and its --json."""
        self.stand_in(
            f"build/{backend}/steps/{name}",
            f"""
step={name}
[[ $1 == --describe ]] && cat {name}.describe.json && exit
for ((i = 1; i <= $#; i++)); do
  j=$((i + 1))
  word=${{!i}}
  case $word in --variant) variant=${{!j}} ;; --json) json=${{!j}} ;; esac
  case $word in --json=*) json=${{word#*=}} ;; esac
done
echo "the report of {name} $variant"
{body}""",
        )

    def tour(self, *words, status=0):
        return self.run_script(TOUR, *words, status=status)

    def with_gpu(self, arch="sm_90", sms=132, free=140e9):
        """A GPU, and programs for it, each of which names the device."""
        for name in ("nvidia-smi", "nvcc"):
            self.tool(name)
        about = {"name": "NVIDIA H200", "arch": arch, "sms": sms, "free_bytes": free}
        write(self.root / "device.json", {"device": about})
        said = '[[ $* == *--predict* ]] && cp device.json "$json" && exit; echo "$@" >> gpu_calls\n'
        for name in self.VARIANTS:
            self.step("gpu", name, said + 'cp "$step.$variant.gpu.json" "$json"')
        self.stand_in(
            "build/gpu/steps/all_steps",
            """
echo "$$" >> processes
while IFS=$'\\t' read -ra f; do
  "build/gpu/steps/${f[1]}" "${f[@]:2}" > "${f[0]}" 2>&1
  status=$?
  ((status < 128)) && echo $status || kill $$
  ((status)) && exit $status
done""",
        )

    def variants_run(self, *words):
        """The names passed to the programs, in order."""
        (self.root / "calls").unlink(missing_ok=True)
        self.tour(*words)
        return [call.split()[1] for call in self.text("calls").splitlines()]

    def test_runs_each_steps_result_or_all_variants(self):
        """Forwards of other variants; decoding's fastest, masks' first; no ranks."""
        for name, variants in self.MORE.items():
            self.add(name, variants)
        for words, variants in (
            ("", "naive registers after fp8 window lists wgmma"),
            ("--all", "naive shared registers after warps splits fp8 window packed lists wgmma"),
            ("--steps 14", "fp32"),
            ("--steps 16", "tmem"),
            ("--steps 02", "registers after"),
            ("--steps 02_tiled", "registers after"),
        ):
            self.assertEqual(self.variants_run(*words.split()), variants.split(), words)

    def test_another_gpu_is_modelled(self):
        """Also where this machine has a GPU; without what the modelled GPU cannot run."""
        self.with_gpu()
        tree = json.loads(self.text("02_tiled.describe.json"))
        tree["variants"][-1]["needs"] = "sm_90a"
        write(self.root / "02_tiled.describe.json", tree)
        self.assertEqual(self.variants_run("--gpu", "L4"), ["naive", "registers"])
        for call in self.text("calls").splitlines():
            words = "--n=1024 --d=64 --causal --estimate-heads=128 --gpu=L4 --input real"
            self.assertIn(words, call)
        self.assertFalse((self.root / "gpu_calls").exists())
        for words, sentence in (
            (["--gpu"], "tour.sh: --gpu needs a name of common/data/gpus.json, like L4"),
            (["--gpu", "L5"], "tour.sh: --gpu L5: common/data/gpus.json has no such row"),
        ):
            done = self.run_script(TOUR, *words)
            self.assertEqual((done.returncode, done.stderr), (2, sentence + "\n"))
        self.add("16_blackwell", ["tmem"])
        tree["step"], tree["variants"] = "16_blackwell", tree["variants"][-1:]
        write(self.root / "16_blackwell.describe.json", tree)
        done = self.run_script(TOUR, "--gpu", "L4", "--steps", "16")
        self.refused(done, 2, "--gpu L4: none of these steps runs on sm_89")

    def test_prints_a_table_and_writes_a_page(self):
        self.add("13_decode", ["warps"])
        self.add("15_masks", ["window"])
        earlier = self.write(self.root / "build/tour/06_old.x.sim.txt", "")  # from an earlier tour
        write(earlier.with_suffix(".json"), sim(step="06_old", variant="x"))
        lines = self.tour("--n", "64").stdout.splitlines()
        self.assertFalse([line for line in lines if line.startswith("06 ")])
        *calls, decode, window = self.text("calls").splitlines()
        size = "--b=1 --h=4 --n=64 --d=64 --causal"
        self.assertIn(f"{size} --window=16,0 --estimate-heads=128 --input real", window)
        for call in calls:
            self.assertIn(f"{size} --estimate-heads=128 --input real", call)
        cache = "--b=1 --h=8 --hkv=2 --n=1 --nk=2048 --d=64 --causal --estimate-heads=128"
        self.assertIn(cache, decode)
        (naive,) = (line for line in lines if line.startswith("01 Textbook"))
        self.assertIn("60.0 MB 400 us 1.00x L1 lines", " ".join(naive.split()))
        for words in ("the report of 02_tiled after", '"400 us"'):
            self.assertIn(words, self.text("report.html"))
        self.assertIn(str(self.root / "report.html"), lines)
        self.assertRegex(lines[-1], "^next: .*./scripts/learn")

    def test_a_failed_step_is_shown_and_the_rest_goes_on(self):
        self.step("sim", "01_naive", "echo something broke; seq 20; exit 1")
        shown = self.tour(status=1).stdout
        for words in ("FAILED, exit status 1", "something broke", "02_tiled after"):
            self.assertIn(words, shown)

    def test_a_gpu_gets_a_problem_that_fills_it(self):
        self.with_gpu()
        lines = self.tour().stdout.splitlines()
        self.assertFalse((self.root / "calls").exists())  # nothing is simulated
        self.assertNotIn("building for sim (build/tour.log)", lines)
        for call in self.text("gpu_calls").splitlines():
            self.assertIn("--b=4 --h=32 --n=4096 --d=64 --only-hbm --input real", call)
        head = "Measured on NVIDIA H200: B=4 H=32 N=4096 d=64, as in README's picture; bytes are"
        self.assertIn(head, lines)
        (naive,) = (line for line in lines if line.startswith("01 Textbook"))
        self.assertIn("1.60 ms 0.336 1% 1.00x", " ".join(naive.split()))

    def test_a_small_gpu_gets_shorter_sequences(self):
        self.with_gpu(sms=16, free=4e9)
        shown = " ".join(self.tour().stdout.split())
        why = "for 16 SMs and 4.00 GB of free memory"
        words = f"B=32 H=32 N=512 d=64, shorter than README's picture, {why} [1/3]"
        self.assertIn(words, shown)

    def test_what_a_gpu_does_not_run_is_simulated(self):
        """One head of the same problem, with the time of all."""
        self.with_gpu(arch="sm_86")
        tree = json.loads(self.text("02_tiled.describe.json"))
        tree["variants"][-1]["needs"] = "sm_90a"
        write(self.root / "02_tiled.describe.json", tree)
        shown = self.tour().stdout
        (call,) = self.text("calls").splitlines()
        size = "--b=1 --h=1 --n=4096 --d=64 --estimate-heads=128 --input real"
        self.assertIn(f"--variant after {size}", call)
        self.assertIn("[3/3] sim  02_tiled after", shown)
        self.assertIn("building for sim (build/tour.log)\n", shown)

    def test_a_gpus_runs_are_one_process_until_one_fails(self):
        """A simulated run has the machine to itself."""
        self.with_gpu()
        self.tour()
        self.assertEqual(len(self.text("processes").splitlines()), 1)
        for fails, words, processes in (
            ("exit 1", "FAILED, exit status 1\n        the report of 01_naive naive\n", 2),
            ("kill -SEGV $$", "FAILED, exit status 139\n", 2),
        ):
            (self.root / "processes").unlink()
            (self.root / "gpu_calls").unlink()
            says = "[[ $* == *--predict* ]] && cp device.json $json && exit"
            self.step("gpu", "01_naive", f"{says}; {fails}")
            shown = self.tour(status=1).stdout
            self.assertIn(words, shown)
            self.assertRegex(shown, r"\[3/3\] gpu  02_tiled after +ok")
            self.assertEqual(len(self.text("gpu_calls").splitlines()), 2)
            self.assertEqual(len(self.text("processes").splitlines()), processes)

    def test_a_gpu_without_memory_or_driver(self):
        self.with_gpu()
        needs = "needs 17.2 GB of workspace, 9.0 GB free: try a smaller --n or --b"
        refuses = f"[[ $* == *--predict* ]] && cp device.json $json && exit; echo '{needs}'; exit 3"
        self.step("gpu", "01_naive", refuses)
        self.assertIn(f"cannot run here\n        {needs}\n", self.tour().stdout)
        why = 'echo "$step: no GPU found: run build/sim/steps/$step" >&2; exit 3'
        for name in self.VARIANTS:
            self.step("gpu", name, why)
        shown = self.tour().stdout
        self.assertIn("this machine has a GPU on which nothing runs: no GPU found\n", shown)
        self.assertIn("[3/3] sim", shown)

    def test_a_program_that_cannot_name_its_variants_ends_it(self):
        self.stand_in("build/sim/steps/02_tiled", "exit 2")
        self.assertIn("02_tiled --describe: status 2", self.tour(status=1).stderr)

    def test_a_terminal_sees_at_once_how_far_the_build_is_and_a_file_does_not(self):
        waits = "for ((i = 0; i < 200; i++)); do [[ -e seen ]] && exit 0; sleep 0.05; done; exit 1"
        says = "echo '[ 37%] Building CXX object'"
        self.tool("cmake", f"[[ $* == *--build* ]] || exit 0\n{says}\n{waits}")
        tour, ours = self.in_terminal(TOUR, "--steps", "01")
        shown = b""
        while b"37%" not in shown:
            shown += os.read(ours, 1000)
            self.assertNotIn(b"[ 37%] Building", shown)
        self.write(self.root / "seen", "")
        self.assertEqual(tour.wait(60), 0)
        self.tool("cmake", says)
        shown = self.tour().stdout
        self.assertIn("building for sim (build/tour.log)\n", shown)
        self.assertNotIn("37%", shown)

    def test_all_programs_are_built_at_once(self):
        self.tool("cmake", f'echo "$*" >> {self.root}/cmake.log')
        self.tour()
        configure, build = self.text("cmake.log").splitlines()
        self.assertEqual(configure, "--preset sim -DFA_TARGETS=01_naive;02_tiled")
        self.assertRegex(build, r"^--build --preset sim -j \d+ --target fa_targets$")

    def test_a_failed_build_shows_its_end(self):
        self.tool("cmake", "echo the compiler said no; exit 1")
        done = self.tour(status=1)
        self.assertIn("the compiler said no", done.stdout)
        self.assertIn("build/tour.log", done.stderr)
        # What cmake could not fetch is one sentence, and each build has its own reason.
        self.with_gpu()
        self.tool(
            "cmake",
            "[[ $* == *gpu* ]] && echo nvcc says no || { echo 'CMake Error at a.cmake:30:'\n"
            "echo '  flash-steps: fmt is not here'; echo Configuring incomplete; }; exit 1",
        )
        shown = self.tour(status=1).stdout
        self.assertIn("(build/tour.log)\nnvcc says no\n", shown)
        self.assertIn("building for sim (build/tour.log)\nfmt is not here\n", shown)
        self.assertNotIn("CMake Error", shown)

    def test_yes_is_setups_and_what_it_misses_ends_the_tour(self):
        self.stand_in("scripts/setup.sh", f'echo "$*" > {self.root}/asked')
        for arguments in ((), ("--yes",)):
            self.tour("--steps", "01", *arguments)
            self.assertEqual(self.text("asked").split(), list(arguments))
        self.stand_in("scripts/setup.sh", "echo 'setup: no g++' >&2; exit 1")
        self.write(self.root / "build/tour.log", "an old log\n")
        done = self.tour(status=1)
        self.assertEqual((done.stdout, done.stderr), ("", "setup: no g++\n"))

    def test_a_folder_that_is_in_use_or_cannot_be_written_ends_it(self):
        with open(self.root / "build" / "tour.lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.refused(self.run_script(TOUR), 1, "tour.sh: another tour is running in /")
        self.tour()
        shutil.rmtree(self.root / "build")
        self.write(self.root / "build", "a file where the folder should be")
        done = self.run_script(TOUR)
        self.refused(done, 1, "tour.sh: cannot write /", "/build")
        self.assertEqual(done.stdout, "")

    def test_a_gpu_serves_where_the_simulator_does_not_build(self):
        self.with_gpu()
        self.tool("cmake", "[[ $* != *sim* ]] || { echo no simulator; exit 1; }")
        self.add("09_tma_wgmma", ["wgmma"])
        tree = json.loads(self.text("09_tma_wgmma.describe.json"))
        tree["variants"][0]["needs"] = "sm_100a"
        write(self.root / "09_tma_wgmma.describe.json", tree)
        self.step("gpu", "09_tma_wgmma")
        shutil.rmtree(self.root / "build" / "sim")
        shown = self.tour().stdout
        self.assertIn("the steps run only on the GPU", shown)
        self.assertIn("[3/3] gpu", shown)
        self.assertNotIn("] sim", shown)

    def test_a_tree_that_was_built_for_another_folder(self):
        """Renamed, or a copy beside the one that was built: it would use the other's files."""
        self.tool("cmake", f": > {self.root}/called")
        (self.bin / "sh").symlink_to(shutil.which("sh"))
        shutil.copy(ROOT / "CMakeLists.txt", self.root)
        program = self.write("program.cu", "int main() {}")
        for key, made in (
            ("CMAKE_HOME_DIRECTORY", "/no/such"),
            ("CMAKE_HOME_DIRECTORY", ROOT),
            ("CMAKE_CACHEFILE_DIR", "/no/such/build/sim"),
        ):
            self.write(self.root / "build/sim/CMakeCache.txt", f"{key}:INTERNAL={made}\n")
            words = f"build/sim was built for {made}: rm -r build/sim, and it is built for this "
            words += "folder"
            self.assertIn(f"\n{words}\n", self.tour(status=1).stdout)
            done = self.run_script("./scripts/sim", program, status=3)
            self.assertEqual(done.stderr.splitlines()[1:], [f"sim: {words}"])
        self.assertFalse((self.root / "called").exists())
        here = f"CMAKE_CACHEFILE_DIR:INTERNAL={self.root}/build/sim\nCMAKE_HOME_DIRECTORY:INTERNAL="
        self.write(self.root / "build/sim/CMakeCache.txt", f"{here}{self.root}\n")
        self.tour("--steps", "01")

    def test_bad_use(self):
        for args, word in (
            (("--nosuch",), "--nosuch"),
            (("--steps", "99"), "no step '99'"),
            (("--n", "0"), "--n needs"),
            (("--steps",), "--steps needs"),
        ):
            self.refused(self.run_script(TOUR, *args), 2, word)
        self.tour("--help")


class Shared(Folder):
    def refuses(self, words, call, *arguments, of=command.BadInput):
        with self.assertRaises(of) as caught:
            call(*arguments)
        self.assertEqual(str(caught.exception), words)

    def test_a_commands_end(self):
        full = os.strerror(errno.ENOSPC)
        for does, status, told in (
            ("return 7", 7, ""),
            ("return", None, ""),
            ("raise KeyboardInterrupt", 130, ""),
            ("raise command.Failure('it is so')", 1, "a b: it is so\n"),
            ("raise command.BadInput('it is so')", 2, "a b: it is so\n"),
            ("raise command.NotHere('it is so')", 3, "a b: it is so\n"),
            ("open('/no/x')", 2, "a b: /no/x: No such file or directory\n"),
            ("raise OSError(errno.ENOSPC, 'no room', 'x')", 3, "a b: x: no room\n"),
            ("raise OSError(errno.EDQUOT, 'no room')", 3, "a b: the output: no room\n"),
            ("raise OSError(errno.EFBIG, 'no room')", 3, "a b: the output: no room\n"),
            ("raise BrokenPipeError", 0, ""),
        ):
            self.write(
                "does.py",
                f"import errno\nfrom flash_steps import command\ndef main(*_):\n {does}\n",
            )
            with (
                mock.patch.object(sys, "path", [str(self.folder), *sys.path]),
                mock.patch.object(sys, "argv", ["x", "--n", "3"]),
                mock.patch.object(command, "drop_output") as dropped,
                mock.patch("sys.stderr", io.StringIO()) as said,
                self.subTest(does),
            ):
                sys.modules.pop("does", None)
                importlib.invalidate_caches()
                sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
                self.assertEqual(command.run("does", "a b", 1), status)
                sys.dont_write_bytecode = before
                self.assertEqual((said.getvalue(), sys.argv[0]), (told, "a b"))
                self.assertEqual(
                    dropped.called, "OSError" in does or "/no" in does or "Pipe" in does
                )
        with mock.patch.object(sys, "argv", ["x", "--n="]):
            with mock.patch("sys.stderr", io.StringIO()) as said:
                self.assertEqual(command.run("no_such_module", "a b"), 2)
                self.assertEqual(said.getvalue(), "a b: --n: its value is empty\n")
        self.assertEqual(command.no_room(f"x\n  a.o: {full} \ny"), f"a.o: {full}")
        self.assertIsNone(command.no_room("x\ny"))

    def test_empty_words_are_refused(self):
        for words, told in (
            (["--json", ""], "--json: its value is empty"),
            (["x", "--json="], "--json: its value is empty"),
            (["x", ""], "an argument is empty"),
            ([""], "an argument is empty"),
        ):
            self.refuses(told, command.require_values, words)
        command.require_values(["--a=b", "--c", "d=", "--e=f="])

    def test_a_text_as_wide_as_the_terminal(self):
        for columns, width in ((60, 58), (200, 98)):
            size = os.terminal_size((columns, 24))
            with mock.patch.object(shutil, "get_terminal_size", lambda *_: size):
                text = command.fitted("\n" + "word " * 60 + "\n\n  a\n  b\n\nc:\n  d\n\ne\nf\n")
            first, *rest = text.split("\n\n")
            self.assertEqual(max(map(len, first.splitlines())), width // 5 * 5 - 1)
            self.assertEqual(rest, ["  a\n  b", "c:\n  d", "e f"])
        self.assertEqual(command.fitted(None), "")

    def test_files(self):
        a, b = self.write("a", "1"), self.folder / "b"
        link = self.folder / "link"
        link.symlink_to(a)
        for one, other, same in (
            *((a, link, True), (a, b, False), (b, b, True), (b, self.folder / "x/../b", True)),
            *((b, a, False), (a, self.write("c", "1"), False), ("/dev/null", "/dev/null", False)),
        ):
            self.assertEqual(files.same_file(one, other), same, (one, other))
        self.assertEqual(files.text_of(a) + files.text_of(b), "1")
        files.replace_text(link, "2")  # the link stays
        self.assertEqual((a.read_text(), link.is_symlink()), ("2", True))
        files.require_writable("--x", a, None, b)
        files.require_writable("--x", b)
        self.assertEqual((a.read_text(), b.exists()), ("2", False))
        told = f"--x {link} is {a}, which this call needs; give it another name"
        self.refuses(told, files.require_writable, "--x", link, b, a)
        told = f"--x {a}/c cannot be written: its folder does not exist"
        self.refuses(told, files.require_writable, "--x", f"{a}/c")
        told = f"--x {self.folder} cannot be written: Is a directory"
        self.refuses(told, files.require_writable, "--x", self.folder)
        os.mkfifo(b)
        files.require_writable("--x", b)
        reader = os.open(b, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        files.replace_text(b, "3")  # the pipe stays
        self.assertEqual(os.read(reader, 9), b"3")
        self.refuses(
            f"{self.folder}/d: No such file or directory", files.read_json, f"{self.folder}/d"
        )
        with self.assertRaisesRegex(OSError, "cannot be written: No such file"):
            files.replace_text(f"{self.folder}/no/c", "")
        tree = {
            "a": [1, 2],
            "rows": [[1], {"b": 2}],
            "x": {"runs": {"c": 1, "d": [2]}, "kernels": []},
        }
        files.write_rows(a, tree)
        self.assertEqual(files.read_json(a), tree)
        rows = '"rows": [\n  [1],\n  {"b": 2}\n ],'
        for words in (rows, '"runs": {\n  "c": 1,\n  "d": [2]\n },', '"kernels": []'):
            self.assertIn(words, a.read_text())
        files.write_rows(a, {"rows": [1], "x": 2}, indent=2)
        self.assertEqual(a.read_text(), '{\n  "rows": [\n    1\n  ],\n  "x": 2\n}\n')
        with mock.patch.object(os, "replace", side_effect=OSError(errno.ENOSPC, "no room")):
            for path in (a, self.folder / "new"):  # the old one, or none
                with self.assertRaisesRegex(OSError, "cannot be written: no room"):
                    files.replace_text(path, "3")
        self.assertIn("rows", a.read_text())
        self.assertEqual(sorted(os.listdir(self.folder)), ["a", "b", "c", "link"])
        for text, found in (("project(a LANGUAGES C VERSION 1.2.3 X)", "1.2.3"), ("", "unknown")):
            self.write("CMakeLists.txt", text)
            with mock.patch.object(files, "ROOT", str(self.folder)):
                self.assertEqual(files.version(), found)
        self.write("built/how_to_build.txt", "project(a VERSION 4.5 LANGUAGES CXX)")
        with mock.patch.object(files, "ROOT", str(self.folder)):
            self.assertEqual(files.version(), "4.5")
        files.write_json(a, {"é": 1}, indent=2)
        self.assertEqual(a.read_text(), '{\n  "\\u00e9": 1\n}\n')

    def test_steps(self):
        known = ["01_naive", "02_tiled", "10_x", "1_own", "own"]
        for wanted, found in (
            *((None, known), ("", known), ("02 01", ["02_tiled", "01_naive"])),
            *(("1", ["1_own"]), ("own 10_x own", ["own", "10_x"])),
        ):
            self.assertEqual(steps.chosen_of(known, wanted, "there are"), found)
        for word in ("0", "02_", "3"):
            told = f"no step '{word}'; here: {', '.join(known)}"
            self.refuses(told, steps.chosen_of, known, f"01 {word}", "here:")
        numbers = [steps.number_of(name) for name in ("06_x", "own", "10_y", "7", "a_6_b")]
        self.assertEqual(numbers, [6, 0, 10, 0, 0])
        for arch, needs, runs in (
            *(("sm_89", None, True), ("sm_80", "sm_80", True), ("sm_75", "sm_80", False)),
            *(("sm_90", "sm_90a", True), ("sm_89", "sm_90a", False), ("sm_100", "sm_90a", False)),
            *(("sm_100", "sm_80", True), ("sm_100", "sm_100a", True), (None, "sm_80", False)),
            (None, None, True),
        ):
            self.assertEqual(steps.runs_on(arch, needs), runs, (arch, needs))
        self.assertEqual(steps.library_path("/b", "01_x"), "/b/steps/lib01_x.so")
        for name in ("steps/lib01_x.so", "steps/libown.so", "steps/01_x", "steps/lib02_y.so.1"):
            self.write(name, "")
        self.assertEqual(steps.find_libraries(str(self.folder)), ["01_x"])
        self.assertEqual(steps.find_libraries("/no"), [])

    def test_the_steps_of_a_tree(self):
        with mock.patch.object(steps, "ROOT", str(self.folder)):
            self.assertEqual(steps.find_steps(), [])
            for name in ("10_x", "02_tiled", "own"):
                self.write(f"steps/{name}/main.cu", "")
            self.assertEqual(steps.find_steps(), ["02_tiled", "10_x", "own"])
            self.write("steps/exercise_checker/x.cpp", "")
            self.write("steps/own/1_a.cuh", "")
            for name in ("2_b", "1_a", "parts"):
                self.write(f"steps/02_tiled/{name}.cuh", "")
            self.write(
                "steps/CMakeLists.txt",
                "function(fa_step name)\n# fa_step(a)\nfa_step(02_tiled TESTED_WITH 01_sm_x)\n"
                "fa_step(10_x NEEDS sm_100a sm_90a\n        sm_80)\nfa_step(own NEEDS sm_80)\n"
                "fa_step(gone)\nfa_step(16_y NEEDS sm_100a)\n",
            )
            self.assertEqual(steps.find_steps("10 own"), ["10_x", "own"])
            self.assertEqual(steps.numbered_steps(), ["02_tiled", "10_x"])
            listed = {"02_tiled": [], "10_x": ["sm_80", "sm_90a", "sm_100a"], "own": ["sm_80"]}
            self.assertEqual(steps.listed(), {**listed, "16_y": ["sm_100a"]})
            for name, needs in (("10_x", "sm_100a"), ("02_tiled", None), ("no", None)):
                self.assertEqual(steps.needs_of(name), needs)
            self.assertEqual(steps.all_needs_of("no"), [])
            for arch, found in (("sm_75", ["02_tiled"]), ("sm_80", ["02_tiled", "10_x"])):
                self.assertEqual(steps.steps_on(arch), found)
            found = {f"02 {name}": f"steps/02_tiled/{name}.cuh" for name in ("1_a", "2_b")}
            self.assertEqual(list(steps.lesson_files().items()), list(found.items()))
            self.assertEqual(steps.lesson_files("own"), {"ow 1_a": "steps/own/1_a.cuh"})
            for name in ("02_tiled", "10_x"):
                shutil.rmtree(self.folder / "steps" / name)
            self.assertEqual(steps.numbered_steps(), ["own"])
        for line, found in (
            ("// Changed   since 06 2_registers: what", "06 2_registers"),
            ("// Idea\n// Changed since 15 1_a, b", "15 1_a"),
            *(("// Changed since the start", None), ("// Changed 06 2_registers since x_y", None)),
            *(("x Changed since 06 2_a", None), ("// Changed since 06", None)),
        ):
            self.assertEqual(steps.changed_since(line), found, line)

    def test_mpirun(self):
        fake = self.program("bin/mpirun", "#!/bin/sh\nfor last; do :; done\n$SAYS\nexit $STATUS\n")
        line = [str(fake), "-n", "2", "program"]
        env = {**os.environ, "SAYS": "echo a", "STATUS": "3"}
        self.assertEqual(mpi.run(line, env, None), (3, "a\n"))
        begun = time.monotonic()
        self.assertEqual(mpi.run(line, {**env, "SAYS": "exec sleep 60"}, 0.2), (None, ""))
        self.program("bin/mpirun", "#!/bin/sh\ntrap '' TERM\nsleep 60 &\nwait\nwait\n")
        with mock.patch.object(mpi, "END_LIMIT", 0.2):
            stubborn = self.program("bin/no", "#!/bin/sh\ntrap '' TERM\nwhile :; do :; done\n")
            self.assertEqual(mpi.run([str(stubborn)], env, 0.2), (None, ""))
        self.assertLess(time.monotonic() - begun, 20)
        self.program(
            "bin/mpirun",
            "#!/bin/sh\nfor last; do :; done\n"
            'echo "[\\"$1 $2 $3\\", \\"$MORE\\", \\"$OMPI_ALLOW_RUN_AS_ROOT\\"]" '
            '> "${last#--json=}"\n'
            'test -d "$TMPDIR" && test "$4" != fails || rm "${last#--json=}"; echo b >&2; exit 1\n',
        )
        self.assertEqual(mpi.report(line, MORE="x"), (1, "b\n", ["-n 2 program", "x", "1"]))
        self.assertEqual(mpi.report([*line, "fails"]), (1, "b\n", None))
        for status, has in ((0, True), (1, False)):
            self.program(
                "bin/mpirun",
                f'#!/bin/sh\ntest "$*" = "-n 2 p --version" || exit 1\nexit {status}\n',
            )
            with mock.patch.dict(os.environ, {"PATH": f"{fake.parent}:{os.environ['PATH']}"}):
                self.assertEqual(mpi.has_mpi("p"), has)
        with mock.patch.dict(os.environ, {"PATH": str(self.folder)}):
            self.assertFalse(mpi.has_mpi("p"))

    def test_what_a_program_says(self):
        program = str(self.folder / "p")
        with self.assertRaisesRegex(
            NotHere, "p: No such file .*; it is not built: cmake --preset gpu"
        ):
            steps.described(program, "gpu")
        for body, of, told in (
            ("echo a >&2; echo b >&2; exit 2", command.Failure, f"{program} --describe: b"),
            ("exit 4", command.Failure, f"{program} --describe: status 4"),
        ):
            self.program(self.folder / "p", f"#!/bin/sh\n{body}\n")
            self.refuses(told, steps.described, program, of=of)
        for body, of, told in (
            ("echo no >&2; exit 2", command.BadInput, "no"),
            ("echo no >&2; exit 3", NotHere, "no"),
            ("echo no; exit 1", command.Failure, f"{program} --n 4 was wrong:\nno"),
        ):
            self.program(self.folder / "p", f"#!/bin/sh\n{body}\n")
            with self.assertRaises(of) as caught:
                steps.report_of(program, "--n", 4)
            self.assertEqual((type(caught.exception), str(caught.exception)), (of, told))
        self.program(self.folder / "p", '#!/bin/sh\necho "[\\"$1 $2\\"]" > "${3#--json=}"\n')
        self.assertEqual(steps.report_of(program, "--n", 4), ["--n 4"])


class Help(unittest.TestCase):
    def test_of_what_a_newcomer_types_is_whole_and_fits_80_columns(self):
        for name in ("tour.sh", "setup.sh", "test.sh", "new", "learn", "diff"):
            with self.subTest(script=name):
                call, columns = [f"./{name}", "--help"], {**os.environ, "COLUMNS": "80"}
                done = said(call, cwd=SCRIPTS, env=columns)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80)
                self.assertNotIn("set -", done.stdout)


class WithoutPython(Sandbox):
    def test_what_a_newcomer_types_asks_for_it(self):
        (self.bin / "python3").unlink()
        (self.bin / "sh").symlink_to(shutil.which("sh"))
        for name in ("learn", "sim", "new", "diff", "maintain"):
            with self.subTest(script=name):
                done = self.run_script(f"./scripts/{name}", "--help")
                self.refused(done, 3, "setup: cannot continue without ", "python3")
                self.assertIn("python3              is missing", done.stdout)


class Folders(Sandbox):
    def test_a_working_directory_that_was_deleted(self):
        for tool in ("sh", "rmdir"):
            (self.bin / tool).symlink_to(shutil.which(tool))
        for tool in ("g++", "cmake", "ninja", "addr2line"):
            self.tool(tool, "echo 3.25.1")
        shutil.copy(ROOT / "CMakeLists.txt", self.root)
        words = ": the working directory was deleted: cd to another one"
        gone = 'mkdir "$1"; cd "$1"; rmdir "$1"; shift; exec "$@"'
        for name, *arguments in (
            ("sim", "x.cu"),
            ("new", "mine"),
            ("fit_m.py",),
            ("maintain", "tables"),
            ("setup.sh",),
        ):
            with self.subTest(script=name):
                script = self.root / "scripts" / name
                python = [] if name == "setup.sh" else [sys.executable]
                call = ["sh", "-c", gone, "sh", self.folder / "gone", *python, script, *arguments]
                done = self.run_script(*map(str, call))
                last = (done.stderr.splitlines() or [""])[-1]
                self.assertEqual(done.returncode, 0 if name == "setup.sh" else 2, done.stderr)
                self.assertEqual(last.endswith(words), name != "setup.sh", last)

    def test_a_full_disk(self):
        """One sentence where the output, or a compiler's temporary file, has no room."""
        with open("/dev/full", "w", encoding="utf-8") as full:
            call = [sys.executable, SCRIPTS / "maintain", "tables", "--show", "masks"]
            done = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True)
        self.refused(done, 3, "maintain tables: the output: No space left on device")
        line = "x.cu:1:1: fatal error: error writing to /tmp/cc.s: No space left on device"
        failed = subprocess.CompletedProcess([], 1, "", f"{line}\n    1 | int main() {{}}\n")
        options = mock.Mock(include=[], define=[], openmp=False)
        with mock.patch.object(cuda_program.subprocess, "run", lambda *_, **__: failed):
            with self.assertRaisesRegex(NotHere, line):
                cuda_program.compile_file("x.c", {}, options, "/tmp", 0)
        with self.assertRaisesRegex(NotHere, line):
            building.reason(failed.stderr + "ninja: build stopped: subcommand failed.\n")


class Building(unittest.TestCase):
    def test_a_file_is_told_every_15_s_what_is_being_done(self):
        heard = io.StringIO()
        line = "[  7%] Building CXX object common/CMakeFiles/fa.dir/ranks/run.cpp.o\n"
        with mock.patch.object(building, "QUIET_SECONDS", 1):
            with building.Progress(heard) as progress:
                progress.heard(line)
                deadline = time.monotonic() + 30
                while " s\n" not in heard.getvalue() and time.monotonic() < deadline:
                    progress.heard(line)
                    time.sleep(0.1)
        self.assertRegex(heard.getvalue(), r"  7%  common/ranks/run.cpp  \d+ s\n")

    def test_a_second_build_in_a_folder_waits(self):
        with tempfile.TemporaryDirectory() as folder:
            with building.Progress(io.StringIO()) as first, building.alone(folder, first):
                code = (
                    "from flash_steps import building\n"
                    "class P:\n  def set(self, what): print(what, flush=True)\n"
                    f"with building.alone({folder!r}, P()): print('mine', flush=True)"
                )
                kind = {"cwd": SCRIPTS, "stdout": subprocess.PIPE, "text": True}
                second = subprocess.Popen([sys.executable, "-c", code], **kind)
                self.assertIn("waiting for another build in ", second.stdout.readline())
            self.assertEqual(second.communicate()[0].splitlines()[-1], "mine")


@unittest.skipUnless(HAVE_GIT, "no git here")
class LineEnds(Folder):
    def test_a_clone_that_turns_them_has_those_of_the_repository(self):
        shutil.copy(ROOT / ".gitattributes", self.folder)
        words = "git init -q; git config core.autocrlf true; printf '#!/bin/sh\\r\\n' > script; "
        words += "printf 'NUMPY\\r\\n' > q.npy; git add .; rm script q.npy; "
        words += "git checkout -q -- script q.npy"
        self.ended(said(["sh", "-ec", words], cwd=self.folder))
        self.assertEqual((self.folder / "script").read_bytes(), b"#!/bin/sh\n")
        self.assertEqual((self.folder / "q.npy").read_bytes(), b"NUMPY\r\n")


@unittest.skipUnless(HAVE_GIT, "no git here")
class Diff(Folder):
    def diff(self, *words):
        return said([SCRIPTS / "diff", *words])

    def test_prints_each_file_beside_the_one_that_it_changes(self):
        for step in ("06", "6"):
            self.assertEqual(self.diff(step).stdout.count("diff --git"), 3)
        shown = self.diff("06_work_partitioning", "2").stdout
        self.assertEqual(shown.count("diff --git"), 1)
        self.assertIn("+++ b/steps/06_work_partitioning/2_registers.cuh\n", shown)
        self.assertIn("1_naive.cuh changes no other file", self.diff("01").stdout)

    def test_bad_use(self):
        for words, said_of in (
            ((), "06 2"),
            (("66",), "no step '66'"),
            (("06", "9"), "no file '9'"),
        ):
            self.refused(self.diff(*words), 2, "diff: ", said_of)


class Format(Sandbox):
    def test_outside_a_checkout_it_says_so(self):
        self.tool("git", "echo 'fatal: not a git repository' >&2; exit 128")
        done = self.run_script("./scripts/maintain", "format", "--check")
        self.refused(done, 3, "maintain format: git names no files here: ")
        self.assertEqual(done.stdout, "")


class Test(Sandbox):
    TESTS = "100% tests passed, 0 tests failed out of 3"
    PASSED = "test.sh: all passed; " + TESTS

    def setUp(self):
        super().setUp()
        self.stand_in("scripts/setup.sh")  # no apt
        self.stand_in("scripts/flash_steps/format.sh")  # no PyPI
        self.stand_in("build/sim/tests/test_ladder")
        self.report("return 0")
        (self.root / "build/sim/steps").mkdir(parents=True)
        self.tool("cmake", f'echo "$*" >> {self.root}/cmake.log')
        self.tool("ctest", f'echo "$*" >> {self.root}/ctest.log; echo "{self.TESTS}"')
        self.tool("nvcc", "echo release 13.0; echo build")

    def report(self, body):
        path = self.root / "scripts/flash_steps/ptxas.py"
        self.write(path, f"def main():\n    {body}\n")

    def nothing_there(self):
        self.stand_in("scripts/setup.sh", "[[ $1 != --have ]]")
        self.stand_in("scripts/flash_steps/format.sh", "exit 3")
        (self.bin / "nvcc").unlink()

    def last_line(self, *args):
        done = self.run_script(TEST, *args)
        return done.returncode, done.stdout.splitlines()[-1]

    def fails(self, words, *args):
        status, line = self.last_line(*args)
        self.assertEqual(status, 1)
        self.assertIn(f"test.sh: FAILED: {words}", line)

    def test_two_lengths(self):
        """`--all` runs every test; a newcomer's run needs none of the maintainers' tools."""
        for options in (("--all",), ("-R", "x"), ("--all", "-R", "x")):
            self.assertEqual(self.last_line(*options), (0, self.PASSED))
        self.nothing_there()
        self.assertEqual(self.last_line(), (0, self.PASSED + " (--all runs more)"))
        words = [call.split("=error")[1] for call in self.text("ctest.log").splitlines()]
        self.assertEqual(words, ["", " -R x", " -R x", " -LE ^all$"])

    def test_what_it_cannot_start_with(self):
        made = "CMAKE_CACHEFILE_DIR:INTERNAL="
        self.write(self.root / "build/sim/CMakeCache.txt", f"{made}/no/such/build/sim\n")
        words = "test.sh: build/sim was built for /no/such/build/sim: rm -r build/sim, and "
        status, line = self.last_line()
        self.assertEqual((status, line[: len(words)]), (1, words))
        self.write(self.root / "build/sim/CMakeCache.txt", f"{made}{self.root}/build/sim\n")
        self.assertEqual(self.last_line()[0], 0)
        self.tool("python3", "[[ $1 == -V ]] && echo Python 3.10.12; exit 1")
        words = "test.sh: the tests need Python 3.11 or newer, and here is Python 3.10.12"
        self.assertEqual(self.last_line(), (1, words))

    def test_all_wants_each_tool(self):
        self.nothing_there()
        status, line = self.last_line("--all")
        self.assertEqual(status, 1)
        wants = "documentation .*, a kernel in gdb .*, step 14 on several ranks .*, formatting;"
        self.assertRegex(line, f"FAILED: {wants}")
        said = "NOT RUN: pages in a browser (no Chromium here), kernels for GPUs (no nvcc here)"
        self.assertIn(said, line)

    def test_what_setup_is_asked_for(self):
        setup = f'[[ $1 == --have ]] || echo "$*" >> {self.root}/asked'
        self.stand_in("scripts/setup.sh", setup)
        for options, asked in (
            ((), "\n"),
            (("--yes",), "--yes\n"),
            (("--all", "--yes"), "--yes mpi docs gdb format\n--yes browser\n"),
        ):
            self.last_line(*options)
            self.assertEqual(self.text("asked"), asked)
            (self.root / "asked").unlink()
        self.stand_in("scripts/setup.sh", "exit 1")
        self.assertEqual(self.run_script(TEST, status=1).stdout, "")

    def test_cuda_builds_for_a_gpu_and_looks_for_spills(self):
        status, line = self.last_line("--cuda")
        self.assertEqual((status, line.split(";")[0]), (0, "test.sh: all passed"))
        setup, build = self.text("cmake.log").splitlines()
        self.assertEqual(setup, "--preset gpu")
        self.assertRegex(build, "^--build --preset gpu")
        self.report("raise SystemExit(1)")
        self.fails("kernels for GPUs", "--cuda")
        (self.bin / "nvcc").unlink()
        self.fails("--cuda needs nvcc", "--cuda")

    def test_what_fails_is_named(self):
        bad = "67% tests passed, 1 tests failed out of 3"
        self.tool("ctest", f"echo '{bad}'; exit 8")
        self.fails(f"tests; {bad}", "-R", "x")
        none = "No tests were found!!!"
        self.tool("ctest", f"echo '{none}' >&2; [[ $* != *--no-tests=error* ]]")
        self.fails(f"tests; {none}", "-R", "typo")
        self.tool("ctest", f"echo '{self.TESTS}'")
        self.tool("cmake", '[[ "$*" != *docs* ]]')  # a warning of Doxygen
        self.fails("documentation;", "--all")
        self.tool("cmake", '[[ "$*" != *--build* ]]')
        self.assertEqual(self.last_line(), (1, "test.sh: the build failed"))
        self.tool("cmake")
        self.write(self.root / "README.md", "<!-- table: steps -->\n<!-- /table -->\n")
        self.fails("tables;", "--all")


if __name__ == "__main__":
    main()
