"""peers.py without a GPU: a step's program and a PyTorch that only pretend."""

import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

TESTS = os.path.dirname(os.path.abspath(__file__))
SCRIPTS = os.path.join(TESTS, "..", "..", "scripts")
sys.path.insert(0, SCRIPTS)
import peers  # noqa: E402

PROGRAM = f"""#!/usr/bin/python3 -IS
import json, os, sys
sys.path.insert(0, {TESTS!r})
from sample_results import gpu, with_backward
a = dict(x.lstrip("-").split("=") for x in sys.argv[1:] if "=" in x)
if a["d"] == "128":
    print("x: --d 128: this step does not like it", file=sys.stderr)
    sys.exit(2)
run = gpu(median_ms=2.0, step=os.path.basename(sys.argv[0]), b=int(a["b"]), h=int(a["h"]),
          n=int(a["n"]), d=int(a["d"]), causal="--causal" in sys.argv, flops=1e11)
run = with_backward(run) if run["step"] > "05" else run
json.dump(run, open(a["json"], "w"))
"""


def pretended_torch():
    """The modules that peers.py imports. Each run of math takes 3 ms, of efficient 1 ms; flash has
    no kernel, cudnn no memory."""
    backend = []

    def attention(*_, **__):
        if backend[-1] == "flash":
            raise RuntimeError("No available kernel. Aborting execution.")
        if backend[-1] == "cudnn":
            raise RuntimeError("CUDA out of memory. Tried to allocate 1 TB\nmore")
        return mock.MagicMock()

    @contextlib.contextmanager
    def sdpa_kernel(names):
        backend.append(names[0])
        yield

    torch = mock.MagicMock()
    torch.__version__ = "2.99"
    torch.cuda.is_available.return_value = True
    torch.cuda.get_device_properties.return_value = types.SimpleNamespace(
        name="Pretended GPU", L2_cache_size=1 << 20)
    event = torch.cuda.Event.return_value
    event.elapsed_time.side_effect = lambda _: {"math": 3.0, "efficient": 1.0}[backend[-1]]
    torch.nn.functional.scaled_dot_product_attention.side_effect = attention
    attention_module = types.SimpleNamespace(
        sdpa_kernel=sdpa_kernel, SDPBackend=types.SimpleNamespace(
            **{word: name for name, word in peers.BACKENDS.items()}))
    return {"torch": torch, "torch.nn": torch.nn, "torch.nn.attention": attention_module}


class Peers(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.build = folder.name
        self.json = os.path.join(folder.name, "peers.json")
        os.makedirs(os.path.join(self.build, "steps"))
        for step in ("01_naive", "06_work_partitioning"):
            path = os.path.join(self.build, "steps", step)
            with open(path, "w", encoding="utf-8") as file:
                file.write(PROGRAM)
            os.chmod(path, 0o755)

    def compare(self, *args):
        """What it prints; the pretended PyTorch is warm at once and right to 2e-7."""
        argv = ["peers.py", "--build", self.build, "--json", self.json, *args]
        out = io.StringIO()
        with mock.patch.dict(sys.modules, pretended_torch()), \
             mock.patch.object(sys, "argv", argv), \
             mock.patch.object(peers.Torch, "error", return_value=2e-7), \
             mock.patch.object(peers.time, "monotonic", side_effect=range(10**6)), \
             contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            self.assertEqual(peers.main(), 0)
        return out.getvalue()

    def test_ratios_of_all_steps(self):
        text = self.compare()
        with open(self.json, encoding="utf-8") as file:
            result = json.load(file)
        self.assertEqual((result["device"], result["torch"]), ("Pretended GPU", "2.99"))
        ours = [row for row in result["rows"] if row["step"]]
        for row in ours:
            self.assertEqual(row["ratios"], {"math": 1.5, "efficient": 0.5})
        self.assertEqual({(r["step"], r["direction"]) for r in ours},
                         {("01_naive", "forward"), ("06_work_partitioning", "forward"),
                          ("06_work_partitioning", "backward")})
        # 1e11 FLOP in 2 ms are 50 of the card's 51 TFLOP/s.
        self.assertAlmostEqual(ours[0]["of_matmul"], 0.98, places=2)
        sizes = {(r["b"], r["h"], r["n"], r["d"], r["causal"]) for r in ours
                 if r["step"] == "06_work_partitioning"}
        self.assertIn((1, 32, 16384, 64, True), sizes)
        self.assertEqual({r["n"] for r in ours if r["step"] == "01_naive"}, {1024, 4096})
        self.assertIn("PyTorch's flash has no kernel for fp32, d=64.", text)
        self.assertEqual(text.count("flash has no kernel"), 1)
        self.assertIn("CUDA out of memory. Tried to allocate 1 TB", text)
        self.assertIn("x: --d 128: this step does not like it", text)
        words = " ".join(text.split())
        self.assertIn("Largest error of PyTorch's outputs against fp64: math 2.0e-07", words)
        self.assertIn("3 TF32 products", words)

    def test_a_table_that_fits(self):
        text = self.compare("--steps", "01", "--n", "1024", "--causal", "no", "--d", "64")
        lines = [line for line in text.splitlines() if line.startswith("B=")]
        self.assertEqual([line.split()[6] for line in lines], ["01_naive", "torch", "torch"])
        self.assertLessEqual(max(map(len, text.splitlines())), 100)
        self.assertEqual(lines[0].split()[-2:], ["1.5x", "0.5x"])

    def test_each_problem_is_kept_as_soon_as_it_is_measured(self):
        with mock.patch.object(peers, "text_of", side_effect=KeyboardInterrupt):
            with self.assertRaises(KeyboardInterrupt):
                self.compare("--steps", "01")
        with open(self.json, encoding="utf-8") as file:
            self.assertTrue(json.load(file)["rows"])

    def script(self, *args, modules=None):
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": modules or ""}
        return subprocess.run([sys.executable, os.path.join(SCRIPTS, "peers.py"), *args],
                              capture_output=True, text=True, env=environment)

    def test_without_pytorch(self):
        missing = os.path.join(self.build, "torch")
        os.makedirs(missing)
        with open(os.path.join(missing, "__init__.py"), "w", encoding="utf-8") as file:
            file.write("raise ImportError")
        done = self.script(modules=self.build)
        self.assertEqual((done.returncode, len(done.stderr.splitlines())), (3, 1), done.stderr)
        self.assertIn("no PyTorch", done.stderr)

    def test_bad_use(self):
        for args in (("--rounds", "0"), ("--n", "many"), ("--causal", "perhaps")):
            done = self.script(*args)
            self.assertEqual(done.returncode, 2, args)
            self.assertNotIn("Traceback", done.stderr)
        with mock.patch.dict(sys.modules, pretended_torch()):
            for args, kind, word in ((["--steps", "77"], peers.BadInput, "no step '77'"),
                                     (["--build", "/nowhere"], peers.NotHere, "no step is built")):
                with mock.patch.object(sys, "argv", ["peers.py", "--build", self.build, *args]):
                    with self.assertRaisesRegex(kind, word):
                        peers.main()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
