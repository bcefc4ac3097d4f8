"""A step's shared library, build/<preset>/steps/lib<step>.so, from Python. The C interface and its
guarantees: common/harness/library/library.h.
"""

import ctypes
import json
import os

SIZES = ("b", "h", "hkv", "n", "nk", "d", "causal")  # keys of a problem in JSON
MASK = ("window", "row_starts", "key_starts", "mask", "tiles")  # keys present only with a mask
TILE = 128  # rows and keys of a tile of FaMask
TENSORS = ("Q", "K", "V", "O", "LSE", "dO", "dQ", "dK", "dV", "table")


class Refused(Exception):
    """A call that failed: the programs' exit status (1, 2 or 3) and one sentence."""

    def __init__(self, status, sentence):
        super().__init__(sentence)
        self.status = status


_INTS = ctypes.POINTER(ctypes.c_int32)


class _Mask(ctypes.Structure):
    _fields_ = (
        *[(name, ctypes.c_int32) for name in ("left", "right", "documents")],
        *[(name, _INTS) for name in ("row_lengths", "key_lengths")],
        ("predicate", ctypes.c_char_p),
        ("tile_heads", ctypes.c_int32),
        ("tiles", ctypes.c_void_p),
    )


class _Problem(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in (*SIZES, "page")]
    _fields_ += [("lengths", ctypes.POINTER(ctypes.c_int32))]
    _fields_ += [("mask", ctypes.POINTER(_Mask))]


class _Tensors(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in TENSORS]


def _lengths(starts):
    lengths = [end - start for start, end in zip(starts, starts[1:])]
    return (ctypes.c_int32 * len(lengths))(*lengths)


def _mask(problem):
    """The FaMask of `window`, `row_starts` and `key_starts`, `mask`, `tiles` (heads that differ,
    the address of a byte for each tile); null without them."""
    if not any(name in problem for name in MASK):
        return None
    mask = _Mask(*problem.get("window", (-1, -1)))
    if "row_starts" in problem:
        mask.documents = len(problem["row_starts"]) - 1
        mask.row_lengths = _lengths(problem["row_starts"])
        mask.key_lengths = _lengths(problem["key_starts"])
    if "mask" in problem:
        mask.predicate = problem["mask"].encode()
    if "tiles" in problem:
        mask.predicate, (mask.tile_heads, mask.tiles) = b"tiles", problem["tiles"]
    return ctypes.pointer(mask)


def _problem(sizes):
    """`sizes` may also have a "page" and [B] "lengths"."""
    if sizes.get("cache8"):
        raise Refused(2, "cache8: the library has no argument for its scales; run the program")
    lengths = sizes.get("lengths") or None
    if lengths and len(lengths) != sizes["b"]:
        raise Refused(2, f"lengths: {len(lengths)} for {sizes['b']} batch entries")
    lengths = lengths and (ctypes.c_int32 * len(lengths))(*lengths)
    return _Problem(
        *(int(sizes[name]) for name in SIZES), sizes.get("page") or 0, lengths, _mask(sizes)
    )


class StepLibrary:
    r"""\raises OSError when the file cannot be loaded."""

    def __init__(self, path):
        try:
            self._c = ctypes.CDLL(path)
        except OSError as error:
            if "static TLS" not in str(error):
                raise
            how = f"LD_PRELOAD={os.path.abspath(path)} python3 (common/harness/library/library.h)"
            raise OSError(f"{path}: the simulator's must be loaded before Python: {how}") from None
        problem, tensors = ctypes.POINTER(_Problem), ctypes.POINTER(_Tensors)
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        for function, types in (
            ("describe", []),
            ("last_error", []),
            ("check", [problem]),
            ("release", []),
            ("free", [pointer]),
            ("prepare", [ctypes.c_int, problem, tensors, pointer]),
            ("forward", [ctypes.c_int, problem, tensors, pointer]),
            ("backward", [ctypes.c_int, problem, tensors, pointer]),
            ("workspace_bytes", [ctypes.c_int, problem, ctypes.POINTER(size)]),
            ("malloc", [ctypes.POINTER(pointer), size]),
            ("upload", [pointer, pointer, size]),
            ("download", [pointer, pointer, size]),
        ):
            if hasattr(self._c, "fa_" + function):  # a test's library may lack some
                getattr(self._c, "fa_" + function).argtypes = types
        self._c.fa_describe.restype = self._c.fa_last_error.restype = ctypes.c_char_p
        about = json.loads(self._c.fa_describe())
        self.step, self.kind, self.supports = (about[k] for k in ("step", "kind", "supports"))
        self.variants = about["variants"]  # [{name, idea, dtype, writes_lse, prepare, backward}]

    def _require(self, status):
        if status != 0:
            raise Refused(status, self._c.fa_last_error().decode() or f"status {status}")

    def check(self, sizes):
        r"""\raises Refused when the step does not support the problem."""
        self._require(self._c.fa_check(_problem(sizes)))

    def runner(self, direction, variant, sizes, addresses, stream=None):
        """A function that queues a "prepare", "forward" or "backward" on `stream`, the address of a
        cudaStream_t (PyTorch: torch.cuda.current_stream().cuda_stream; None: CUDA's default).
        `variant`: index in the list; `addresses`: device memory by the names in TENSORS."""
        function, problem = getattr(self._c, "fa_" + direction), _problem(sizes)
        tensors = _Tensors(**addresses)
        return lambda: self._require(function(variant, problem, tensors, stream))

    def release(self):
        self._require(self._c.fa_release())

    def workspace_bytes(self, variant, sizes):
        found = ctypes.c_size_t()
        self._require(self._c.fa_workspace_bytes(variant, _problem(sizes), found))
        return found.value

    def malloc(self, size):
        p = ctypes.c_void_p()
        self._require(self._c.fa_malloc(p, size))
        return p.value

    def free(self, address):
        self._require(self._c.fa_free(address))

    def upload(self, address, values):
        start, count = values.buffer_info()
        self._require(self._c.fa_upload(address, start, count * values.itemsize))

    def download(self, address, values):
        start, count = values.buffer_info()
        self._require(self._c.fa_download(start, address, count * values.itemsize))
