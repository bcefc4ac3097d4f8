"""The instructions of PTX that are calls of the simulator: a table of what each one means.

A row has an instruction's name in the grammar of the PTX ISA (Form), and the function that writes
its C++ from the name's parts and the operands."""

import re

HERE = "::sim::Where::here()"
PTX = "::sim::ptx"
TYPES = {f"{k}{n}": f"{'' if k == 's' else 'u'}int{n}_t" for k in "bus" for n in (8, 16, 32, 64)}
TYPES |= {"f32": "float", "f64": "double", "pred": "bool"}
TYPES |= {"f16": f"{PTX}::Half", "bf16": f"{PTX}::Bf16"}
TYPES |= {f"{h}x2": f"{PTX}::Pair<{TYPES[h]}>" for h in ("f16", "bf16")}
INTEGERS = [t for t in TYPES if re.fullmatch(r"[bus]\d+", t)]
FLOATS = ["f32", "f64", "f16", "bf16", "f16x2", "bf16x2"]
TYPES |= {"f32x2": f"{PTX}::Pair<float>", "b128": "unsigned __int128"}


class PtxError(Exception):
    """Names what the simulator lacks."""


class Parts(dict):
    """The parts of an instruction's name that its Form names; None: a part that it lacks."""

    def __missing__(self, name):
        return None


class Form:
    """The parts of a name, in order: this|that, name=this|that to read it, #: a number, @: a word;
    at the end ? or *: also none, or several."""

    def __init__(self, text):
        slots = text.replace(".", " ").split()
        self.slots = [(*self.slot(x.rstrip("?*")), x[len(x.rstrip("?*")) :]) for x in slots]

    @staticmethod
    def slot(text):
        name, _, words = text.rpartition("=")
        words = re.escape(words).replace(r"\|", "|").replace(r"\#", r"(\d+|%\d+)")
        return name, re.compile(words.replace("@", r"([\w:]+)"))

    def match(self, parts, slot=0):
        """The Parts, None if this is no such name."""
        if slot == len(self.slots):
            return None if parts else Parts()
        name, pattern, repeat = self.slots[slot]
        found = parts and pattern.fullmatch(parts[0])
        rest = self.match(parts[1:], slot + (repeat != "*")) if found else None
        if rest is None:
            return self.match(parts, slot + 1) if repeat else None
        if name:
            values = [x for x in found.groups() if x is not None] or parts[:1]
            rest[name] = values[0] if len(values) == 1 else values
        return rest


def put(to, value):
    return "" if to == "_" else f"::sim::any::move({to}, {value});"


def operand(of, x):
    return f"{PTX}::as<{of}>({x})"


# --- memory --------------------------------------------------------------------------------------

VECTORS = {8: ("uchar{}", 4), 16: ("ushort{}", 4), 32: ("uint{}", 4), 64: ("ulonglong{}", 2)}


def pointer(match, of, address):
    space = "shared" if (match["space"] or "").startswith("shared") else "global"
    return f"{PTX}::{space}_pointer<{of}>({address})"


def load_or_store(match, args):
    """One access, or several, of a vector of up to 16 bytes."""
    loads = match["what"] != "st"
    registers, (address, *_) = args[:2] if loads else (args[1], args[0])
    count, kind = int(match["count"] or 1), match["type"]
    if len(registers) != count:
        raise ValueError
    if kind not in TYPES or count not in (1, 2, 4, 8):
        return None
    of, fence = TYPES[kind], "::sim::fence(); " if match["sem"] == "release" else ""
    bits = int(re.sub(r"\D", "", kind.replace("x2", "")) or 0) * (2 if "x2" in kind else 1)
    if count == 1:
        to = pointer(match, of, address)
        if match["sem"] in ("acquire", "relaxed", "release") and 32 <= bits <= 64:
            word = f"uint{bits}_t"
            op, value = ("or_", f"{word}{{0}}") if loads else ("exch", operand(word, registers[0]))
            to = pointer(match, word, address)
            call = f"{PTX}::atom(::sim::AtomicOp::{op}, {to}, {value})"
            return put(registers[0], call) if loads else f"{fence}{call};"
        if not loads:
            return f"{fence}*{to} = {operand(of, registers[0])};"
        wide = f"uint{bits}_t" if bits < 32 else of
        value = f"*{to}" if bits >= 32 else f"({'int32_t' if kind[0] == 's' else wide})*{to}"
        return put(registers[0], value)
    name, most = VECTORS[bits]
    width = min(count, most)
    vector = name.format(width)
    code = f"{fence}auto* const fa_at = {pointer(match, vector, address)};"
    for i in range(0, count, width):
        part, into = registers[i : i + width], f"fa_at[{i // width}]"
        if loads:
            code += f" const {vector} fa_{i} = {into};"
            sign = f"(int{bits}_t)" if kind[0] == "s" else ""
            code += "".join(f" {put(r, f'{sign}fa_{i}.{x}')}" for x, r in zip("xyzw", part))
        else:
            values = ", ".join(operand(f"uint{bits}_t", r) for r in part)
            code += f" {into} = make_{vector}({values});"
    return code


