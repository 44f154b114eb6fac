"""What a run should do about its limits, as pure rules without I/O or a clock."""
