"""scripts/new: docs/own_kernel.md as its reader would do it.

--update replaces the first output in docs/own_kernel.md, --for-all --update the others.
"""

import re

from copies import ROOT, Folder, for_all, main, on_page, said, typed

DOC = ROOT / "docs" / "own_kernel.md"


class OwnProgram(Folder):
    def test_page(self):
        page = DOC.read_text()
        example = re.search(r"<!-- program: (\S+) -->\n```cpp\n(.*?)```", page, re.DOTALL)
        name, text = example.groups()
        barrier = "part[t] += part[t + n];\n"
        right = text.replace(barrier, barrier + "    __syncthreads();\n", 1)
        self.assertNotEqual(right, text)
        shown = self.run_program(name, text, status=1)
        line = 1 + text[: text.index("part[t] +=")].count("\n")
        self.assertIn(f"Line {line} adds", page)
        self.assertRegex(shown, rf"race on shared memory(.|\n)*{name}:{line}")
        output = f"$ ./scripts/sim --analyse {name}\n{shown.strip()}\n"
        self.assertEqual(output, on_page(DOC, "sim", output))
        self.assertIn("no finding", self.run_program(name, right, status=0))

    def run_program(self, name, text, status):
        self.write(name, text)
        command = f"{ROOT}/scripts/sim --analyse {name} 2>&1"
        done = self.ended(said(["bash", "-c", command], cwd=self.folder), status)
        return done.stdout


class OwnKernel(Folder):
    def setUp(self):
        super().setUp()
        page = DOC.read_text().partition("## A first kernel")[2]
        self.blocks = re.findall(r"```cpp\n(.*?)```", page, re.DOTALL)
        self.diffs = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
        self.mine = self.folder / "mine.cu"
        self.ended(typed("new", self.mine))
        self.text = self.mine.read_text()

    def judged(self, name, status):
        self.mine.write_text(self.text)
        judge = [ROOT / "scripts/judge", "mine.cu", "--seed", "1"]
        shown = self.ended(said(judge, cwd=self.folder), status).stdout
        output = f"$ ./scripts/judge mine.cu --seed 1\n{shown}"
        self.assertEqual(output, on_page(DOC, name, output))
        return shown

    def apply(self, diff):
        for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE)[1:]:
            old, new = (
                "".join(line[1:] + "\n" for line in hunk.splitlines() if line[0] in signs)
                for signs in (" -", " +")
            )
            self.replace(old, new)

    def replace(self, old, new):
        self.assertEqual(self.text.count(old), 1, old)
        self.text = self.text.replace(old, new)

    def insert(self, text, before):
        self.replace(before, f"{text}\n{before}")

    def test_an_empty_kernel(self):
        self.refused(typed("new", self.mine), 2, f"new: {self.mine} exists already")
        self.refused(typed("new", self.folder / "mine"), 2, "its name must end with .cu")
        self.assertIn("usage", typed("new").stderr)
        self.assertIn("never written", self.judged("empty", 1))

    @for_all
    def test_the_whole_page(self):
        start, end = self.text.index("// O = softmax"), self.text.index("// --- host")
        self.text = self.text[:start] + self.blocks[0] + "\n" + self.text[end:]
        self.assertIn("step 03", self.judged("mine", 0))
        self.apply(self.diffs[0])
        self.assertIn("step 06", self.judged("shared", 0))

        shared = self.text
        barriers = [line for line in shared.splitlines() if "__syncthreads" in line]
        self.assertEqual(len(barriers), 2)
        self.text = shared.replace(barriers[0] + "\n", "")
        race = self.judged("race", 1)
        self.assertIn("race on shared memory", race)
        lines = self.text.splitlines()
        named = [int(n) for n in re.findall(r"mine\.cu:(\d+)", race)]
        self.assertTrue(named, race)
        self.assertTrue(all(re.search(r"s[KV]\[", lines[n - 1]) for n in named), race)

        self.text = shared
        self.insert(self.blocks[1], before="// --- host")
        self.insert(self.blocks[2], before="PYBIND11_MODULE")
        self.apply(self.diffs[1])
        self.assertIn("dV: largest error", " ".join(self.judged("backward", 0).split()))


if __name__ == "__main__":
    main()