def atomic(match, args):
    op, kind = match["op"], match["type"]
    result = None if match["what"] == "red" else args.pop(0)[0]
    (address,), *values = args
    of = TYPES[kind]
    if kind in ("b32", "b64", "s64") and op not in ("min", "max"):
        of = f"uint{kind[1:]}_t"
    values = [operand(of, v[0]) for v in values]
    if op == "cas":
        values = values[::-1]
    name = op + "_" if op in ("and", "or", "xor") else op
    operands = ", ".join([f"::sim::AtomicOp::{name}", pointer(match, of, address), *values])
    call = f"{PTX}::atom<{of}>({operands})"
    fence = "::sim::fence(); " if match["sem"] in ("release", "acq_rel") else ""
    return fence + (put(result, call) if result else call + ";")


def shared(address):
    return f"{PTX}::shared_pointer<void>({address})"


def cp_async(match, args):
    to, source, size, *more = (group[0] for group in args)
    filled = more[0] if len(more) > bool(match["hint"]) else size
    from_ = f"{PTX}::global_pointer<const void>({source})"
    return f"::sim::cp_async({shared(to)}, {from_}, {size}, {filled}, {HERE});"


def packed_bits(match):
    """Of .b4x16_p64 or .b6x16_p32, 0 without."""
    return (match["bits"] or "b0")[1]


def matrices(match, args):
    """ldmatrix and stmatrix."""
    loads, shape = match["what"] == "ldmatrix", match["shape"] or "m8n8"
    registers, (address,) = args if loads else args[::-1]
    count, trans = int(match["count"]), "true" if match["trans"] else "false"
    square, of_bytes = shape == "m16n16", match["type"] != "b16"
    shapes = {"m8n8": "b16", "m16n16": "b8", "m8n16": "b8x16", "m16n8": "b8"}
    if count not in (1, 2, 4) or not shape.startswith("m8n") and not match["trans"]:
        return None
    if len(registers) != count << square or square and count == 4:
        raise ValueError
    if shapes[shape] != match["type"] and not (square and match["bits"]):
        return None
    if loads:
        out = "".join(" " + put(x, f"fa_r[{i}]") for i, x in enumerate(registers))
        how = f"_bytes(fa_r, {count}, {str(square).lower()}, {packed_bits(match)}"
        how = how if of_bytes else f"(fa_r, {count}, {trans}"
        return f"uint32_t fa_r[4]; ::sim::ldmatrix{how}, {shared(address)}, {HERE});{out}"
    values = ", ".join(operand("uint32_t", x) for x in registers)
    how = "_bytes" if of_bytes else ""
    trans = "" if of_bytes else f", {trans}"
    call = f"::sim::stmatrix{how}(fa_r, {shared(address)}, {HERE}, {count}{trans});"
    return f"const uint32_t fa_r[] = {{{values}}}; {call}"


# --- barriers, warps -----------------------------------------------------------------------------


def barrier(match, args):
    if len(args) == 1 and match["how"] == "sync":
        if args == [["0"]]:
            return f"::sim::sync_block({HERE});"
        threads = "blockDim.x * blockDim.y * blockDim.z"
    else:
        threads = args[1][0]
    waits = str(match["how"] == "sync").lower()
    return f"::sim::sync_named({args[0][0]}, {threads}, {waits}, {HERE});"


def bar_at(address):
    return f"{PTX}::shared_pointer<uint64_t>({address})"


def arrive(match, args):
    (state,), (bar,), *more = args
    bytes_of = more.pop(0)[0] if match["expect"] else 0
    count = more[0][0] if more else 1
    cluster = str(match["scope"] == "cluster").lower()
    relaxed = str(match["sem"] == "relaxed").lower()
    call = f"::sim::arrive({bar_at(bar)}, {cluster}, {relaxed}, {bytes_of}, {count}, {HERE})"
    return put(state, call) or call + ";"


