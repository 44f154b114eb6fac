"""Members on other machines, over the user's own ssh."""

from zooid.platforms.ssh.agent_link import SshMachine, SshPool
from zooid.platforms.ssh.ssh_machines import SshPlatform

__all__ = ["SshMachine", "SshPlatform", "SshPool"]
