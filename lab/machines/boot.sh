# The first process of a machine, in namespaces of its own: builds the file system, sets up the network, becomes init.
#
# Everything that a machine writes is in its root, a tmpfs, and ends with it.
# Talks to keeper.py: prints its process id, waits for a line that says that the network device is there, and reports.
set -eu
read -r pid _ < /proc/self/stat # /proc is still that of the calling process, so this is the process id there
echo "$pid"

. "${0%/*}/root.sh"

echo "$NAME" > etc/hostname
echo "$HOSTS" > etc/hosts

mount -o bind,ro /dev dev
mount -t tmpfs -o mode=1777 shm dev/shm
mount -t devpts -o newinstance,ptmxmode=666,mode=620 pts dev/pts
mount --bind dev/pts/ptmx dev/ptmx
mount -t proc proc proc
mount -t sysfs sys sys
if [ "$(stat -f -c %T /sys/fs/cgroup)" = tmpfs ]; then
  mount -t tmpfs -o mode=755 cgroup sys/fs/cgroup
  find /sys/fs/cgroup -maxdepth 1 -type l -exec cp -P {} sys/fs/cgroup ';'
fi
echo "$CGROUPS" | while read -r type options folder; do # in a cgroup namespace: the machine's own cgroup is the root
  mkdir -p ".$folder"
  mount -t "$type" -o "$options" cgroup ".$folder"
done

mkdir .outside
pivot_root . .outside
cd /
umount -l .outside
rmdir .outside
echo "$NAME" > /proc/sys/kernel/hostname

read -r _ # now the device is there
ip link set lo up
ip address add "$ADDRESS/24" dev eth0
ip link set eth0 up
echo up

trap '' CHLD # inherited by what follows: the kernel then reaps orphans itself
exec env -i sleep infinity < /dev/null > /dev/null 2>&1
