"""setup.sh, tour.sh and test.sh with stand-ins for apt, cmake, ctest and the programs."""

import os
import pty
import shutil
import subprocess
import sys
import tempfile
import unittest

from sample_results import sim, write

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
TOOLS = (
    "bash env sed awk grep sort head tail cat tee tr mkdir rm id nproc basename dirname date "
    "mktemp python3 ls cp printf wc sleep"
).split()


class Sandbox(unittest.TestCase):
    """A copy of the scripts, and a PATH that holds the standard tools and nothing else."""

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
        return {"PATH": self.bin, "HOME": self.root}

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
        done = self.run_script("./scripts/setup.sh")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("g++                  is missing: compiles the kernels", done.stdout)
        self.assertIn("ask for:  sudo apt-get install -y --no-install-recommends g++", done.stdout)

    def test_sudo_may_ask_for_a_password_only_where_somebody_can_type_it(self):
        self.tool("id", "echo 1000")
        self.tool("sudo", f'echo "$*" >> {self.root}/sudo.log')
        self.tool("apt-get", ":")
        script_end = self.terminal()[1]
        self.addCleanup(script_end.close)
        for stdin, calls in (
            (subprocess.DEVNULL, ("-n true", "-n apt-get update", "-n env ")),
            (script_end, ("true", "apt-get update", "env ")),
        ):
            done = subprocess.run(
                ["./scripts/setup.sh"],
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
        self.tool("apt-get", f'echo "$DEBIAN_FRONTEND $*" >> {self.root}/apt.log')
        done = self.run_script("./scripts/setup.sh")
        self.assertEqual(done.returncode, 0, done.stderr)
        update, install = self.text("apt.log").splitlines()
        self.assertEqual(update.strip(), "update")
        self.assertRegex(install, r"^noninteractive install -y --no-install-recommends .*g\+\+")

    def test_a_broken_source_does_not_keep_it_from_installing(self):
        self.tool("id", "echo 0")
        self.tool(
            "apt-get",
            f'echo "$*" >> {self.root}/apt.log\n'
            "[[ $* != update ]] || { echo E: a source has no Release file; exit 100; }",
        )
        done = self.run_script("./scripts/setup.sh")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(
            "warning: apt-get update failed: E: a source has no Release file", done.stdout
        )
        self.assertNotIn("could not install", done.stdout)
        self.assertTrue(self.text("apt.log").splitlines()[1].startswith("install"))

    def test_a_failing_apt_is_told_and_not_fatal(self):
        self.tool("id", "echo 0")
        self.tool("apt-get", "echo E: no network; exit 100")
        done = self.run_script("./scripts/setup.sh")
        self.assertEqual(done.returncode, 0)
        self.assertIn("E: no network", done.stdout)
        self.assertIn("going on with what is there", done.stdout)

    def test_another_distribution_gets_the_list(self):
        done = self.run_script("./scripts/setup.sh")
        self.assertEqual(done.returncode, 0)
        self.assertIn("no Debian or Ubuntu", done.stdout)

    def test_groups_are_optional(self):
        self.assertNotIn("doxygen ", self.run_script("./scripts/setup.sh").stdout)
        self.assertIn("doxygen ", self.run_script("./scripts/setup.sh", "docs").stdout)

    def test_an_old_cmake_is_named(self):
        self.tool("cmake", "echo cmake version 3.22.1")
        self.assertIn("CMake 3.22.1 is too old", self.run_script("./scripts/setup.sh").stdout)

    def test_bad_use(self):
        done = self.run_script("./scripts/setup.sh", "everything")
        self.assertEqual(done.returncode, 2)
        self.assertIn("unknown group 'everything'", done.stderr)


class Tour(Sandbox):
    VARIANTS = {"01_naive": ["kernel"], "02_tiled": ["shared", "kernel", "after"]}

    def setUp(self):
        super().setUp()
        self.executable(os.path.join(self.root, "scripts", "setup.sh"), ":")
        self.tool("cmake", ":")
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
            [call.split()[1] for call in calls], ["kernel", "shared", "kernel", "after"]
        )
        for call in calls:
            self.assertIn("--causal --n 64 --h 4 --d 64 --input real", call)
        labels = [line.split("  ")[0] for line in done.stdout.splitlines() if line[:1] == "0"]
        self.assertEqual(sorted(labels), ["01_naive", "02 after", "02 shared", "02_tiled"])
        self.assertIn("the report of 02_tiled shared", self.text("report.html"))

    def test_steps_by_number_and_by_name(self):
        for wanted in ("02", "02_tiled"):
            done = self.run_script("./scripts/tour.sh", "--steps", wanted)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertNotIn("01_naive", done.stdout)

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
        self.assertIn("needs sm_90a; this is sm_86: shown in the simulator\n", done.stdout)
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

    def test_a_failed_build_shows_its_end(self):
        self.tool("cmake", "echo the compiler said no; exit 1")
        done = self.run_script("./scripts/tour.sh")
        self.assertEqual(done.returncode, 1)
        self.assertIn("the compiler said no", done.stdout)
        self.assertIn("build/tour.log", done.stderr)

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


class Test(Sandbox):
    def setUp(self):
        super().setUp()
        self.executable(os.path.join(self.root, "scripts", "setup.sh"), ":")
        self.executable(os.path.join(self.root, "scripts", "ptxas_report.py"), "")  # also Python
        os.makedirs(os.path.join(self.root, "build"))
        self.tool("cmake", "echo cmake $*")
        self.tool("ctest", "echo '100% tests passed, 0 tests failed out of 3'")

    def last_line(self, *args):
        done = self.run_script("./scripts/test.sh", *args)
        return done.returncode, done.stdout.splitlines()[-1]

    def test_all_passed(self):
        self.tool("doxygen", ":")
        self.tool("nvcc", "echo release 13.0; echo build")
        self.assertEqual(
            self.last_line(), (0, "test.sh: all passed; 100% tests passed, 0 tests failed out of 3")
        )

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
        status, line = self.last_line()
        self.assertEqual(status, 1)
        self.assertIn("FAILED: tables", line)

    def test_a_warning_of_doxygen_fails_the_script(self):
        self.tool("doxygen", ":")
        self.tool("cmake", '[[ "$*" != *docs* ]]')
        status, line = self.last_line()
        self.assertEqual(status, 1)
        self.assertIn("FAILED: documentation", line)

    def test_a_failing_build_ends_it(self):
        self.tool("cmake", '[[ "$*" != *--build* ]]')
        self.assertEqual(self.last_line(), (1, "test.sh: the build failed"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
