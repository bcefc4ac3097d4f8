"""A step's shared library, build/<preset>/steps/lib<step>.so, from Python. The C interface and what
its functions promise: common/library/library.h.
"""

import ctypes
import json

SIZES = ("b", "h", "hkv", "n", "nk", "d", "causal")  # keys of a problem in JSON
TENSORS = ("Q", "K", "V", "O", "LSE", "dO", "dQ", "dK", "dV")


class Refused(Exception):
    """A call that failed: the programs' exit status (1, 2 or 3) and one sentence."""

    def __init__(self, status, sentence):
        super().__init__(sentence)
        self.status = status


class _Problem(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int32) for name in SIZES]


class _Tensors(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in TENSORS]


def _problem(sizes):
    return _Problem(*(int(sizes[name]) for name in SIZES))


class StepLibrary:
    """\\raises OSError when the file cannot be loaded."""

    def __init__(self, path):
        self._c = ctypes.CDLL(path)
        self._c.fa_describe.restype = self._c.fa_last_error.restype = ctypes.c_char_p
        problem, tensors = ctypes.POINTER(_Problem), ctypes.POINTER(_Tensors)
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        for name, types in (
            ("check", [problem]),
            ("release", []),
            ("free", [pointer]),
            ("forward", [ctypes.c_int, problem, tensors]),
            ("backward", [ctypes.c_int, problem, tensors]),
            ("workspace_bytes", [ctypes.c_int, problem, ctypes.POINTER(size)]),
            ("malloc", [ctypes.POINTER(pointer), size]),
            ("upload", [pointer, pointer, size]),
            ("download", [pointer, pointer, size]),
        ):
            getattr(self._c, "fa_" + name).argtypes = types
        about = json.loads(self._c.fa_describe())
        self.step, self.kind, self.supports = about["step"], about["kind"], about["supports"]
        self.variants = about["variants"]  # [{name, idea, dtype, writes_lse, backward}]

    def _require(self, status):
        if status != 0:
            raise Refused(status, self._c.fa_last_error().decode())

    def check(self, sizes):
        """\\raises Refused when the step does not support the problem."""
        self._require(self._c.fa_check(_problem(sizes)))

    def workspace_bytes(self, variant, sizes):
        found = ctypes.c_size_t()
        self._require(self._c.fa_workspace_bytes(variant, _problem(sizes), found))
        return found.value

    def runner(self, direction, variant, sizes, addresses):
        """A function that queues one "forward" or "backward". `variant` is its place in the list;
        `addresses` names device memory as TENSORS does, absent is null."""
        function, problem = getattr(self._c, "fa_" + direction), _problem(sizes)
        tensors = _Tensors(**addresses)
        return lambda: self._require(function(variant, problem, tensors))

    def release(self):
        """Frees the workspaces."""
        self._require(self._c.fa_release())

    def malloc(self, size):
        p = ctypes.c_void_p()
        self._require(self._c.fa_malloc(p, size))
        return p.value

    def free(self, address):
        self._require(self._c.fa_free(address))

    def upload(self, address, values):
        """`values`: an array.array."""
        start, count = values.buffer_info()
        self._require(self._c.fa_upload(address, start, count * values.itemsize))

    def download(self, address, values):
        """Fills an array.array."""
        start, count = values.buffer_info()
        self._require(self._c.fa_download(start, address, count * values.itemsize))
