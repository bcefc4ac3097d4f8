"""setup.sh, tour.sh and test.sh with stand-ins for apt, cmake, ctest and the programs."""

import fcntl
import io
import os
import pty
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import copies  # noqa: F401  for flash_steps
from flash_steps import building
from sample_results import sim, write

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
TOOLS = (
    "bash env sed awk grep sort head tail cat tee tr mkdir rm id nproc basename dirname date "
    "mktemp ls cp printf wc sleep flock"
).split()


class Sandbox(unittest.TestCase):
    """A copy of the scripts, and a PATH that holds the standard tools and nothing else: Python
    without what is installed beside it."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = os.path.join(folder.name, "repository")
        self.bin = os.path.join(folder.name, "bin")
        os.makedirs(self.root)
        os.makedirs(self.bin)
        shutil.copytree(os.path.join(ROOT, "scripts"), os.path.join(self.root, "scripts"))
        for tool in TOOLS:
            os.symlink(shutil.which(tool), os.path.join(self.bin, tool))
        self.tool("python3", f'exec {sys.executable} -S "$@"')

    def tool(self, name, script):
        """Puts a bash script on the PATH."""
        path = os.path.join(self.bin, name)
        if os.path.lexists(path):
            os.remove(path)
        self.executable(path, script)

    def executable(self, path, script):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/usr/bin/env bash\n" + script + "\n")
        os.chmod(path, 0o755)

    def run_script(self, *command):
        return subprocess.run(
            command,
            cwd=self.root,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=self.environment(),
        )

    def environment(self):
        return {"PATH": self.bin, "HOME": self.root, "CUDA_HOME": self.root}

    def terminal(self):
        """(our end of a terminal, the file that a script gets)."""
        try:
            ours, script_end = pty.openpty()
        except OSError:  # a container without /dev/pts
            self.skipTest("this machine gives no pseudo terminal")
        self.addCleanup(os.close, ours)
        return ours, os.fdopen(script_end)

    def text(self, name):
        with open(os.path.join(self.root, name), encoding="utf-8") as file:
            return file.read()


class Setup(Sandbox):
    def setUp(self):
        super().setUp()
        self.tool("cmake", "echo cmake version 3.25.1")
        self.tool("make", ":")
        self.tool("addr2line", ":")

    def test_without_root_prints_the_line_to_ask_for(self):
        self.tool("id", "echo 1000")
        self.tool("sudo", "exit 1")
        self.tool("apt-get", "exit 1")
        done = self.run_script("./scripts/setup.sh", "--yes")
        self.assertIn("g++                  is missing: compiles the kernels", done.stdout)
        self.assertIn(
            "administrator to run:  sudo apt-get install -y --no-install-recommends g++",
            done.stdout,
        )
        # Without a compiler nothing goes; the libraries are another matter.
        self.assertEqual(done.returncode, 1)
        self.assertRegex(
            done.stderr,
            r"^setup: cannot continue without g\+\+: install with "
            r"sudo apt-get install -y --no-install-recommends g\+\+\n$",
        )
        self.tool("g++", ":")
        done = self.run_script("./scripts/setup.sh", "docs")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("continuing without", done.stdout)

    def test_nothing_is_installed_without_a_word(self):
        self.tool("g++", ":")
        self.tool("id", "echo 0")
        self.tool("apt-get", f"touch {self.root}/called")
        done = self.run_script("./scripts/setup.sh", "gdb")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(
            done.stdout,
            r"nothing was installed; run:  apt-get install -y --no-install-recommends .*gdb"
            r"   \(or add --yes\)",
        )
        self.assertFalse(os.path.exists(os.path.join(self.root, "called")))

    def test_a_terminal_is_asked(self):
        self.tool("g++", ":")
        self.tool("id", "echo 0")
        self.tool("apt-get", f'echo Hit:1; echo "$*" >> {self.root}/apt.log')
        for answer, installs in (("n", False), ("\n", True), ("y\n", True)):
            ours, script_end = self.terminal()
            os.write(ours, (answer + "\n").encode())
            done = subprocess.run(
                ["./scripts/setup.sh", "gdb"],
                cwd=self.root,
                stdin=script_end,
                capture_output=True,
                text=True,
                env=self.environment(),
            )
            script_end.close()
            self.assertEqual(done.returncode, 0)
            self.assertRegex(done.stderr, r"as root: apt-get install .*gdb.*\[Y/n\]")
            log = os.path.join(self.root, "apt.log")
            self.assertEqual(os.path.exists(log), installs, answer)
            if installs:
                os.remove(log)

    def test_have_only_looks(self):
        self.assertEqual(self.run_script("./scripts/setup.sh", "--have", "gdb").returncode, 1)
        self.tool("gdb", ":")
        for arguments in (("--have", "gdb"), ("gdb", "--have")):
            done = self.run_script("./scripts/setup.sh", *arguments)
            self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertEqual(self.run_script("./scripts/setup.sh", "docs", "--have").returncode, 1)
        done = self.run_script("./scripts/setup.sh", "--have")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--have needs a group: mpi, docs, gdb", done.stderr)

    def test_sudo_may_ask_for_a_password_only_where_somebody_can_type_it(self):
        self.tool("id", "echo 1000")
        self.tool("g++", ":")
        self.tool("sudo", f'echo "$*" >> {self.root}/sudo.log; echo Hit:1')
        self.tool("apt-get", ":")
        script_end = self.terminal()[1]
        self.addCleanup(script_end.close)
        for stdin, calls in (
            (subprocess.DEVNULL, ("-n true", "-n env ", "-n env ")),
            (script_end, ("true", "env ", "env ")),
        ):
            done = subprocess.run(
                ["./scripts/setup.sh", "--yes", "gdb"],
                cwd=self.root,
                capture_output=True,
                text=True,
                stdin=stdin,
                env=self.environment(),
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("as root: apt-get install", done.stdout)
            made = self.text("sudo.log").splitlines()
            os.remove(os.path.join(self.root, "sudo.log"))
            self.assertEqual(len(made), 3)
            for line, start in zip(made, calls):
                self.assertTrue(line.startswith(start), made)

    def test_as_root_updates_and_installs(self):
        self.tool("id", "echo 0")
        self.tool(
            "apt-get",
            f'echo "$DEBIAN_FRONTEND $*" >> {self.root}/apt.log; echo Hit:1\n'
            f"[[ $* != *install* ]] || cp {self.bin}/make {self.bin}/g++",
        )
        done = self.run_script("./scripts/setup.sh", "--yes")
        self.assertEqual(done.returncode, 0, done.stderr)
        update, install = self.text("apt.log").splitlines()
        self.assertTrue(update.endswith(" update"), update)
        self.assertRegex(install, r"^noninteractive .* install -y --no-install-recommends .*g\+\+")

    def test_it_says_all_the_time_how_far_it_is(self):
        self.tool("id", "echo 0")
        self.tool("g++", ":")
        lines = r"0 upgraded, 3 newly installed, 0\nGet:1 a\nGet:2 b\nUnpacking a\n"
        self.tool(
            "apt-get", f'echo Hit:1; [[ $* == *update ]] || {{ printf "{lines}"; sleep 0.7; }}'
        )
        ours, script_end = self.terminal()
        with subprocess.Popen(
            ["./scripts/setup.sh", "--yes", "gdb"],
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=script_end,
            stderr=subprocess.DEVNULL,
            env=self.environment(),
        ):
            script_end.close()
            shown = b""
            while b"3 packages: 2 fetched, 1 unpacked, 0 set up" not in shown:
                shown += os.read(ours, 1000)  # fails when it ends without

    def test_a_broken_source_does_not_keep_it_from_installing(self):
        self.tool("id", "echo 0")
        self.tool(
            "apt-get",
            f'echo "$*" >> {self.root}/apt.log\n'
            "[[ $* != *update ]] || { echo Hit:1; echo E: no Release file; exit 100; }",
        )
        self.tool("g++", ":")
        done = self.run_script("./scripts/setup.sh", "--yes", "gdb")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("warning: apt-get update failed: E: no Release file", done.stdout)
        self.assertNotIn("could not install", done.stdout)
        self.assertIn(" install -y", self.text("apt.log").splitlines()[1])

    def test_a_failing_apt_is_told_and_fatal_only_without_a_compiler(self):
        self.tool("id", "echo 0")
        self.tool("apt-get", "echo Hit:1; echo E: the disk is full; exit 100")
        done = self.run_script("./scripts/setup.sh", "--yes")
        self.assertEqual(done.returncode, 1)
        self.assertIn("E: the disk is full", done.stdout)
        self.assertIn("cannot continue without g++", done.stderr)
        self.tool("g++", ":")
        done = self.run_script("./scripts/setup.sh", "--yes", "gdb")
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, "continuing without .*gdb")

    def test_without_a_network_apt_is_asked_once(self):
        self.tool("id", "echo 0")
        self.tool(
            "apt-get",
            f'echo "$RES_OPTIONS $*" >> {self.root}/apt.log\n'
            "echo 'Err:1 http://deb.debian.org Temporary failure resolving'",
        )
        done = self.run_script("./scripts/setup.sh", "--yes")
        self.assertEqual(done.returncode, 1)
        self.assertIn("apt reached no server: check the network", done.stdout)
        (call,) = self.text("apt.log").splitlines()
        self.assertRegex(call, r"^timeout:3 attempts:1 .*Acquire::http::Timeout=15 .*update$")

    def test_another_distribution_gets_the_list(self):
        done = self.run_script("./scripts/setup.sh")
        self.assertIn("not Debian or Ubuntu", done.stdout)
        self.assertEqual(
            done.stderr, "setup: cannot continue without g++: install with your package manager\n"
        )

    def test_groups_are_optional(self):
        self.assertNotIn("doxygen ", self.run_script("./scripts/setup.sh").stdout)
        self.assertIn("doxygen ", self.run_script("./scripts/setup.sh", "docs").stdout)

    def test_the_documentation_needs_its_tools(self):
        """They are asked for as what was typed, may be installed, and without them it ends."""
        self.tool("g++", ":")
        self.tool("id", "echo 0")
        self.tool("apt-get", f'echo "$*" >> {self.root}/apt.log; echo Hit:1')
        docs = ("bash", "scripts/flash_steps/docs.sh")  # as ./scripts/maintain docs calls it
        done = self.run_script(*docs)
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("(or add --yes)", done.stdout)
        self.assertNotIn("continuing", done.stdout)
        self.assertRegex(
            done.stderr, r"^setup: cannot continue without doxygen.*: install with.*\n$"
        )
        done = self.run_script(*docs, "--yes")
        self.assertRegex(self.text("apt.log"), "install .*doxygen")
        self.assertRegex(done.stderr, r"^setup: cannot continue without doxygen.*\n$")
        done = self.run_script(*docs, "--no")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"^maintain docs: unknown option '--no'; see --help\n$")

    def test_an_old_cmake_is_named(self):
        self.tool("g++", ":")
        self.tool("cmake", "echo cmake version 3.22.1")
        done = self.run_script("./scripts/setup.sh")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(
            done.stderr,
            r"^setup: CMake 3.22.1 is too old.* python3 -m venv ~/cmake && "
            r"~/cmake/bin/pip install cmake && PATH=~/cmake/bin:\$PATH\n$",
        )

    def test_bad_use(self):
        done = self.run_script("./scripts/setup.sh", "everything")
        self.assertEqual(done.returncode, 2)
        self.assertIn("unknown group 'everything'", done.stderr)


class Tour(Sandbox):
    VARIANTS = {"01_naive": ["naive"], "02_tiled": ["shared", "registers", "after"]}

    def setUp(self):
        super().setUp()
        self.executable(os.path.join(self.root, "scripts", "setup.sh"), ":")
        self.tool("cmake", ":")
        data = os.path.join("common", "data")
        os.makedirs(os.path.join(self.root, data))
        shutil.copy(os.path.join(ROOT, data, "gpus.json"), os.path.join(self.root, data))
        for name, variants in self.VARIANTS.items():
            os.makedirs(os.path.join(self.root, "steps", name))
            open(os.path.join(self.root, "steps", name, "main.cu"), "w", encoding="utf-8").close()
            for variant in variants:
                write(
                    os.path.join(self.root, f"{name}.{variant}.json"),
                    sim(step=name, variant=variant),
                )
            self.program("sim", name, 'echo "$@" >> calls; cp "$step.$variant.json" "$json"')

    def program(self, backend, name, body):
        """A step that knows its own name, its variants, its --variant and its --json."""
        self.executable(
            os.path.join(self.root, "build", backend, "steps", name),
            f"""
