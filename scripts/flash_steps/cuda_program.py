"""./scripts/sim: translates, compiles, links and runs a CUDA program in the simulator."""

import functools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from flash_steps import building, command, sarif
from flash_steps.command import BadInput, Failure, NotHere, no_room, require_folder, require_values
from flash_steps.cuda_translator import TranslationError, Translator
from flash_steps.files import (
    ROOT,
    read_json,
    read_text,
    require_writable,
    text_of,
    version,
    write_text,
)
from flash_steps.gpu_table import find_model

INSTALLED = os.path.join(ROOT, "built")  # by common/sim/any/CMakeLists.txt, in place of a tree
HERE = os.path.isdir(INSTALLED)
HOW = os.path.join(ROOT, "build", "sim", "common", "sim", "any", "how_to_build.txt")
HOW = os.path.join(INSTALLED, "how_to_build.txt") if HERE else HOW
STAND_INS = os.path.join(ROOT, "common", "sim", "any", "include")
OURS = (STAND_INS + os.sep, os.path.dirname(HOW) + os.sep)
CPLUSPLUS = (".cu", ".cpp", ".cc", ".cxx", ".cuh")
# Patterns of features that the simulator lacks; {}: the text found.
UNSUPPORTED = [
    (
        r"\b(tex1D|tex2D|tex3D|tex1Dfetch|texture\s*<|cudaTextureObject_t|cudaCreateTextureObject|cudaBindTexture)",
        "textures",
    ),
    (r"\b(surf2Dread|surf2Dwrite|cudaSurfaceObject_t|surface\s*<)", "surfaces"),
    (r"\bcudaArray\w*|\bcudaMallocArray|\bcudaMalloc3D\w*|\bcudaMemcpy3D\w*", "CUDA arrays"),
    (r"\bcudaIpc\w*", "memory of other processes"),
    (r"\bcudaMemPool\w*|\bcudaMallocFromPoolAsync", "memory pools"),
    (r"\bcudaImportExternal\w*|\bcudaExternal\w*|\bcudaGraphics\w*", "graphics"),
    (r"\b__nv_fp6\w*", "fp6 types"),
    (r"(?<!thrust::)(?<!system::)\bcuda::", "libcu++ (cuda::)"),
    (
        r"\b(multi_grid_group|this_multi_grid)\b",
        "this part of cooperative groups",
    ),
    (r"\b__block_size__|\bcudaLaunchAttribute\w*", "launch attributes"),
    (
        r"\bcu(?!Init\b|DeviceGet(?:Count)?\b)(?:Init|Device|Ctx|Module|Launch|Mem|Func|Link|Get(?!Error)"
        r"|Stream|Event|Library|Kernel|Occupancy)\w+\b"
        r"|\bCU(?!stream_st|event_st|tensorMap|result|device\b)[a-z]\w*",
        "{} of the driver API",
    ),
    (
        r"\b__v(add|sub|abs|max|min|cmp|set|avg)\w*\s*\(",
        "SIMD intrinsics of bytes and halves of a word",
    ),
]
# Beginnings of headers, and their library.
LIBRARIES = """
cublasXt: cuBLASXt, cudnn: cuDNN, cufft: cuFFT,
cusparse: cuSPARSE, cusolver: cuSOLVER, cub/: CUB, cute/: CUTLASS,
cutlass: CUTLASS, cuda/: libcu++, nvtx: NVTX, nvToolsExt: NVTX, nccl: NCCL, mpi.h: MPI,
npp: NPP, nvjpeg: nvJPEG,
cuda_fp6: fp6 types, GL/: OpenGL, cuda_gl_interop: OpenGL, texture_: textures,
channel_descriptor: textures, surface_: surfaces, nvml: NVML, cupti: CUPTI, nvrtc: NVRTC,
cudnn_frontend: cuDNN
"""
LIBRARIES = dict(pair.split(": ") for pair in " ".join(LIBRARIES.split()).split(", "))


# Not callable in a kernel here: they get names by which the program (session.cpp) reports them.
ALLOCATING = ("malloc", "calloc", "realloc", "_Znwm", "_Znam")
FORCED = "__attribute__((always_inline))"  # from __forceinline__


