"""What estimated times are made of: instructions that ncu counted, or that machine code has, and
the runs that `maintain estimates` starts."""

import io
import json
import shutil
import unittest
from contextlib import redirect_stdout
from unittest import mock

from basis import Folder, main
from flash_steps.command import BadInput
from lab import estimates, instructions, sass

# A kernel of step 16: `X 3` stands three times. The outer loop is no loop of its own, .L_x_6 is
# another warp's, and the last branch waits after the kernel's end.
CODE = """
.L_x_0: NOP
.L_x_1: MUFU.EX2 R1, R2
FFMA R1, R2, R3, R4 20
@P0 BRA `(.L_x_2)
FMUL R1, R2, R3 3
.L_x_2: FFMA2 R1, R2, R3, R4
BRA.U UP1, `(.L_x_7)
@!PT IADD3 R1, R2, R3, RZ
@P1 BRA `(.L_x_1)
@P2 BRA `(.L_x_0)
.L_x_3: LDTM.x32 R0, tmem[UR4]
FMUL R1, R2, R3 20
STTM tmem[UR4], R0
@P0 BRA `(.L_x_3)
.L_x_4: UTCHMMA gdesc[UR4], tmem[UR6] 12
MOV R1, R2 10
BRA.U UP0, `(.L_x_4)
.L_x_5: UTMALDG.4D [UR4], [UR6] 2
IADD3 R1, R2, R3, RZ 21
@P0 BRA `(.L_x_5)
.L_x_6: UTMALDG.4D [UR4], [UR6] 2
IADD3 R1, R2, R3, RZ 21
@P0 BRA `(.L_x_6)
EXIT
.L_x_7: SYNCS R1
@P0 BRA `(.L_x_0)
"""


def listing(code):
    """As nvdisasm -c prints it."""
    lines = []
    for line in code.split("\n"):
        label, _, text = line.rpartition(": ")
        lines += [f"{label}:"] * bool(label)
        text, _, count = text.rpartition(" ") if text[-2:].strip().isdigit() else (text, "", "1")
        lines += [f"        /*0010*/                   {text} ;"] * (int(count) if text else 0)
    return "\n".join([*lines, ""])


class MachineCode(unittest.TestCase):
    def test_a_trip_is_the_shortest_way_of_each_warp(self):
        # The softmax's 26 instructions, the correction's 23, the products' and the copies'.
        wanted = {"all": 26 * 8 + 23 * 4, "fma": 22 * 8 + 20 * 4, "alu": 8, "special": 8}
        for d, warps, products in ((64, 8, 2), (128, 8, 16 * 2 / 12), (64, 4, 1)):
            found = sass.trip_of(sass.Kernel(listing(CODE)), d, warps)
            more = {"all": 23 * products + 24, "fma": 0, "alu": 10 * products + 21, "special": 0}
            for key, value in wanted.items():
                of_softmax = {"all": 26, "fma": 22, "alu": 1, "special": 1}[key] * (warps - 8)
                self.assertAlmostEqual(found[key], value + of_softmax + more[key], msg=key)

    @unittest.skipUnless(shutil.which("c++filt"), "no c++filt here")
    def test_kernels_have_the_simulators_names(self):
        names = ("_ZN11step16_pair1kILi64EEEvPf", "_ZN11step16_pair1kILi128EEEvPf")
        text = "".join(
            f'\t.section\t.text.{name},"ax",@progbits\n{listing(CODE)}' for name in names
        )
        found = sass.kernels("head\n" + text)
        self.assertEqual(list(found), ["step16_pair::k<64>", "step16_pair::k<128>"])
        self.assertEqual(len(found["step16_pair::k<128>"].loops()), 5)


def described(*variants, lengths=False):
    about = {"d": [64], "window": False, "score_mod": False}
    variants = [{"name": name, "supports": {**about, **more}} for name, more in variants]
    return {"supports": {"lengths": lengths}, "variants": variants}


def ncu(*rows):
    """Its CSV: for each kernel (name, all, fma, alu, special)."""
    lines = [["ID", "Kernel Name", *instructions.METRICS.values()], ["", "", *["inst"] * 4]]
    lines += [[str(i), *row] for i, row in enumerate(rows)]
    text = "".join(",".join(f'"{cell}"' for cell in line) + "\n" for line in lines)
    return f"==PROF== Connected\n{text}==PROF== Disconnected\n"