step={name}
[[ $1 == --list-variants ]] && printf '%s\\n' {" ".join(self.VARIANTS[name])} && exit
for ((i = 1; i <= $#; i++)); do
  j=$((i + 1))
  case "${{!i}}" in --variant) variant=${{!j}} ;; --json) json=${{!j}} ;; esac
done
echo "the report of {name} $variant"
{body}""",
        )

    def test_runs_all_variants_in_the_order_of_reading(self):
        done = self.run_script("./scripts/tour.sh", "--n", "64")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        calls = self.text("calls").splitlines()
        self.assertEqual(
            [call.split()[1] for call in calls], ["naive", "shared", "registers", "after"]
        )
        for call in calls:
            self.assertIn("--causal --n 64 --h 4 --d 64 --estimate-heads 128 --input real", call)
        labels = [line.split("  ")[0] for line in done.stdout.splitlines() if line[:1] == "0"]
        self.assertEqual(sorted(labels), ["01 naive", "02 after", "02 registers", "02 shared"])
        self.assertIn("the report of 02_tiled shared", self.text("report.html"))
        self.assertIn("causal fp32, estimated for H200 (132 SMs)\n", done.stdout)
        (naive,) = (line for line in done.stdout.splitlines() if line.startswith("01 naive"))
        self.assertIn("400 us L1 lines", " ".join(naive.split()))
        self.assertIn("400 us estimated", self.text("report.html"))

    def test_steps_by_number_and_by_name(self):
        for wanted in ("02", "02_tiled"):
            done = self.run_script("./scripts/tour.sh", "--steps", wanted)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("sim  01_naive", done.stdout)

    def test_a_failed_step_is_shown_and_the_rest_goes_on(self):
        self.program("sim", "01_naive", "echo something broke; exit 1")
        done = self.run_script("./scripts/tour.sh")
        self.assertEqual(done.returncode, 1)
        self.assertIn("FAILED, exit status 1", done.stdout)
        self.assertIn("something broke", done.stdout)
        self.assertIn("02_tiled shared", done.stdout)

    def test_a_gpu_that_cannot_falls_back(self):
        self.tool("nvidia-smi", ":")
        self.tool("nvcc", ":")
        self.program(
            "gpu",
            "01_naive",
            "echo 'needs sm_90a; this is sm_86: run build/sim/steps/01_naive'; exit 3",
        )
        self.program("gpu", "02_tiled", 'cp "$step.$variant.json" "$json"')
        done = self.run_script("./scripts/tour.sh")
        self.assertEqual(done.returncode, 0, done.stdout)
        # Beside a measured time stands an estimate of the same heads.
        self.assertNotIn("--estimate-heads", self.text("calls"))
        self.assertIn("needs sm_90a; this is sm_86: see the simulator row\n", done.stdout)
        self.assertIn("[8/8]", done.stdout)

    def test_a_program_that_cannot_name_its_variants_ends_it(self):
        self.executable(os.path.join(self.root, "build", "sim", "steps", "02_tiled"), "exit 2")
        done = self.run_script("./scripts/tour.sh")
        self.assertEqual(done.returncode, 1)
        self.assertIn("02_tiled --list-variants failed", done.stderr)

    def test_a_terminal_sees_at_once_how_far_the_build_is(self):
        self.tool(
            "cmake",
            """[[ $* == *--build* ]] || exit 0