class Refused(BadInput):
    """A program that cannot be compiled or run here."""


def how_to_build():
    """Compiler, flags and libraries as CMake recorded them. Builds the simulator."""
    if not HERE and not is_built():
        build_simulator()
    lines = read_text(HOW).replace("@ROOT@", ROOT).splitlines()
    rows = dict(line.partition(" ")[::2] for line in lines)
    rows["flags"], rows["cuda"] = rows["flags"].split(";"), rows["cuda"].split(";")
    return rows


def arch_of(gpu):
    return int(find_model(gpu)["arch"].removeprefix("sm_"))


def macros_of(gpu):
    """Macros of the GPU's compiler, in the oldest toolkit from 12.4 on that supports it. The
    precompiled header contains none of them, so it fits them all."""
    arch = arch_of(gpu)
    major, minor = (12, 8) if arch >= 100 else (12, 4)
    macros = {
        "__CUDA_ARCH__": 10 * arch,
        "__CUDACC_VER_MAJOR__": major,
        "__CUDACC_VER_MINOR__": minor,
        "CUDART_VERSION": 1000 * major + 10 * minor,
    }
    if arch >= 90:
        macros[f"__CUDA_ARCH_FEAT_SM{arch}_ALL"] = 1
    return [f"-D{name}={value}" for name, value in macros.items()]


def is_built():
    """Is the simulator newer than its files, and built in this tree? Ten times as fast as CMake."""
    files = [path for path in Path(ROOT, "common").rglob("*.*") if not path.name.startswith(".")]
    files += [Path(ROOT, "CMakeLists.txt"), Path(ROOT, "CMakePresets.json"), HOW]
    # Without a row for torch, an earlier configuration wrote it.
    stamp = os.path.join(os.path.dirname(HOW), "built")
    here = not building.made_for(os.path.join(ROOT, "build", "sim"))
    return here and building.is_newer(stamp, files) and "\ntorch " in text_of(HOW)


def build_simulator():
    if not shutil.which("cmake"):
        raise Refused(
            "there is no cmake here: ./scripts/setup.sh installs what the simulator needs"
        )
    path = os.path.join(ROOT, "build", "sim.log")
    say(f"building the simulator, the first time a minute or two ({os.path.relpath(path, ROOT)})")
    try:
        failed = building.build_or_say("sim", ["any_program"], path, sys.stderr)
    except OSError as error:
        raise Refused(f"{error.filename} cannot be written: {error.strerror}") from None
    if failed:
        print(failed[1], file=sys.stderr)
        raise Refused(f"the simulator was not built: {shlex.join(failed[0])} failed")


def say(sentence):
    print(f"sim: {sentence}", file=sys.stderr)


def missing_header(error, said):
    match = re.match(r"(?P<place>.+?:\d+):\d+: fatal error: (?P<name>[^:]+): No such file", error)
    if not match:
        return None
    place, name = short(match["place"]), match["name"]
    if name.startswith(("torch/", "ATen/", "c10/", "pybind11/")):
        return f"{name}, which {place} includes, is not in the simulator's torch"
    library = library_of(name)
    if library:
        return f"not supported: {library}, which {place} includes"
    if name.startswith("thrust/"):
        outer = re.findall(r"(?m)^(?:In file included| +) from (\S+:\d+)", said)
        user = short(outer[-1]) if outer else place
        if "/thrust/" in match["place"] and not match["place"].startswith(OURS):
            return f"not supported: this part of Thrust, which {user} includes"
        return f"{user} includes {name}, which is not here: the package libthrust-dev has Thrust"
    return f"{place} includes {name}, which is not here: give its folder with -I"


def library_of(header):
    return next((name for begin, name in LIBRARIES.items() if header.startswith(begin)), None)


@functools.cache
def folder_of_toolkit(folder):
    """The include folder of the CUDA toolkit, or of CUB's package, that contains or is `folder`."""
    here = Path(folder)
    marks = ("cuda_runtime_api.h", "cub/cub.cuh")
    return next((p for p in [here, *here.parents] if any((p / m).is_file() for m in marks)), None)


