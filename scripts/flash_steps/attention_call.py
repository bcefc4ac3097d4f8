"""One call of somebody's attention function, and what came of it."""

import dataclasses
import math

from .checker import made_by_the_host
from .extension import CheckFailed, Stopped, Tensor
from .roles import GRADIENTS, OUTPUTS, TENSORS

GROUPED = ("hkv", "h_kv", "kv_head", "kvhead", "num_kv", "n_kv", "nh_kv", "gqa")


@dataclasses.dataclass
class Run:
    """What came of one call."""

    case: object
    kind: str = ""  # "": right; "refused", "wrong", "finding", "changed", "cheats", "stopped"
    message: str = ""
    tensors: list = dataclasses.field(default_factory=list)
    answer: dict = dataclasses.field(default_factory=dict)

    @property
    def ok(self):
        return not self.kind

    @property
    def settles(self):
        """Is the extension meant to be called so, whether or not it is right?"""
        known = self.ok or self.kind in ("changed", "cheats")
        return known or any(t["near"] > 0.3 for t in self.tensors)

    @property
    def rank(self):
        """How far from right; of equals the first counts, which is the plainest."""
        near = max((t["near"] for t in self.tensors), default=0)
        return (not self.ok, self.kind == "refused", self.kind == "stopped", -round(near, 1))


