"""Inline PTX that the simulator knows, as calls of its instructions.

One asm statement holds one instruction, or several that end with ';', perhaps in braces. An operand
is %0, %1, ..., a number, or a register that the statement declares. Branches only repeat a try_wait
until it succeeds."""

import re

HERE = "::sim::Where::here()"
SHARED = "::sim::program::shared_pointer"

TICKS = "::sim::program::ticks()"
REGISTERS = {"laneid": "::sim::program::lane()", "clock": f"(unsigned){TICKS}"}
REGISTERS |= {"clock64": TICKS, "globaltimer": TICKS, "tid.x": "threadIdx.x"}
REGISTERS |= {"ctaid.x": "blockIdx.x", "ntid.x": "blockDim.x", "nctaid.x": "gridDim.x"}
TYPES = {".pred": "bool", ".b32": "uint32_t", ".u32": "uint32_t", ".s32": "int32_t"}
TYPES |= {".b64": "uint64_t", ".u64": "uint64_t", ".f32": "float"}


class PtxError(Exception):
    """Says what the simulator does not have."""


def translate(template, outputs, inputs):
    """C++ that does what the instructions do.

    \\p outputs and inputs: [(constraint, expression)]."""
    operands = [text for _, text in outputs + inputs]
    declared = {"_": "_"}  # registers of the statement; _ takes what nobody wants

    def value(text):
        text = text.strip()
        if text in declared:
            return declared[text]
        if re.fullmatch(r"%\d{1,4}", text) and int(text[1:]) < len(operands):
            return operands[int(text[1:])]
        if re.fullmatch(r"-?\d+|0x[0-9a-fA-F]+", text):
            return text
        if text.removeprefix("%%") in REGISTERS:
            return REGISTERS[text.removeprefix("%%")]
        raise PtxError(f"the PTX operand '{text}'")

    constraints = [constraint for constraint, _ in outputs + inputs]
    statements = []
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", template, flags=re.DOTALL).strip()
    if text.startswith("{") and text.rstrip("; \t\n").endswith("}"):
        text = text.rstrip("; \t\n")[1:-1]
    if re.search(r"\bbra\b", text):  # until it succeeds: a wait
        text = text.replace("mbarrier.try_wait.", "mbarrier.wait.")
    waits = "mbarrier.wait." in text
    for line in text.split(";"):
        line = " ".join(line.split())
        if waits:
            line = re.sub(r"^([\w$%=]+: ?)+|^(@\S+ )?bra\b.*", "", line)
        if not line:
            continue
        of_type = re.fullmatch(r"\.reg (\.\w+) (.+)", line)
        if of_type and of_type[1] in TYPES:
            for name in of_type[2].split(","):
                declared[name.strip()] = "fa_" + re.sub(r"\W", "_", name.strip())
                statements.append(f"{TYPES[of_type[1]]} {declared[name.strip()]} = {{}};")
            continue
        if re.match(r"(fma|\w+\.approx)\S*\.f32 ", line):
            for n in map(int, re.findall(r"%(\d{1,4})", line)):
                if n < len(constraints) and "f" not in constraints[n]:
                    raise PtxError(f"the PTX '{line}' with an operand that is no float")
        guard, line = re.fullmatch(r"(?:@(\S+) )?(.*)", line).groups()
        condition = ""
        if guard:
            condition = f"if ({'!' * guard.startswith('!')}{value(guard.lstrip('!'))}) "
        statements.append(f"{condition}{{ {instruction(line, value)} }}")
    return "{ " + " ".join(statements) + " }"


def arguments(text):
    """ "{%0, %1}, [%2, {%3}], p|q, 16" -> [["%0", "%1"], ["%2", "%3"], ["p", "q"], ["16"]]"""
    parts = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", text)
    return [[x.strip(" {}[]") for x in re.split(r"[,|]", part)] for part in parts]


def instruction(line, value):
    name = re.match(r"[\w.:%]*", line)[0]
    rest = line[len(name) :].strip()
    if name.startswith("tcgen05.mma") and re.match(r"\[[^]]*\], ?\[", rest):
        name += ".a_in_tensor_memory"
    for pattern, make in INSTRUCTIONS:
        match = re.fullmatch(pattern, name)
        if match:
            args = [[value(x) for x in group] for group in arguments(rest)]
            group = re.search(r"\.cta_group::([^.]+)", name)
            group = value(group[1]) if group else "1"
            one = f"::sim::program::need_one_cta({group}, {HERE}); " if group != "1" else ""
            try:
                return one + make(match, args)
            except (IndexError, ValueError):
                raise PtxError(f"the PTX '{line}'") from None
    raise PtxError(f"the PTX instruction {name}")


