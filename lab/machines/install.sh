#!/bin/sh
# Installs the programs that run on the laboratory's machines, where one is missing: on Debian and its kin, as root.
# Elsewhere it says what is missing; the tests that need it are skipped then, and say so, too.
# Services are not started: the laboratory starts its own daemons, on its own machines.
set -eu
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
SERVICE_POLICY=/usr/sbin/policy-rc.d

missing=
packages=
while read -r program package; do
  if ! command -v "$program" > /dev/null; then
    missing="$missing $program"
    packages="$packages $package"
  fi
done << LIST
ip iproute2
ssh openssh-client
ssh-keygen openssh-client
sshd openssh-server
munged munge
slurmctld slurmctld
slurmd slurmd
sbatch slurm-client
LIST
[ -n "$missing" ] || exit 0

skip() {
  echo "The laboratory's machines lack$missing: $1. Tests that need them are skipped."
  exit 0
}

command -v apt-get > /dev/null || skip "install them by hand"
[ "$(id -u)" = 0 ] || skip "install$packages, or run 'make laboratory' as root"
unshare --net --mount true 2> /dev/null || skip "this container may not make namespaces, so they would be of no use"

if [ ! -e "$SERVICE_POLICY" ]; then
  trap 'rm -f "$SERVICE_POLICY"' EXIT
  printf '#!/bin/sh\nexit 101\n' > "$SERVICE_POLICY"
  chmod 755 "$SERVICE_POLICY"
fi
echo "Installing$packages for the laboratory's machines"
install() {
  # shellcheck disable=SC2086 # several packages
  DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends -o DPkg::Lock::Timeout=300 \
    install $packages > /dev/null
}
install 2> /dev/null || { apt-get -qq -o DPkg::Lock::Timeout=300 update && install; } || skip "apt-get failed"
