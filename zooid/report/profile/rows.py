"""What tables and pages say about a profile, in the same words."""

from zooid.core.plans.profile import Copies, DeviceKind, Profile
from zooid.core.resources.link import Link
from zooid.core.units import format_bytes, format_bytes_per_s, format_duration

ESTIMATE = "ESTIMATE"
NOTHING = "–"


def marked(profile: Profile, title: str) -> str:
    """A title, which says so where the times were not measured."""
    return f"{ESTIMATE}: {title}" if profile.is_estimate else title


def device_in_words(device: DeviceKind) -> str:
    if device.kind == "cuda":
        return device.name
    threads, cores = count_in_words(device.num_threads, "thread"), count_in_words(device.num_cores, "core")
    return f"{device.name}, {threads} of {cores}"


def origin_in_words(profile: Profile) -> str:
    """Where the times come from, and of when they are."""
    device = device_in_words(profile.device)
    if profile.is_estimate:
        return f"estimated for {device} from {profile.estimated_from}, {profile.date}"
    return f"measured on {device}, {profile.date}"


def link_in_words(link: Link) -> str:
    return (
        f"{link.from_site} → {link.to_site} {format_bytes_per_s(link.bandwidth_bytes_per_s)}, "
        f"{format_duration(link.rtt_s)} a request"
    )


def copies_in_words(copies: Copies) -> tuple[str, str]:
    """To the device, and back."""
    return (
        f"{format_bytes_per_s(copies.to_device_bytes_per_s)} to the device",
        f"{format_bytes_per_s(copies.to_host_bytes_per_s)} to the host",
    )


def exact_bytes(num_bytes: float) -> str:
    """As people write it, and to the byte where that says more."""
    short = format_bytes(num_bytes)
    return short if num_bytes < 1000 else f"{short} ({round(num_bytes):,} B)"


def layers_in_words(numbers: tuple[int, ...]) -> str:
    *first, last = [str(number) for number in numbers]
    return f"layers {', '.join(first)} and {last}" if first else f"layer {last}"


def count_in_words(number: float, noun: str) -> str:
    return f"{number:g} {noun}" + ("" if number == 1 else "s")


def percent(part: float) -> str:
    return f"{part * 100:.2g} %"