def cp_async(match, args):
    to, source, size, *more = (group[0] for group in args)
    filled = more[0] if more else size
    return f"::sim::cp_async({SHARED}({to}), (const void*)({source}), {size}, {filled}, {HERE});"


def ldmatrix(match, args):
    count = int(match["count"])
    trans = "true" if match["trans"] else "false"
    out = "".join(f" {x} = fa_r[{i}];" for i, x in enumerate(args[0]))
    if len(args[0]) != count:
        raise ValueError
    call = f"::sim::ldmatrix(fa_r, {count}, {trans}, {SHARED}({args[1][0]}), {HERE});"
    return f"{{ uint32_t fa_r[4]; {call}{out} }}"


def mma(match, args):
    d, a, b, c = args
    if (len(d), len(a), len(b), len(c)) != (4, 4, 2, 4):
        raise ValueError
    out = "".join(f" {x} = fa_d[{i}];" for i, x in enumerate(d))
    return (
        f"{{ uint32_t fa_a[4] = {{{', '.join(a)}}}, fa_b[2] = {{{', '.join(b)}}}; "
        f"float fa_d[4] = {{{', '.join(c)}}}; "
        f"::sim::mma_m16n8k16(fa_d, fa_a, fa_b, {HERE});{out} }}"
    )


def barrier(match, args):
    if match[0] == "bar.sync" and args == [["0"]]:
        return f"::sim::sync_block({HERE});"
    waits = "false" if match[0] == "bar.arrive" else "true"
    return f"::sim::sync_named({args[0][0]}, {args[1][0]}, {waits}, {HERE});"


def bar_at(address):
    return f"static_cast<uint64_t*>({SHARED}({address}))"


def arrive(match, args):
    (state,), (bar,), *bytes_of = args
    if state != "_" or bool(bytes_of) != bool(match["expect"]):
        raise ValueError
    return f"::sim::mbarrier_arrive({bar_at(bar)}, {bytes_of[0][0] if bytes_of else 0}, {HERE});"


def mbarrier_wait(match, args):
    (done,), (bar,), (parity,), *_ = args
    call = "mbarrier_wait" if match["how"] == "wait" else "mbarrier_try_wait"
    wait = f"::sim::{call}({bar_at(bar)}, {parity}, {HERE})"
    return f"{wait}; {done} = true;" if match["how"] == "wait" else f"{done} = {wait};"


def proxy_fence(match, args):
    memories = {"global": ["device"], None: ["shared", "device"]}.get(match["of"], ["shared"])
    return " ".join(f"::sim::proxy_fence(::sim::ProxyFence::{memory});" for memory in memories)


def elect(match, args):
    (leader, elected), (mask,) = args
    stored = f" {leader} = fa_leader;" if leader != "_" else ""
    return (
        f"::sim::sync_warp({mask}, {HERE}); const auto fa_leader = ::std::countr_zero((unsigned)"
        f"({mask})); {elected} = ::sim::program::lane() == fa_leader;{stored}"
    )


def box(match, tensor_map, at):
    """The declaration of fa_at, and the arguments that name a box of a tensor."""
    if len(at) != int(match["rank"]):
        raise ValueError
    declared = f"const int fa_at[] = {{{', '.join(f'(int)({x})' for x in at)}}};"
    return declared, f"(const ::sim::TensorMap*)({tensor_map}), fa_at, {len(at)}"


def tma_load(match, args):
    (to,), (tensor_map, *at), (bar,), *hint = args
    if len(hint) != bool(match["hint"]):
        raise ValueError
    declared, named = box(match, tensor_map, at)
    return f"{declared} ::sim::tma_load({SHARED}({to}), {named}, {bar_at(bar)}, 0, {HERE});"


def tma_store(match, args):
    (tensor_map, *at), (source,) = args
    declared, named = box(match, tensor_map, at)
    return f"{declared} ::sim::tma_store({named}, {SHARED}({source}), {HERE});"