class Called:
    """A bound function, its roles, and how it is called."""

    def __init__(self, checker, program, index, roles):
        self.checker, self.program, self.index, self.roles = checker, program, index, roles
        self.function = program.functions[index]
        self.kinds = [p["kind"] for p in self.function["parameters"]]
        self.named = [role for role in roles if isinstance(role, str)]
        self.backward = any(role in GRADIENTS or role == "dO" for role in self.named)
        self.places = [role for role in self.named if role in OUTPUTS]  # among the arguments
        if self.backward:
            self.places = [role for role in self.places if role in GRADIENTS]
        self.inputs = [n for n in ("Q", "K", "V", "dO") if n != "dO" or self.backward]
        words = [self.function["name"], *(p["name"] or "" for p in self.function["parameters"])]
        words = " ".join(words).lower()
        self.decodes = "decod" in words or "cache" in words
        self.grouped = self.has("Hkv") or any(word in program.text.lower() for word in GROUPED)

    def has(self, role):
        return role in self.named

    def must(self, role):
        return self.has(role) and not self.may_lack(role)

    def may_lack(self, role):
        return self.has(role) and self.kinds[self.roles.index(role)].endswith("?")

    def lacks(self, role, case):
        """Is it an argument that this call leaves out?"""
        given = {"mask": case.mask, "starts": case.packed, "lengths": case.ragged}
        return self.may_lack(role) and not given.get(role, False)

    def tensors(self, case):
        """The names of those that a call reads or writes."""
        return [r for r in self.named if r in TENSORS and not self.lacks(r, case)]

    def arguments(self, case, inputs):
        values = {"N": case.n, "Nq": case.rows, "longest": case.n, "d": case.d, "B": case.b}
        values |= {"H": case.h, "Hkv": case.hkv, "causal": case.causal, "block": case.block}
        values |= {"stages": 2, "scale": 1 / math.sqrt(case.d)}
        if case.packed:
            values |= {"longest": max(case.documents), "B": len(case.documents)}
        found = []
        for role, kind in zip(self.roles, self.kinds):
            if isinstance(role, dict):
                value = role["value"]
            elif self.lacks(role, case):
                value = None
            elif role in TENSORS:
                value = self.tensor(role, case, inputs)
            else:
                value = values[role]
            if kind.startswith("float") and isinstance(value, int):
                value = float(value)
            if kind.startswith("bool") and isinstance(value, int):
                value = bool(value)
            found.append(value)
        return found

    def tensor(self, role, case, inputs):
        if role == "qkv":  # [B, N, 3, H, d] of [B, N, H, d]
            row = len(inputs["Q"]) // (case.b * case.n)
            rows = range(0, len(inputs["Q"]), row)
            parts = [inputs[name][i : i + row] for i in rows for name in ("Q", "K", "V")]
            return Tensor([case.b, case.n, 3, case.h, case.d], case.type, b"".join(parts), role)
        value = case.tensor(role, self.places)
        if role == "l" and self.backward:  # P = exp(S - m) / l, with m = LSE
            value.data = b"\0\0\x80\x3f" * math.prod(value.sizes)
        elif role in self.inputs or self.backward and role not in GRADIENTS and not value.data:
            value.data = inputs[{"m": "LSE"}.get(role, role)]
        elif case.zeroed and not value.data:
            value.data = bytes(value.bytes)
        return value

    def run(self, case, hypotheses=None):
        """One call; with `hypotheses`, cases of the same inputs, the first one that is right."""
        case = case.fitted()
        known = ["O", "LSE", "delta"] if self.backward else []
        inputs, _ = self.checker.inputs(case.asked(), [*self.inputs, *known])
        inputs = {name: case.laid(name, data) for name, data in inputs.items()}
        arguments = self.arguments(case, inputs)
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        for given in tensors:
            given.cuda = not case.host
        try:
            results, after, answer = self.program.call(self.index, arguments)
        except CheckFailed as failed:
            found = failed.answer["report"]["findings"]
            if found:
                return Run(case, "finding", found[0]["message"], answer=failed.answer)
            return Run(case, "refused", str(failed), answer=failed.answer)
        except Stopped as stopped:
            asserted = "Assertion `" in str(stopped)
            return Run(case, "refused" if asserted else "stopped", str(stopped))
        for given, now in zip(tensors, after):
            given.now = now
            read = given.name in (*self.inputs, "qkv", "mask", "lengths", "starts")
            if (read or self.backward and given.name == "O") and given.data != now:
                return Run(case, "changed", f"the call changes its input {given.name}", [], answer)
        outputs = self.outputs(case, results, tensors)
        if isinstance(outputs, str):
            best = Run(case, "wrong", outputs, answer=answer)
        else:
            answer["outputs"] = outputs
            trials = [self.checked(t.fitted(), outputs, answer) for t in hypotheses or [case]]
            best = min(trials, key=lambda run: run.rank)
        if found := answer["report"]["findings"]:
            right = "; its result is right all the same" if best.ok else ""
            best.kind, best.message = "finding", found[0]["message"] + right
        return best

    def tried(self, trials):
        """The run of the case that is right, or nearly. A backward's inputs depend on the case."""
        if not self.backward:
            return self.run(trials[0], trials)
        runs = []
        for trial in trials:
            runs.append(self.run(trial))
            if runs[-1].kind == "refused":  # the others have the same sizes
                break
        return min(runs, key=lambda run: run.rank)

    def outputs(self, case, results, tensors):
        """{name: Tensor} of what can be judged, or a sentence."""
        found = {
            t.name: Tensor(t.sizes, t.type, t.now, t.name) for t in tensors if t.name in self.places
        }
        results = [r for r in results if isinstance(r, Tensor)]
        names = [n for n in (GRADIENTS if self.backward else ("O", "LSE")) if n not in found]
        if self.backward and results and len(results) < len(names):
            names = names[: len(results)]
        for name, result in zip(names, results):
            count = math.prod(case.sizes(name))
            if name == "LSE" and (result.type != "float32" or math.prod(result.sizes) != count):
                continue
            if math.prod(result.sizes) != count:
                return (f"{name} is of sizes {result.sizes}, which are not those of the problem, "
                        f"{case.sizes(name)}")  # fmt: skip
            found[name] = result
        if not found:
            return "it returns no tensor, and has none to write among its arguments"
        if any(t.type not in ("float32", "float16", "bfloat16") for t in found.values()):
            return f"its result is of type {', '.join(t.type for t in found.values())}"
        return found

    def checked(self, case, outputs, answer):
        rows = {n: (t.type, case.laid(n, t.data, back=True)) for n, t in outputs.items()}
        tensors = self.checker.check({**case.asked(), "rate": True}, rows)
        statistic = [t for t in tensors if t["name"] == "LSE" and not t["ok"]]
        if statistic and "LSE" not in self.named:  # m, l or log2: unknown
            tensors = [t for t in tensors if t["name"] != "LSE"]
        wrong = [t for t in tensors if not t["ok"]]
        if wrong:
            near = all(t["error"] is not None and t["error"] < 0.02 for t in wrong)
            kind = "inexact" if near else "wrong"
            return Run(case, kind, wrong[0]["message"], tensors, answer)
        sizes = {n: len(t.data) for n, t in outputs.items() if n != "LSE"}
        host = made_by_the_host(sizes, self.inputs, self.by_kernels(sizes, answer))
        copied = min(answer["to_host"], answer["from_host"])
        if not case.host and copied >= case.bytes_of("Q") / 2:
            host = f"the result is made by the host: {copied:,} bytes are copied there and back"
        elif case.host or any("is not counted" in r for r in answer["report"]["remarks"]):
            host = ""  # its copies are known; cuBLAS
        return Run(case, "cheats" if host else "", host, tensors, answer)

    def by_kernels(self, outputs, answer):
        """What kernels moved. A result may be another buffer's copy: all that they wrote counts."""
        kernels = [k for k in answer["report"]["kernels"] if k["blocks"]]
        written = {way: sum(k["bytes"][way] for k in kernels) for way in ("write", "atomic")}
        moved = {name: {"read": 0, **written} for name in outputs}
        for name in self.inputs:
            buffer = "qkv" if self.has("qkv") and name != "dO" else name
            of = [k["buffers"][buffer]["bytes"] for k in kernels if buffer in k["buffers"]]
            moved[name] = {"read": sum(row["read"] for row in of)}
        return moved
