"""A CUDA extension of PyTorch in the simulator, from Python, without a GPU.

    import flash_steps.simulate as sim
    ext = sim.load("flash.cu")
    O = ext.forward(Q, K, V)     # NumPy arrays, or PyTorch's CPU tensors
    ext.report()                 # counts, estimates and findings: docs/json.md

A call raises Finding where the simulator finds a race, an uninitialised read or a bad access, and
RuntimeError where the extension's own check fails. Neither NumPy nor PyTorch is needed: whatever
has Python's buffer protocol is an argument.
"""

import ctypes
import os
import tempfile
import weakref

from . import extension
from .extension import FORMATS, Tensor

TYPES = {form: type for type, form in FORMATS.items()} | {"l": "int64"}
VIEWS = {**FORMATS, "bfloat16": "H", "float16": "H"}  # no memoryview casts to "e"


class Finding(RuntimeError):
    """What the simulator found, in one sentence; `findings` has all, as in the report."""

    def __init__(self, findings):
        super().__init__(findings[0]["message"])
        self.findings = findings


def load(name=None, sources=None, extra_include_paths=(), gpu="H200", **_):
    """`load("flash.cu")`, or as torch.utils.cpp_extension.load: a name and the files."""
    files = [sources or name] if isinstance(sources or name, (str, os.PathLike)) else sources
    return Extension([os.fspath(f) for f in files], None, extra_include_paths, gpu)


def load_inline(name="", cpp_sources="", cuda_sources="", functions=None, gpu="H200", **_):
    """As torch.utils.cpp_extension.load_inline. `functions`: their names; others are not bound."""
    texts = [[t] if isinstance(t, str) else list(t) for t in (cpp_sources, cuda_sources)]
    head = "#include <torch/types.h>\n#include <cuda_runtime.h>\n"
    wanted = [functions] if isinstance(functions, str) else list(functions or [])
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, f"{name or 'inline'}.cu")
        with open(path, "w", encoding="utf-8") as file:
            file.write(head + "\n".join(t for part in texts for t in part))
        return Extension([path], wanted or None, (), gpu)


def _tensor(value):
    """A Tensor of an array or a PyTorch tensor, and where to write what the call changes."""
    type = str(getattr(value, "dtype", "")).removeprefix("torch.")
    if hasattr(value, "detach"):  # PyTorch's
        value = value.detach()
        bits = value.view(value.new_zeros(0).short().dtype) if type == "bfloat16" else value
        place = memoryview(bits.contiguous().numpy())
    else:
        place = memoryview(value)
    type = type if type in extension.SIZES else TYPES[place.format]
    return Tensor(list(place.shape), type, place.tobytes()), place


class Extension:
    """The functions that the files bind, as attributes."""

    def __init__(self, files, functions, include, gpu):
        folder = tempfile.TemporaryDirectory(prefix="simulate_")
        weakref.finalize(self, folder.cleanup)
        path, how = extension.build(files, folder.name, gpu, functions, include)
        self._program = extension.Program(path, how, files, gpu)
        weakref.finalize(self, self._program.close)
        self._report = None

    def __dir__(self):
        return [f["name"] for f in self._program.functions]

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        names = self.__dir__()
        if name not in names:
            others = ", ".join(names) or "nothing"
            raise AttributeError(f"the extension binds no '{name}', but {others}")
        index = names.index(name)
        return lambda *words, **named: self._call(index, words, named)

    def report(self):
        """Of all calls so far; None before the first one."""
        return self._report

    def _call(self, index, words, named):
        parameters = self._program.functions[index]["parameters"]
        values, places, like = [], [], None
        if len(words) > len(parameters):
            raise TypeError(f"{len(words)} arguments are given, not {len(parameters)}")
        for name in set(named) - {p["name"] for p in parameters[len(words) :]}:
            raise TypeError(f"argument '{name}' is unknown or given twice")
        given = dict(enumerate(words))
        for i, parameter in enumerate(parameters):
            value = given.get(i, named.get(parameter["name"], parameter.get("default", given)))
            if value is given and not parameter["kind"].endswith("?"):
                raise TypeError(f"argument {i + 1} of {len(parameters)} is missing")
            value = None if value is given else value
            if parameter["kind"].startswith("tensor") and value is not None:
                like = value
                value, place = _tensor(value)
                value.name = parameter["name"] or f"argument {i + 1}"
                places.append(place)
            values.append(value)
        try:
            results, after, answer = self._program.call(index, values, anew=False)
        except extension.CheckFailed as failed:
            self._keep(failed.answer)
            raise RuntimeError(str(failed)) from None
        self._keep(answer)
        for place, data in zip(places, after):
            if not place.readonly and place.tobytes() != data:
                if not place.c_contiguous:
                    raise ValueError("the call writes to an array that is not contiguous")
                (ctypes.c_char * place.nbytes).from_buffer(place).raw = data
        made = [self._made(r, like) if isinstance(r, Tensor) else r for r in results]
        return made[0] if len(made) == 1 else tuple(made) if made else None

    def _keep(self, answer):
        before = len(self._report["findings"]) if self._report else 0
        self._report = answer["report"]
        if len(self._report["findings"]) > before:
            raise Finding(self._report["findings"][before:])

    @staticmethod
    def _made(result, like):
        view = memoryview(bytearray(result.data))
        if hasattr(like, "detach"):
            import torch

            found = torch.frombuffer(view, dtype=getattr(torch, result.type))
            return found.reshape(result.sizes)
        try:
            import numpy
        except ImportError:
            return view.cast(VIEWS[result.type], result.sizes)
        type = "uint16" if result.type == "bfloat16" else result.type
        return numpy.frombuffer(view, type).reshape(result.sizes)