def toolkit_header(text):
    """A refusal if the preprocessed text enters a header of an installed toolkit. The simulator
    replaces the runtime's headers, which are found first; the libraries' headers need the real
    runtime, except for Thrust's and what these include. A toolkit may be among the system
    headers."""
    now = ""
    for marker in re.finditer(r'^# \d+ "([^"\n]*)"([ \d]*)$', text, re.MULTILINE):
        path = marker[1]
        folder = folder_of_toolkit(os.path.dirname(path)) if "1" in marker[2].split() else None
        if folder and not path.startswith(ROOT + os.sep) and "NVIDIA" in text_of(path)[:4000]:
            name = os.path.relpath(path, folder).removeprefix("cccl" + os.sep)
            from_thrust = now.startswith(OURS)
            from_thrust |= os.path.relpath(now, folder).startswith(("thrust/", "cuda/", "nv/"))
            what = library_of(name)
            if not what and (folder / "cuda_runtime_api.h").is_file():
                what = f"NVIDIA's {name}"
            if from_thrust or name.startswith("thrust/") or not what:
                now = path
                continue
            end = re.escape(os.path.basename(name))
            includes = rf'^[ \t]*#[ \t]*include[ \t]*[<"].*{end}[>"]'
            lines = re.split(includes, text_of(now), maxsplit=1, flags=re.MULTILINE)
            line = f":{lines[0].count(chr(10)) + 1}" if len(lines) > 1 else ""
            return f"not supported: {what}, which {short(now)}{line} includes"
        now = path
    return None


def short(place):
    return place.rsplit("/", 1)[-1]


def unsupported_in(path, line=None):
    """The first unsupported feature of the text, or of a line of it."""
    for number, text in enumerate(text_of(path).splitlines(), 1):
        if line is not None and number != line:
            continue
        code = re.sub(r"//.*|\"(?:[^\"\\]|\\.)*\"", "", text)
        for pattern, name in UNSUPPORTED:
            found = re.search(pattern, code)
            if found:
                what = name.format(found[0])
                return f"not supported: {what} ({os.path.basename(path)}:{number})"
    return None


# A name of NVIDIA's; two leading underscores belong to the implementation.
NVIDIAS = (
    r"(cuda|cublas|cusparse|cusolver|cufft|curand|cudnn|nccl|nvml|nvtx|nvrtc|npp)[A-Z_]\w*"
    r"|cu[A-Z]\w+|_?(CU|CUDA|CUBLAS|CURAND|NVML)_\w+|__[A-Za-z]\w*"
    r"|(nvcuda|cuda|cg|cooperative_groups|thrust|cub)\b"
)
NOT_FOUND = (
    r"'(?P<member>\w+)' in namespace '(?P<inside>[\w:]+)' does not name a"
    r"|'(?:struct |class |enum |const )*(?P<name>[\w:]+)(?:<.*>)?' (?:was not declared"
    r"|has not been declared|does not name a (?:template )?type"
    r"|is not a member of '(?P<scope>[\w:]+))"
    r"|'(?:struct |class |const )*(?P<of>[\w:]+)' has no member named '(?P<field>\w+)'"
    r"|use of deleted function '\w+ (?P<deleted>\w+\(.*\))'"
)


def of_simulator(said):
    """The simulator's sentence about a missing feature, with the user's line that leads there."""
    # An installed precompiled header names the folders in which it was made.
    own = r"(?m)^\S+/common/sim/any/\S+: error: static assertion failed: (.* not supported)$"
    own = re.search(own, said)
    if not own:
        return None
    places = re.findall(r"(?m)^(?:In file included )?(/?\S+?):(\d+):\d+:\s+required from", said)
    users = [place for place in places if not re.search("/common/(sim|dialect)/", place[0])]
    if not users:
        return None
    file, line = users[-1]
    what = re.sub(r" (is|are) not supported$", "", own[1])
    return f"not supported: {what} ({short(file)}:{line})"


