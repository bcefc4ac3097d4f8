"""One comparison of peers.py: steps beside PyTorch, for one problem."""

from flash_steps.command import Failure
from flash_steps.commits import here
from flash_steps.problems import flops_of, problem_text
from flash_steps.results import Run
from flash_steps.step_library import MASK, SIZES, Refused

from .torch_attention import GRADIENTS, Contender


class Comparison:
    """Variants of one type (`sides`: [(library, their indices)]) against the backends."""

    gaps = (RuntimeError, AssertionError, ValueError, ImportError)  # of a backend: notes

    def __init__(self, options, torch, sides, problem, notes):
        self.options, self.torch, self.notes = options, torch, notes
        self.sides, self.problem = sides, problem
        self.sizes = {name: problem[name] for name in (*SIZES, *MASK) if name in problem}
        self.text = problem_text(problem)

    def rows(self):
        """The steps' variants, then the backends; forward and backward."""
        self.sides = [side for side in self.sides if self.accepts(side[0])]
        if not self.sides:
            return []
        try:
            self.tensors = self.torch.tensors(self.problem, self.options.directions)
            self.truth = self.torch.truth(self.problem, self.tensors)
            self.addresses = {name: x.data_ptr() for name, x in self.tensors.items()}
            return sum(map(self.direction, self.options.directions), [])
        except Refused as error:  # in a run that succeeded before
            raise Failure(f"{self.text}: {error}") from None
        except self.torch.torch.cuda.OutOfMemoryError as error:
            self.notes.append(f"{self.text}: {first_line(error)}")
        finally:
            self.tensors = self.truth = None
            for library, _ in self.sides:
                library.release()
            self.torch.torch.cuda.empty_cache()
        return []

    def accepts(self, library):
        """Does it support this problem? Adds a note if not."""
        try:
            library.check(self.sizes)
            return True
        except Refused as error:
            self.refused_by(library, error)
            return False

    def refused_by(self, library, error):
        if error.status == 1:
            raise Failure(f"{library.step}, {self.text}: {error}") from None
        where = f", {self.text}" if error.status == 3 else ""
        self.notes.append(f"{library.step}{where}: {error}")

    def direction(self, direction):
        contenders = []
        for library, places in self.sides:
            for place in places:
                self.add_variant(library, place, direction, contenders)
        if not contenders:
            return []
        ours = len(contenders)
        # Before the backends: their memory must still be available later.
        beside = self.beside()
        for name in self.backends():
            try:
                about = self.problem, self.tensors, direction, self.require
                contenders.append(self.torch.backend(name, *about))
            except self.gaps as error:
                self.refused(name, error)
        contenders += beside
        found = self.times(contenders)
        for contender in contenders:
            time = found[contender.label]
            if 10 * time["late"] > time["runs"]:
                words = f"{time['late']} of {time['runs']} runs started before the host had queued"
                self.notes.append(f"{contender.label}, {self.text}: {words} them.")
        return [
            self.row(contender, direction, found, contenders[ours:], is_ours=i < ours)
            for i, contender in enumerate(contenders)
        ]

    def times(self, contenders):
        return self.torch.clock.take_turns(contenders, self.options.rounds, self.options.iters)

    def backends(self):
        """PyTorch's mask begins at the first key; the steps' mask ends at the last one."""
        p = self.problem
        return () if p["causal"] and p["n"] != p["nk"] else self.torch.backends

    def beside(self):
        """Contenders that are not attention; some comparisons have them."""
        return []

    def add_variant(self, library, place, direction, contenders):
        variant = library.variants[place]
        if variant["dtype"] != self.problem["dtype"]:
            return
        if direction == "backward" and not variant["backward"]:
            return
        try:
            contenders.append(self.step(library, place, variant, direction))
        except Refused as error:
            self.refused_by(library, error)

    def step(self, library, place, variant, direction):
        """A Contender of a library, after a check of its result."""

        def runner(which):
            return library.runner(which, place, self.sizes, self.addresses, self.torch.stream())

        written = ["O"] + ["LSE"] * variant["writes_lse"]
        written = [*GRADIENTS] if direction == "backward" else written
        for name in written:
            self.tensors[name].fill_(float("nan"))
        if variant["prepare"]:
            runner("prepare")()  # belongs to the making of Q, K and V: not timed
        runner("forward")()  # a backward reads O and LSE
        if direction == "backward":
            runner("backward")()
        label = Run({"step": library.step, "variant": variant["name"]}, direction).label
        truth = self.truth
        if variant.get("fp8"):
            truth = self.torch.truth(self.problem, self.tensors, fp8=True)
        self.require(label, {name: self.tensors[name] for name in written}, truth)
        # Timed with these O and LSE, or with those of the next variant: the work is the same.
        return Contender(variant["name"], label, runner(direction), step=library.step)

    def require(self, label, outputs, truth=None):
        r"""\raises Failure where an output is wrong."""
        for name, (error, share) in self.torch.errors(truth or self.truth, outputs).items():
            if share != share:
                why = f"{name} has an element that is not a number, or was not written"
                raise Failure(f"{label}, {self.text}: {why}")
            if share > 1:
                why = f"its error is {error:.2e}, {error / share:.2e} is allowed"
                raise Failure(f"{label}, {self.text}: {name} is wrong: {why}")

    def refused(self, name, error):
        self.torch.torch.cuda.empty_cache()
        p = self.problem
        if "available kernel" in str(error) or "viable backend" in str(error):
            grouped = ", fewer key/value heads" if p["h"] != p["hkv"] else ""
            kind = f"{p['dtype']}, d={p['d']}{grouped}"
            self.notes.append(f"PyTorch's {name} has no kernel for {kind}.")
        else:  # usually out of memory
            self.notes.append(f"{name}, {self.text}: {first_line(error)}")

    def row(self, contender, direction, found, peers, is_ours):
        ms = found[contender.label]["ms"]
        rate = flops_of(self.problem, direction) / (ms * 1e-3)
        ratios = {p.name: found[p.label]["ms"] / ms for p in peers} if is_ours else {}
        step, commit = (contender.step, here()) if is_ours else (None, None)
        row = {**self.problem, "problem": self.text, "direction": direction}
        row |= {"step": step, "commit": commit, "variant": contender.name}
        row |= {"label": contender.label, "ms": ms, "flops_per_s": rate, "ratios": ratios}
        return {**row, "of_matmul": rate / self.torch.matmul_rate(self.problem["dtype"])}


def first_line(error):
    return (str(error).strip() or type(error).__name__).splitlines()[0]
