"""The step programs as a user types them: exit status, messages, files."""

import array
import ast
import fcntl
import json
import math
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import termios
import tty

from copies import BUILD, ROOT, Folder, main

NAIVE = BUILD / "steps" / "01_naive"
FUSED = BUILD / "steps" / "04_fused"
SMALL = ["--h", "2", "--n", "40", "--d", "32"]


def rows_of(program, n):
    """As many queries, or the few of a decoding step."""
    return str(min(n, 13) if program.name[:2] in ("13", "17") else n)


def width_of(program, d):
    """So many features, or those of a latent cache."""
    return str(576 if program.name[:2] == "17" else d)


def steps(number=""):
    programs = (BUILD / "steps").glob(f"{number or '[0-9][0-9]'}_*")
    return sorted(path for path in programs if path.is_file())


def run(*arguments, program=NAIVE, **kind):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.run([str(program), *map(str, arguments)], text=True, **{**pipes, **kind})


def write_npy(path, shape, values, typecode="f", descr="<f4"):
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
    out = []
    for r in range(n):
        s = [sum(q[r * d + x] * k[c * d + x] for x in range(d)) / math.sqrt(d) for c in range(n)]
        p = [math.exp(x - max(s)) for x in s]
        out += [sum(p[c] * v[c * d + x] for c in range(n)) / sum(p) for x in range(d)]
    return out


class Case(Folder):
    def fits(self, text, columns=80):
        """Only a line with a single word may be longer."""
        lines = [line for line in text.splitlines() if " " in line.strip()]
        self.assertLessEqual(max(map(len, lines)), columns, text)

    def right(self, *arguments, program=NAIVE):
        """The output of a run that finds the result right."""
        done = run(*arguments, program=program)
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout + done.stderr)
        return done.stdout

    def in_terminal(self, columns, arguments, output, **environment):
        """The "stdout" or "stderr" of a run in a terminal with this many columns."""
        ours, its = self.terminal()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        tty.setraw(its)
        shown = b""
        environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "", **environment}
        with subprocess.Popen([NAIVE, *arguments], env=environment, **{output: its}):
            os.close(its)
            try:
                while part := os.read(ours, 65536):
                    shown += part
            except OSError:  # the program has ended
                pass
        return shown.decode()

    def json_of(self, *arguments, program=NAIVE):
        path = self.folder / "run.json"
        path.unlink(missing_ok=True)
        self.right(*arguments, "--json", path, program=program)
        return json.loads(path.read_text())

    def tensor(self, name, shape, values=None, **kind):
        values = values if values is not None else numbers(math.prod(shape), 0.37)
        return write_npy(self.folder / name, shape, values, **kind)


class AllSteps(Case):
    """all_steps, which runs many steps in one process"""

    def test_it_does_what_the_programs_do(self):
        """Also where a run finds inputs and reference of the previous one, or a part of them."""
        runs = [
            ("03_online_softmax", *SMALL),
            ("04_fused", *SMALL),
            ("05_recompute_backward", *SMALL),
            ("04_fused", *SMALL),
            ("04_fused", *SMALL, "--input", "normal"),
            ("04_fused", *SMALL, "--input", "normal", "--seed", "2"),
            ("04_fused", *SMALL, "--causal"),
            ("04_fused", "--n", "0"),
            ("04_fused", *SMALL),
        ]
        lines = ""
        for i, (step, *words) in enumerate(runs):
            files = self.folder / f"{i}.txt", self.folder / f"{i}.json"
            lines += "\t".join(map(str, (files[0], step, *words, "--json", files[1]))) + "\n"
        done = run(program=BUILD / "steps" / "all_steps", input=lines)
        self.assertEqual((done.returncode, done.stdout.split()), (2, [*"0000000", "2"]))
        for i, (step, *words) in enumerate(runs[:-1]):
            with self.subTest(step=step, words=words):
                path = self.folder / "alone.json"
                alone = run(*words, "--json", path, program=BUILD / "steps" / step)
                shown = (self.folder / f"{i}.txt").read_text()
                self.assertEqual(shown, alone.stdout + alone.stderr)
                if alone.returncode == 0:
                    both = path.read_text(), (self.folder / f"{i}.json").read_text()
                    self.assertEqual(*(re.sub(r'"host_ms": .*', "", text) for text in both))

    def test_it_ends_with_the_first_line_that_is_none(self):
        shown, right = self.folder / "shown", f"{self.folder / 'right'}\t04_fused\t--predict\n"
        for line, status in (
            (f"{shown}\n", 2),
            (f"{shown}\t99_none\t--predict\n", 2),
            (f"{shown}\t04_fused\t--n\t0\n", 2),
            (f"{self.folder / 'no' / 'shown'}\t04_fused\t--predict\n", 3),
        ):
            with self.subTest(line=line):
                done = run(program=BUILD / "steps" / "all_steps", input=right + line + right)
                self.assertEqual((done.returncode, done.stdout), (status, f"0\n{status}\n"))
                self.assertEqual(done.stderr, "")
        self.assertIn("not run", (self.folder / "right").read_text())


