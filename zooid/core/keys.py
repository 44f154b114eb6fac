"""Where everything of a run lies in its folder of the object store. Nobody else spells a key."""

PLAN = "plan.json"
PROFILE = "profile.json"
LINKS = "links.json"
CLAIM = "run.json"
EVENTS = "events"
COMM = "comm"
LOBBY = f"{COMM}/lobby"
PROBES = "probe"
CHECKPOINTS = "checkpoints"


def spec(member: str) -> str:
    return f"specs/{member}.json"


def failure(member: str) -> str:
    return f"failures/{member}.json"


def roster(number: int) -> str:
    return f"rosters/{number:06d}.json"


def events_of(writer: str) -> str:
    return f"{EVENTS}/{writer}"


def comm_of(run: str, roster_number: int) -> str:
    """Prefix of everything members exchange under one roster; groups add their own names."""
    return f"{COMM}/{run}/{roster_number:06d}"


def session(name: str) -> str:
    """Prefix of everything that the ranks of a process group exchange which met in the lobby."""
    return f"{COMM}/session-{name}"


def lobby(session_name: str, what: str = "") -> str:
    """Where a session is called out, answered and begun."""
    return f"{LOBBY}/{session_name}/{what}" if what else f"{LOBBY}/{session_name}"


def probes_of(run: str) -> str:
    """Prefix of everything that members exchange while they measure links together."""
    return f"{PROBES}/{run}"


def timeline(step: int, member: str) -> str:
    return f"timelines/{step:08d}/{member}.json"


def checkpoint(step: int) -> str:
    return f"{CHECKPOINTS}/{step:08d}"


def checkpoint_manifest(step: int) -> str:
    return f"{checkpoint(step)}/manifest.json"


def split_spec_url(url: str) -> tuple[str, str]:
    """The run's store URL and the key of the spec, from the spec's own URL."""
    store_url, separator, name = url.rpartition("/specs/")
    if not separator:
        raise ValueError(f"{url!r} is not the URL of a spec: it must contain /specs/")
    return store_url, f"specs/{name}"
