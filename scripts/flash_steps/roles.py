"""What the arguments of somebody's attention function are, by their names and order."""

import math

from flash_steps.command import BadInput

# By role, in lower case without underscores.
NAMES = {
    "Q": "q query queries mq xq qs",
    "K": "k key keys mk xk ks kcache keycache cachek pastk",
    "V": "v value values mv xv vs val vals vcache valuecache cachev pastv",
    "O": "o out output outputs result results attnout attn outptr y",
    "LSE": "lse softmaxlse logsumexp logsumexps lvec lvals stats",
    "dO": "do dout doutput gradout gradoutput grado doo grad outgrad upstream",
    "dQ": "dq gradq dquery gradquery",
    "dK": "dk gradk dkey gradkey",
    "dV": "dv gradv dvalue gradvalue",
    "m": "m max rowmax maxes mi maxima",
    "l": "l sum rowsum sums li denom",
    "delta": "delta dpsum dsum di dvec rowsumdo",
    "qkv": "qkv packedqkv",
    "mask": "mask attnmask attentionmask attnbias bias",
    "starts": "cuseqlens cuseqlensq cuseqlensk cuseqlenskv cuseqlen cuseqlenq cuseqlenk",
    "lengths": "lengths seqlens seqlensk cacheseqlens contextlens contextlengths seqlengths "
    "kvlens kvlengths cachelens",
    "causal": "causal iscausal usecausal applycausal causalmask usecausalmask ismasked masked",
    "scale": "scale softmaxscale smscale scaling scalefactor attnscale qkscale scaleqk invsqrtd "
    "softmaxscalefactor normfactor",
    "N": "n s t seqlen seqlength sequencelength nseq seq seqlenk seqlenkv nk kvlen lk tk sk "
    "length context contextlen numrows tokens nctx cachelen",
    "Nq": "seqlenq nq lenq qlen lq tq sq",
    "longest": "maxseqlen maxseqlenq maxseqlenk maxlen",
    "d": "d headdim dim hd dhead headsize dmodel dimhead embed embeddim hdim embdim dimension",
    "B": "b batch batchsize bs bsz nbatch numbatches batches",
    "H": "h nh numheads nheads heads numhead nhead qheads hq numqheads nqheads",
    "Hkv": "hkv numkvheads nhkv nkvheads kvheads numheadskv numheadsk kheads nkv",
    "block": "br bc blocksize bm bn blockm blockn tilesize tile blocksizem blocksizen blockrows "
    "blockcols tilem tilen splitsize chunksize numsplits nsplits chunk",
    "stages": "stages numstages nstages stage kstages",
    "window": "windowsize windowsizeleft windowsizeright window windowleft windowright",
    "zero": "dropout dropoutp pdropout seed offset philoxseed softcap debug verbose device",
}
ROLES = {word: role for role, words in NAMES.items() for word in words.split()}
TENSORS = ("Q", "K", "V", "O", "LSE", "dO", "dQ", "dK", "dV", "m", "l", "delta", "qkv",
           "mask", "starts", "lengths")  # fmt: skip
OUTPUTS = ("O", "LSE", "dQ", "dK", "dV")
GRADIENTS = ("dQ", "dK", "dV")
STATISTICS = ("LSE", "m", "l", "delta")  # float32, one per row
ENDS = ("tensor", "states", "layer", "matrix", "mat", "ptr", "in", "tensors", "gpu", "cuda", "t")


def role_of(name, kind, alone=False):
    """One of NAMES, or None; `alone`: of m and l it has only one."""
    word = name.lower().replace("_", "")
    words = [word, *(word[: -len(end)] for end in ENDS if word.endswith(end))]
    words += [
        word[len(begin) :] for begin in ("input", "in", "device", "p") if word.startswith(begin)
    ]
    tensor = kind.startswith("tensor")
    for word in words:
        role = ROLES.get(word)
        if word in ("dk", "dv") and not tensor:
            return "d"
        if word == "d" and tensor:
            return "delta"
        if word in ("l", "m") and tensor and alone:  # FlashAttention-2's L
            role = "LSE"
        if role == "m" and not tensor:
            return "N"
        if role == "block" and kind.startswith("bool"):
            continue
        if role and tensor == (role in TENSORS):
            return role
    return None


def roles_of(function, names=()):
    """The role, or a fixed value, of each parameter of a bound function; `names`: of the parameters
    in its definition. Raises BadInput with the sentence."""
    kinds = [p["kind"] for p in function["parameters"]]
    given = [p["name"] for p in function["parameters"]]
    if not all(given) and len(names) == len(kinds):
        given = list(names)
    alone = not {"l", "m"} <= {(name or "").lower().strip("_") for name in given}
    roles = [role_of(name, kind, alone) if name else None for name, kind in zip(given, kinds)]
    tensors = [i for i, kind in enumerate(kinds) if kind == "tensor"]
    if not {"Q", "K", "V"} <= set(roles) and "qkv" not in roles and len(tensors) >= 3:
        free = [i for i in tensors if roles[i] in (None, "Q", "K", "V")]
        for i, role in zip(free, ("Q", "K", "V", "O")):
            roles[i] = role
    for i, (role, parameter) in enumerate(zip(roles, function["parameters"])):
        if role in ("zero", "window"):
            roles[i] = {"value": -1 if role == "window" else 0}
        if role is None and ("default" in parameter or kinds[i].endswith("?")):
            roles[i] = {"value": parameter.get("default")}
        elif role is None:
            what = f"argument {i + 1}, '{given[i] or kinds[i]}', of {function['name']}"
            raise BadInput(f'{what} is not known: say it with --call "{function["name"]}(Q, ...)"')
        elif kinds[i].endswith("?") and role in ("O", *STATISTICS):
            roles[i] = {"value": None}
    if "qkv" not in roles and not {"Q", "K", "V"} <= {r for r in roles if isinstance(r, str)}:
        raise BadInput(f"{function['name']} has no Q, K and V: say them with --call")
    return roles


def parsed(call):
    """--call "forward(Q, K, V, 1/sqrt(d), causal, 32)": the name and the roles."""
    name, opened, rest = call.partition("(")
    if not opened:
        raise BadInput(f'--call {call}: its arguments are missing, as in "{call}(Q, K, V)"')
    words = [word.strip() for word in rest.rstrip().removesuffix(")").split(",")]
    roles = []
    for word in words:
        spoken = {"none": None, "true": True, "false": False, "-inf": -math.inf}
        if word.replace(" ", "") in ("1/sqrt(d)", "1.0/sqrt(d)", "d**-0.5"):
            roles.append("scale")
        elif word.lower() in spoken:
            roles.append({"value": spoken[word.lower()]})
        elif word in NAMES:
            roles.append(word)
        elif role_of(word, "tensor") or role_of(word, "int"):
            roles.append(role_of(word, "tensor") or role_of(word, "int"))
        else:
            try:
                roles.append({"value": float(word) if set(".e") & set(word) else int(word)})
            except ValueError:
                raise BadInput(
                    f"--call: '{word}' is no argument that docs/judge.md names, and no number"
                ) from None
    return name.strip(), roles
