"""README.md is one screen that leads to everything; the dev container and the notebook start
existing files, and the notebook's cells work, with stand-ins for what takes minutes."""

import contextlib
import html
import io
import json
import os
import re
import sys
import types
import unittest
from unittest import mock

from copies import BUILD, ROOT, Folder, main, said
from flash_steps.steps import report_of
from learn_lib import exercises

LONGEST_CELL = 300
LARGEST_RACE = 60_000  # bytes
NOTEBOOK = ROOT / "docs" / "flash_steps.ipynb"
CONTAINER = ROOT / ".devcontainer" / "devcontainer.json"


def options_of(script):
    """The options in its help."""
    return set(re.findall(r"(?<![\w-])-[\w-]+", said([ROOT / script, "--help"]).stdout))


class Readme(Folder):
    def setUp(self):
        super().setUp()
        self.text = (ROOT / "README.md").read_text()

    def test_its_kernel_is_the_one_of_step_06(self):
        lesson = (ROOT / "steps/06_work_partitioning/2_registers.cuh").read_text()
        lines = re.search(r"```c\+\+\n(.*?)```", self.text, re.DOTALL)[1].splitlines()
        self.assertIn("\n".join("      " + line for line in lines), lesson)

    def test_code_of_chapters_fits_a_laptop(self):
        wide = []
        for path in sorted(ROOT.glob("steps/*/README.md")):
            blocks = re.findall(r"(?ms)^```.*?\n(.*?)^```", path.read_text(encoding="utf-8"))
            wide += [line for block in blocks for line in block.splitlines() if len(line) > 88]
        self.assertEqual(wide, [])

    def test_table_cells_of_pages_are_short(self):
        pages = [*ROOT.glob("*.md")]
        for folder in ("common", "docs", "scripts", "steps", "tests"):
            pages += (ROOT / folder).rglob("*.md")
        long = []
        for page in pages:
            for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
                cells = re.split(r"(?<!\\)\|", re.sub("<!--.*?-->", "", line))
                if line.startswith("|") and len(max(cells, key=len).strip()) > LONGEST_CELL:
                    long.append(f"{page.relative_to(ROOT)}:{number}")
        self.assertEqual(long, [])

    def test_the_ladder_of_the_page_has_all_steps(self):
        explorer = (ROOT / "docs/explorer/index.html").read_text()
        data = json.loads(re.search(r'id="page">(.*?)</script>', explorer, re.DOTALL)[1])
        runs = data["series"][0]["runs"]
        steps = {path.name[:2] for path in (ROOT / "steps").glob("[0-9][0-9]_*")}
        self.assertEqual(steps - {run["id"][:2] for run in runs}, {"14"})  # of several GPUs
        self.assertEqual({run["id"][:2] for run in runs if run.get("gpu")}, {"16"})
        for run in runs:
            self.assertEqual(run["time_kind"], "estimated" if run.get("gpu") else "measured")

    def test_its_race_is_of_a_run(self):
        """The page's program without and with a barrier says what the picture shows."""
        picture = (ROOT / "docs/pictures/race.svg").read_text()
        page = (ROOT / "docs/own_kernel.md").read_text()
        name, text = re.search(r"<!-- program: (\S+) -->\n```cpp\n(.*?)```", page, re.S).groups()
        lines, outputs = text.splitlines(), []
        after = int(re.search(rf"{name}:(\d+)", picture)[1])  # the finding's line
        for program in (lines, [*lines[:after], "    __syncthreads();", *lines[after:]]):
            self.write(name, "\n".join([*program, ""]))
            done = said([ROOT / "scripts/sim", "--analyse", name], cwd=self.folder)
            outputs.append(done.stdout + done.stderr)
        screen = re.findall(r'class="out[^"]*">(.*?)</text>', picture)
        begin = screen.index(screen[0], 1)
        for shown, output in zip((screen[:begin], screen[begin:]), outputs):
            self.assertEqual(shown[0], f"$ ./scripts/sim --analyse {name}")
            for line in shown[1:]:
                self.assertIn(f"\n{html.unescape(line)}\n", f"\n{output}")
            self.assertEqual("finding: race" in output, "1 finding" in shown[-1])
        for line in lines[2 : lines.index("}")]:
            self.assertIn(f">{html.escape(line, False)}</text>", picture)
        self.assertLess(len(picture.encode()), LARGEST_RACE)
        self.assertRegex(picture, r"@media \(prefers-reduced-motion: reduce\) .* animation: none")
        self.assertIn("docs/pictures/race.svg", self.text)

    def test_its_moving_picture_has_the_bytes_of_the_formulas(self):
        picture = (ROOT / "docs/pictures/tiles.svg").read_text()
        shown = re.findall(r">(\d\d): .*?>([\d.]+ MB)<", picture, re.DOTALL)
        self.assertEqual([step for step, _ in shown], ["01", "06"])
        for step, megabytes in shown:
            program = next((BUILD / "steps").glob(f"{step}_*"))
            report = report_of(program, *"--predict --h 1 --n 1024 --d 64".split())
            hbm = report["traffic"]["hbm"]["predicted"]
            self.assertEqual(f"{(hbm['read'] + hbm['write']) / 1e6:.3g} MB", megabytes)

    def test_every_step_and_every_page_can_be_reached(self):
        for step in (ROOT / "steps").glob("[0-9][0-9]_*"):
            self.assertIn(f"(steps/{step.name}/README.md)", self.text)
        pages, waiting = set(), [ROOT / "README.md"]
        while waiting:
            page = waiting.pop()
            if page in pages or page.suffix != ".md" or not page.exists():
                continue
            pages.add(page)
            links = re.findall(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)", page.read_text())
            waiting += [(page.parent / link).resolve() for link in links if "://" not in link]
        lost = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")}
        self.assertEqual(lost - {str(page.relative_to(ROOT)) for page in pages}, set())