def of_torch(lost):
    """The sentence about what the stand-in for PyTorch's headers lacks."""
    scope = lost["scope"] or lost["inside"] or lost["of"] or ""
    if scope.split("::")[0] not in ("torch", "at", "c10", "pybind11", "py"):
        return None
    scope = "Tensor" if scope == "at::Tensor" else scope
    name = lost["field"] or lost["name"] or lost["member"]
    return f"{scope}::{name} is not in the simulator's torch"


def explain(error, path, said):
    """Why a file did not compile, in one sentence where we know it."""
    known = missing_header(error, said) or of_simulator(said)
    if known:
        return known
    match = re.match(r"(?P<file>.+?):(?P<line>\d+):\d+: ", error)
    lost = re.search(NOT_FOUND, re.sub("[‘’]", "'", error.splitlines()[0]))
    if match:
        known = unsupported_in(match["file"], int(match["line"]))
        if known and not (lost and "libcu++" in known):
            return known
        words = lost.group("name", "scope", "inside", "of") if lost else ()
        if lost and (known := of_torch(lost)):
            return f"{known} ({short(match['file'])}:{match['line']})"
        if any(word and re.match(NVIDIAS, word) for word in words) or lost and lost["deleted"]:
            what = lost["deleted"] or lost["name"] or lost["member"]
            what = what or f"{lost['of']}::{lost['field']}"
            if lost["scope"] in ("thrust", "cub"):
                what = f"{lost['scope']}::{what}"
            return f"not supported: {what} ({short(match['file'])}:{match['line']})"
    known = None if lost else unsupported_in(path)
    return f"{known}\n{error}" if known else error


def unset_variables(said, files):
    """g++'s warnings of uninitialised variables, as remarks: on a GPU a register holds anything."""
    pattern = r"(?m)^(.+?):(\d+):\d+: warning: '([^']+)' .*\[-W(maybe-)?uninitialized\]$"
    for file, line, name, maybe in re.findall(pattern, said):
        if file in files:
            sees = f"{name} {'may be' if maybe else 'is'} read before it is set"
            yield f"{sees} ({short(file)}:{line}), as the compiler sees it"


STACK = 64 << 10  # bytes per thread, at least
LOCAL = 1 << 20  # bytes: twice what nvcc gives a thread


def local_bytes(stack_usage, kernels):
    """The most that a kernel has in local arrays and spilled registers."""
    most = 0
    for place, name, size in re.findall(r"(?m)^(.+?:\d+):\d+:(.*)\t(\d+)\t", stack_usage):
        if kernels & set(re.findall(r"\b(\w+)[<(]", name)):
            most = max(most, int(size))
            if most > LOCAL:
                raise Refused(f"not supported: {most} bytes of local arrays ({short(place)})")
    return most


