"""The samples that a member reads, and the processes that read them ahead."""