def mbarrier_wait(match, args):
    (done,), (bar,), (parity,), *_ = args
    if not match["parity"]:  # a state returned by an arrival
        parity = f"(int)((uint64_t)({parity}) >> 63)"
    relaxed = "{true}" if match["sem"] == "relaxed" else "{}"
    call = f"::sim::mbarrier_try_wait({bar_at(bar)}, {parity}, {HERE}, {relaxed})"
    return f"const bool fa_done = {call}; " + put(done, "fa_done")


def proxy_fence(match, args):
    memories = {"global": ["device"], None: ["shared", "device"]}.get(match["of"], ["shared"])
    return " ".join(f"::sim::proxy_fence(::sim::ProxyFence::{memory});" for memory in memories)


def elect(match, args):
    (leader, elected), (mask,) = args
    return (
        f"const uint32_t fa_lanes = ::sim::ballot({mask}, true, {HERE}); "
        f"const int fa_leader = ::std::countr_zero(fa_lanes); "
        f"{elected} = ::sim::any::lane() == fa_leader; {put(leader, 'fa_leader')}"
    )


def shuffle(match, args):
    to, (value,), (lane,), (bounds,), (mask,) = args
    kind = {"bfly": "xor_"}.get(match["kind"], match["kind"])
    code = "bool fa_valid; const uint32_t fa_to = " + (
        f"{PTX}::shfl(::sim::Shuffle::{kind}, fa_valid, {operand('uint32_t', value)}, {lane}, "
        f"{bounds}, {mask}, {HERE}); {put(to[0], 'fa_to')}"
    )
    return code + (f" {to[1]} = fa_valid;" if len(to) > 1 else "")


def reduce(match, args):
    (to,), (value,), (mask,) = args
    return put(to, f"__reduce_{match['op']}_sync({mask}, {operand(TYPES[match['type']], value)})")


def vote(match, args):
    (to,), (predicate,), (mask,) = args
    negated = predicate.startswith("!")
    ballot = f"::sim::ballot({mask}, {predicate}, {HERE})"
    against = f"::sim::ballot({mask}, !({predicate}), {HERE})"
    made = {"ballot": ballot, "any": f"{ballot} != 0", "all": f"{against} == 0"}[match["kind"]]
    return put(to, made) if not negated else None


# --- TMA -----------------------------------------------------------------------------------------


def box(match, tensor_map, at):
    """The declaration of fa_at, and the arguments that name a box of a tensor."""
    if len(at) != (5 if match["four"] else int(match["rank"])):
        raise ValueError
    declared = f"const int fa_at[] = {{{', '.join(f'(int)({x})' for x in at)}}};"
    rank = "::sim::kFourRows" if match["four"] else len(at)
    return declared, f"(const ::sim::TensorMap*)({tensor_map}), fa_at, {rank}"


def tma_load(match, args):
    group = match["group"]
    (to,), (tensor_map, *at), (bar,), *more = args
    blocks = f"(uint16_t)({more.pop(0)[0]})" if match["multicast"] else "0"
    if len(more) != bool(match["hint"]):
        raise ValueError
    declared, named = box(match, tensor_map, at)
    call = f"::sim::any::tma_load({group}, " if group else "::sim::tma_load("
    return f"{declared} {call}{shared(to)}, {named}, {bar_at(bar)}, {blocks}, {HERE});"


def tma_store(match, args):
    (tensor_map, *at), (source,), *_ = args
    declared, named = box(match, tensor_map, at)
    return f"{declared} ::sim::tma_store({named}, {shared(source)}, {HERE});"


# tensormap.replace: how each field is replaced in the map {0}; the others only as they are.
MAP_FIELDS = {
    "global_address": "{0}->base = (void*)({2})",
    "rank": "{0}->rank = (int)({2}) + 1",
    "swizzle_mode": "::sim::any::replace_swizzle({0}, {2}, {here})",
}
for field, entries in ("box_dim", "box"), ("global_dim", "size"), ("global_stride", "stride"):
    entries = f"::sim::any::MapEntries::{entries}"
    MAP_FIELDS[field] = f"::sim::any::replace_in_map({{0}}, {entries}, {{1}}, {{2}}, {{here}})"
MAP_DEFAULTS = {"element_stride": "1", "interleave_layout": "0", "fill_mode": "0"}
MAP_DEFAULTS |= {"swizzle_atomicity": "0"}


def tensor_map_replace(match, args):
    at, *order, value = [x for (x,) in args]
    if match["field"] in MAP_DEFAULTS:
        return ";" if value == MAP_DEFAULTS[match["field"]] else None
    tensor_map = pointer(match, "::sim::TensorMap", at)
    entry = order[0] if order else 0
    return MAP_FIELDS[match["field"]].format(tensor_map, entry, value, here=HERE) + ";"


