"""The ideas, runs and texts of the page "Why is FlashAttention faster?"."""

from dataclasses import dataclass

KB = 1024


DOCUMENTS = ["--causal", "--lengths=384,128,512"]
MASKS = {  # of step 15; all of the same length
    "window 256": ["window", "--window=256,0"],
    "window 192 both ways": ["window", "--window=192,192"],
    "3 documents": ["packed", *DOCUMENTS],
    "3 documents, window 192": ["packed", *DOCUMENTS, "--window=192,0"],
    "strided 256": ["lists", "--mask=strided:256"],
    "prefix 300": ["lists", "--mask=prefix:300"],
}


@dataclass(frozen=True)
class Run:
    """One run of a step's program with one head; with `group`, its query heads share the keys."""

    step: str
    variant: str
    n: int
    causal: bool = False
    smem: int = 0  # --smem; 0: the step's default
    group: int = 0  # decoding: one query for each of this many heads, and n keys; 0: n of both
    page: int = 0  # --page; 0: the keys are not in pages
    mask: str = ""  # of MASKS
    d: int = 64

    @property
    def name(self):
        parts = [self.variant, f"n{self.n}", *self.mask.replace(",", "").split()]
        return "-".join(parts + ["causal"] * self.causal + [f"m{self.smem}"] * (self.smem > 0))

    @property
    def arguments(self):
        # One worker: the last block merges the splits, so it must always be the same one.
        given = [f"--variant={self.variant}", f"--d={self.d}", "--workers=1"]
        if self.group:
            given += ["--n=1", f"--nk={self.n}", f"--h={self.group}", "--hkv=1"]
        else:
            given += [f"--n={self.n}", "--h=1"]
        given += [f"--page={self.page}"] * (self.page > 0) + MASKS.get(self.mask, [])[1:]
        return given + ["--causal"] * self.causal + [f"--smem={self.smem}"] * (self.smem > 0)


@dataclass(frozen=True)
class Shown:
    """A step: its known `name`, the result `before`, `registers`: {variants: data kept there}."""

    step: str
    name: str
    before: str
    caption: str
    registers: dict
    ns: tuple = (256, 512)  # of its runs
    result: str = ""  # where it is not the last of the runs
    own: tuple = ()  # runs that differ from the usual ones
    size: str = "N"  # the size that varies between its runs

    @property
    def runs(self):
        return [*self.own] or grid(self.step, " ".join(self.registers).split(), self.ns)

    def registers_of(self, variant):
        found = (words for names, words in self.registers.items() if variant in names.split())
        return next(found, "")


def grid(step, variants, ns=(256, 512), smems=(0,)):
    return [
        Run(step, variant, n, causal, smem)
        for variant in variants
        for n in ns
        for causal in (False, True)
        for smem in smems
    ]


def decoding(variants, page=0, step="13_decode", group=4, d=64):
    return [
        Run(step, variant, n, group=group, page=page, d=d)
        for variant in variants
        for n in (512, 1024)  # equal splits: the HBM model lets them end together
    ]


