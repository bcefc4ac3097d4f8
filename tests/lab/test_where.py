"""maintain where: which step runs on which kind of GPU, from stub programs."""

import concurrent.futures

from basis import Folder, main
from flash_steps.command import Failure
from lab import where

STEP = "05_recompute_backward"
# Two variants; with d = 128, the tiles of "wide" are too large for an RTX 3090.
PROGRAM = """#!/bin/sh
case "$*" in
  --describe) echo '{"variants": [{"name": "narrow", "needs": "", "supports": {"d": [64, 128]}},
    {"name": "wide", "needs": "", "supports": {"d": [64, 128]}}]}'; exit ;;
  *"RTX 3090"*wide*--d=128*)
    echo "05_x: needs 110000 bytes of shared memory for a block; this GPU has 101376" >&2; exit 3 ;;
esac
for last; do :; done
cat > "${last#--json=}" <<END
{"step": "05_x", "variant": "v", "problem": {"n": 8}, "kernels": []}
END
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
            (PROGRAM, "RTX 3090", "not wide d=128"),
            (PROGRAM.replace(wide, wide + "sm_90a"), "A100", "narrow"),
            (PROGRAM.replace('"needs": "', '"needs": "sm_90a') + "exit 2\n", "RTX 4090", "-"),
        ):
            self.assertEqual(self.cells(text, gpu), {gpu: said})

    def test_it_runs_on_the_smallest_and_where_it_does_not_fit_on_the_next(self):
        log = self.folder / "log"
        text = PROGRAM.replace("#!/bin/sh\n", f"#!/bin/sh\necho $* >> {log}\n")
        cells = self.cells(text, "H200", "RTX 3090", "A100", "B200")
        self.assertEqual(cells.pop("RTX 3090"), "not wide d=128")
        self.assertEqual(cells, dict.fromkeys(("H200", "A100", "B200"), "yes"))
        runs = [run for run in log.read_text().splitlines() if "--variant" in run]
        self.assertEqual(len(runs), 4 + 1)
        self.assertEqual([r for r in runs if "A100" in r and "wide --d=128" not in r], [])

    def test_a_program_that_fails_is_no_yes(self):
        for text in (
            "#!/bin/sh\nexit 139\n",
            PROGRAM.replace("{", "", 1),
            PROGRAM.replace("of shared memory for a block", "of host memory"),
        ):
            with self.subTest(program=text), self.assertRaises(Failure):
                self.cells(text, "RTX 3090")


main()