COMBINED = ("add", "min", "max", "inc", "dec", "and", "or", "xor")


def reduction(match):
    """What happens to each element of the target: {}, a copy."""
    if not match["op"]:
        return "{}"
    op = match["op"] + "_" * (match["op"] in ("and", "or", "xor"))
    return f"{{::sim::AtomicOp::{op}, ::sim::Element::{re.sub('^b(?=[36])', 'u', match['type'])}}}"


def bulk(match, args):
    to, source, size, *more = (group[0] for group in args)
    if match["to"] == "global":
        to = f"{PTX}::global_pointer<void>({to})"
        return f"::sim::bulk_store({to}, {shared(source)}, {size}, {HERE}, {reduction(match)});"
    bar, *more = more
    if match["source"] == "shared::cta":
        copied = f"{shared(to)}, {shared(source)}, {size}, {bar_at(bar)}"
        return f"::sim::bulk_send({copied}, {HERE}, {reduction(match)});"
    blocks = f"(uint16_t)({more.pop(0)})" if match["multicast"] else "0"
    if len(more) != bool(match["hint"]):
        raise ValueError
    source = f"{PTX}::global_pointer<const void>({source})"
    copied = f"{shared(to)}, {source}, {size}, {bar_at(bar)}"
    return f"::sim::bulk_load({copied}, {HERE}, {blocks});"


def send(match, args):
    """st.async and red.async."""
    (to,), registers, (bar,) = args
    if len(registers) != int(match["count"] or 1):
        raise ValueError
    values = ", ".join(operand(TYPES[match["type"]], x) for x in registers)
    return f"{PTX}::send({HERE}, {to}, {bar}, {reduction(match)}, {values});"


def try_cancel(match, args):
    (to,), (bar,) = args
    to_all = str(bool(match["all"])).lower()
    return f"::sim::try_cancel({shared(to)}, {bar_at(bar)}, {HERE}, {to_all});"


def canceled(match, args):
    """query_cancel: whether there was a cluster, and its first block."""
    to, (response,) = args
    got = operand("::sim::Canceled", response)
    if not match["dimension"] and not match["all"]:
        return put(to[0], f"{got}.is != 0")
    wanted = [match["dimension"]] if match["dimension"] else "xyz"
    return " ".join(put(r, f"{got}.block[{'xyz'.index(x)}]") for r, x in zip(to, wanted))


# --- tensor cores --------------------------------------------------------------------------------

NUMBERS = ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "s32", "f32", "f64")


def mma(match, args):
    d, a, b, c = args
    m, n, k = map(int, match["shape"])
    if not all(match[x] in NUMBERS for x in ("d", "a", "b", "c")) or match["c"] != match["d"]:
        return None
    bits = {"f16": 16, "bf16": 16, "f64": 64}
    words = [bits.get(match["d"], 32), 8, 8, bits.get(match["d"], 32)]
    words[1] = words[2] = bits.get(match["a"], 32 if match["a"] == "tf32" else 8)
    sizes = [m * n, m * k, k * n, m * n]
    if m not in (8, 16) or n != 8:
        raise ValueError
    for group, size, word in zip(args, sizes, words):
        if len(group) != size // 32 * word // max(32, word if word == 64 else 32):
            raise ValueError
    of = "double" if match["d"] == "f64" else "uint32_t"
    arrays = "".join(
        f"const {of} fa_{name}[] = {{{', '.join(operand(of, x) for x in group)}}}; "
        for name, group in (("a", a), ("b", b), ("c", c))
    )
    types = ", ".join(f"::sim::Number::{match[x]}" for x in ("a", "b", "c"))
    saturate = str(bool(match["saturate"])).lower()
    product = f"{{{m}, {n}, {k}, {types}, fa_a, fa_b, fa_c, fa_d, {saturate}}}"
    out = " ".join(put(x, f"fa_d[{i}]") for i, x in enumerate(d))
    return f"{arrays}{of} fa_d[{len(d)}]; ::sim::multiply({product}, {HERE}); {out}"