# The runs of a step on the page. Variants that request the same bytes as another have none.
BACKWARD = (128, 256)
ROWS = "Registers: O, m and l of the block's rows, until the last key."
SPLITS = "Registers: each warp has all rows of Q, and O, m and l of the keys that it has seen."
KEYS = "Registers: dK and dV of the block's keys."
CONSUMERS = "Registers of the consumers: O, m and l of their rows, S and P."
STEPS = [
    Shown(
        "01_naive",
        "Textbook",
        "01 naive",
        "Three kernels. S and P, N × N elements each, are written and read back before O appears.",
        {"naive": "Registers: one output per thread."},
    ),
    Shown(
        "02_tiled",
        "Tiled",
        "01 naive",
        "A block copies tiles of Q and K to shared memory, where many threads use each element. S "
        "and P still go through device memory.",
        {
            "shared": "Registers: one score, or one element of O, per thread.",
            "registers": "Registers: 4 × 4 scores per thread.",
        },
    ),
    Shown(
        "03_online_softmax",
        "Online softmax",
        "02 registers",
        "With a running maximum and sum, one pass over S is enough, and P is never stored.",
        {
            "safe": "Registers: a row's maximum and sum, found in two passes.",
            "online": "Registers: a row's maximum and sum, found in one pass.",
            "one_pass": "Registers: m, l and O of the block's rows.",
        },
    ),
    Shown(
        "04_fused",
        "FlashAttention-1",
        "03 one_pass",
        "S and P stay on chip. The outer loop loads one tile of K and V, so O, m and l are read "
        "and written once per tile of keys: watch O's colour get stronger. More shared memory "
        "means fewer rounds.",
        {
            "tile": "Registers: a tile of scores, O of the block's rows.",
            "fused": "Registers: one tile of S, and O of one tile of Q, stored when the inner "
            "loop advances.",
        },
        own=grid("04_fused", ["tile"]) + grid("04_fused", ["fused"], smems=(0, 32 * KB, 128 * KB)),
    ),
    Shown(
        "05_recompute_backward",
        "Recompute",
        "05 standard",
        "Forward, then backward. The variant standard stores P, dP and dS, N × N elements each; "
        "recompute derives tiles of P from LSE.",
        {
            "standard delta from_lse": "Registers: a tile of one product.",
            "recompute": "Registers: tiles of P, dP and dS; dQ goes through memory.",
        },
        BACKWARD,
    ),
    Shown(
        "06_work_partitioning",
        "FlashAttention-2",
        "04 fused",
        "The loops are swapped: a block keeps one tile of Q and walks over K and V. O stays in "
        "registers and is written once.",
        {
            "swapped registers": ROWS,
            "backward": "Registers: dK and dV of the block's keys; dQ by atomic additions.",
        },
        result="registers",
        own=grid("06_work_partitioning", ["swapped", "registers"])
        + grid("06_work_partitioning", ["backward"], BACKWARD),
    ),
    Shown(
        "07_tensor_cores",
        "Tensor cores",
        "06 registers",
        "The loop of step 06 in bf16: half the bytes. cp.async copies the next tile while this one "
        "is multiplied.",
        {"mma pipelined lazy": ROWS + " S becomes P there."},
    ),
    Shown(
        "08_tensor_core_backward",
        "Tensor core backward",
        "06 backward",
        "A block owns a tile of keys and walks over the queries. dQ is a sum over all blocks: by "
        "atomics, or in a separate kernel that reads Q, K, V and dO again.",
        {"keys deterministic atomics roles": KEYS},
        own=grid("08_tensor_core_backward", ["keys", "deterministic", "atomics", "roles"], BACKWARD)
        + [Run("08_tensor_core_backward", "atomics", 1024, causal=True)],  # beside step 15
        result="roles",
    ),
    Shown(
        "09_tma_wgmma",
        "TMA and wgmma",
        "07 lazy",
        "One thread issues the copy of a whole tile (TMA), and the tensor cores read it from "
        "shared memory directly (wgmma).",
        {"tma wgmma": ROWS + " P, the operand of the second product."},
    ),
    Shown(
        "10_warp_specialized",
        "FlashAttention-3",
        "09 wgmma",
        "A producer thread only copies; consumer warpgroups only compute. The next tiles arrive "
        "while the consumers still read the current ones.",
        {"producer specialized scheduled": CONSUMERS},
    ),
    Shown(
        "11_hopper_backward",
        "Hopper backward",
        "08 roles",
        "The backward with TMA and wgmma. In columns a separate warpgroup computes dQ and adds it "
        "to the sums in device memory (purple).",
        {"late deterministic columns": KEYS},
        BACKWARD,
    ),
    Shown(
        "12_fp8",
        "fp8",
        "10 scheduled",
        "First, separate kernels quantise Q, K and V to 8 bits with scales. Then the forward "
        "reads tiles half the size of step 10's.",
        {"tensor centred blocks late": CONSUMERS},
        BACKWARD,
    ),
    Shown(
        "13_decode",
        "Decoding",
        "13 splits",
        "One query for each of four heads, which share K and V. Each block handles a split of the "
        "keys and stores a part of O; a merge combines the parts.",
        {"warps splits groups pages once early fp8": SPLITS},
        own=decoding(["warps", "splits", "groups"])
        + decoding(["pages", "once", "early", "fp8"], page=64),
        size="Nk",
    ),
    Shown(
        "15_masks",
        "Masks",
        "08 atomics",
        "Grey: scores that the mask leaves. A block visits the tiles that hold some: it tests "
        "those that the mask cuts (c), not the full ones (F).",
        {
            "window": "Registers: O, m and l of the block's rows, or dK and dV of its keys; the "
            "first and the last tile of the walk.",
            "packed": "Registers: as in window. A table says which rows and keys a block has.",
            "lists": "Registers: as in window. A list says which tiles a block visits.",
        },
        own=[Run("15_masks", variant, 1024, mask=mask) for mask, (variant, *_) in MASKS.items()],
        result="packed",
    ),
    Shown(
        "16_blackwell",
        "FlashAttention-4",
        "10 scheduled",
        "S, P and O lie in tensor memory, and one warp copies, another multiplies. Open source · "
        "warp · bytes to see who holds which columns, and who waits for whom.",
        {
            "tmem issuer roles pair exp2 ctas": "Registers: a row of S or P per thread, then 16 "
            "columns of O."
        },
    ),
    Shown(
        "17_latent",
        "Latent attention",
        "17 absorbed",
        "One query for each of 16 heads, which read one vector of 576 features per key: K is all "
        "of it, V its first 512. Nothing else is in the cache.",
        {
            "absorbed": "Registers: a row of Q and of O per warp, and one key.",
            "panels": "Registers of the consumers: half of O's columns each, S and P.",
            "exchange splits": "Registers of the consumers: half of O's columns each, S of every "
            "second tile.",
            "resident pairs": "Registers: most of Q and S in one warpgroup, half of O in each "
            "other.",
        },
        own=decoding(
            ["absorbed", "panels", "exchange", "splits", "resident", "pairs"],
            step="17_latent",
            group=16,
            d=576,
        ),
        size="Nk",
    ),
]
RING = Shown(
    "14_ring",
    "Ring attention",
    "14 plain",
    "Each rank keeps its rows of Q; K and V travel round the ring. With a causal mask and the "
    "plain cut the first rank waits; zig-zag gives all the same work in each hop.",
    {},
    size="ranks",
)

