"""What the explorer shows: its pages, their words, and the runs that they hold."""

from dataclasses import dataclass, field

KB = 1024
OWN_M = 64 * KB  # --smem with which step 04 has the same tiles as without


@dataclass(frozen=True)
class Run:
    """One run of a step's program, of one head; with `group`, of the query heads that share one."""

    step: str
    variant: str
    n: int
    d: int = 64
    causal: bool = False
    smem: int = 0  # --smem; 0: the step's own choice
    group: int = 0  # decoding: one query for each of so many heads, and n keys; 0: n of both
    page: int = 0  # --page; 0: the keys are not in pages

    @property
    def name(self):
        parts = [self.step, self.variant, f"n{self.n}", f"d{self.d}"]
        return "-".join(parts + ["causal"] * self.causal + [f"m{self.smem}"] * (self.smem > 0))

    @property
    def arguments(self):
        # One worker: whichever block is last merges the splits, so it must always be the same one.
        given = [f"--variant={self.variant}", f"--d={self.d}", "--workers=1"]
        if self.group:
            given += ["--n=1", f"--nk={self.n}", f"--h={self.group}", "--hkv=1"]
        else:
            given += [f"--n={self.n}", "--h=1"]
        given += [f"--page={self.page}"] * (self.page > 0)
        return given + ["--causal"] * self.causal + [f"--smem={self.smem}"] * (self.smem > 0)


@dataclass(frozen=True)
class Page:
    """One step. `registers`: what a block keeps there, which no trace sees. `left_out`: variants of
    the step without a run here, and the variant that requests the same bytes."""

    step: str
    title: str
    caption: str
    registers: dict
    runs: list
    first: Run
    left_out: dict = field(default_factory=dict)


def grid(step, variants, ns=(128, 256, 512), ds=(64,), smems=(0,)):
    return [
        Run(step, variant, n, d, causal, smem)
        for variant in variants
        for n in ns
        for d in ds
        for causal in (False, True)
        for smem in smems
    ]


def decoding(variants, page=0):
    return [
        Run("13_decode", variant, n, d, group=4, page=page)
        for variant in variants
        for n in (512, 1024, 1536)  # splits of one length: the model of HBM has them end together
        for d in (64, 128)
    ]