class Commands(unittest.TestCase):
    """The commands of the container and the notebook: valid bash, and their files exist."""

    def look_at(self, command):
        done = said(["bash", "-n", "-c", command])
        self.assertEqual((done.returncode, done.stderr), (0, ""), command)
        for script, arguments in re.findall(r"\./(scripts/[\w.]+)([^|&;\n]*)", command):
            self.assertTrue(os.access(ROOT / script, os.X_OK), command)
            if script.endswith(".sh"):
                unknown = {a for a in arguments.split() if a.startswith("-")} - options_of(script)
                self.assertEqual(unknown, set(), command)
        for path in re.findall(r"\b((?:steps|docs)/[\w./]+)", command):
            self.assertTrue((ROOT / path).exists(), command)

    def test_the_container(self):
        container = json.loads(CONTAINER.read_text())
        self.assertRegex(container["image"], r"^[\w./-]+:[\w.-]+$")
        command = container["postCreateCommand"]
        self.look_at(command)
        wanted = set(command.split()) - {"./scripts/setup.sh", "--yes"}
        groups = said([ROOT / "scripts/setup.sh", "none"]).stderr.rpartition("choose from ")[2]
        self.assertLessEqual(wanted, set(groups.strip().split(", ")))

    def test_the_notebook(self):
        for cell in code_cells():
            for command in re.findall(r"^ *!(.*)", cell, re.M):
                self.look_at(re.sub(r"\{\w+\}", "x", command).replace("steps/x", "steps"))
        for page in re.findall(r"`((?:docs|steps)/[\w/]+\.md|README\.md)`", NOTEBOOK.read_text()):
            self.assertTrue((ROOT / page).exists(), page)


def code_cells():
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert not any(cell.get("outputs") for cell in cells), "the notebook has output"
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def as_python(cell):
    """A cell with IPython's !command and %cd as calls."""
    cell = re.sub(r"^( *)!(.*)", lambda m: f"{m[1]}shell(f{m[2]!r})", cell, flags=re.M)
    return re.sub(r"^( *)%cd (.*)", lambda m: f"{m[1]}os.chdir({m[2]!r})", cell, flags=re.M)


class Run(Folder):
    """The cells in order, with stand-ins for git, tour and programs; the exercise is real."""

    def setUp(self):
        super().setUp()
        self.addCleanup(os.chdir, os.getcwd())
        self.printed = []

    def executable(self, path, text):
        self.program(path, f"#!/bin/bash\n{text}\n")

    def repository(self, path, builds):
        step = "steps/06_work_partitioning"
        self.executable(
            path / "scripts/tour.sh",
            f"""echo "<p title='a'>tour $*</p>" > report.html
for build in {builds}; do
  mkdir -p build/$build/steps
  echo "echo $build \\"\\$@\\"" > build/$build/{step}
  chmod +x build/$build/{step}
done""",
        )
        self.executable(
            path / "scripts/learn",
            """mkdir -p learn; [[ -e learn/01_scores.cuh ]] || cp scores.cuh learn/01_scores.cuh
echo "checked $*"; sed -n '/Yours/,/^}/p' learn/01_scores.cuh""",
        )
        scores = next(exercise for exercise in exercises.load() if exercise.name == "scores")
        (path / "scores.cuh").write_text(scores.unsolved())

    def run_cells(self, cells):
        path = f"{self.folder}/bin:{os.environ['PATH']}"

        def shell(command):
            done = said(["bash", "-c", command], env={**os.environ, "PATH": path})
            self.printed.append(done.stdout + done.stderr)

        names = {"shell": shell, "os": os}
        display = types.ModuleType("IPython.display")
        display.HTML = self.printed.append
        modules = {"IPython": types.ModuleType("IPython"), "IPython.display": display}
        with mock.patch.dict(sys.modules, modules):
            for cell in cells:
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(as_python(cell), "cell", "exec"), names)

    def test_in_an_empty_session(self):
        git = f'[[ $1 == clone ]] && cp -r {self.folder}/there "${{!#}}"'
        self.executable(self.folder / "bin/git", git)
        self.repository(self.folder / "there", builds="sim")
        os.chdir(self.folder)
        cells = code_cells()
        self.run_cells(cells)
        self.assertEqual(os.getcwd(), str(self.folder / "flash-steps"))
        printed = "\n".join(self.printed)
        tour = "&lt;p title=&#x27;a&#x27;&gt;tour --yes"
        for words in (tour, "sim --n 512", "checked run scores"):
            self.assertIn(words, printed)
        # The last cell again: its lines replace the first output.
        last = self.printed[-1]
        self.assertIn("// your lines", last)
        self.run_cells(["import os\nfrom pathlib import Path\n" + cells[-1].replace("your", "my")])
        self.assertEqual(self.printed[-1], last.replace("// your", "// my"))

    def test_beside_the_notebook_with_a_gpu(self):
        self.repository(self.folder / "there", builds="sim gpu")
        (self.folder / "there/docs").mkdir()
        os.chdir(self.folder / "there/docs")
        self.run_cells(code_cells()[:4])
        self.assertEqual(os.getcwd(), str(self.folder / "there"))
        self.assertIn("gpu --n 512", self.printed[-1])


if __name__ == "__main__":
    main()