# The story. `at`: when an idea opens, as a share of the run. {03 one_pass} becomes its time.
IDEAS = [
    {
        "name": "the problem",
        "question": "The textbook sends the N × N scores and probabilities through memory. "
        "FlashAttention never stores them.",
        "pair": ["01 naive", "06 registers"],
        "say": [
            "writes S, reads it three times, writes P, reads it",
            "S and P live for one tile, on the chip",
        ],
        "note": "Not all of the time is HBM's: 02, with the same HBM bytes as 01, takes "
        "{02 registers}, because tiles in shared memory save requests.",
        "at": 0.72,
    },
    {
        "name": "never write P",
        "question": "The softmax needs a row's maximum and sum. Both can be updated tile by tile, "
        "so P is never stored.",
        "pair": ["02 registers", "03 one_pass"],
        "say": ["writes S, then P, and reads both", "one pass over S; P is used as it is computed"],
        "note": "Time falls less than bytes: the arithmetic is the same, and S still goes through "
        "HBM.",
        "at": 0.8,
    },
    {
        "name": "tiles on chip",
        "question": "With the running maximum a tile of scores can be computed, used and "
        "discarded: no N × N buffer remains.",
        "pair": ["03 one_pass", "04 fused"],
        "say": ["S is N × N, in memory", "no S, but O returns for each tile of keys"],
        "note": "The memory of FlashAttention-1 grows with N, not N². With the 64 KB of this step "
        "O moves once per tile of keys, so HBM moves more; tab 4 fixes that.",
        "at": 0.7,
    },
    {
        "name": "swap the loops",
        "question": "If a block keeps its rows of Q and walks over the keys, O can stay in "
        "registers to the end.",
        "pair": ["04 fused", "06 swapped"],
        "say": [
            "outer loop over keys: O goes to memory and back",
            "outer loop over queries: O is written once",
        ],
        "note": "K and V are read once per tile of queries now; the L2 serves most of that. "
        "Each head has N / 64 blocks instead of one. With register tiles too (06 registers): "
        "{06 registers}.",
        "at": 0.7,
    },
    {
        "name": "tensor cores",
        "question": "HBM is at its minimum, so the arithmetic is the limit: bf16 halves the bytes, "
        "and tensor cores compute the products.",
        "pair": ["06 registers", "10 scheduled"],
        "say": [
            "the CUDA cores multiply, in fp32",
            "TMA copies tiles while the tensor cores multiply",
        ],
        "note": "On the way: 07 takes {07 lazy}, 09 {09 wgmma}. The HBM bytes of 07 to 12 are "
        "those of the inputs and outputs.",
        "at": 0.5,
    },
]
