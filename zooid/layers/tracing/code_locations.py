"""Where code runs: the modules of a model and the lines that stack frames and errors lead to."""

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType

from torch import nn

_OWN_CODE = ("torch.", "zooid.")


class ModulePaths:
    """The path of each module of a model. Tracers wrap modules in proxies, which share the modules' attributes."""

    def __init__(self, model: nn.Module) -> None:
        self._paths = {id(vars(module)): path for path, module in model.named_modules()}

    def of(self, candidate: object) -> str | None:
        return self._paths.get(id(vars(candidate))) if isinstance(candidate, nn.Module) else None

    def innermost(self, frame: FrameType | None) -> str | None:
        """Return the path of the module whose method runs innermost in a stack of frames."""
        while frame is not None:
            path = self.of(frame.f_locals.get("self"))
            if path is not None:
                return path
            frame = frame.f_back
        return None

    def innermost_of_error(self, error: BaseException) -> str | None:
        """Return the path of the module in whose code an error or its cause was raised."""
        innermost: str | None = None
        for cause in causes_of(error):
            for frame, _ in traceback.walk_tb(cause.__traceback__):
                path = self.of(frame.f_locals.get("self"))
                innermost = path if path is not None else innermost
        return innermost


@dataclass(frozen=True)
class CodeLocation:
    """A line of the model's code."""

    code: CodeType
    line: int

    @staticmethod
    def of(frame: FrameType | None) -> "CodeLocation | None":
        """Return the innermost location in a stack of frames that is not in torch."""
        while frame is not None and frame.f_globals.get("__name__", "").startswith("torch."):
            frame = frame.f_back
        return None if frame is None else CodeLocation(frame.f_code, frame.f_lineno)

    def is_raised_by(self, error: BaseException) -> bool:
        """Whether an error or its cause was raised by the function that contains this location."""
        stacks = [[frame.f_code for frame, _ in traceback.walk_tb(cause.__traceback__)] for cause in causes_of(error)]
        return any(codes[-1] is self.code for codes in stacks if codes)


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors that caused it, from the last to the first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def describe_location(error: BaseException) -> str:
    """Describe the innermost line of an error that is neither in torch nor in zooid; empty where there is none."""
    description = ""
    for cause in causes_of(error):
        for frame, line in traceback.walk_tb(cause.__traceback__):
            if not f"{frame.f_globals.get('__name__', '')}.".startswith(_OWN_CODE):
                description = f" ({Path(frame.f_code.co_filename).name}, line {line}, in {frame.f_code.co_name})"
    return description
