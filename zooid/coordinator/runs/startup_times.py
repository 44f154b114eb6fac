"""How long processes take from their start until they can train, learned while a run goes on."""

from dataclasses import dataclass, field


@dataclass
class StartUpTimes:
    """The start-ups of a run so far. Processes of one start are ready together, when the last of them is."""

    first_s: float = 0.0
    """Start-up of the first members. They wait for initial weights, too, so it counts only until others have joined."""
    _longest_s: dict[int, float] = field(default_factory=dict)
    """The longest start-up of so many processes at once."""

    def note(self, num_processes: int, seconds: float) -> None:
        self._longest_s[num_processes] = max(seconds, self._longest_s.get(num_processes, 0.0))

    @property
    def longest_s(self) -> float:
        """The longest start-up so far; 0 if there was none."""
        return max(self._longest_s.values(), default=0.0)

    def expected_s(self, num_processes: int) -> float:
        """How long the start-up of so many processes will take.

        Processes that share a machine slow each other down. So start-ups of different sizes give a line that never
        falls, by least squares, and no start-up is expected to be shorter than a smaller one was.

        >>> times = StartUpTimes()
        >>> times.note(1, 3.0)
        >>> times.expected_s(4)
        3.0
        >>> times.note(2, 4.0)
        >>> times.expected_s(4)
        6.0
        """
        known = sorted(self._longest_s.items())
        if not known:
            return self.first_s
        mean_num = sum(num for num, _ in known) / len(known)
        mean_s = sum(seconds for _, seconds in known) / len(known)
        spread = sum((num - mean_num) ** 2 for num, _ in known)
        covariance = sum((num - mean_num) * (seconds - mean_s) for num, seconds in known)
        slope = max(0.0, covariance / spread) if spread else 0.0
        smaller_s = [seconds for num, seconds in known if num <= num_processes]
        return max(mean_s + slope * (num_processes - mean_num), max(smaller_s, default=0.0))