def compile_file(path, how, options, folder, number):
    """Compiles one source file to an object, with C files as C; returns remarks."""
    base = os.path.join(folder, f"{number}_{os.path.basename(path)}")
    given = []  # a toolkit's Thrust comes after the package's
    for place in (os.path.dirname(path) or ".", *options.include):
        given += ["-idirafter" if folder_of_toolkit(place) else "-I", place]
    given += [f"-D{name}" for name in options.define]
    openmp = ["-fopenmp"] if options.openmp else []
    english = {**os.environ, "LC_ALL": "C"}

    def call(*command, before=lambda said: None, again=lambda said: None):
        """The compiler's output. `before`: a known reason for failure; `again`: retry?"""
        words = {"capture_output": True, "text": True, "errors": "replace", "env": english}
        done = subprocess.run(command, **words)
        if done.returncode and again(done.stderr):
            done = subprocess.run(command, **words)
        known = before(done.stdout)
        if not known and (full := no_room(done.stderr)):
            raise NotHere(full)
        if known or done.returncode:
            said = ["the compiler failed without a word", *done.stderr.splitlines()]
            error = building.first_error(done.stderr, 2) or said[-1]
            raise Refused(known or explain(error, path, done.stderr))
        return done

    if path.endswith(".c"):
        call("gcc", "-w", "-O2", "-g", *openmp, *given, "-c", path, "-o", base + ".o")
        return base + ".o", []
    cuda = path.endswith((".cu", ".cuh"))
    # A precompiled header is named in the preprocessor's output, and needs the same flags again.
    header = ["-include", how["torch" if options.extension else "header"]] if cuda else []
    flags = [*openmp, *how["flags"], *(how["cuda"] if cuda else []), *header]
    # The simulator's stand-ins precede a toolkit's headers named by -I.
    first = [how["compiler"], "-E", "-fpch-preprocess", "-x", "c++", f"-I{STAND_INS}"]
    source = call(*first, *flags, *given, path, before=toolkit_header).stdout
    if "/thrust/detail/config.h" in source:
        flags += ["-include", "thrust/as_for_cuda.h"]
        source = call(*first, *flags, *given, path).stdout
    own = how["cuda"] if cuda else ["-O2", "-g", "-fno-extern-tls-init"]
    watched = [flag for flag in how["flags"] if flag != "-w"]
    watched += ["-Wuninitialized", "-Wmaybe-uninitialized", "-fstack-usage"]
    flags = ["-x", "c++-cpp-output", *openmp, *watched, *own]
    made = (how["compiler"], *flags, "-c", base + ".ii", "-o", base + ".o")

    def translate(arithmetic):
        translator = Translator(os.path.join(ROOT, "common") + os.sep, arithmetic)
        try:
            text = translator.translate(source)
        except TranslationError as error:
            raise Refused(f"cannot read {error}") from None
        if options.extension:
            how["functions"] += translator.tensor_functions
            text += bindings(translator.tensor_functions, options.extension)
        write_text(base + ".ii", text)
        return translator, text

    def otherwise(said):
        """Writes text that may compile: with C++'s arithmetic and, where mutually recursive
        functions cannot be inlined, without __forceinline__, which nvcc does not enforce. In
        f<T::X>(), nvcc takes T::X for a type without typename."""
        types = set(re.findall(r"dependent-name '([\w:]+)' is parsed as a non-type", said))
        text = translate(arithmetic=cuda and bool(types))[1]
        if types:
            types = rf"(?<=[<,\s])(?<!typename )(?=(?:{'|'.join(types)})\s*[,>])"
            write_text(base + ".ii", re.sub(types, "typename ", text))
        if "inlining failed in call to 'always_inline'" in said:
            write_text(base + ".ii", text.replace(FORCED, ""))
        return True

    translator, _ = translate(arithmetic=cuda)
    done = call(*made, again=otherwise)
    remarks = list(unset_variables(done.stderr, translator.files))
    for name, place in translator.host_calls if cuda else []:
        remarks.append(f"{name} is the host's, and nvcc refuses it in a kernel ({place})")
    for number, place in translator.wide if arch_of(options.gpu) >= 90 else []:
        remarks.append(f"shared memory is aligned to 1024 bytes at most, not {number} ({place})")
    how["local"] = max(how["local"], local_bytes(text_of(base + ".su"), translator.kernels))
    if not translator.has_own_new:
        renamed = [f"--redefine-sym={name}=fa_{name}" for name in ALLOCATING]
        call("objcopy", *renamed, base + ".o")
    return base + ".o", remarks


def bindings(functions, wanted):
    """What binds functions that no PYBIND11_MODULE binds, as load_inline does; `wanted`: their
    names, or "all", or "bound" where the text does it."""
    once = [
        f for f in functions if sum(g["name"] == f["name"] for g in functions if g["defined"]) == 1
    ]
    names = {
        f["name"]: f"{f['scope']}::{f['name']}".removeprefix("::") for f in once if f["defined"]
    }
    chosen = names if wanted == "all" else [n for n in names if n in wanted]
    if wanted == "bound" or not chosen:
        return ""
    calls = "".join(f'm.def("{name}", &::{names[name]});' for name in chosen)
    body = f"[] {{ ::pybind11::module_ m; {calls} }}"
    return f"\nstatic const ::sim::torch::Module sim_unbound({body});\n"