class Instructions(Folder):
    ROWS = (
        ("void step01::p(float *)", "800", "0", "0", "0"),
        ("void step01::f<64>(const float *)", "1,200", "400", "100", "40"),
        ("void step02::g(float *)", "400", "0", "0", "0"),
    )

    def report(self, *call):
        self.calls.append(call)
        kernels = [{"name": name, "instructions": n} for name, n in (("f<64>", 100), ("x", 0))]
        kernels[0]["name"] = "step01::f<64>"
        prepare = {"kernels": [{"name": "step01::p", "instructions": 100}]}
        backward = {"kernels": [{"name": "step02::g", "instructions": 100}]}
        return {"kernels": kernels, "prepare": prepare, "backward": backward}

    def setUp(self):
        super().setUp()
        self.calls = []
        for name, fake in (
            ("report_of", self.report),
            ("described", lambda *_: described(("v", {}))),
            ("ROOT", str(self.folder)),
        ):
            self.enterContext(mock.patch.object(instructions, name, fake))

    def test_what_is_counted(self):
        about = described(
            ("a", {}), ("b", {"window": True}), ("c", {"score_mod": True, "window": 1})
        )
        for of_step, wanted in (
            (about, [("a", "", 4), ("a", "--causal", 4), ("b", "--causal --window=256,0", 4)]),
            (described(("a", {}), lengths=True), [("a", "--n=1 --nk=32768 --h=8 --hkv=2", 1)]),
        ):
            with mock.patch.object(instructions, "described", return_value=of_step):
                found = list(instructions.programs("build", ["01_x"]))
            for (name, call, more, times), (variant, flags, heads) in zip(found, wanted):
                causal = "_causal" * (flags == "--causal")
                self.assertEqual(name, f"d64_01_x_{variant}{causal}")
                size = "" if heads == 1 else "--n=1024 "
                words = f"--variant={variant} --d=64 --input=normal {size}{flags}"
                self.assertEqual(" ".join(call[1:]), words.strip())
                self.assertEqual((more, times), (["--h=4"] * (heads > 1), heads))
        self.assertEqual(found[-1][1].count("--alibi"), 0)
        with mock.patch.object(instructions, "described", return_value=about):
            *_, last = instructions.programs("build", ["01_x"])
        self.assertIn("--alibi", last[1])

    def test_counts_of_ncu_beside_the_simulators(self):
        path = self.write("a.csv", ncu(*self.ROWS))
        p, f, g = instructions.mixes(path, ["program", "--d=64"], 4)
        mix = {"all": 3.0, "fma": 1.0, "alu": 0.25, "special": 0.1}
        self.assertEqual((f, p[0], p[1]["all"]), (("step01::f<64>", mix), "step01::p", 2.0))
        self.assertEqual(g[0], "step02::g")
        list(instructions.mixes(path, ["program"], 1))
        self.assertEqual([call[-1] for call in self.calls], ["--h=1", "--estimate-heads=0"])
        for text, words in ((ncu(*self.ROWS[1:]), "other kernels than"), ("", "no table of ncu")):
            with self.assertRaisesRegex(BadInput, words):
                list(instructions.mixes(self.write("b.csv", text), ["program"], 4))

    def test_rows_of_other_steps_stay(self):
        old = {"step01::old": {"all": 9}, "step01::f<64>": {"all": 9}, "step02::g": {"all": 9}}
        path = self.write(instructions.INSTRUCTIONS, json.dumps({"kernels": old}))
        for name, more in (("", 1), ("_causal", 2)):
            rows = [(row[0], str(800 * more), *row[2:]) for row in self.ROWS]
            self.write(f"d64_01_naive_v{name}.csv", ncu(*rows))
        with redirect_stdout(io.StringIO()):
            instructions.update(self.folder, ["01_naive"])
            kernels = json.loads(path.read_text())["kernels"]
            self.assertEqual(
                [(name, mix["all"]) for name, mix in kernels.items()],
                [("step01::f<64>", 2), ("step01::old", 9), ("step01::p", 2), ("step02::g", 9)],
            )
            with self.assertRaisesRegex(BadInput, "d64_02_tiled_v.csv is not there"):
                instructions.update(self.folder, ["02_tiled"])


def sizes(b, h, n, d=64, **more):
    return {"b": b, "h": h, "n": n, "d": d, "causal": True, "hkv": h, "nk": n, **more}


