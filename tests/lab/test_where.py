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
    def cell(self, text, gpu):
        self.program(f"steps/{STEP}", text)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            return where.cell(self.folder, STEP, gpu, pool)

    def test_yes_or_what_is_missing(self):
        wide = '"wide", "needs": "'
        for text, gpu, said in (
            (PROGRAM, "H200", "yes"),
            (PROGRAM, "T4", "not wide d=128"),
            (PROGRAM.replace(wide, wide + "sm_90a"), "A100", "narrow"),
            (PROGRAM.replace('"needs": "', '"needs": "sm_90a') + "exit 2\n", "RTX 4090", "-"),
        ):
            self.assertEqual(self.cell(text, gpu), said)

    def test_a_program_that_fails_is_no_yes(self):
        for text in (
            "#!/bin/sh\nexit 139\n",
            PROGRAM.replace("{", "", 1),
            PROGRAM.replace("of shared memory for a block", "of host memory"),
        ):
            with self.subTest(program=text), self.assertRaises(Failure):
                self.cell(text, "T4")


main()