NOTHING = "Registers: one output per thread."
ROWS = "Registers: O, m and l of the block's rows, until the last key."
PAGES = [
    Page(
        "01_naive",
        "01 Naive",
        "Three kernels. Watch S and P: N × N elements each are written and read back before O "
        "appears. Each row of K is read by all N queries.",
        {"naive": NOTHING},
        grid("01_naive", ["naive"], ds=(64, 128)),
        Run("01_naive", "naive", 256),
    ),
    Page(
        "02_tiled",
        "02 Tiled",
        "A block copies a tile of Q and a tile of K to shared memory, where many threads use each "
        "element. Q, K and V are read far less often than in step 01; S and P still go through "
        "device memory.",
        {
            "shared": "Registers: one score, or one element of O, per thread.",
            "registers": "Registers: 4 × 4 scores per thread.",
        },
        grid("02_tiled", ["shared", "registers"], ds=(64, 128)),
        Run("02_tiled", "registers", 256),
    ),
    Page(
        "03_online_softmax",
        "03 Online softmax",
        "With a running maximum and sum, one pass over S is enough. The variant one_pass never "
        "stores P: its square is missing from the picture. Count how often each variant reads S.",
        {
            "safe": "Registers: a row's maximum and sum, found in two passes.",
            "online": "Registers: a row's maximum and sum, found in one pass.",
            "one_pass": "Registers: m, l and O of the block's rows.",
        },
        grid("03_online_softmax", ["safe", "online", "one_pass"], ds=(64, 128)),
        Run("03_online_softmax", "one_pass", 256),
        left_out={"naive": "online"},
    ),
    Page(
        "04_fused",
        "04 Fused: FlashAttention-1",
        "S and P stay on chip. The outer loop loads one tile of K and V; the inner loop walks over "
        "all tiles of Q. So O, m and l are read and written once per tile of keys: watch O get "
        "darker. With more shared memory M the tiles of keys are larger and the rounds fewer.",
        {
            "tile": "Registers: a tile of scores, O of the block's rows.",
            "fused": "Registers: one tile of S, and O of one tile of Q, which is stored when the "
            "inner loop moves on.",
        },
        grid("04_fused", ["tile"], ds=(64, 128))
        + grid("04_fused", ["fused"], smems=(32 * KB, 40 * KB, 64 * KB, 128 * KB))
        + grid("04_fused", ["fused"], ds=(128,), smems=(40 * KB, 64 * KB, 96 * KB, 160 * KB)),
        Run("04_fused", "fused", 256, smem=OWN_M),
    ),
    Page(
        "05_recompute_backward",
        "05 Recompute in the backward",
        "Forward, then backward. The variant standard stores P, dP and dS, N × N elements each; "
        "recompute computes tiles of P again from LSE, so it stores no square. Compare their sums.",
        {
            "standard": "Registers: a tile of one product.",
            "delta": "Registers: a tile of one product.",
            "from_lse": "Registers: a tile of one product.",
            "recompute": "Registers: tiles of P, dP and dS; dQ goes through memory.",
        },
        grid(
            "05_recompute_backward",
            ["standard", "delta", "from_lse", "recompute"],
            ns=(128, 256),
            ds=(64, 128),
        ),
        Run("05_recompute_backward", "recompute", 256),
    ),
    Page(
        "06_work_partitioning",
        "06 Work partitioning: FlashAttention-2",
        "The loops are swapped: a block keeps one tile of Q and walks over K and V. O stays in "
        "registers and is written once, at the end. Follow another block: all run side by side.",
        {
            "swapped": ROWS,
            "registers": ROWS,
            "backward": "Registers: dK and dV of the block's keys; dQ by atomic additions.",
        },
        grid("06_work_partitioning", ["swapped", "registers"], ds=(64, 128))
        + grid("06_work_partitioning", ["backward"], (128, 256), (64, 128)),
        Run("06_work_partitioning", "swapped", 256),
    ),
    Page(
        "07_tensor_cores",
        "07 Tensor cores",
        "The loop of step 06 in bf16: half the bytes. cp.async copies the next tile while this one "
        "is multiplied, and ldmatrix feeds the tensor cores without bank conflicts.",
        dict.fromkeys(("mma", "pipelined", "bands", "lazy"), ROWS + " S becomes P there."),
        grid("07_tensor_cores", ["mma", "pipelined", "lazy"], ds=(64, 128)),
        Run("07_tensor_cores", "lazy", 256),
        left_out={"bands": "lazy"},
    ),
    Page(
        "08_tensor_core_backward",
        "08 Tensor core backward",
        "A block owns a tile of keys and walks over the queries; dK and dV stay in registers. dQ "
        "is a sum over all blocks: by atomics, or by a kernel of its own that reads Q, K, V and "
        "dO again.",
        dict.fromkeys(
            ("keys", "deterministic", "atomics", "roles"),
            "Registers: dK and dV of the block's keys.",
        ),
        grid(
            "08_tensor_core_backward",
            ["keys", "deterministic", "atomics", "roles"],
            ns=(128, 256),
            ds=(64, 128),
        ),
        Run("08_tensor_core_backward", "roles", 256),
        left_out={"wide": "deterministic"},
    ),
    Page(
        "09_tma_wgmma",
        "09 TMA and wgmma",
        "One thread starts the copy of a whole tile by the copy engine (TMA), and the tensor cores "
        "read it from shared memory themselves (wgmma). The warps load nothing from device "
        "memory; they only store LSE.",
        dict.fromkeys(("tma", "wgmma"), ROWS + " P, the operand of the second product."),
        grid("09_tma_wgmma", ["tma", "wgmma"], ds=(64, 128)),
        Run("09_tma_wgmma", "wgmma", 256),
    ),
    Page(
        "10_warp_specialized",
        "10 Warp specialisation",
        "A producer thread only copies; consumer warpgroups only compute. K and V go through rings "
        "of stages: the next tiles arrive while the consumers still read the current ones.",
        dict.fromkeys(
            ("producer", "specialized", "persistent", "scheduled"),
            "Registers of the consumers: O, m and l of their rows, S and P.",
        ),
        grid("10_warp_specialized", ["producer", "specialized", "scheduled"], ds=(64, 128)),
        Run("10_warp_specialized", "scheduled", 256),
        left_out={"lazy": "specialized", "persistent": "scheduled"},
    ),
    Page(
        "11_hopper_backward",
        "11 The backward on Hopper",
        "Forward, then backward by TMA and wgmma. In the variant columns, a warpgroup of its own "
        "computes dQ, and TMA adds its tiles to the sums in device memory (purple).",
        dict.fromkeys(
            ("late", "deterministic", "columns"), "Registers: dK and dV of the block's keys."
        ),
        grid("11_hopper_backward", ["late", "deterministic", "columns"], (128, 256), (64, 128)),
        Run("11_hopper_backward", "columns", 256),
        left_out={"wgmma": "late", "apart": "late"},
    ),
    Page(
        "12_fp8",
        "12 FlashAttention in fp8",
        "First, kernels of their own quantise Q, K and V to 8 bits with scales. Then the forward "
        "reads tiles half the size of step 10's. In a problem this small, quantising costs more "
        "bytes than that saves.",
        dict.fromkeys(
            ("tensor", "centred", "blocks", "rotated", "late"),
            "Registers of the consumers: O, m and l of their rows, S and P.",
        ),
        grid("12_fp8", ["tensor", "centred", "blocks", "late"], (128, 256), (64, 128)),
        Run("12_fp8", "late", 256),
        left_out={"heads": "tensor", "rotated": "blocks"},
    ),
    Page(
        "13_decode",
        "13 Decoding from a KV cache",
        "One query for each of four heads, which share K and V. The keys are cut into splits, one "
        "for each block: follow another block to see which keys are its own. Each leaves a part of "
        "O, and a merge adds them up. Compare the sums of splits and groups: four heads read the "
        "keys one after the other, or together. From pages on a split's keys lie in pages "
        "anywhere.",
        dict.fromkeys(
            ("warps", "splits", "groups", "pages", "once", "fp8"),
            "Registers: each warp has all rows of Q, and O, m and l of the keys that it has seen.",
        ),
        decoding(["warps", "splits", "groups"]) + decoding(["pages", "once", "fp8"], page=64),
        Run("13_decode", "once", 1024, 128, group=4, page=64),
    ),
]