def key(variant, direction="forward", step="06_x", **more):
    return ("H200", step, variant, direction, *{**sizes(16, 32, 1024), **more}.values())


class Estimates(Folder):
    def test_which_problems(self):
        for (b, h, n), wanted in (
            ((16, 32, 1024), True),
            ((4, 32, 4096), True),
            ((2, 32, 8192), False),
            ((1, 4, 300), True),
            ((1, 5, 300), False),
        ):
            self.assertEqual(estimates.is_wanted(sizes(b, h, n)), wanted, (b, h, n))
        for problem, wanted in (
            (sizes(1, 4, 300, smem=None), True),
            (sizes(1, 4, 300, smem=65536), False),
            (sizes(1, 4, 300, hkv=2), False),
            (sizes(1, 4, 300, nk=301), False),
        ):
            self.assertEqual(estimates.plain(problem), wanted, problem)

    def test_what_is_simulated(self):
        estimate = {"ms": 1.23456789, "limit": "L2"}
        run = {"estimate": estimate, "variant_index": 2, "backward": {"estimate": estimate}}
        for problem, flags in (
            (sizes(16, 32, 1024), "--estimate-heads=512 --h=1 --n=1024 --d=64 --causal"),
            (sizes(2, 2, 300), "--estimate-heads=4 --h=4 --n=300 --d=64 --causal"),
            (
                sizes(8, 32, 1, hkv=8, nk=4096),
                "--estimate-heads=0 --b=8 --h=32 --hkv=8 --n=1 --nk=4096 --d=64 --causal",
            ),
            (
                sizes(32, 64, 1, hkv=1, nk=4096, d=576),
                "--estimate-heads=2048 --b=1 --h=64 --hkv=1 --n=1 --nk=4096 --d=576 --causal",
            ),
        ):
            with mock.patch.object(estimates, "report_of", return_value=run) as called:
                found = estimates.simulate(("H200", "06_x", "v", *problem.values()))
            words = ["--variant=v", "--input=normal", "--gpu=H200", *flags.split()]
            self.assertEqual(sorted(called.call_args[0][1:]), sorted(words))
            self.assertEqual(list(found), ["forward", "backward"])
            row = found["backward"]
            self.assertEqual((row["ms"], row["limit"], row["place"]), (1.234568, "L2", 2))

    def test_pairs_in_the_right_order(self):
        rows = {key(v): {"ms": ms} for v, ms in (("a", 1), ("b", 2), ("c", 3), ("d", 4))}
        rows |= {key("a", n=2048): {"ms": 9}, key("a", "backward"): {"ms": 9}}
        times = dict(zip(rows, (1, 1.1, 0.5, 2, 0.1, 0.1)))  # a and b are alike, c is misplaced
        self.assertEqual(estimates.pairs_in_order(rows, times), (3, 5))
        self.assertEqual(estimates.pairs_in_order(rows, times, apart=1.9), (2, 4))

    def test_rows_of_other_steps_sizes_and_gpus_stay(self):
        def of(place, ms):
            return {**dict(zip(estimates.KEY, place)), "ms": ms, "limit": "L2", "place": 0}

        new = key("v", step="06_work_partitioning")
        large = key("v", step="06_work_partitioning", n=8192, b=2, nk=8192)
        others = [key("w", step="02_tiled"), large, ("H100", *new[1:])]
        path = self.write("e.json", json.dumps({"rows": [of(x, 9) for x in (*others, new)]}))
        times = dict.fromkeys((*others, new), 2.0)
        found = {"forward": {"ms": 3.0, "limit": "L2", "place": 0}}
        with (
            mock.patch.object(estimates, "ESTIMATES", str(path)),
            mock.patch.object(estimates, "measured_times", return_value=times),
            mock.patch.object(estimates, "simulate", return_value=found) as called,
            mock.patch("sys.argv", ["estimates", "--steps", "06"]),
            redirect_stdout(io.StringIO()) as out,
        ):
            self.assertEqual(estimates.main(), 0)
            self.assertEqual(called.call_count, 1)
            self.assertIn("3 ms, 1.50x of measured, L2", out.getvalue())
            with mock.patch("sys.argv", ["estimates", "--gpu", "T4"]):
                self.assertRaisesRegex(BadInput, "--gpu T4", estimates.main)
        rows = estimates.kept(str(path))
        self.assertEqual(
            {k: row["ms"] for k, row in rows.items()}, dict.fromkeys(others, 9) | {new: 3}
        )


main()