echo '[ 37%] Building CXX object'
for ((i = 0; i < 200; i++)); do [[ -e seen ]] && exit 0; sleep 0.05; done
exit 1""",
        )
        ours, script_end = self.terminal()
        tour = subprocess.Popen(
            ["./scripts/tour.sh", "--steps", "01"],
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=script_end,
            stderr=subprocess.DEVNULL,
            env=self.environment(),
        )
        script_end.close()  # reading fails, and does not wait, when the tour ends early
        shown = b""
        while b"37%" not in shown:
            shown += os.read(ours, 1000)
            self.assertNotIn(b"[ 37%] Building", shown)
        self.executable(os.path.join(self.root, "seen"), "")
        self.assertEqual(tour.wait(60), 0)

    def test_a_file_gets_no_progress(self):
        self.tool("cmake", "echo '[ 37%] Building CXX object'")
        shown = self.run_script("./scripts/tour.sh").stdout
        self.assertIn("building for sim (build/tour.log)\n", shown)
        self.assertNotIn("37%", shown)

    def test_all_programs_are_built_at_once(self):
        self.tool("cmake", f'echo "$*" >> {self.root}/cmake.log')
        self.run_script("./scripts/tour.sh")
        configure, build = self.text("cmake.log").splitlines()
        self.assertEqual(configure, "--preset sim -DFA_TARGETS=01_naive;02_tiled")
        self.assertRegex(build, r"^--build --preset sim -j \d+ --target fa_targets$")

    def test_a_failed_build_shows_its_end(self):
        self.tool("cmake", "echo the compiler said no; exit 1")
        done = self.run_script("./scripts/tour.sh")
        self.assertEqual(done.returncode, 1)
        self.assertIn("the compiler said no", done.stdout)
        self.assertIn("build/tour.log", done.stderr)

    def test_what_cmake_could_not_fetch_is_one_sentence(self):
        self.tool(
            "cmake",
            "echo 'CMake Error at dependencies.cmake:30:'\n"
            "echo '  flash-steps: fmt is not here and could not be fetched'\n"
            "echo Configuring incomplete; exit 1",
        )
        done = self.run_script("./scripts/tour.sh")
        self.assertEqual(done.returncode, 1)
        self.assertIn("\nfmt is not here and could not be fetched\n", done.stdout)
        self.assertNotIn("CMake Error", done.stdout)

    def test_what_is_required_and_missing_ends_it(self):
        self.executable(
            os.path.join(self.root, "scripts", "setup.sh"),
            "echo 'setup: cannot continue without g++' >&2; exit 1",
        )
        with open(os.path.join(self.root, "build", "tour.log"), "w", encoding="utf-8") as log:
            log.write("an old log\n")
        done = self.run_script("./scripts/tour.sh")
        self.assertEqual(
            (done.returncode, done.stdout, done.stderr),
            (1, "", "setup: cannot continue without g++\n"),
        )

    def test_yes_is_setups(self):
        self.executable(
            os.path.join(self.root, "scripts", "setup.sh"), f'echo "$*" > {self.root}/asked'
        )
        for arguments in ((), ("--yes",)):
            self.run_script("./scripts/tour.sh", "--steps", "01", *arguments)
            self.assertEqual(self.text("asked").split(), list(arguments))

    def test_a_folder_that_cannot_be_written_ends_it(self):
        shutil.rmtree(os.path.join(self.root, "build"))
        self.executable(os.path.join(self.root, "build"), "a file where the folder should be")
        done = self.run_script("./scripts/tour.sh")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^tour.sh: cannot write /.*/build.*\n$")
        self.assertEqual(done.stdout, "")

    def test_two_tours_at_once(self):
        with open(os.path.join(self.root, "build", "tour.lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = self.run_script("./scripts/tour.sh")
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"^tour.sh: another tour is running in /.*\n$")
        self.assertEqual(self.run_script("./scripts/tour.sh").returncode, 0)

    def test_its_end_says_where_the_report_is_and_what_comes_next(self):
        *_, report, _, following, exercises = self.run_script(
            "./scripts/tour.sh"
        ).stdout.splitlines()
        self.assertEqual(report, os.path.join(self.root, "report.html"))
        self.assertTrue(following.startswith("next: "))
        self.assertIn("./scripts/learn", exercises)
        for line in (following, exercises):
            self.assertLessEqual(len(line), 80)

    def test_each_build_fails_with_its_own_reason(self):
        self.tool("nvidia-smi", ":")
        self.tool("nvcc", ":")
        said = {"gpu": "nvcc says no", "sim": "  flash-steps: fmt is not here"}
        self.tool(
            "cmake", f'[[ $* == *gpu* ]] && echo "{said["gpu"]}" || echo "{said["sim"]}"; exit 1'
        )
        words = self.run_script("./scripts/tour.sh").stdout
        self.assertIn("(build/tour.log)\nfmt is not here\nbuilding for gpu", words)
        self.assertIn("(build/tour.log)\nnvcc says no\n", words)

    def test_a_gpu_serves_where_the_simulator_does_not_build(self):
        self.tool("nvidia-smi", ":")
        self.tool("nvcc", ":")
        self.tool("cmake", "[[ $* != *sim* ]] || { echo no simulator; exit 1; }")
        for name in self.VARIANTS:
            self.program("gpu", name, 'cp "$step.$variant.json" "$json"')
        shutil.rmtree(os.path.join(self.root, "build", "sim"))
        done = self.run_script("./scripts/tour.sh")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("the steps run only on the GPU", done.stdout)
        self.assertIn("[4/4] gpu", done.stdout)
        self.assertNotIn("] sim", done.stdout)

    def test_bad_use(self):
        for args, word in (
            (("--nosuch",), "--nosuch"),
            (("--steps", "99"), "no step '99'"),
            (("--n", "0"), "--n needs"),
            (("--steps",), "--steps needs"),
        ):
            done = self.run_script("./scripts/tour.sh", *args)
            self.assertEqual((done.returncode, len(done.stderr.splitlines())), (2, 1), args)
            self.assertIn(word, done.stderr)
        self.assertEqual(self.run_script("./scripts/tour.sh", "--help").returncode, 0)


class Help(unittest.TestCase):
    def test_of_what_a_newcomer_types_is_whole_and_fits_80_columns(self):
        last = {
            "tour.sh": "2 bad use.",
            "setup.sh": "2 bad use.",
            "test.sh": "with --all what was not run.",
            "learn": "Ctrl-C.",
            "new": "2 bad use.",
        }
        for name, end in last.items():
            with self.subTest(script=name):
                done = subprocess.run(
                    [os.path.join(ROOT, "scripts", name), "--help"],
                    capture_output=True,
                    text=True,
                    env={**os.environ, "COLUMNS": "80"},
                )
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80)
                self.assertIn(end + "\n", done.stdout)
                self.assertNotIn("set -", done.stdout)


class WithoutPython(Sandbox):
    def test_what_a_newcomer_types_asks_for_it(self):
        os.remove(os.path.join(self.bin, "python3"))
        os.symlink(shutil.which("sh"), os.path.join(self.bin, "sh"))
        for name in ("learn", "sim", "new", "maintain"):
            with self.subTest(script=name):
                done = self.run_script(f"./scripts/{name}", "--help")
                self.assertEqual(done.returncode, 3, done.stderr)
                self.assertIn("python3              is missing", done.stdout)
                self.assertRegex(done.stderr, r"^setup: cannot continue without .*python3.*\n$")


class Building(unittest.TestCase):
    """scripts/flash_steps/building.py"""

    def test_a_file_is_told_every_15_s_what_is_being_done(self):
        said = io.StringIO()
        with mock.patch.object(building, "QUIET_SECONDS", 1):
            with building.Progress(said) as progress:
                progress.heard(
                    "[  7%] Building CXX object common/CMakeFiles/fa.dir/ranks/run.cpp.o\n"
                )
                time.sleep(2.5)
        self.assertIn("  7%  common/ranks/run.cpp  2 s\n", said.getvalue())

    def test_the_tests_that_run_are_named(self):
        said = io.StringIO()
        lines = ["      Start  1: test_a\n", "      Start  2: test_b\n"]
        lines += ["1/2 Test  #1: test_a ....   Passed\n"]

        def slowly():
            yield from lines
            time.sleep(2.5)

        with mock.patch.object(building, "QUIET_SECONDS", 1):
            with mock.patch.object(sys, "stdin", slowly()), mock.patch.object(sys, "stdout", said):
                building.watch()
        self.assertTrue(said.getvalue().startswith("".join(lines) + "  running: test_b"))

    def test_a_second_build_in_a_folder_waits(self):
        with tempfile.TemporaryDirectory() as folder:
            with building.Progress(io.StringIO()) as first, building.alone(folder, first):
                code = (
                    "from flash_steps import building\n"
                    "class P:\n  def set(self, what): print(what, flush=True)\n"
                    f"with building.alone({folder!r}, P()): print('mine', flush=True)"
                )
                second = subprocess.Popen(
                    [sys.executable, "-c", code],
                    cwd=os.path.join(ROOT, "scripts"),
                    stdout=subprocess.PIPE,
                    text=True,
                )
                self.assertIn("waiting for another build in ", second.stdout.readline())
            self.assertEqual(second.communicate()[0].splitlines()[-1], "mine")


class Format(Sandbox):
    def test_outside_a_checkout_it_says_so(self):
        self.tool("git", "echo 'fatal: not a git repository' >&2; exit 128")
        done = self.run_script("./scripts/maintain", "format", "--check")
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertRegex(done.stderr, r"^maintain format: git names no files here: .*\n$")


class Test(Sandbox):
    def setUp(self):
        super().setUp()
        self.executable(os.path.join(self.root, "scripts", "setup.sh"), ":")  # no apt
        self.package = os.path.join(self.root, "scripts", "flash_steps")
        self.executable(os.path.join(self.package, "format.sh"), ":")  # no PyPI
        self.report("return 0")
        os.makedirs(os.path.join(self.root, "build", "sim", "steps"))
        self.executable(os.path.join(self.root, "build", "sim", "tests", "test_ladder"), ":")
        self.tool("cmake", "echo cmake $*")
        self.tool("ctest", f"echo '{self.TESTS}'")

    def report(self, body):
        with open(os.path.join(self.package, "ptxas_report.py"), "w", encoding="utf-8") as file:
            file.write(f"def main():\n    {body}\n")

    def last_line(self, *args):
        done = self.run_script("./scripts/test.sh", *args)
        return done.returncode, done.stdout.splitlines()[-1]

    TESTS = "100% tests passed, 0 tests failed out of 3"
    PASSED = "test.sh: all passed; " + TESTS

    def everything_there(self):
        self.tool("nvcc", "echo release 13.0; echo build")
        self.executable(os.path.join(self.root, "scripts", "setup.sh"), ":")
        self.executable(os.path.join(self.package, "format.sh"), ":")

    def nothing_there(self):
        self.executable(os.path.join(self.root, "scripts", "setup.sh"), "[[ $1 != --have ]]")
        self.executable(os.path.join(self.package, "format.sh"), "exit 3")

    def test_two_lengths(self):
        """`--all` runs every test; a newcomer's run needs no tool of the maintainers."""
        self.tool("ctest", f'echo "$*" >> {self.root}/ctest.log; echo "{self.TESTS}"')
        self.nothing_there()
        self.assertEqual(self.last_line(), (0, self.PASSED + " (--all runs more)"))
        self.everything_there()
        for options in (("--all",), ("-R", "x"), ("--all", "-R", "x")):
            self.assertEqual(self.last_line(*options), (0, self.PASSED))
        words = [call.split("=error")[1] for call in self.text("ctest.log").splitlines()]
        self.assertEqual(words, [" -LE ^all$", "", " -R x", " -R x"])

    def test_all_wants_each_tool(self):
        self.nothing_there()
        status, line = self.last_line("--all")
        self.assertEqual(status, 1)
        self.assertRegex(
            line,
            "FAILED: documentation .*, a kernel in gdb .*, "
            "step 14 on several ranks .*, formatting;",
        )
        self.assertIn(
            "NOT RUN: pages in a browser (no Chromium here), kernels for GPUs (no nvcc here)", line
        )

    def test_what_setup_is_asked_for(self):
        setup = os.path.join(self.root, "scripts", "setup.sh")
        self.executable(setup, f'[[ $1 == --have ]] || echo "$*" >> {self.root}/asked')
        for options, asked in (
            ((), "\n"),
            (("--yes",), "--yes\n"),
            (("--all", "--yes"), "--yes mpi docs gdb format\n--yes browser\n"),
        ):
            self.last_line(*options)
            self.assertEqual(self.text("asked"), asked)
            os.remove(os.path.join(self.root, "asked"))
        self.executable(setup, "exit 1")
        done = self.run_script("./scripts/test.sh")
        self.assertEqual((done.returncode, done.stdout), (1, ""))

    def test_the_first_time_says_how_long_and_how_much(self):
        self.executable(os.path.join(self.root, "scripts", "setup.sh"), "exit 1")
        # test.sh also behind a tour, which made build/sim/steps
        shutil.rmtree(os.path.join(self.root, "build", "sim", "tests"))
        for script in ("./scripts/test.sh", "./scripts/tour.sh"):
            if script == "./scripts/tour.sh":
                shutil.rmtree(os.path.join(self.root, "build"))
            os.makedirs(os.path.join(self.root, "steps", "01_naive"), exist_ok=True)
            main = os.path.join(self.root, "steps", "01_naive", "main.cu")
            open(main, "w", encoding="utf-8").close()
            self.assertRegex(
                self.run_script(script).stdout,
                r"^the first run takes about .* minutes .* GB of disk .*packages.\n$",
            )

    def test_cuda_without_nvcc_is_a_failure(self):
        status, line = self.last_line("--cuda")
        self.assertEqual(status, 1)
        self.assertIn("FAILED: --cuda needs nvcc", line)

    def test_cuda_builds_for_a_gpu_and_looks_for_spills(self):
        self.tool("nvcc", "echo release 13.0; echo build")
        self.tool("cmake", f'echo "$*" >> {self.root}/cmake.log')
        status, line = self.last_line("--cuda")
        self.assertEqual((status, line.split(";")[0]), (0, "test.sh: all passed"))
        setup, build = self.text("cmake.log").splitlines()
        self.assertEqual(setup, "--preset gpu")
        self.assertRegex(build, "^--build --preset gpu")
        self.report("raise SystemExit(1)")
        self.assertIn("FAILED: kernels for GPUs", self.last_line("--cuda")[1])

    def test_a_failing_test_fails_the_script(self):
        self.tool("ctest", "echo '67% tests passed, 1 tests failed out of 3'; exit 8")
        status, line = self.last_line("-R", "x")
        self.assertEqual(status, 1)
        self.assertEqual(line, "test.sh: FAILED: tests; 67% tests passed, 1 tests failed out of 3")

    def test_a_name_that_no_test_has_fails_the_script(self):
        self.tool("ctest", "echo 'No tests were found!!!' >&2; [[ $* != *--no-tests=error* ]]")
        self.assertEqual(
            self.last_line("-R", "typo"), (1, "test.sh: FAILED: tests; No tests were found!!!")
        )

    def test_an_empty_table_fails_the_script(self):
        with open(os.path.join(self.root, "README.md"), "w", encoding="utf-8") as file:
            file.write("<!-- table: steps -->\n<!-- /table -->\n")
        status, line = self.last_line("--all")
        self.assertEqual(status, 1)
        self.assertIn("FAILED: tables", line)

    def test_a_warning_of_doxygen_fails_the_script(self):
        self.everything_there()
        self.tool("cmake", '[[ "$*" != *docs* ]]')
        status, line = self.last_line("--all")
        self.assertEqual(status, 1)
        self.assertIn("FAILED: documentation", line)

    def test_a_failing_build_ends_it(self):
        self.tool("cmake", '[[ "$*" != *--build* ]]')
        self.assertEqual(self.last_line(), (1, "test.sh: the build failed"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