class BadUse(Case):
    def refuses(self, arguments, status, *words, program=NAIVE):
        """The program prints one sentence, and no output."""
        with self.subTest(arguments=arguments):
            done = run(*arguments, program=program)
            self.refused(done, status, *words)
            self.assertEqual(done.stdout, "")
            self.assertTrue(done.stderr.startswith(f"{program.name}: "), done.stderr)

    def test_wrong_flags(self):
        """All sentences are in tests/harness; here, that nothing else is printed."""
        for arguments, *words in (
            (["--size", "3"], "--size", "--help"),
            (["--gpu", "H201"], "--gpu H201", "H200", "T4"),
        ):
            self.refuses(arguments, 2, *words)
        for step, gpu, arch in (("07", "T4", "sm_75"), ("09", "RTX 4090", "sm_89")):
            (program,) = steps(step)
            self.refuses(["--gpu", gpu], 2, f"--gpu {gpu}", "needs sm_", arch, program=program)
        tile = ["--variant", "tile", "--smem", "65536"]
        self.refuses(tile, 2, "--smem 65536", "variant tile", program=FUSED)

    def test_unwritable_files_are_found_before_the_run(self):
        missing, folder = self.folder / "no" / "such", self.folder / "results" / "LSE.npy"
        folder.mkdir(parents=True)
        for arguments, *words in (
            (["--trace", missing / "t.json"], "--trace", "its folder does not exist"),
            (["--json", "/proc/r.json"], "--json /proc/r.json: cannot be written: "),
            (["--out-dir", folder.parent], f"--out-dir {folder}", "Is a directory"),
            (["--out-dir", self.write("file", "")], "--out-dir"),
            ([*SMALL, "--json", self.folder / "r.json", "--out", missing / "O.npy"],),
        ):
            self.refuses(arguments, 2, *words)
        self.assertFalse((self.folder / "r.json").exists(), "the probe must leave no file")

    def test_too_little_memory(self):
        self.refuses(["--n", "400000"], 3, "needs 5120.0 GB of workspace", "free")
        few = (1 << 36, 1 << 36)
        done = run(*SMALL, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, few))
        self.refused(done, 3, "cannot reserve address space")

    def test_a_program_says_that_its_source_is_newer(self):
        """Else a change that is not built seems to have no effect."""
        program = self.folder / "build" / "mine" / "steps" / "01_naive"
        program.parent.mkdir(parents=True)
        shutil.copy(NAIVE, program)
        source = self.write("steps/01_naive/1_naive.cuh", "")
        built = program.stat().st_mtime
        for age, newer in ((-10, False), (10, True)):
            os.utime(source, (built + age, built + age))
            done = self.ended(run(*SMALL, program=program))
            for words in ("naive.cuh is newer", "cmake --build build/mine --target 01_naive"):
                self.assertEqual(words in done.stderr, newer)


class Help(Case):
    def test_help_and_version(self):
        cmake = (ROOT / "CMakeLists.txt").read_text()
        version = re.search(r"project\(.*?VERSION (\S+)", cmake).group(1)
        options = "b h n d causal input q k v out out-dir seed variant json predict describe"
        for program in steps():
            with self.subTest(program=program.name):
                text = self.right("--help", program=program)
                self.fits(text)
                for option in (*options.split(), "help", "version"):
                    if option == "v" and program.name[:2] == "17":
                        continue  # V is a part of K
                    self.assertRegex(text, rf"(?m)^ +--{option}\b")
                simulated = "--workers" in text
                self.assertEqual("--analyse" in text, simulated)
                self.assertEqual("--no-counters" in text, not simulated)
                variants = text.split("Variants")[1].split("Example")[0]
                named = re.findall(r"(?m)^  (\w+) ", variants)
                described = json.loads(self.right("--describe", program=program))
                self.assertEqual([v["name"] for v in described["variants"]], named)
                said = self.right("--version", program=program)
                self.assertEqual(said, f"{program.name} {version}\n")

    def test_words_stay_whole_in_a_narrow_terminal(self):
        for arguments, output in ((["--help"], "stdout"), (["--gpu", "H201"], "stderr")):
            words = getattr(run(*arguments), output).split()
            for columns in (20, 40, 80, 200):
                shown = self.in_terminal(columns, arguments, output)
                self.fits(shown, min(80, columns))
                self.assertGreater(len(shown.splitlines()), 1)
                self.assertEqual(shown.split(), words)

    def test_help_offers_what_the_step_takes(self):
        """Every size in the help is accepted, and every other one refused."""
        dO = self.tensor("dO.npy", (1, 1, 4, 64))
        for program in steps():
            shown = run("--help", program=program).stdout
            sizes = ["--h", "2", "--n", rows_of(program, 40), "--d", width_of(program, 64)]
            for asked in ([*sizes, "--hkv", "1"], [*sizes, "--nk", "1"], ["--do", dO]):
                with self.subTest(program=program.name, option=asked[-2]):
                    done = run(*asked, "--predict", program=program)
                    offered = f"  {asked[-2]} " in shown
                    self.assertEqual(done.returncode, 0 if offered else 2, done.stderr)


