"""The program that every platform starts for a member.

It claims the member's start, starts the member's own program, passes notices on, keeps the end of its output in the
store, and records there how it ended. It never imports torch.
"""
