"""Members on other machines, over the user's own ssh."""

from zooid.platforms.ssh.ssh_machines import SshMachine, SshPlatform

__all__ = ["SshMachine", "SshPlatform"]