def wgmma(match, args):
    d, a, (b,), (accumulate,), (scale_a,), (scale_b,), *trans = args
    factor = {"bf16": "bf16", "f16": "f16", "e4m3": "e4m3"}.get(match["a"])
    n, k = map(int, match["shape"])
    half = factor == match["d"] == "f16"
    if not factor or match["a"] != match["b"] or not half and match["d"] != "f32":
        return None
    if len(d) != n // (4 if half else 2):
        raise ValueError
    if k != (32 if factor == "e4m3" else 16):
        raise ValueError
    registers = len(a) == 4
    a_of = f"uint32_t fa_a[4]; const auto fa_at = {PTX}::registers_of(fa_a, {', '.join(a)}); "
    fields = f".factor = ::sim::Factor::{factor}, .n = {n}, "
    fields += (
        ".a_registers = fa_at, " if registers else f".a = ::sim::wgmma_operand({a[0]}, {HERE}), "
    )
    fields += f".b = ::sim::wgmma_operand({b}, {HERE}), "
    majors = [x for (x,) in trans]
    if not registers and majors:
        fields += f".a_mn_major = (bool)({majors.pop(0)}), "
    if majors:
        fields += f".b_mn_major = (bool)({majors[0]}), "
    fields += f".accumulate = (bool)({accumulate}), .half_sums = {str(half).lower()}"
    need = f"::sim::any::need_plus_one({scale_a}, {scale_b}, {HERE}); "
    return f"{need}{a_of if registers else ''}{PTX}::wgmma({HERE}, {{{fields}}}, {', '.join(d)});"


def cta_group(match):
    return f"::sim::CtaGroup{{{match['group']}}}"


def tensor_alloc(match, args):
    (address,), (columns,) = args
    to = f"{PTX}::shared_pointer<uint32_t>({address})"
    return f"::sim::tcgen05_alloc({to}, {columns}, {HERE}, {cta_group(match)});"


