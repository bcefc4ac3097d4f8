"""What the explorer shows: its pages, their words, and the runs that they hold."""

from dataclasses import dataclass

KB = 1024


@dataclass(frozen=True)
class Run:
    """One run of a step's program, of one head."""

    step: str
    variant: str
    n: int
    d: int = 64
    causal: bool = False
    smem: int = 0  # --smem; 0: the step's own choice

    @property
    def name(self):
        parts = [self.step, self.variant, f"n{self.n}", f"d{self.d}"]
        return "-".join(parts + ["causal"] * self.causal + [f"m{self.smem}"] * (self.smem > 0))

    @property
    def arguments(self):
        given = [f"--variant={self.variant}", f"--n={self.n}", f"--d={self.d}", "--h=1"]
        return given + ["--causal"] * self.causal + [f"--smem={self.smem}"] * (self.smem > 0)


@dataclass(frozen=True)
class Page:
    """One step. `registers`: what a block keeps there, which no trace sees."""

    step: str
    title: str
    caption: str
    registers: dict
    runs: list
    first: Run


def grid(step, variants, ns=(128, 256, 512), ds=(64,), smems=(0,)):
    return [
        Run(step, variant, n, d, causal, smem)
        for variant in variants
        for n in ns
        for d in ds
        for causal in (False, True)
        for smem in smems
    ]


NOTHING = "Registers: one output per thread."
ROWS = "Registers: O, m and l of the block's rows, until the last key."
PAGES = [
    Page(
        "01_naive",
        "01 Naive",
        "Three kernels. Watch S and P: N × N elements are written, read again and again, and only "
        "then O appears. Each row of K is read by all N queries.",
        {"naive": NOTHING},
        grid("01_naive", ["naive"], ds=(64, 128)),
        Run("01_naive", "naive", 256),
    ),
    Page(
        "02_tiled",
        "02 Tiled",
        "A block brings a tile of Q and one of K to shared memory, and many threads use each "
        "element. Compare the reads of Q, K and V with step 01's; S and P still cross memory.",
        {
            "shared": "Registers: one score, or one element of O, per thread.",
            "registers": "Registers: 4 × 4 scores per thread.",
        },
        grid("02_tiled", ["shared", "registers"]),
        Run("02_tiled", "registers", 256),
    ),
    Page(
        "03_online_softmax",
        "03 Online softmax",
        "A running maximum and sum make P while S is read once. In one_pass P is never stored: "
        "look for its square, and count how often S is read.",
        {
            "safe": "Registers: a row's maximum and sum, found in two passes.",
            "online": "Registers: a row's maximum and sum, found in one pass.",
            "one_pass": "Registers: m, l and O of the block's rows.",
        },
        grid("03_online_softmax", ["safe", "online", "one_pass"]),
        Run("03_online_softmax", "one_pass", 256),
    ),
    Page(
        "04_fused",
        "04 Fused: FlashAttention-1",
        "S and P stay on chip. The outer loop brings one tile of K and V; the inner loop walks all "
        "tiles of Q. So O, m and l are read and written again for each tile of keys: watch O glow. "
        "More shared memory M means wider tiles and fewer rounds.",
        {
            "tile": "Registers: a tile of scores, O of the block's rows.",
            "fused": "Registers: one tile of S, and O of one tile of Q: it leaves for memory when "
            "the inner loop moves on.",
        },
        grid("04_fused", ["tile"])
        + grid("04_fused", ["fused"], smems=(32 * KB, 40 * KB, 64 * KB, 96 * KB)),
        Run("04_fused", "fused", 256, smem=64 * KB),
    ),
    Page(
        "05_recompute_backward",
        "05 Recompute in the backward",
        "Forward, then backward. standard stores P, dP and dS, N × N each; recompute makes tiles "
        "of P again from LSE, so no square is stored. Compare the total bytes of the two.",
        {
            "standard": "Registers: a tile of one product.",
            "delta": "Registers: a tile of one product.",
            "from_lse": "Registers: a tile of one product.",
            "recompute": "Registers: tiles of P, dP and dS; dQ goes through memory.",
        },
        grid("05_recompute_backward", ["standard", "from_lse", "recompute"], ns=(128, 256)),
        Run("05_recompute_backward", "recompute", 256),
    ),
    Page(
        "06_work_partitioning",
        "06 Work partitioning: FlashAttention-2",
        "The loops are swapped: a block keeps one tile of Q and walks over K and V. O stays in "
        "registers and is written once, at the end. Follow another block: they run side by side.",
        {
            "swapped": ROWS,
            "registers": ROWS,
            "backward": "Registers: dK and dV of the block's keys; dQ by atomic additions.",
        },
        grid("06_work_partitioning", ["swapped", "registers"])
        + grid("06_work_partitioning", ["backward"], ns=(128, 256)),
        Run("06_work_partitioning", "swapped", 256),
    ),
    Page(
        "07_tensor_cores",
        "07 Tensor cores",
        "The loop of step 06 in bf16: half the bytes. cp.async copies the next tile while this one "
        "is multiplied, and ldmatrix feeds the tensor cores without bank conflicts.",
        dict.fromkeys(("mma", "pipelined", "bands", "lazy"), ROWS + " S becomes P there."),
        grid("07_tensor_cores", ["mma", "pipelined", "lazy"]),
        Run("07_tensor_cores", "lazy", 256),
    ),
    Page(
        "08_tensor_core_backward",
        "08 Tensor core backward",
        "A block owns a tile of keys and walks over the queries; dK and dV stay in registers. dQ "
        "is a sum over all blocks: by atomics, or by a second pass that reads everything again.",
        dict.fromkeys(
            ("deterministic", "atomics", "roles"), "Registers: dK and dV of the block's keys."
        ),
        grid("08_tensor_core_backward", ["deterministic", "atomics", "roles"], ns=(128, 256)),
        Run("08_tensor_core_backward", "roles", 256),
    ),
    Page(
        "09_tma_wgmma",
        "09 TMA and wgmma",
        "One thread asks the copy engine (TMA) for a whole tile; the tensor cores read it from "
        "shared memory by themselves (wgmma). Warps ask device memory for nothing; they store LSE.",
        dict.fromkeys(("tma", "wgmma"), ROWS + " P, the operand of the second product."),
        grid("09_tma_wgmma", ["tma", "wgmma"]),
        Run("09_tma_wgmma", "wgmma", 256),
    ),
    Page(
        "10_warp_specialized",
        "10 Warp specialisation",
        "A producer thread only copies; consumer warpgroups only compute. K and V go through rings "
        "of stages: watch the next tiles arrive while the consumers still read the last ones.",
        dict.fromkeys(
            ("producer", "specialized", "persistent", "scheduled"),
            "Registers of the consumers: O, m and l of their rows, S and P.",
        ),
        grid("10_warp_specialized", ["producer", "specialized", "scheduled"]),
        Run("10_warp_specialized", "scheduled", 256),
    ),
    Page(
        "11_hopper_backward",
        "11 The backward on Hopper",
        "Forward, then backward by TMA and wgmma. A warpgroup of its own multiplies dQ; its sums "
        "leave the SM as reductions of whole tiles by TMA.",
        dict.fromkeys(
            ("late", "deterministic", "columns"), "Registers: dK and dV of the block's keys."
        ),
        grid("11_hopper_backward", ["late", "columns"], ns=(128, 256)),
        Run("11_hopper_backward", "columns", 256),
    ),
    Page(
        "12_fp8",
        "12 FlashAttention in fp8",
        "First Q, K and V become 8-bit numbers with scales, by kernels of their own. Then the "
        "forward reads tiles of half as many bytes as step 10; in so small a problem its scales "
        "and V's means cost more than that saves.",
        dict.fromkeys(
            ("tensor", "centred", "blocks", "rotated", "late"),
            "Registers of the consumers: O, m and l of their rows, S and P.",
        ),
        grid("12_fp8", ["tensor", "late"], ns=(128, 256)),
        Run("12_fp8", "late", 256),
    ),
]