def bulk_load(match, args):
    (to,), (source,), (size,), (bar,) = args
    return (
        f"::sim::bulk_load({SHARED}({to}), (const void*)({source}), {size}, {bar_at(bar)}, {HERE});"
    )


def bulk_store(match, args):
    (to,), (source,), (size,) = args
    return f"::sim::bulk_store((void*)({to}), {SHARED}({source}), {size}, {HERE});"


def vectors(match, args):
    """Loads or stores of 16 bytes."""
    loads = match["what"] == "ld"
    registers, (address,) = args if loads else args[::-1]
    count = int(match["count"])
    if len(registers) != count:
        raise ValueError
    at = f"{SHARED}({address})" if match["space"] == "shared" else address
    code = f"auto* const fa_at = (uint4*)({at});"
    for i in range(0, count, 4):
        four, into = registers[i : i + 4], f"fa_at[{i // 4}]"
        if loads:
            code += f" const uint4 fa_{i} = {into};"
            for x, r in zip("xyzw", four):
                code += f" ::sim::program::move({r}, fa_{i}.{x});"
        else:
            bits = ", ".join(f"::std::bit_cast<uint32_t>({r})" for r in four)
            code += f" {into} = make_uint4({bits});"
    return code


def tensor_alloc(match, args):
    (address,), (columns,) = args
    return f"::sim::tcgen05_alloc(static_cast<uint32_t*>({SHARED}({address})), {columns}, {HERE});"


def tensor_mma(match, args):
    (d,), (a,), (b,), (descriptor,), (accumulate,) = args
    in_tensor_memory = "true" if match["a"] else "false"
    a, b = (f"::sim::tcgen05_operand({x}, {HERE})" for x in (a, b))
    if match["a"]:
        a = f"(uint32_t)({args[1][0]})"
    return (
        f"::sim::tcgen05_mma({{(uint32_t)({d}), {a}, {in_tensor_memory}, {b}, "
        f"(uint32_t)({descriptor}), {accumulate}}}, {HERE});"
    )


def tensor_move(match, args):
    registers, (address,) = args if match["what"] == "ld" else args[::-1]
    if len(registers) != int(match["columns"]):
        raise ValueError
    call = f"::sim::program::tcgen05_{match['what']}"
    return f"{call}({HERE}, {address}, {', '.join(registers)});"


def mov(match, args):
    (to,), (value,) = args
    return f"::sim::program::move({to}, {value});"


