#!/usr/bin/env python3
"""The step programs as a user types them: exit status, messages, files.

Argument: a build folder.
"""

import array
import ast
import fcntl
import json
import math
import os
import pathlib
import pty
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import tty
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv.pop()).resolve() if len(sys.argv) > 1 else ROOT / "build" / "sim"
NAIVE = BUILD / "steps" / "01_naive"
FUSED = BUILD / "steps" / "04_fused"
SMALL = ["--h", "2", "--n", "40", "--d", "32"]


def rows_of(program, n):
    """As many queries, or as few as a decoding step takes."""
    return str(min(n, 13) if "decode" in program.name else n)


def steps():
    """All step programs of the build, in order."""
    return sorted(p for p in (BUILD / "steps").glob("[0-9][0-9]_*") if p.is_file())


def run(*arguments, program=NAIVE, **kind):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.run([str(program), *map(str, arguments)], text=True, **{**pipes, **kind})


def write_npy(path, shape, values, typecode="f", descr="<f4"):
    """A .npy file of format 1.0; `values` may be too few, for damaged files."""
    header = repr({"descr": descr, "fortran_order": False, "shape": tuple(shape)})
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()
    path.write_bytes(start + array.array(typecode, values).tobytes())
    return path


def read_npy(path):
    """Shape and values of a '<f4' file."""
    raw = path.read_bytes()
    assert raw[:8] == b"\x93NUMPY\x01\x00"
    end = 10 + int.from_bytes(raw[8:10], "little")
    header = ast.literal_eval(raw[10:end].decode())
    assert header["descr"] == "<f4" and not header["fortran_order"]
    return header["shape"], array.array("f", raw[end:])


def numbers(n, step):
    return [math.sin(step * i) for i in range(n)]


def attention(q, k, v, n, d):
    """One head in plain Python."""
    out = []
    for r in range(n):
        s = [sum(q[r * d + x] * k[c * d + x] for x in range(d)) / math.sqrt(d) for c in range(n)]
        p = [math.exp(x - max(s)) for x in s]
        out += [sum(p[c] * v[c * d + x] for c in range(n)) / sum(p) for x in range(d)]
    return out


class Stale(unittest.TestCase):
    def test_a_program_says_that_its_source_is_newer(self):
        """Else a change that is not built seems to do nothing."""
        with tempfile.TemporaryDirectory() as folder:
            program = pathlib.Path(folder, "build", "mine", "steps", "01_naive")
            source = pathlib.Path(folder, "steps", "01_naive", "1_naive.cuh")
            for path in (program, source):
                path.parent.mkdir(parents=True)
            shutil.copy(NAIVE, program)
            source.touch()
            built = program.stat().st_mtime
            for age, said in ((-10, False), (10, True)):
                os.utime(source, (built + age, built + age))
                done = run(*SMALL, program=program)
                self.assertEqual(done.returncode, 0)
                self.assertEqual("steps/01_naive/1_naive.cuh is newer" in done.stderr, said)
                command = "cmake --build build/mine --target 01_naive"
                self.assertEqual(command in done.stderr, said)