def link(objects, how, options, folder):
    program = os.path.join(folder, "program")
    libraries = [f"-l{name}" for name in options.library]
    words = [how["compiler"], "-Wl,--whole-archive", how["simulator"], "-Wl,--no-whole-archive"]
    own_main = [how["extension"]] if options.extension else []
    words += [how["program"], *objects, *own_main, how["program"], "-o", program, *libraries]
    if "data" in how:  # installed: where the program finds GPUs (common/counts/files.cpp)
        place = ", ".join(map(str, os.fsencode(how["data"]) + b"\0"))
        text = f".section .rodata\n.globl fa_data_folder\nfa_data_folder: .byte {place}\n"
        words.append(os.path.join(folder, "data.s"))
        write_text(words[-1], text + '.section .note.GNU-stack, "", %progbits\n')
    words += ["-fopenmp", "-lpthread", "-ldl", "-lm", "-Wl,--wrap=main"]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        match = re.search(r"undefined reference to [`']([^`']+)'", done.stderr)
        if match:
            name = match[1].removeprefix("__real_")
            if name == "main":
                raise Refused("no file has a main(); ./scripts/judge runs a PyTorch extension")
            raise Refused(f"{name} is declared and nowhere defined: give the file that has it, too")
        match = re.search(r"multiple definition of [`']([^`']+)'", done.stderr)
        if match:
            raise Refused(f"several of the files define {match[1]}")
        match = re.search(r"cannot find -l([^\s:]+)", done.stderr)
        if match:
            raise Refused(f"-l {match[1]}: there is no such library")
        raise Refused(done.stderr.strip().splitlines()[-1])
    return program


def keep(program, path):
    """Also replaces a running program."""
    part = f"{path}.{os.getpid()}.part"
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # /dev/null stays a device
            shutil.copyfile(program, path)
            return
        shutil.copy(program, part)
        os.replace(part, path)
    except OSError as error:
        raise Refused(f"-o {path} cannot be written: {error.strerror}") from None
    finally:
        if os.path.exists(part):
            os.remove(part)


def wishes(options, files, report, remarks, local):
    lines = [f"program {' '.join(os.path.basename(f) for f in files)}", f"gpu {options.gpu}"]
    lines += [f"workers {options.workers}"] if options.workers else []
    lines += [f"watchdog {options.watchdog}"] if options.watchdog else []
    lines += [f"json {os.path.abspath(report)}"] if report else []
    lines += [f"limit {options.limit}"] if options.limit else []
    # Control characters: a file name may contain any, and these lines must be unambiguous.
    looks = shlex.join([sys.argv[0], "--analyse", *sys.argv[1:]])
    lines += [f"looks {looks}"] if looks.isprintable() else []
    lines += ["analyse"] if options.analyse else []
    lines += ["lines"] if options.lines else []
    lines += ["barriers"] if options.barriers else []
    lines += [f"remark {remark}" for remark in remarks]
    lines += [f"stack {local + STACK}"] if local > STACK // 2 else []
    return "\n".join(lines)


def parse(words, description):
    own = []
    if "--" in words:
        at = words.index("--")
        words, own = words[:at], words[at + 1 :]
    try:
        require_values(words)
    except BadInput as error:
        say(error)
        sys.exit(2)
    parser = command.parser(description)
    parser.prog, parser.usage = "sim", "sim [options] FILE.cu [more files] [-- its arguments]"
    add = parser.add_argument
    add("files", nargs="+", metavar="FILE", help=".cu, .cpp or .c")
    add("--version", action="version", version=f"flash-steps sim {version()}")
    add("--analyse", action="store_true", help="look for races and uninitialised reads")
    add("--lines", action="store_true", help="a row for each source line: requests, conflicts")
    add("--json", metavar="FILE", help="write the report, too")
    add("--barriers", action="store_true", help="with --json: each step of the mbarriers")
    add("--sarif", metavar="FILE", help="write the findings for code scanning")
    add("--gpu", default="H200", help="the GPU that is modelled (H200)")
    add("--workers", type=int, metavar="N", help="cores that run blocks (all)")
    watchdog = "stop a kernel that computes S seconds without a barrier (30)"
    add("--watchdog", type=float, metavar="S", help=watchdog)
    limit = "after S seconds end with the running launch, or 30 s later inside it"
    add("--limit", type=float, metavar="S", help=limit)
    several = {"action": "append", "default": []}
    add("-I", dest="include", **several, metavar="DIR", help="where its headers are")
    add("-D", dest="define", **several, metavar="NAME[=X]", help="a macro")
    add("-l", dest="library", **several, metavar="NAME", help="a host library")
    add("-fopenmp", dest="openmp", action="store_true", help="OpenMP in the host's code")
    kept = "keep the compiled program there, and do not run it"
    add("-o", dest="keep", metavar="FILE", help=kept)
    options = parser.parse_args(words)
    options.extension = None
    return options, own