class Report(Case):
    def test_it_fits_a_screen(self):
        for program in steps():
            with self.subTest(program=program.name):
                small = ["--n", rows_of(program, 64), "--h", "1", "--d", width_of(program, 64)]
                shown = self.right(*small, program=program)
                self.assertLessEqual(shown.count("\n"), 24)
                first, second = shown.splitlines()[:2]
                answer = r"\d\d \w+: right, HBM [\d.]+ [kM]?B, [\d.]+ [um]s (estimated|measured)"
                self.assertRegex(first, answer)
                self.assertTrue(second.startswith("right     "))
                self.assertNotIn("\033", shown)
                details = self.right(*small, "--details", program=program)
                self.assertIn("max error", details)
                # The longest figures of any size.
                large = ["--n", rows_of(program, 65536), "--h", "32", "--predict", "--details"]
                large = self.right(*large, "--d", width_of(program, 128), program=program)
                self.assertIn(program.name, large)
                for text in (shown, details, large):
                    self.fits(text)

    def test_colours_are_for_a_terminal(self):
        plain = self.right(*SMALL).splitlines()
        bold = self.in_terminal(80, SMALL, "stdout").splitlines()
        self.assertTrue(bold[0].startswith("\033[1m01 naive: \033[32mright\033[39m, HBM "), bold[0])
        self.assertEqual((re.sub(r"\033\[\d+m", "", bold[0]), bold[1:]), (plain[0], plain[1:]))
        for none in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            self.assertEqual(self.in_terminal(80, SMALL, "stdout", **none).splitlines(), plain)

    def test_every_key_is_documented(self):
        page = (ROOT / "docs" / "json.md").read_text()
        r = self.json_of(*SMALL, "--analyse")
        for key in (*r, *(f"traffic.{key}" for key in r["traffic"])):
            self.assertRegex(page, rf"`{key}[`.]")
        parts = [r["device"], r["problem"], r["traffic"]["hbm"], r["estimate"]]
        parts += [rows[0] for rows in (r["check"], r["sites"], r["kernels"])]
        for key in (key for part in (*parts, r["estimate"]["kernels"][0]) for key in part):
            self.assertRegex(page, rf"[{{ ]{key}[,}}]")

    def test_predicted_hbm_bytes_are_those_of_a_full_l2(self):
        """There S and P go through HBM, and K and V are found. The first steps compute hidden
        scores, and their kernels' last products skip them: they read less than predicted."""
        size = ["--h", "1", "--n", "256", "--d", "32", "--estimate-heads", "400"]
        for program in steps("0[1235]"):
            described = json.loads(run("--describe", program=program).stdout)
            for variant in (each["name"] for each in described["variants"]):
                skips = variant in ("one_pass", "recompute")
                for causal in [[], ["--causal"]][: 1 + skips]:
                    r = self.json_of("--variant", variant, *size, *causal, program=program)
                    for run_pass in filter(None, (r, r.get("backward"))):
                        hbm = run_pass["traffic"]["hbm"]
                        with self.subTest(variant=variant, causal=causal):
                            self.assertEqual(hbm["predicted"], hbm["model"])

    def test_not_checkable_has_a_status_of_its_own(self):
        large = self.tensor("large.npy", (1, 1, 64, 32), [1e9 * x for x in numbers(2048, 0.37)])
        path = self.folder / "run.json"
        done = self.ended(run("--q", large, "--k", large, "--json", path, program=FUSED), 4)
        self.assertIn("not checkable: the scores lose their precision", done.stdout)
        self.assertNotIn("WRONG", done.stdout)
        report = json.loads(path.read_text())
        self.assertEqual((report["ok"], report["checkable"]), (False, False))
        self.assertGreater(max(tensor["rows_lost"] for tensor in report["check"]), 0)
        self.assertIn("4 not checkable", run("--help", program=FUSED).stdout.replace("\n ", ""))

    def test_estimates_without_the_kernels_instructions(self):
        data = self.folder / "data"
        data.mkdir()
        for path in (ROOT / "common" / "data").iterdir():
            (data / path.name).symlink_to(path)
        instructions = data / "instructions.json"
        instructions.unlink()
        other = {"env": {**os.environ, "FLASH_STEPS_DATA": str(data)}}
        missing = self.ended(run(*SMALL, "--details", **other))
        self.assertIn("without plain arithmetic", " ".join(missing.stdout.split()))
        for words in ("{", "{}", '{"kernels": {"k": {"all": 2}}}', "[]", ""):
            instructions.write_text(words)
            with self.subTest(words=words):
                self.refused(run(*SMALL, **other), 2, f"instructions, {instructions}, are damaged")

    def test_lists_of_tiles_are_predicted_in_no_time(self):
        """In time proportional to the tiles, not the rows; for a function also to the scores."""
        (program,) = steps("15")
        lists = ["--predict", "--variant", "lists", "--h", "1", "--causal", "--n"]
        second = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_CPU, (1, 1))}
        self.ended(run(*lists, 65536, program=program, **second))
        done = run(*lists, 16384, "--mask", "strided:64", program=program, **second)
        self.assertIn("the host calls --mask strided:64 for each of 2.7e+08 scores", done.stderr)

    def test_tiles_fit_the_shared_memory_of_the_gpu(self):
        (program,) = steps("06")
        sizes = ["--variant", "registers", "--h", "1", "--n", "256", "--d", "128"]
        small, large = (
            self.json_of(*sizes, "--gpu", gpu, program=program) for gpu in ("T4", "RTX 4090")
        )
        buffers = [r["traffic"]["requested"]["buffers"] for r in (small, large)]
        read = [buffer["K"]["counted"]["read"] for buffer in buffers]
        self.assertEqual(read[0], 2 * read[1])
        self.assertEqual((small["model_gpu"], small["ok"], large["ok"]), ("T4", True, True))