FUSED, SWAPPED, NAIVE = (
    ("04_fused", "fused"),
    ("06_work_partitioning", "swapped"),
    ("01_naive", "naive"),
)
LABELS = {
    FUSED: ("04 fused", "the outer loop is over K and V"),
    SWAPPED: ("06 swapped", "the outer loop is over Q"),
    NAIVE: ("01 naive", "three kernels"),
}
PRESETS = [
    {
        "name": "FlashAttention-1's loops against FlashAttention-2's (04, 06)",
        "sides": (FUSED, SWAPPED),
        "why": [
            "O: step 04 holds a tile of K and V and walks over all tiles of Q. The sums for a tile "
            "of Q are not complete until the last tile of keys, so O (with m and l) goes to memory "
            "and comes back once per tile of keys. Step 06 finishes a tile of Q before it takes "
            "the next one: O stays in registers and is written once.",
            "Q: read once per tile of keys in step 04, once in all in step 06.",
            "K and V: the price. Step 04 reads them once; step 06 reads them once per tile of Q. "
            "They are only read, and different blocks read the same tile close together, so the L2 "
            "serves them.",
            "Step 06's tiles of Q do not need each other: N / 64 blocks work on a head instead of "
            "one.",
        ],
    },
    {
        "name": "Naive against fused (01, 06)",
        "sides": (NAIVE, SWAPPED),
        "why": [
            "S and P: step 01 writes N × N scores, reads them three times, writes N × N "
            "probabilities and reads those. Step 06 keeps its tile of both on chip.",
            "Q, K and V: in step 01 each thread fetches its own rows, so an element is asked for "
            "again and again. Step 06 brings a tile to shared memory once for 256 threads.",
        ],
    },
    {
        "name": "Naive against FlashAttention-1 (01, 04)",
        "sides": (NAIVE, FUSED),
        "why": [
            "S and P: step 04 never stores them. What it pays instead is O, m and l, which come "
            "and go once per tile of keys.",
        ],
    },
]
COMPARED = [
    run
    for step, variant in (FUSED, SWAPPED, NAIVE)
    for run in grid(step, [variant], ns=(128, 256, 512))
]
COMPARED_FIRST = Run(*FUSED, 256)
COMPARED_OPENING = [Run(*side, 256) for side in PRESETS[0]["sides"]]