def run(program, name, own, environment):
    """`name`: what the program sees as argv[0]."""
    words = [name, *own]
    with subprocess.Popen(words, executable=program, env={**os.environ, **environment}) as process:
        # The program then reports what has run so far.
        signal.signal(signal.SIGTERM, lambda *_: process.send_signal(signal.SIGTERM))
        while True:
            try:
                status = process.wait()
                break
            except KeyboardInterrupt:
                continue
    if status < 0:
        say(f"the program was ended by {signal.Signals(-status).name}")
        return 128 - status
    return status


def write_findings(options, report, status):
    """The exit status, which changes when a file cannot be written."""
    if not os.path.exists(report):
        say(f"--sarif {options.sarif} is not written: the program ended without a report")
        return status
    found = sarif.document(read_json(report), options.files[0], status)
    texts = {"--sarif": json.dumps(found, indent=1) + "\n", "--json": text_of(report)}
    for flag, path in ("--sarif", options.sarif), ("--json", options.json):
        try:
            if path:
                Path(path).write_text(texts[flag], encoding="utf-8")
        except OSError as error:
            say(f"{flag} {path} cannot be written: {error.strerror}")
            status = status or 3
    return status


def main(description):
    # During compilation: also ends child processes and removes files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options, own = parse(sys.argv[1:], description)
    try:
        require_folder()
        for path in options.files:
            if os.path.isdir(path):
                raise Refused(f"{path} is a folder: give it with -I, or give a file of it")
            if not os.path.isfile(path):
                more = "" if "." in os.path.basename(path) else "; its own arguments come after --"
                raise Refused(f"there is no file {path}{more}")
            if not path.endswith(CPLUSPLUS + (".c",)):
                raise Refused(f"{path}: its name must end with .cu, .cpp or .c")
        if options.limit is not None and options.limit <= 0:
            raise Refused(f"--limit {options.limit:g}: must be above 0")
        if options.barriers and (options.analyse or not options.json):
            raise Refused("--barriers needs --json, and --analyse is another run")
        if options.json:
            require_writable("--json", options.json, *options.files, options.keep)
        if options.sarif:
            require_writable("--sarif", options.sarif, *options.files, options.keep, options.json)
            if os.path.isfile(options.sarif):
                os.remove(options.sarif)  # an earlier run's, if this one has no findings
        if options.keep:
            require_writable("-o", options.keep, *options.files)
        how = how_to_build()
        how["flags"] += macros_of(options.gpu)
        how["local"] = 0
        with tempfile.TemporaryDirectory(prefix="sim_") as folder:
            objects, remarks = [], []
            for i, path in enumerate(options.files):
                made, noted = compile_file(path, how, options, folder, i)
                objects.append(made)
                remarks += noted
            program = link(objects, how, options, folder)
            if options.keep:
                for remark in remarks:
                    say(f"remark: {remark}")
                keep(program, options.keep)
                return 0
            name = "./" + os.path.splitext(os.path.basename(options.files[0]))[0]
            report = os.path.join(folder, "report.json") if options.sarif else options.json
            told = {
                "FLASH_STEPS_SIM": wishes(options, options.files, report, remarks, how["local"])
            }
            status = run(program, name, own, told)
            return write_findings(options, report, status) if options.sarif else status
    except Failure as error:
        say(error)
        return error.status
    except OSError as error:  # usually a full disk
        say(f"{error.filename or 'temporary files'}: {error.strerror}")
        return 3
    except KeyboardInterrupt:  # during compilation
        return 128 + signal.SIGINT
