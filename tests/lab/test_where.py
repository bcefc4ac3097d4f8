"""maintain where: which step runs on which kind of GPU, from programs that say so."""

import concurrent.futures

from basis import Folder, main
from flash_steps.command import Failure
from lab import where

STEP = "05_recompute_backward"
# Two variants; "wide" needs much shared memory when d = 128.
PROGRAM = """#!/bin/sh
case "$*" in
  --describe) echo '{"variants": [{"name": "narrow", "needs": "", "supports": {"d": [64, 128]}},
    {"name": "wide", "needs": "", "supports": {"d": [64, 128]}}]}' ;;
  *--gpu=T4*wide*--d=128*)
    echo "05_x: needs 90000 bytes of shared memory for a block; this GPU has 65536" >&2; exit 3 ;;
esac
"""


class Where(Folder):
    def cells(self, text, *gpus):
        self.program(f"steps/{STEP}", text)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return where.cells(self.folder, STEP, gpus, pool)

    def test_yes_or_what_is_missing(self):
        wide = '"wide", "needs": "'
        for text, gpu, said in (
            (PROGRAM, "H200", "yes"),
            (PROGRAM, "T4", "not wide d=128"),
            (PROGRAM.replace(wide, wide + "sm_90a"), "A100", "narrow"),
            (PROGRAM.replace('"needs": "', '"needs": "sm_90a') + "exit 2\n", "RTX 4090", "-"),
        ):
            self.assertEqual(self.cells(text, gpu), {gpu: said})

    def test_what_ran_with_less_shared_memory_is_not_run_again(self):
        log = self.folder / "log"
        text = PROGRAM.replace("#!/bin/sh\n", f"#!/bin/sh\necho $* >> {log}\n")
        cells = self.cells(text, "H200", "T4", "A100")
        self.assertEqual(cells, {"T4": "not wide d=128", "A100": "yes", "H200": "yes"})
        runs = log.read_text().splitlines()
        self.assertEqual(len([run for run in runs if "--gpu=T4" in run]), 4)
        [wide] = [run for run in runs if "--gpu=A100" in run]
        self.assertRegex(wide, "--variant=wide --d=128")
        self.assertNotIn("--gpu=H200", log.read_text())

    def test_a_program_that_fails_is_no_yes(self):
        for text in (
            "#!/bin/sh\nexit 139\n",
            PROGRAM.replace("{", "", 1),
            PROGRAM.replace("of shared memory for a block", "of host memory"),
        ):
            with self.subTest(program=text), self.assertRaises(Failure):
                self.cells(text, "T4")


main()