GROUP = r"\.cta_group::([12]|%\d+)"
IN_SHARED = r"(\.shared(::cta|::cluster)?)?\.b64"
ORDER = r"(\.(release|acquire|relaxed)\.(cta|cluster))?"
TENSOR = r"cp\.async\.bulk\.tensor\.(?P<rank>[1-5])d"
ALIGNED = r"\.sync\.aligned"
INSTRUCTIONS = [
    (
        rf"mbarrier\.init{IN_SHARED}",
        lambda m, a: f"::sim::mbarrier_init({bar_at(a[0][0])}, {a[1][0]}, {HERE});",
    ),
    (
        rf"mbarrier\.inval{IN_SHARED}",
        lambda m, a: f"::sim::mbarrier_inval({bar_at(a[0][0])}, {HERE});",
    ),
    (rf"mbarrier\.arrive(?P<expect>\.expect_tx)?{ORDER}{IN_SHARED}", arrive),
    (rf"mbarrier\.(?P<how>wait|try_wait|test_wait)\.parity{ORDER}{IN_SHARED}", mbarrier_wait),
    (r"fence\.mbarrier_init\.release\.cluster", lambda m, a: "::sim::mbarrier_init_fence();"),
    (r"fence\.proxy\.async(\.(?P<of>shared::cta|shared::cluster|global))?", proxy_fence),
    (
        rf"{TENSOR}\.shared::c(ta|luster)\.global(\.tile)?\.mbarrier::complete_tx::bytes"
        rf"({GROUP})?(?P<hint>\.L2::cache_hint)?",
        tma_load,
    ),
    (rf"{TENSOR}\.global\.shared::cta(\.tile)?\.bulk_group", tma_store),
    (
        r"cp\.async\.bulk\.shared::c(ta|luster)\.global\.mbarrier::complete_tx::bytes",
        bulk_load,
    ),
    (r"cp\.async\.bulk\.global\.shared::cta\.bulk_group", bulk_store),
    (r"cp\.async\.bulk\.commit_group", lambda m, a: "::sim::bulk_commit();"),
    (
        r"cp\.async\.bulk\.wait_group(?P<read>\.read)?",
        lambda m, a: f"::sim::bulk_wait({a[0][0]}, {'true' if m['read'] else 'false'});",
    ),
    (r"prefetch\.tensormap", lambda m, a: ""),
    (r"elect\.sync", elect),
    (r"setp\.ne\.[bsu]32", lambda m, a: f"{a[0][0]} = ({a[1][0]}) != ({a[2][0]});"),
    (r"selp\.[bsu]32", lambda m, a: f"{a[0][0]} = {a[3][0]} ? ({a[1][0]}) : ({a[2][0]});"),
    (r"(?P<what>ld|st)\.(?P<space>global|shared)\.v(?P<count>4|8)\.b32", vectors),
    (rf"tcgen05\.alloc{GROUP}{ALIGNED}(\.shared::cta)?\.b32", tensor_alloc),
    (
        rf"tcgen05\.dealloc{GROUP}{ALIGNED}\.b32",
        lambda m, a: f"::sim::tcgen05_dealloc({a[0][0]}, {a[1][0]}, {HERE});",
    ),
    (
        rf"tcgen05\.relinquish_alloc_permit{GROUP}{ALIGNED}",
        lambda m, a: f"::sim::tcgen05_relinquish_alloc_permit({HERE});",
    ),
    (rf"tcgen05\.mma{GROUP}\.kind::f16(?P<a>\.a_in_tensor_memory)?", tensor_mma),
    (
        rf"tcgen05\.commit{GROUP}\.mbarrier::arrive::one{IN_SHARED}",
        lambda m, a: f"::sim::tcgen05_commit({bar_at(a[0][0])}, {HERE});",
    ),
    (rf"tcgen05\.(?P<what>ld|st){ALIGNED}\.32x32b\.x(?P<columns>\d+)\.b32", tensor_move),
    (
        rf"tcgen05\.wait::(?P<what>ld|st){ALIGNED}",
        lambda m, a: f"::sim::tcgen05_wait({'true' if m['what'] == 'ld' else 'false'}, {HERE});",
    ),
    (
        r"tcgen05\.fence::(?P<when>before|after)_thread_sync",
        lambda m, a: f"::sim::tcgen05_fence({'true' if m['when'] == 'before' else 'false'});",
    ),
    (r"cp\.async\.c[ag]\.shared\.global(\.L2::\d+B)?", cp_async),
    (r"cp\.async\.commit_group", lambda m, a: "::sim::cp_async_commit();"),
    (r"cp\.async\.wait_all", lambda m, a: "::sim::cp_async_wait_all();"),
    (r"cp\.async\.wait_group", lambda m, a: f"::sim::cp_async_wait({a[0][0]});"),
    (
        r"ldmatrix\.sync\.aligned\.(m8n8\.)?x(?P<count>[124])(?P<trans>\.trans)?(\.m8n8)?\.shared\.b16",
        ldmatrix,
    ),
    (r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.bf16\.bf16\.f32", mma),
    (r"bar\.sync|barrier\.sync(\.aligned)?|bar\.arrive", barrier),
    (r"membar\.(gl|sys)|fence\.acq_rel\.(gpu|sys)", lambda m, a: "::sim::fence();"),
    (r"mov\.[usbf](32|64)", mov),
    (r"fma\.rn\.f32", lambda m, a: f"{a[0][0]} = ::std::fma({a[1][0]}, {a[2][0]}, {a[3][0]});"),
    (r"ex2\.approx(\.ftz)?\.f32", lambda m, a: f"{a[0][0]} = ::std::exp2({a[1][0]});"),
    (r"lg2\.approx(\.ftz)?\.f32", lambda m, a: f"{a[0][0]} = ::std::log2({a[1][0]});"),
    (r"rcp\.approx(\.ftz)?\.f32", lambda m, a: f"{a[0][0]} = 1.0f / ({a[1][0]});"),
    (r"tanh\.approx\.f32", lambda m, a: f"{a[0][0]} = ::std::tanh({a[1][0]});"),
]
