"""Finds the points at which a model can be cut.

A cut between two operations is allowed if only a few tensors cross it, no buffer that the forward writes to is used on
both sides, and nothing that crosses is written to through an alias. A layer lies between two neighbouring cuts. Each
layer begins with the first use of a parameter in its module, since other cuts would be of no use. A parameter that two
modules use (tied weights) may be used in two layers.
"""

from dataclasses import replace
from itertools import pairwise

from torch import fx

from zooid.layers.tracing.recomputation import MinimalCrossing, TraceCut
from zooid.layers.tracing.traced_program import TracedProgram, module_path, written_arguments
from zooid.layers.tracing.values import value_of

MAX_CROSSING = 12
"""A cut that more values cross is useless in practice, and is not considered."""

_Use = tuple[str, str]
"""A parameter, and the path of a module that uses it."""


def cut_alike(programs: tuple[TracedProgram, ...]) -> tuple[TracedProgram, ...]:
    """Cut the traces of one model in different modes into layers that use the same parameters."""
    finders = [_CutFinder(program) for program in programs]
    uses = _in_same_order([finder.first_uses for finder in finders])
    common_cuts: list[tuple[TraceCut, ...]] = []
    before = tuple(TraceCut(0, program.inputs) for program in programs)
    for previous_use, use in pairwise(uses):
        candidates = [finder.best_cut(previous_use, use, cut) for finder, cut in zip(finders, before, strict=True)]
        cuts = tuple(cut for cut in candidates if cut is not None)
        if len(cuts) == len(programs):
            common_cuts.append(cuts)
            before = cuts
    while (index := _first_between_uses(programs, common_cuts)) is not None:
        del common_cuts[index]
    return tuple(
        replace(
            program,
            starts=(0, *(cuts[number].position for cuts in common_cuts)),
            crossing=tuple(cuts[number].crossing for cuts in common_cuts),
        )
        for number, program in enumerate(programs)
    )


class _CutFinder:
    def __init__(self, program: TracedProgram) -> None:
        self._program = program
        self._crossing_values = MinimalCrossing(program)
        self.first_uses = _first_uses(program)
        self._forbidden = _changed_on_both_sides(program) | _aliased_writes(program)

    def best_cut(self, previous_use: _Use, use: _Use, before: TraceCut) -> TraceCut | None:
        """Return the narrowest cut between the operations that begin these two uses; None where none is allowed."""
        span = range(self.first_uses[previous_use] + 1, self.first_uses[use] + 1)
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
        """Prefer narrow cuts, then cuts between modules, then late ones."""
        operations = self._program.operations
        width = sum(value.num_bytes(1) for node in cut.crossing if (value := value_of(node)) is not None)
        is_inside = module_path(operations[cut.position - 1]) == module_path(operations[cut.position])
        return width, is_inside, -cut.position


def _first_uses(program: TracedProgram) -> dict[_Use, int]:
    """Return the positions of the operations that use a parameter for the first time in their module."""
    seen: set[_Use] = set()
    uses: dict[_Use, int] = {}
    for position, operation in enumerate(program.operations):
        names = [program.state_names.get(node, "") for node in operation.all_input_nodes]
        operation_uses = [(name, module_path(operation)) for name in names if name in program.parameter_names]
        if new_uses := [use for use in operation_uses if use not in seen]:
            uses[new_uses[0]] = position
        seen.update(operation_uses)
    return uses


def _in_same_order(program_uses: list[dict[_Use, int]]) -> list[_Use]:
    """Return the uses that all programs have, without those whose order differs."""
    common: list[_Use] = []
    for use in program_uses[0]:
        in_all = all(use in uses for uses in program_uses)
        if in_all and all(not common or uses[common[-1]] < uses[use] for uses in program_uses):
            common.append(use)
    return common


def _changed_on_both_sides(program: TracedProgram) -> set[int]:
    """Return the cuts between two uses of one buffer that the forward writes to."""
    uses: dict[str, list[int]] = {}
    for position, operation in enumerate(program.operations):
        for node in operation.all_input_nodes:
            if (name := program.state_names.get(node)) in program.written_buffers:
                uses.setdefault(str(name), []).append(position)
    return {cut for used in uses.values() for cut in range(used[0] + 1, used[-1] + 1)}


def _aliased_writes(program: TracedProgram) -> set[int]:
    """Return the cuts that an alias of a later written value crosses.

    A stage copies a value from before its cut before writing to it, so that its aliases would not see the write.
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


def _first_between_uses(programs: tuple[TracedProgram, ...], common_cuts: list[tuple[TraceCut, ...]]) -> int | None:
    """Return the index of a cut that lies, in some mode, between uses of a buffer that another mode writes to."""
    changed = frozenset[str]().union(*(program.written_buffers for program in programs))
    layers: dict[str, set[int]] = {}
    for number, program in enumerate(programs):
        starts = [0, *(cuts[number].position for cuts in common_cuts), len(program.operations)]
        for layer, (start, end) in enumerate(pairwise(starts)):
            for operation in program.operations[start:end]:
                for node in operation.all_input_nodes:
                    if (name := program.state_names.get(node)) in changed:
                        layers.setdefault(str(name), set()).add(layer)
    return next((min(used) for used in layers.values() if len(used) > 1), None)
