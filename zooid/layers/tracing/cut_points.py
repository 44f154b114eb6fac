"""Finds the places where a model can be cut.

A cut between two operations is allowed where only tensors cross it, few of them, where no buffer that the forward
changes is used on both sides, and where nothing that crosses is written to under another name. A layer is what lies
between two neighbouring cuts. Each begins to use parameters that the one before does not, since a cut that moves none
is of no use; a parameter that is used in two modules (tied weights) may be used in two layers.
"""

from dataclasses import replace
from itertools import pairwise

from torch import fx

from zooid.layers.tracing.recomputation import MinimalCrossing, TraceCut
from zooid.layers.tracing.traced_program import TracedProgram, module_path, written_arguments
from zooid.layers.tracing.values import value_of

MAX_CROSSING = 12
"""More values than this across a cut make it useless in practice, and the search need not see it."""

_Use = tuple[str, str]
"""A parameter, and the path of a module that uses it."""


def cut_alike(programs: tuple[TracedProgram, ...]) -> tuple[TracedProgram, ...]:
    """The programs, traces of one model in different modes, divided into layers that use the same parameters."""
    finders = [_CutFinder(program) for program in programs]
    uses = _in_same_order([finder.first_uses for finder in finders])
    found: list[tuple[TraceCut, ...]] = []
    before = tuple(TraceCut(0, program.inputs) for program in programs)
    for last, use in pairwise(uses):
        places = [finder.best_cut(last, use, cut) for finder, cut in zip(finders, before, strict=True)]
        cuts = tuple(place for place in places if place is not None)
        if len(cuts) == len(programs):
            found.append(cuts)
            before = cuts
    while (torn := _first_torn(programs, found)) is not None:
        del found[torn]
    return tuple(
        replace(
            program,
            starts=(0, *(cuts[number].position for cuts in found)),
            crossing=tuple(cuts[number].crossing for cuts in found),
        )
        for number, program in enumerate(programs)
    )


class _CutFinder:
    def __init__(self, program: TracedProgram) -> None:
        self._program = program
        self._crossing_values = MinimalCrossing(program)
        self.first_uses = _first_uses(program)
        self._forbidden = _changed_on_both_sides(program) | _aliased_writes(program)

    def best_cut(self, last: _Use, use: _Use, before: TraceCut) -> TraceCut | None:
        """The narrowest place between the operations that begin these two uses; None where no cut is allowed."""
        span = range(self.first_uses[last] + 1, self.first_uses[use] + 1)
        cuts = [self._cut(position, before) for position in span if position not in self._forbidden]
        return min((cut for cut in cuts if cut is not None), key=self._preference, default=None)

    def _cut(self, position: int, before: TraceCut) -> TraceCut | None:
        nodes = self._crossing_values.nodes_crossing(position, before)
        if nodes is None or not 0 < len(nodes) <= MAX_CROSSING:
            return None
        values = [value_of(node) for node in nodes]
        has_count = any(value is not None and value.batch_dimension is not None for value in values)
        return TraceCut(position, nodes) if has_count and None not in values else None

    def _preference(self, cut: TraceCut) -> tuple[int, bool, int]:
        """Narrow before wide, between modules before inside one, late before early."""
        operations = self._program.operations
        width = sum(value.num_bytes(1) for node in cut.crossing if (value := value_of(node)) is not None)
        is_inside = module_path(operations[cut.position - 1]) == module_path(operations[cut.position])
        return width, is_inside, -cut.position


def _first_uses(program: TracedProgram) -> dict[_Use, int]:
    """Positions of the operations that use a parameter for the first time in their module, one use for each."""
    seen: set[_Use] = set()
    uses: dict[_Use, int] = {}
    for position, operation in enumerate(program.operations):
        names = [program.state_names.get(node, "") for node in operation.all_input_nodes]
        own = [(name, module_path(operation)) for name in names if name in program.parameter_names]
        if new := [use for use in own if use not in seen]:
            uses[new[0]] = position
        seen.update(own)
    return uses


def _in_same_order(each: list[dict[_Use, int]]) -> list[_Use]:
    """The uses that all programs have, without those that come in another order in some of them."""
    common: list[_Use] = []
    for use in each[0]:
        in_all = all(use in uses for uses in each)
        if in_all and all(not common or uses[common[-1]] < uses[use] for uses in each):
            common.append(use)
    return common


def _changed_on_both_sides(program: TracedProgram) -> set[int]:
    """Cuts between two uses of one buffer that the forward changes."""
    uses: dict[str, list[int]] = {}
    for position, operation in enumerate(program.operations):
        for node in operation.all_input_nodes:
            if (name := program.state_names.get(node)) in program.written_buffers:
                uses.setdefault(str(name), []).append(position)
    return {cut for used in uses.values() for cut in range(used[0] + 1, used[-1] + 1)}


def _aliased_writes(program: TracedProgram) -> set[int]:
    """Cuts across which one memory is known under a name that a later operation does not write through.

    A stage that writes to a value from before its cut gets a copy of it; other names of the same memory would not see
    the write.
    """
    roots = program.roots
    writes: dict[fx.Node, list[tuple[int, fx.Node]]] = {}
    for position, operation in enumerate(program.operations):
        for written in written_arguments(operation):
            writes.setdefault(roots.get(written, written), []).append((position, written))
    forbidden: set[int] = set()
    for cut in range(1, len(program.operations)):
        names: dict[fx.Node, list[fx.Node]] = {}
        for node in program.live[cut]:
            names.setdefault(roots.get(node, node), []).append(node)
        for root, crossing in names.items():
            if any(position >= cut and crossing != [written] for position, written in writes.get(root, ())):
                forbidden.add(cut)
    return forbidden


def _first_torn(programs: tuple[TracedProgram, ...], found: list[tuple[TraceCut, ...]]) -> int | None:
    """Index of a cut that lies, in one of the modes, between uses of a buffer that another mode changes."""
    changed = frozenset[str]().union(*(program.written_buffers for program in programs))
    layers: dict[str, set[int]] = {}
    for number, program in enumerate(programs):
        starts = [0, *(cuts[number].position for cuts in found), len(program.operations)]
        for layer, (start, end) in enumerate(pairwise(starts)):
            for operation in program.operations[start:end]:
                for node in operation.all_input_nodes:
                    if (name := program.state_names.get(node)) in changed:
                        layers.setdefault(str(name), set()).add(layer)
    return next((min(used) for used in layers.values() if len(used) > 1), None)