# Of the fold on a page: (terms, what they mean, one of these must be on the page; none: always).
# "@" stands for what a page has beside names of buffers: instructions, and parts of its pictures.
TERMS = [
    (
        "N, d",
        "The number of queries and keys, and the length of each row of Q, K, V and O.",
        ("@square",),
    ),
    ("Q, K, V, O", "The inputs and the output of attention, N × d elements each.", ("@square",)),
    ("S, P", "The scores Q Kᵀ / √d and their softmax, N × N elements each.", ("@square",)),
    (
        "N, d",
        "The number of queries, here 1, and the length of each row of Q, K, V and O.",
        ("@decode",),
    ),
    ("Nk", "The number of keys: rows of K and V.", ("@decode",)),
    (
        "Q, K, V, O",
        "The inputs and the output of attention. Q and O have a row for each query head.",
        ("@decode",),
    ),
    ("S, P", "The scores Q Kᵀ / √d and their softmax, a row for each query head.", ("@decode",)),
    ("split", "A part of the keys, which one block reads.", ("O_parts",)),
    (
        "O_parts, LSE_parts",
        "O and LSE of each split, in fp32, until they are merged.",
        ("O_parts",),
    ),
    (
        "arrived",
        "Counts the blocks that have stored their part; the last one merges.",
        ("arrived",),
    ),
    ("table", "Says in which page of 64 keys the next keys of a sequence lie.", ("table",)),
    ("K_scale, V_scale", "Factors that turn 8-bit numbers back.", ("K_scale",)),
    ("tiles[w]", "The tiles of warp w, three stages each of K and V.", ("@decode",)),
    ("m, l", "Per row: the maximum of the scores so far, and the sum of exp(s − m).", ("@m, l",)),
    ("LSE", "Per row: m + log l, all that the backward needs to compute P again.", ("LSE",)),
    ("LSE2", "LSE in powers of 2.", ("LSE2",)),
    ("dO, dQ, dK, dV", "The gradients of O, Q, K and V; dO is an input.", ("dO",)),
    ("delta", "Per row: the sum of dO · O, which the gradient of the softmax needs.", ("delta",)),
    ("dQ_sum", "The sums of dQ over all tiles of keys, in fp32, before scaling.", ("dQ_sum",)),
    ("Q8, K8, V8", "Q, K and V in 8 bits.", ("Q8",)),
    ("..._scale, V_mean", "Factors that turn 8-bit numbers back; V's mean per feature.", ("Q8",)),
    ("Br, Bc", "Rows of a tile of Q, and keys of a tile of K and V.", ("@Br",)),
    ("M", "Shared memory that a block may use; it decides Bc.", ("@M",)),
    ("causal", "A query sees only the keys up to its own position.", ()),
    ("block", "Threads that share a part of shared memory; each computes its own tiles.", ()),
    ("requested bytes", "What the threads' loads and stores ask for, wherever it comes from.", ()),
    (
        "HBM, L2",
        "The GPU's memory, and the cache in front of it. A byte in the L2 does not need HBM.",
        (),
    ),
    (
        "request",
        "One load or store instruction of a warp: 32 threads (lanes) together.",
        ("@step",),
    ),
    ("sector", "32 bytes in a row, the smallest part of device memory that moves.", ("@step",)),
    (
        "bank, wavefront",
        "Shared memory has 32 banks of 4 bytes. A wavefront is one access of all banks; lanes that "
        "need different words of one bank need more wavefronts.",
        ("@shared",),
    ),
    ("cp.async", "A copy to shared memory that runs while the thread goes on.", ("@cp.async",)),
    ("ldmatrix", "Loads 8 × 8 tiles from shared memory for the tensor cores.", ("@ldmatrix",)),
    ("TMA", "The copy engine: one thread starts the copy of a whole tile.", ("@TMA",)),
    ("wgmma", "A product by tensor cores that read shared memory themselves.", ("@wgmma",)),
    ("atomic", "An addition in device memory; several blocks may add to one place.", ("@atomic",)),
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
        "name": "04 and 06: the order of the loops",
        "sides": (FUSED, SWAPPED),
        "why": [
            "O: step 04 holds a tile of K and V and walks over all tiles of Q. A tile of O is not "
            "complete until the last tile of keys, so O (with m and l) is written and read back "
            "once per tile of keys. O is zeroed first, which is one more write. Step 06 finishes a "
            "tile of Q before it starts the next: O stays in registers and is written once.",
            "Q: step 04 reads it once per tile of keys, step 06 once in all.",
            "K and V: this is the price. Step 04 reads them once; step 06 reads them once per tile "
            "of Q. They are only read, and blocks read the same tile at about the same time, so "
            "the L2 serves most of these reads.",
            "Step 06's tiles of Q are independent: N / 64 blocks work on a head instead of one.",
        ],
        "grows": "Both have N / 64 tiles of keys and as many of Q. Step 04 moves all rows of Q and "
        "O once per tile of keys; step 06 reads all rows of K and V once per tile of Q.",
        "hbm": "Step 04's O goes to HBM and back. What step 06 reads again mostly comes from L2.",
    },
    {
        "name": "01 and 06: naive, fused",
        "sides": (NAIVE, SWAPPED),
        "why": [
            "S and P: step 01 writes N × N scores, reads them three times, writes N × N "
            "probabilities and reads those. Step 06 keeps its tiles of both on chip.",
            "Q, K and V: in step 01 each thread loads its own rows, so each element is requested "
            "again and again. Step 06 copies a tile to shared memory once for 256 threads.",
        ],
        "grows": "Step 01 loads a row of Q and one of K for each of N × N scores; step 06 reads "
        "all rows of K and V once per tile of Q.",
        "hbm": "S and P do not fit in the L2.",
    },
    {
        "name": "01 and 04: naive, FlashAttention-1",
        "sides": (NAIVE, FUSED),
        "why": [
            "S and P: step 04 never stores them. Instead it writes and reads O, m and l once per "
            "tile of keys.",
        ],
        "grows": "Step 01 loads a row of Q and one of K for each of N × N scores; step 04 moves "
        "all rows of Q and O once per tile of keys.",
        "hbm": "S and P do not fit in the L2, and neither does O of all heads.",
    },
]
COMPARED = [
    run
    for step, variant in (FUSED, SWAPPED, NAIVE)
    for run in grid(step, [variant], ns=(128, 256, 512))
]
COMPARED_FIRST = Run(*FUSED, 256)
COMPARED_OPENING = [Run(*side, 256) for side in PRESETS[0]["sides"]]