# sim/instructions/tensor_kinds.h
TENSOR_KINDS = ("f16", "tf32", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4")
SCALE_VECTORS = {"block16": 4, "block32": 2}
POSSIBLE_VECTORS = {"mxf8f6f4": (0, 1), "mxf4": (0, 2), "mxf4nvf4": (2, 4)}  # 0: none is named


def tensor_mma(match, args):
    kind = match["kind"]
    kept = r"b[0-3]" if match["ws"] else "a"  # by the collector
    if (
        kind not in TENSOR_KINDS
        or bool(match["scaled"]) != kind.startswith("mx")
        or (match["ws"] and (match["scaled"] or match["group"] != "1"))
        or not re.fullmatch(rf"({kept}::(fill|use|lastuse|discard))?", match["collector"] or "")
    ):
        return None
    (d,), (a,), (b,), (descriptor,), *more = args
    fields = f".kind = ::sim::TensorKind::{kind}, .ws = {str(bool(match['ws'])).lower()}"
    need = ""
    if kind.startswith("mx"):
        (scales_a,), (scales_b,), (accumulate,) = more
        vector = match["vector"] or 0
        vector = (
            1 if kind == "mxf8f6f4" and vector == "block32" else SCALE_VECTORS.get(vector, vector)
        )
        if int(vector) not in POSSIBLE_VECTORS[kind]:
            return None
        fields += f", .scales_a = (uint32_t)({scales_a}), .scales_b = (uint32_t)({scales_b})"
        fields += f", .scale_vector = {vector}"
    else:
        disabled = more.pop(0) if len(more[0]) > 1 else []
        (accumulate,), *last = more
        lanes = {"1": (4,), "2": (8,)}.get(match["group"], (4, 8))
        if disabled and (match["ws"] or len(disabled) not in lanes):
            raise ValueError
        if match["ws"] and last:
            need = f"::sim::any::need_all_columns({last[0][0]}, {HERE}); "
        elif last:
            if kind not in ("f16", "tf32") or last[0][0].isdigit() and int(last[0][0]) > 15:
                raise ValueError
            fields += f", .scale_d = (int)({last[0][0]})"
        if disabled:
            fields += f", .disabled = {{{', '.join(f'(uint32_t)({x})' for x in disabled)}}}"
    tensor = match["operands"][1].startswith("[")
    b = f"::sim::tcgen05_operand({b}, {HERE})"
    a = f"(uint32_t)({a})" if tensor else f"::sim::tcgen05_operand({a}, {HERE})"
    return (
        f"{need}::sim::tcgen05_mma({{.d = (uint32_t)({d}), .a = {a}, "
        f".a_in_tensor_memory = {str(tensor).lower()}, .b = {b}, "
        f".instruction = (uint32_t)({descriptor}), .accumulate = (bool)({accumulate}), "
        f".group = {cta_group(match)}, {fields}}}, {HERE});"
    )


# By sim::TensorCopy.
TENSOR_COPIES = ["128x256b", "4x256b", "128x128b", "64x128bwarpx2::02_13", "64x128bwarpx2::01_23"]
TENSOR_COPIES += ["32x128bwarpx4"]


def tensor_copy(match, args):
    if bool(match["wide"]) != bool(match["bits"]):
        return None
    copy = TENSOR_COPIES.index(match["shape"] + (match["multicast"] or ""))
    operands = f"(uint32_t)({args[0][0]}), ::sim::tcgen05_operand({args[1][0]}, {HERE})"
    shape = f"::sim::TensorCopy({copy}), {packed_bits(match)}"
    return f"::sim::tcgen05_cp({operands}, {shape}, {HERE}, {cta_group(match)});"


def tensor_commit(match, args):
    blocks = f"(uint16_t)({args[1][0]})" if match["multicast"] else "::sim::kThisBlock"
    return f"::sim::tcgen05_commit({bar_at(args[0][0])}, {HERE}, {cta_group(match)}, {blocks});"


# Shape: lanes, and bits of a lane in .x1.
TENSOR_SHAPES = {"32x32b": (32, 32), "16x64b": (16, 64), "16x128b": (16, 128)}
TENSOR_SHAPES |= {"16x256b": (16, 256), "16x32bx2": (16, 32)}


def tensor_move(match, args):
    lanes, bits = TENSOR_SHAPES[match["shape"]]
    loads, second, reduced = match["what"] == "ld", "0", ""
    if match["red"]:
        (to,) = args.pop(1)
        only_floats = match["type"] != "f32" and (match["abs"] or match["nan"])
        if bits != 32 or match["count"] == "1" or only_floats:
            raise ValueError
        of = TYPES[match["type"]]
        values = ", ".join(operand(of, x) for x in args[0])
        flags = (match["op"] == "min", match["abs"], match["nan"])
        flags = ", ".join(str(bool(x)).lower() for x in flags)
        reduced = " " + put(to, f"{PTX}::extreme<{of}, {flags}>({values})")
    if match["shape"] == "16x32bx2":
        second = args.pop(2 if loads else 1)[0]
    registers, (address,) = args if loads else args[::-1]
    each = max(1, bits // 64)
    count = int(match["count"])
    if len(registers) != count * each or count & (count - 1) or len(registers) > 128:
        raise ValueError
    packed = str(bool(match["packed"])).lower()
    call = f"::sim::any::tcgen05_{match['what']}"
    shape = f"{{{lanes}, {bits}, {packed}, {second}}}"
    return f"{call}({HERE}, {shape}, {address}, {', '.join(registers)});{reduced}"


def call(text):
    """A call of the simulator. {0}, {1}: the operands; {bar}: the first one as an mbarrier; {here}:
    the line; {group}: its cta_group; {yes}: does the instruction have what the form names `yes`?"""

    def make(match, args):
        firsts = [a[0] for a in args]
        yes = str(bool(match["yes"])).lower()
        bar = bar_at(firsts[0]) if firsts else ""
        group = cta_group(match)
        return "::sim::" + text.format(*firsts, bar=bar, here=HERE, yes=yes, group=group) + ";"

    return make


def result(text):
    """A value for the first operand, in the same format."""
    return lambda match, args: put(args[0][0], text.format(*(a[0] for a in args), here=HERE))


def nothing(match, args):
    return ";"


def rows(*pairs):
    """(its name's Form, what it means) for each line of a table."""
    return [(Form(form), make) for form, make in pairs]


SEM = "sem=weak|volatile|relaxed|acquire|release|acq_rel|mmio? scope=cta|cluster|gpu|sys?"
SPACE = "space=global|shared|shared::cta|shared::cluster|local|const|param?"
# CUTLASS has the space before the order, which ptxas accepts.
WHERE = f"{SEM} {SPACE} {SEM}"
CACHE = "ca|cg|cs|cv|lu|nc|wb|wt|L1::@|L2::@|level::@*"
ORDER = "sem=release|acquire|relaxed? scope=cta|cluster?"
IN_SHARED = "shared|shared::cta|shared::cluster? b64"
TENSOR = "cp.async.bulk.tensor rank=#d"
MATRIX = "shape=m8n8|m16n16|m8n16|m16n8?"
HINT = "hint=L2::cache_hint?"
MULTICAST = "multicast=multicast::cluster?"
BYTES = "mbarrier::complete_tx::bytes"
GROUP = "group=cta_group::#"
WARPS = "warpx2::02_13|warpx2::01_23|warpx4"
FOUR = "tile::gather4|tile::scatter4"
OP = f"op={'|'.join(COMBINED)} noftz? type=u32|s32|b32|u64|s64|b64|f16|bf16|f32|f64"
INSTRUCTIONS = rows(
    (f"what=ld|ldu|st {WHERE} {CACHE} count=v#? type=@", load_or_store),
    (
        f"what=atom|red {WHERE} op=add|min|max|exch|and|or|xor|inc|dec|cas noftz? {HINT} type=@",
        atomic,
    ),
    ("prefetch|prefetchu|discard|applypriority|createpolicy @*", nothing),
    ("cp.async.bulk.prefetch @*", nothing),
    ("griddepcontrol.wait", call("griddep_wait()")),
    ("griddepcontrol|nanosleep|pmevent @*", nothing),
    ("fence.proxy tensormap|tensormap::@|async::generic @*", nothing),
    ("mapa shared::cluster? u32", result(f"{PTX}::mapa({{1}}, {{2}})")),
    ("mapa.u64", result(f"::sim::map_shared_rank({PTX}::global_pointer<void>({{1}}), {{2}})")),
    (
        "cvta.to.shared u32|u64",
        result(f"__cvta_generic_to_shared({PTX}::global_pointer<void>({{1}}))"),
    ),
    ("cvta.shared u32|u64", result(f"{PTX}::shared_pointer<void>({{1}})")),
    # mbarriers
    (f"mbarrier.init {IN_SHARED}", call("mbarrier_init({bar}, {1}, {here})")),
    (f"mbarrier.inval {IN_SHARED}", call("mbarrier_inval({bar}, {here})")),
    (f"mbarrier.arrive expect=expect_tx? {ORDER} {IN_SHARED}", arrive),
    (f"mbarrier.expect_tx {ORDER} {IN_SHARED}", call("mbarrier_expect({bar}, {1}, {here})")),
    (f"mbarrier try_wait|test_wait parity=parity? {ORDER} {IN_SHARED}", mbarrier_wait),
    (
        f"cp.async.mbarrier.arrive.noinc {IN_SHARED}",  # its copies complete at once
        call("cp_async_wait_all(); ::sim::mbarrier_arrive({bar}, 0, {here})"),
    ),
    ("fence.mbarrier_init.release.cluster", call("mbarrier_init_fence()")),
    ("fence.proxy.async of=shared::cta|shared::cluster|global?", proxy_fence),
    # TMA, bulk copies, stores and reductions that signal an mbarrier
    (
        # CUTLASS has the group first, which ptxas accepts
        f"{TENSOR} {GROUP}? four={FOUR}? shared::cta|shared::cluster global tile? four={FOUR}? "
        f"{BYTES} {MULTICAST} {GROUP}? {MULTICAST} {HINT}",
        tma_load,
    ),
    (
        f"{TENSOR} four={FOUR}? global.shared::cta tile? four={FOUR}? bulk_group {HINT}",
        tma_store,
    ),
    (
        "tensormap.replace.tile field=@ space=global|shared|shared::cta? b1024 type=b32|b64",
        tensor_map_replace,
    ),
    (
        "tensormap.cp_fenceproxy @*",
        call(
            f"any::copy_tensor_map({PTX}::global_pointer<void>({{0}}), {shared('{1}')}, {{here}})"
        ),
    ),
    (
        f"cp.async.bulk to=shared::cta|shared::cluster source=global {BYTES} {MULTICAST} {HINT}",
        bulk,
    ),
    (f"cp.async.bulk to=shared::cluster source=shared::cta {BYTES}", bulk),
    (f"cp.async.bulk to=global shared::cta.bulk_group {HINT}", bulk),
    (f"cp.reduce.async.bulk to=shared::cluster source=shared::cta {BYTES} {OP}", bulk),
    (f"cp.reduce.async.bulk to=global shared::cta.bulk_group {HINT} {OP}", bulk),
    (f"st.async weak? shared::cluster? {BYTES} count=v#? type=@", send),
    (f"red.async relaxed? cluster? shared::cluster? {BYTES} {OP}", send),
    ("cp.async.bulk.commit_group", call("bulk_commit()")),
    ("cp.async.bulk.wait_group yes=read?", call("bulk_wait({0}, {yes})")),
    # blocks and warps
    (
        f"clusterlaunchcontrol.try_cancel.async shared::cta? {BYTES} "
        "all=multicast::cluster::all? b128",
        try_cancel,
    ),
    ("clusterlaunchcontrol.query_cancel.is_canceled.pred.b128", canceled),
    ("clusterlaunchcontrol.query_cancel all=get_first_ctaid v4.b32.b128", canceled),
    ("clusterlaunchcontrol.query_cancel dimension=get_first_ctaid::@ b32.b128", canceled),
    ("barrier.cluster.arrive release|relaxed? aligned?", call("cluster_arrive({here})")),
    ("barrier.cluster.wait acquire? aligned?", call("cluster_wait({here})")),
    ("bar|barrier cta? how=sync|arrive aligned?", barrier),
    ("bar.warp.sync", call("sync_warp({0}, {here})")),
    ("membar|fence acq_rel|sc? gl|gpu|sys", call("fence()")),
    ("membar|fence acq_rel|sc? cta|cluster", nothing),
    ("elect.sync", elect),
    ("shfl.sync kind=up|down|bfly|idx b32", shuffle),
    ("vote.sync kind=any|all|ballot pred|b32", vote),
    ("activemask.b32", result("::sim::converged_lanes({here})")),
    ("match.any.sync.b32", result("__match_any_sync({2}, (uint32_t)({1}))")),
    ("redux.sync op=add|min|max|and|or|xor type=u32|s32|b32", reduce),
    ("trap|brkpt", call("any::trap({here})")),
    ("setmaxnreg inc|dec sync.aligned.u32", call("setmaxnreg({0}, {here})")),
    # tensor cores
    (
        f"what=ldmatrix|stmatrix sync.aligned {MATRIX} count=x# trans=trans? {MATRIX} "
        "shared|shared::cta? type=b16|b8|b8x16 bits=b4x16_p64|b6x16_p32?",
        matrices,
    ),
    (
        "mma.sync.aligned shape=m#n#k# row.col saturate=satfinite? "
        "d=@ a=@ b=@ c=@ saturate=satfinite? rn?",
        mma,
    ),
    ("wgmma.fence.sync.aligned", call("wgmma_fence()")),
    ("wgmma.commit_group.sync.aligned", call("wgmma_commit()")),
    ("wgmma.wait_group.sync.aligned", call("wgmma_wait({0}, {here})")),
    ("wgmma.mma_async.sync.aligned shape=m64n#k# d=@ a=@ b=@", wgmma),
    (f"tcgen05.alloc {GROUP} sync.aligned shared::cta? b32", tensor_alloc),
    (
        f"tcgen05.dealloc {GROUP} sync.aligned.b32",
        call("tcgen05_dealloc({0}, {1}, {here}, {group})"),
    ),
    (
        f"tcgen05.relinquish_alloc_permit {GROUP} sync.aligned",
        call("tcgen05_relinquish_alloc_permit({here}, {group})"),
    ),
    (
        f"tcgen05.mma ws=ws? {GROUP} kind=kind::@ scaled=block_scale? "
        "vector=scale_vec::#X|block16|block32? collector=collector::@?",
        tensor_mma,
    ),
    (
        f"tcgen05.cp {GROUP} multicast={WARPS}? shape=@ multicast={WARPS}? wide=b8x16? "
        "bits=b4x16_p64|b6x16_p32?",
        tensor_copy,
    ),
    (f"tcgen05.shift {GROUP} down", call("tcgen05_shift((uint32_t)({0}), {here}, {group})")),
    (
        f"tcgen05.commit {GROUP} mbarrier::arrive::one shared::cluster? {MULTICAST} b64",
        tensor_commit,
    ),
    (
        f"tcgen05 what=ld sync.aligned shape={'|'.join(TENSOR_SHAPES)} count=x# "
        "packed=pack::16b? b32",
        tensor_move,
    ),
    (
        f"tcgen05 what=st sync.aligned shape={'|'.join(TENSOR_SHAPES)} count=x# "
        "packed=unpack::16b? b32",
        tensor_move,
    ),
    (
        "tcgen05 what=ld red=red sync.aligned shape=32x32b|16x32bx2 count=x# "
        "type=f32|u32|s32? op=min|max abs=abs? nan=NaN? type=f32|u32|s32?",
        tensor_move,
    ),
    ("tcgen05 yes=wait::ld sync.aligned", call("tcgen05_wait({yes}, {here})")),
    ("tcgen05 wait::st.sync.aligned", call("tcgen05_wait({yes}, {here})")),
    ("tcgen05 yes=fence::before_thread_sync", call("tcgen05_fence({yes})")),
    ("tcgen05 fence::after_thread_sync", call("tcgen05_fence({yes})")),
    (f"cp.async ca|cg shared|shared::cta global {HINT} L2::@?", cp_async),
    ("cp.async.commit_group", call("cp_async_commit()")),
    ("cp.async.wait_all", call("cp_async_wait_all()")),
    ("cp.async.wait_group", call("cp_async_wait({0})")),
)


def find(name):
    """The parts of an instruction's name, and what writes its C++; None: it is not in the table."""
    for form, make in INSTRUCTIONS:
        match = form.match(name.split("."))
        if match is not None:
            return match, make
    return None
