"""./scripts/model predict, and properties of its formulas."""

import dataclasses
import re
import sys
import unittest

from basis import ROOT, main, said
from flash_steps import model_cost
from flash_steps.command import BadInput
from flash_steps.files import read_json, read_text
from flash_steps.gpu_table import find_model
from flash_steps.model import predict
from flash_steps.model_cost import LATENT, PARTS, SHAPES, longest, memory
from lab import model_tables


def model(*words):
    return said([sys.executable, ROOT / "scripts" / "model", *words])


class Predicted(unittest.TestCase):
    def test_memory_grows_as_n_or_as_its_square(self):
        for shape in SHAPES.values():

            def growth(how):
                """The part that depends on N, from N to 2 N of one sequence."""
                a, b, c = (memory(shape, 1, n, how) for n in (1 << 16, 1 << 17, 1 << 18))
                return (c - b) / (b - a)

            self.assertAlmostEqual(growth("kept"), 2)
            self.assertAlmostEqual(growth("recomputed"), 2)
            self.assertTrue(3 < growth("naive") < 4)
            ends = [longest(shape, how, 141e9) for how in ("naive", "kept", "recomputed")]
            self.assertEqual(ends, sorted(ends))
            for how, n in zip(("naive", "kept", "recomputed"), ends):
                self.assertLessEqual(memory(shape, 1, n, how), 141e9)
                self.assertGreater(memory(shape, 1, n + 1, how), 141e9)
        self.assertEqual(longest(SHAPES["gpt2-xl"], "kept", 1e9), 0)

    def test_parameters_are_gpt2s(self):
        shape = SHAPES["gpt2"]
        layer = 12 * 768 * 768
        self.assertEqual(shape.parameters, 12 * layer + 768 * 50257)

    def test_a_rate_is_that_of_the_nearest_length(self):
        known = model_cost.rates("H200")
        self.assertLessEqual({part for parts in PARTS.values() for part in parts}, set(known))
        shape = SHAPES["gpt2"]
        for name in PARTS:
            one, two = (
                model_cost.attention_ms(shape, 1, n, name, known) for n in (1 << 20, 1 << 21)
            )
            self.assertAlmostEqual(two / one, 4)
        lone = {part: {(64, 512): 1e12, (64, 4096): 2e12} for part in PARTS["08"]}
        for n, rate in ((600, 1e12), (3000, 2e12), (9000, 2e12)):
            seconds = 12 * 2 * 12 * n * n * 64 * 3.5 / rate
            self.assertAlmostEqual(model_cost.attention_ms(shape, 1, n, "08", lone), 1e3 * seconds)
        wide = dataclasses.replace(shape, heads=6)
        self.assertIsNone(model_cost.attention_ms(wide, 1, 512, "08", lone))

    def test_what_it_prints(self):
        for words in ([], ["--model", "gpt2-xl"], ["--gpu=h100", "--n", "1024,32768"]):
            done = model("predict", *words)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80)
            text = " ".join(done.stdout.split())
            self.assertRegex(text, r"the update [\d.]+x. The longest seq")
            self.assertRegex(text, r"the nearest N with an estimate: .*08 and 10 at N = 32768\.$")
            self.assertEqual("measured on an H200" in text, "--gpu=h100" in words)
            rows = re.findall(r"(?m)^ *\d+  .*$", done.stdout)
            self.assertEqual(len(rows), 2 if "--n" in words else 7)

    def test_a_latent_cache(self):
        shape = LATENT["deepseek-v2-lite"]
        caches = shape.caches()
        self.assertEqual((caches["latent"], caches["16 heads"]), (1152, 10240))
        self.assertEqual(caches["8 K/V heads"], 2 * 2 * 8 * 128)  # K and V, in bf16
        for size in caches.values():
            end = shape.tokens(size, 141e9)
            used = 2 * shape.parameters + shape.layers * size * end
            self.assertTrue(141e9 - shape.layers * size < used <= 141e9)
        self.assertEqual(shape.tokens(1152, 1e9), 0)
        done = model("predict", "--model", "deepseek-v2-lite")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertLessEqual(max(map(len, done.stdout.splitlines())), 80)
        self.assertRegex(done.stdout, r"latent +1,152 +31.1 kB +3,523,662 +1.00x")
        self.assertIn("30.2 per byte", " ".join(done.stdout.split()))

    def test_refusals(self):
        for words, told in (
            (["--gpu", "A100"], "A100: choose H200 or H100"),
            (["--n", "512,65536"], "--n 65536: 32,768 tokens are no multiple of it"),
            (["--n", "0"], "at least 1"),
        ):
            with self.assertRaisesRegex(BadInput, told):
                predict(words)
        for words, status, told in (
            ([], 0, "predict     time and memory"),
            (["nope"], 2, "no command 'nope': the commands are predict, train"),
            (["train", "--json", ""], 2, "its value is empty"),
        ):
            done = model(*words)
            self.assertEqual(done.returncode, status)
            self.assertIn(told, done.stdout + done.stderr)


class Measured(unittest.TestCase):
    """The statements of docs/model.md about its tables."""

    def setUp(self):
        self.path = str(ROOT / "docs" / "results" / "model_h100.json")
        self.rows = read_json(self.path)["rows"]
        updates = model_tables.rows_for("updates", self.rows)
        self.by_length = model_tables.table("updates", updates)[1]

    def test_amdahl_is_within_5_percent(self):
        for rows in self.by_length:
            for name, row in rows.items():
                if (name, row["n"]) == ("06", 512):
                    continue  # timed once
                off = model_tables.off(row, rows["flash"])
                self.assertLess(abs(off), 0.05, f"{name}, N = {row['n']}")

    def test_step_10_is_never_slower(self):
        for rows in self.by_length:
            self.assertEqual(min(rows, key=lambda name: rows[name]["ms"]), "10")

    def test_predictions_are_within_5_percent(self):
        ends = model_tables.rows_for("ends", self.rows)
        self.assertEqual(len(ends), 3)
        for row in ends:
            self.assertLess(abs(row["predicted"] / row["found"] - 1), 0.05)
        shape = dataclasses.replace(SHAPES["gpt2"], vocabulary=256)
        rest = model_cost.rest_ms(shape, 32, 1024, find_model("H100"))
        for rows in self.by_length:
            measured = rows["flash"]["ms"] - rows["flash"]["attention_ms"]
            self.assertLess(abs(rest / measured - 1), 0.05)

    def test_the_picture_is_of_these_results(self):
        drawn = read_text(ROOT / "docs" / "pictures" / "model.svg")
        self.assertEqual(model_tables.picture(self.path), drawn)

    def test_losses_differ_by_little_more_than_two_runs_of_one_step(self):
        rows = model_tables.rows_for("training", self.rows)
        first, again, *others = model_tables.table("training", rows)[1]
        self.assertEqual(first["name"], again["name"])
        for row in others:
            self.assertLess(row["difference"], 2 * again["difference"], row["name"])


if __name__ == "__main__":
    main()
