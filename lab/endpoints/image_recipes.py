"""Images of the laboratory, made from the recipes that users get: sandboxes have Python and the packages already."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from lab.sandboxes.sandbox import PYTHON


@dataclass(frozen=True)
class Recipe:
    """What a Dockerfile says about the image, beside its packages."""

    folder: str
    """The working folder."""
    command: tuple[str, ...]
    """What a container starts with: the entry point with its arguments."""
    copied: tuple[str, ...]
    """Files that are copied into the working folder."""

    @classmethod
    def read(cls, dockerfile: Path) -> "Recipe":
        lines = dockerfile.read_text().splitlines()
        said = {line.partition(" ")[0]: line.partition(" ")[2] for line in lines}
        copies = [line.split()[1:] for line in lines if line.startswith("COPY ")]
        assert all(target == f"{said['WORKDIR']}/{source}" for source, target in copies)
        command = [*json.loads(said.get("ENTRYPOINT", "[]")), *json.loads(said["CMD"])]
        own = tuple(PYTHON if word == "python3" else word for word in command)
        return cls(said["WORKDIR"], own, tuple(source for source, _ in copies))

    def build(self, context: Path, target: Path) -> None:
        """Make the working folder of the image from the files of a folder."""
        target.mkdir()
        for name in self.copied:
            shutil.copy(context / name, target)