class Files(Case):
    def test_a_full_disk(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            for arguments in (["--help"], [*SMALL, "--json", self.folder / "kept.json"]):
                done = run(*arguments, stdout=full)
                self.refused(done, 3, "standard output cannot be written: No space left")
        self.assertTrue(json.loads((self.folder / "kept.json").read_text())["ok"])
        for flag in ("--json", "--out"):
            done = self.ended(run(*SMALL, flag, "/dev/full"), 3)
            self.assertIn("/dev/full: cannot be written: No space left", done.stderr)

        # A limit on the size of files acts like a full disk. Existing files stay.
        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))

        old = self.folder / "old"
        for flag, name in (("--json", "r.json"), ("--out", "O.npy"), ("--out-dir", "O.npy")):
            path = self.write(old / name, "as it was")
            place = old if flag == "--out-dir" else path
            done = run(*SMALL, flag, place, preexec_fn=limit, restore_signals=False)
            self.refused(done, 3, f"{path}: cannot be written: File too large")
            self.assertEqual(path.read_text(), "as it was")
        self.assertEqual(sorted(path.name for path in old.iterdir()), ["O.npy", "r.json"])

    def test_output_to_a_pipe(self):
        shown = self.right(*SMALL, "--json", "/dev/stdout")
        self.assertTrue(json.loads(shown[shown.index("\n{") :])["ok"])

    def test_files_in_and_out(self):
        n, d = 5, 32
        q, k, v = numbers(n * d, 0.7), numbers(n * d, 1.3), numbers(n * d, 2.1)
        shape, files = (1, 1, n, d), []
        wide = {"typecode": "d", "descr": "<f8"}
        for name, values, kind in (("q", q, {}), ("k", k, {}), ("v", v, wide)):
            files += [f"--{name}", self.tensor(f"{name}.npy", shape, values, **kind)]
        out = self.folder / "O.npy"
        r = self.json_of(*files, "--out", out, "--out-dir", self.folder / "all")
        self.assertEqual(r["problem"]["input"], "files")
        self.assertEqual((r["problem"]["n"], r["problem"]["h"]), (n, 1))
        written, got = read_npy(out)
        self.assertEqual(written, shape)
        for a, b in zip(got, attention(q, k, v, n, d)):
            self.assertAlmostEqual(a, b, places=5)
        self.assertEqual((self.folder / "all" / "O.npy").read_bytes(), out.read_bytes())
        again = self.folder / "O2.npy"
        r = self.json_of("--q", out, "--k", out, "--v", out, "--out", again)
        self.assertEqual((r["problem"]["h"], r["problem"]["n"], r["problem"]["d"]), (1, n, d))
        self.assertEqual(read_npy(again)[0], shape)

    def test_the_largest_number_of_workers(self):
        self.assertTrue(self.json_of(*SMALL, "--workers", "24")["ok"])


if __name__ == "__main__":
    main()