class Programs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def refused(self, arguments, status, *words, program=NAIVE):
        """The program ends with `status` and one sentence that holds all `words`."""
        with self.subTest(arguments=arguments):
            result = run(*arguments, program=program)
            self.assertEqual(result.returncode, status, result.stdout + result.stderr)
            self.assertEqual(result.stdout, "")
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            self.assertTrue(result.stderr.startswith(f"{program.name}: "), result.stderr)
            for word in words:
                self.assertIn(word, result.stderr)

    def json_of(self, *arguments, program=NAIVE):
        path = self.folder / "run.json"
        path.unlink(missing_ok=True)
        result = run(*arguments, "--json", path, program=program)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        return json.loads(path.read_text())

    def tensor(self, name, shape, values=None, **kind):
        values = values if values is not None else numbers(math.prod(shape), 0.37)
        return write_npy(self.folder / name, shape, values, **kind)

    # --- bad use --------------------------------------------------------------------------------

    def test_wrong_flags(self):
        self.refused(["--size", "3"], 2, "--size", "--help")
        self.refused(["stray"], 2, "stray", "--help")
        self.refused(["--n", "many"], 2, "--n", "--help")
        self.refused(["--n", "0"], 2, "--n 0")
        self.refused(["--n", "-3"], 2, "--n -3")
        self.refused(["--n", "99999999999"], 2, "--n")
        self.refused(["--d", "48"], 2, "--d 48", "32, 64, 96, 128")
        self.refused(["--hkv", "2"], 2, "--hkv 2")
        self.refused(["--nk", "7"], 2, "--nk 7")
        self.refused(["--input", "fake"], 2, "--input")
        self.refused(["--variant", "none"], 2, "--variant none", "naive")
        self.refused(["--gpu", "H201"], 2, "--gpu H201", "H200", "T4")
        for step, gpu, arch in (("07", "T4", "sm_75"), ("09", "RTX 4090", "sm_89")):
            program = next(p for p in steps() if p.name.startswith(step))
            self.refused(["--gpu", gpu], 2, f"--gpu {gpu}", "needs sm_", arch, program=program)
        fused = next(p for p in steps() if p.name.startswith("04"))
        tile = ["--variant", "tile", "--smem", "65536"]
        self.refused(tile, 2, "--smem 65536", "variant tile", program=fused)
        self.refused(["--iters", "0"], 2, "--iters 0")
        self.refused(["--workers", "-1"], 2, "--workers -1")
        self.refused(["--workers", "25"], 2, "--workers 25", "24")
        self.refused(["--estimate-heads", "-1"], 2, "--estimate-heads -1")
        self.refused(["--h", "2", "--estimate-heads", "3"], 2, "--estimate-heads 3", "2 heads")
        self.refused(["--estimate", "run.json"], 2, "--estimate needs a GPU")

    def test_tiles_fit_the_shared_memory_of_the_gpu(self):
        program = next(p for p in steps() if p.name.startswith("06"))
        sizes = ["--variant", "registers", "--h", "1", "--n", "256", "--d", "128"]
        small, large = (
            self.json_of(*sizes, "--gpu", gpu, program=program) for gpu in ("T4", "RTX 4090")
        )
        key = small["traffic"]["requested"]["buffers"]["K"]["counted"]["read"]
        self.assertEqual(key, 2 * large["traffic"]["requested"]["buffers"]["K"]["counted"]["read"])
        self.assertEqual((small["model_gpu"], small["ok"], large["ok"]), ("T4", True, True))

    def test_not_checkable_has_a_status_of_its_own(self):
        shape = (1, 1, 64, 32)
        large = self.tensor("large.npy", shape, [1e9 * x for x in numbers(2048, 0.37)])
        path = self.folder / "run.json"
        done = run("--q", large, "--k", large, "--json", path, program=FUSED)
        self.assertEqual(done.returncode, 4, done.stdout + done.stderr)
        self.assertIn("not checkable: the scores lose their digits", done.stdout)
        self.assertNotIn("WRONG", done.stdout)
        report = json.loads(path.read_text())
        self.assertEqual((report["ok"], report["checkable"]), (False, False))
        self.assertGreater(max(tensor["rows_lost"] for tensor in report["check"]), 0)
        self.assertIn("4 not checkable", run("--help", program=FUSED).stdout.replace("\n ", ""))

    def test_wrong_npy_files(self):
        good = self.tensor("good.npy", (1, 2, 8, 32))
        self.refused(["--q", self.folder / "missing.npy"], 2, "missing.npy")
        flat = self.tensor("flat.npy", (8, 32))
        self.refused(["--q", flat], 2, "flat.npy", "32")
        other = self.tensor("other.npy", (1, 2, 9, 32))
        self.refused(["--q", good, "--k", good, "--v", other], 2, "other.npy")
        self.refused(["--q", good, "--n", "9"], 2, "--n 9")
        self.refused(["--q", self.tensor("d48.npy", (1, 1, 4, 48))], 2, "48", "32, 64, 96, 128")
        ints = self.tensor("ints.npy", (1, 2, 8, 32), [1] * 512, typecode="i", descr="<i4")
        self.refused(["--q", ints], 2, "ints.npy", "<i4")
        cut = self.tensor("cut.npy", (1, 2, 8, 32), numbers(500, 1))
        self.refused(["--q", cut], 2, "cut.npy")
        pipe = self.folder / "pipe.npy"
        os.mkfifo(pipe)  # nobody writes to it
        for path, why in ((self.folder, "folder"), (pipe, "pipe"), ("/dev/zero", "device")):
            self.refused(["--q", path], 2, f"{path}: is a ", why)
        text = self.folder / "text.npy"
        text.write_text("1 2 3\n")
        self.refused(["--q", text], 2, "text.npy")

    def test_unwritable_files_are_found_before_the_run(self):
        missing = self.folder / "no" / "such"
        self.refused(["--json", missing / "r.json"], 2, "--json", "its folder does not exist")
        self.refused(["--json", "/sys/r.json"], 2, "--json /sys/r.json: cannot be written: ")
        for flag in ("--json", "--out"):
            self.refused([flag, self.folder], 2, f"{flag} {self.folder}", "Is a directory")
        folder = self.folder / "results" / "LSE.npy"
        folder.mkdir(parents=True)
        self.refused(["--out-dir", folder.parent], 2, f"--out-dir {folder}", "Is a directory")
        self.refused(["--out", missing / "O.npy"], 2, "--out", "O.npy")
        occupied = self.folder / "file"
        occupied.write_text("")
        self.refused(["--out-dir", occupied], 2, "--out-dir")
        self.refused([*SMALL, "--json", self.folder / "r.json", "--out", missing / "O.npy"], 2)
        self.assertFalse((self.folder / "r.json").exists(), "the probe must leave no file")

    def test_a_full_disk(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            for arguments in (["--help"], [*SMALL, "--json", self.folder / "kept.json"]):
                result = run(*arguments, stdout=full)
                self.assertEqual(result.returncode, 3, arguments)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
                self.assertIn("standard output cannot be written: No space left", result.stderr)
        self.assertTrue(json.loads((self.folder / "kept.json").read_text())["ok"])

        for flag in ("--json", "--out"):
            result = run(*SMALL, flag, "/dev/full")
            self.assertEqual(result.returncode, 3, flag)
            self.assertIn("/dev/full: cannot be written: No space left", result.stderr)

        # A limit on the size of files is a disk with little room. What was there stays.
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))

        old = self.folder / "old"
        old.mkdir()
        for flag, name in (("--json", "r.json"), ("--out", "O.npy"), ("--out-dir", "O.npy")):
            (old / name).write_text("as it was")
            path = old if flag == "--out-dir" else old / name
            result = run(*SMALL, flag, path, preexec_fn=limit, restore_signals=False)
            self.assertEqual(result.returncode, 3, flag)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            self.assertIn(f"{old / name}: cannot be written: File too large", result.stderr)
            self.assertEqual((old / name).read_text(), "as it was")
        self.assertEqual(sorted(path.name for path in old.iterdir()), ["O.npy", "r.json"])

    def test_output_through_a_link_or_to_a_pipe(self):
        target = self.folder / "target.json"
        link = self.folder / "link.json"
        link.symlink_to(target)
        target.write_text("")
        self.assertEqual(run(*SMALL, "--json", link).returncode, 0)
        self.assertTrue(link.is_symlink())
        self.assertTrue(json.loads(target.read_text())["ok"])
        result = run(*SMALL, "--json", "/dev/stdout")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(json.loads(result.stdout[result.stdout.index("\n{") :])["ok"])

    def test_too_much_memory(self):
        self.refused(["--n", "400000"], 3, "needs 5120.0 GB of workspace", "free")

    def test_too_little_address_space(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_AS, (1 << 36, 1 << 36))

        result = run(*SMALL, preexec_fn=limit)
        self.assertEqual(result.returncode, 3, result.stdout + result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertIn("cannot reserve address space", result.stderr)

    def test_the_largest_number_of_workers(self):
        self.assertEqual(self.json_of(*SMALL, "--workers", "24")["ok"], True)

    def test_a_terminal_shows_a_refusal_in_whole_words(self):
        words = run("--gpu", "H201").stderr.split()
        for columns in (20, 80, 100):
            master, slave = pty.openpty()
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            self.assertEqual(run("--gpu", "H201", stderr=slave).returncode, 2)
            shown = os.read(master, 65536).decode().splitlines()
            for end in (master, slave):
                os.close(end)
            self.assertGreater(len(shown), 1)
            broken = [line for line in shown if " " in line.strip()]  # a word may be longer
            self.assertLessEqual(max(map(len, broken)), min(80, columns))
            self.assertEqual(" ".join(shown).split(), words)

    # --- help -----------------------------------------------------------------------------------

    def test_help_and_version(self):
        cmake = (ROOT / "CMakeLists.txt").read_text()
        version = re.search(r"project\(.*?VERSION (\S+)", cmake).group(1)
        for program in steps():
            with self.subTest(program=program.name):
                text = run("--help", program=program)
                self.assertEqual(text.returncode, 0)
                self.assertLessEqual(max(map(len, text.stdout.splitlines())), 80)
                for option in (
                    "b h n d causal input q k v out out-dir seed variant json predict "
                    "list-variants help version"
                ).split():
                    self.assertRegex(text.stdout, rf"(?m)^ +--{option}\b")
                simulated = "--workers" in text.stdout
                self.assertEqual("--analyse" in text.stdout, simulated)
                self.assertEqual("--no-counters" in text.stdout, not simulated)
                self.assertIn("Example", text.stdout)
                named = re.findall(
                    r"(?m)^  (\w+) ", text.stdout.split("Variants")[1].split("Example")[0]
                )
                listed = run("--list-variants", program=program)
                self.assertEqual((listed.returncode, listed.stdout.split()), (0, named))
                self.assertEqual(
                    run("--version", program=program).stdout, f"{program.name} {version}\n"
                )

    def test_help_fits_a_narrow_terminal(self):
        words = run("--help").stdout.split()
        for columns in (20, 40, 80, 200):
            master, slave = pty.openpty()
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            tty.setraw(slave)
            shown = b""
            with subprocess.Popen([NAIVE, "--help"], stdout=slave):
                os.close(slave)
                try:
                    while part := os.read(master, 65536):
                        shown += part
                except OSError:  # the program has ended
                    pass
            os.close(master)
            lines = [line for line in shown.decode().splitlines() if " " in line.strip()]
            self.assertLessEqual(max(map(len, lines)), min(80, columns))
            self.assertEqual(shown.decode().split(), words)

    def test_help_offers_what_the_step_takes(self):
        """Every size that help shows is taken, and every other one is refused."""
        for program in steps():
            shown = run("--help", program=program).stdout
            for option in ("--hkv", "--nk"):
                with self.subTest(program=program.name, option=option):
                    n = rows_of(program, 40)
                    asked = ["--h", "2", "--n", n, "--d", "64", option, "1", "--predict"]
                    done = run(*asked, program=program)
                    self.assertEqual(done.returncode, 0 if f"  {option} " in shown else 2)
            dO = self.tensor("dO.npy", (1, 1, 4, 64))
            with self.subTest(program=program.name, option="--do"):
                done = run("--do", dO, "--predict", program=program)
                self.assertEqual(done.returncode, 0 if "  --do " in shown else 2, done.stderr)

    # --- right use ------------------------------------------------------------------------------

    def test_report_fits_a_screen(self):
        for program in steps():
            with self.subTest(program=program.name):
                n = rows_of(program, 64)
                result = run("--n", n, "--h", "1", "--d", "64", program=program)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                self.assertEqual(result.stderr, "")
                self.assertLessEqual(max(map(len, result.stdout.splitlines())), 80)
                # The longest figures of any size.
                large = ["--n", rows_of(program, 65536), "--h", "32", "--d", "128", "--predict"]
                result = run(*large, program=program)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                self.assertLessEqual(max(map(len, result.stdout.splitlines())), 80)
                self.assertIn(program.name, result.stdout)

    def test_json_has_every_promised_key(self):
        r = self.json_of(*SMALL, "--causal", "--seed", "5", "--input", "normal")
        self.assertLessEqual(
            {
                "schema",
                "step",
                "variant",
                "device",
                "problem",
                "check",
                "traffic",
                "time",
                "estimate",
                "bound_ms",
                "host_ms",
                "flops",
                "flops_executed",
                "workspace_bytes",
                "prepare",
                "backward",
                "ok",
            },
            set(r),
        )
        self.assertEqual(r["schema"], 1)
        self.assertEqual(r["step"], "01_naive")
        self.assertLessEqual({"kind", "name", "arch"}, set(r["device"]))
        expected = {
            "b": 1,
            "h": 2,
            "hkv": 2,
            "n": 40,
            "nk": 40,
            "d": 32,
            "causal": True,
            "dtype": "fp32",
            "input": "normal",
            "seed": 5,
        }
        self.assertEqual(expected, {key: r["problem"][key] for key in expected})
        for tensor in r["check"]:
            self.assertLessEqual(
                {"tensor", "max_abs_err", "bound", "ok", "baseline_err", "rows_checked"},
                set(tensor),
            )
            self.assertTrue(tensor["ok"])
        self.assertEqual([t["rows_checked"] for t in r["check"] if t["tensor"] == "O"], [80])
        self.assertEqual(set(r["traffic"]["hbm"]), {"predicted", "model", "measured"})
        self.assertEqual(r["flops"], 4 * 2 * 40 * 40 * 32 / 2)
        self.assertEqual(r["workspace_bytes"], 2 * 2 * 40 * 40 * 4)
        self.assertTrue(r["ok"])

    def test_every_key_is_documented(self):
        document = (ROOT / "docs" / "json.md").read_text()
        table, example = document.split("## An example")
        example = json.loads(re.search(r"```json\n(.*?)```", example, re.S).group(1))
        r = self.json_of(*SMALL, "--analyse")
        self.assertEqual(set(example), set(r))
        for path in ("traffic", "problem", "kernels 0", "estimate", "estimate kernels 0"):
            ours, its = example, r
            for key in path.split():
                ours, its = (tree[int(key) if key == "0" else key] for tree in (ours, its))
            self.assertEqual(set(ours), set(its))
        for key in r:
            self.assertRegex(table, rf"`{key}[`.]")
        for key in (*r["sites"][0], *r["kernels"][0], *r["estimate"], *r["estimate"]["kernels"][0]):
            self.assertRegex(table, rf"[{{ ]{key}[,}}]")

    def test_times_are_estimated_for_more_heads_than_run(self):
        few = self.json_of(*SMALL)
        self.assertEqual((few["estimate_heads"], few["estimate"]["gpu"]), (2, "H200"))
        many = self.json_of(*SMALL, "--estimate-heads", "128")
        self.assertEqual(many["estimate_heads"], 128)
        names = [kernel["name"] for kernel in many["estimate"]["kernels"]]
        self.assertEqual(names, ["scores_kernel", "softmax_kernel", "output_kernel"])
        for now, before in zip(many["estimate"]["kernels"], few["estimate"]["kernels"]):
            self.assertEqual(now["blocks"], 64 * before["blocks"])
            self.assertGreaterEqual(now["ms"], before["ms"])
            self.assertTrue(now["arithmetic"])
        self.assertEqual(many["traffic"]["requested"], few["traffic"]["requested"])
        result = run(*SMALL, "--estimate-heads", "128")
        self.assertRegex(result.stdout, r"(?m)^estimated \S+ us on H200, for 128 heads$")
        self.assertIn("  scores_kernel ", result.stdout)
        self.assertLessEqual(max(map(len, result.stdout.splitlines())), 80)

    def test_estimates_without_the_kernels_instructions(self):
        data = self.folder / "data"
        data.mkdir()
        for path in (ROOT / "common" / "data").iterdir():
            (data / path.name).symlink_to(path)
        instructions = data / "instructions.json"
        instructions.unlink()
        other = {"env": {**os.environ, "FLASH_STEPS_DATA": str(data)}}
        missing = run(*SMALL, **other)
        self.assertEqual(missing.returncode, 0, missing.stderr)
        self.assertIn("without plain arithmetic", " ".join(missing.stdout.split()))
        for words in ("{", "{}", '{"kernels": {"k": {"all": 2}}}', "[]", ""):
            instructions.write_text(words)
            with self.subTest(words=words):
                damaged = run(*SMALL, **other)
                self.assertEqual((damaged.returncode, damaged.stdout), (2, ""))
                self.assertEqual(len(damaged.stderr.splitlines()), 1, damaged.stderr)
                self.assertIn(f"instructions, {instructions}, are damaged", damaged.stderr)

    def test_predicted_bytes_are_the_counted_ones(self):
        """For every step, odd N, with and without the mask; a variant's own formula each time."""
        for program in steps():
            variants = run("--list-variants", program=program).stdout.split()
            self.assertTrue(variants)
            for variant in variants:
                for extra in ([], ["--causal"]):
                    with self.subTest(program=program.name, variant=variant, extra=extra):
                        r = self.json_of(
                            "--n",
                            rows_of(program, 77),
                            "--h",
                            "2",
                            "--d",
                            "64",
                            "--variant",
                            variant,
                            *extra,
                            program=program,
                        )
                        if r["device"]["kind"] != "sim":
                            self.skipTest("only the simulator counts per buffer")
                        for one in filter(None, (r["prepare"], r, r["backward"])):
                            requested = one["traffic"]["requested"]
                            self.assertEqual(requested["predicted"], requested["counted"])
                            self.assertGreater(requested["counted"]["read"], 0)
                            for name, buffer in requested["buffers"].items():
                                self.assertEqual(buffer["predicted"], buffer["counted"], name)
                            self.assertTrue(one["traffic"]["prediction_ok"])

    def test_files_in_and_out(self):
        n, d = 5, 32
        q, k, v = numbers(n * d, 0.7), numbers(n * d, 1.3), numbers(n * d, 2.1)
        files = [
            "--q",
            self.tensor("q.npy", (1, 1, n, d), q),
            "--k",
            self.tensor("k.npy", (1, 1, n, d), k),
            "--v",
            self.tensor("v.npy", (1, 1, n, d), v, typecode="d", descr="<f8"),
        ]
        out = self.folder / "O.npy"
        r = self.json_of(*files, "--out", out, "--out-dir", self.folder / "all")
        self.assertEqual(r["problem"]["input"], "files")
        self.assertEqual((r["problem"]["n"], r["problem"]["h"]), (n, 1))
        shape, got = read_npy(out)
        self.assertEqual(shape, (1, 1, n, d))
        for a, b in zip(got, attention(q, k, v, n, d)):
            self.assertAlmostEqual(a, b, places=5)
        self.assertEqual((self.folder / "all" / "O.npy").read_bytes(), out.read_bytes())

    def test_a_written_output_can_be_read_back_as_input(self):
        out = self.folder / "O.npy"
        self.json_of(*SMALL, "--out", out)
        again = self.folder / "O2.npy"
        r = self.json_of("--q", out, "--k", out, "--v", out, "--out", again)
        self.assertEqual((r["problem"]["h"], r["problem"]["n"], r["problem"]["d"]), (2, 40, 32))
        self.assertEqual(read_npy(again)[0], (1, 2, 40, 32))

    def test_seeds(self):
        def output(seed, kind="normal"):
            path = self.folder / f"{kind}{seed}.npy"
            self.json_of(*SMALL, "--input", kind, "--seed", seed, "--out", path)
            return path.read_bytes()

        self.assertEqual(output(1), output(1))
        self.assertNotEqual(output(1), output(2))
        self.assertNotEqual(output(1), output(1, "outliers"))

    def test_analyse_finds_nothing_in_a_step(self):
        for program in steps():
            with self.subTest(program=program.name):
                n = rows_of(program, 70)
                result = run("--n", n, "--h", "1", "--d", "64", "--analyse", program=program)
                if "works in the simulator" in result.stderr:
                    self.skipTest("a GPU build")
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
                self.assertIn("no finding", result.stdout)
                self.assertLessEqual(max(map(len, result.stdout.splitlines())), 80)
                self.assertRegex(result.stdout, r"\w+\.cuh:\d+")

    def test_strict_asks_for_more_fences(self):
        program = next((p for p in steps() if p.name == "09_tma_wgmma"), None)
        if program is None:
            self.skipTest("step 09 is not built")
        arguments = ("--variant", "tma", "--n", "300", "--h", "1", "--d", "64")
        result = run(*arguments, "--strict", program=program)
        if "works only in the simulator" in result.stderr:
            self.skipTest("a GPU build")
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        words = " ".join(result.stdout.split())
        self.assertIn("strict: race on shared memory: kernel step09_tma::", words)
        self.assertIn("no fence.proxy.async", words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
